"""Trains six small domains alone and together, and puts the results side by side.

The two commands that it runs are printed first; they do the same in a shell. Run it with ``make demo``, or::

    python examples/quickstart.py [FOLDER] [--rounds N]

FOLDER (``runs``) is where the runs go: ``local-synthetic/version_0``, ``fedstar-synthetic/version_0``, ...
"""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from flgraph.cli.main import main

ALONE = ["fit", "-c", "configs/quickstart.yaml", "--trainer.aggregator", "flgraph.callbacks.Local"]
TOGETHER = ["fit", "-c", "configs/quickstart.yaml"]


def fit(command: list[str], name: str, runs: Path, rounds: int | None, console: Console) -> dict[str, Any]:
    """Runs a command line and returns the contents of its results.json."""
    if runs != Path("runs"):
        command = [*command, "--trainer.default_root_dir", str(runs)]
    if rounds is not None:
        command = [*command, "--trainer.rounds", str(rounds)]
    console.print(f"\n$ flgraph {shlex.join(command)}", style="bold", soft_wrap=True)
    main(command)
    newest = max((runs / name).glob("version_*"), key=lambda run: int(run.name.removeprefix("version_")))
    results: dict[str, Any] = json.loads((newest / "results.json").read_text())
    return results


def comparison(alone: dict[str, Any], together: dict[str, Any]) -> Table:
    """Test accuracies after the last round, per client and on average."""
    table = Table(title=f"Test accuracy after round {together['final']['round']}")
    for column in ("client", "Local", "FedStar", "difference"):
        table.add_column(column, justify="left" if column == "client" else "right")
    rows = [(name, alone["final"]["clients"][name], metrics) for name, metrics in together["final"]["clients"].items()]
    for name, *pair in [*rows, ("mean", alone["final"]["mean"], together["final"]["mean"])]:
        if name == "mean":
            table.add_section()
        local, fedstar = (metrics["test/accuracy"] for metrics in pair)
        table.add_row(name, f"{local:.3f}", f"{fedstar:.3f}", f"{fedstar - local:+.3f}")
    return table


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path("runs"), help="where the runs go")
    parser.add_argument("--rounds", type=int, help="rounds of each run; the configuration's when not given")
    args = parser.parse_args()

    # Graphs this small gain nothing from a second thread, and lose much by it where other programs keep the cores busy.
    torch.set_num_threads(1)
    console = Console()
    console.print("Six clients, each with graphs and features of its own kind. First every client trains alone:")
    alone = fit(ALONE, "local-synthetic", args.folder, args.rounds, console)
    console.print("\nNow the same with FedStar, which shares the structure encoder and nothing else:")
    together = fit(TOGETHER, "fedstar-synthetic", args.folder, args.rounds, console)
    console.print()
    console.print(comparison(alone, together))
    console.print(f"Curves of both runs: tensorboard --logdir {shlex.quote(str(args.folder))}", soft_wrap=True)
