"""How long `flgraph` takes to say something: help, a mistake, and everything before the first round of CHEM.

Each line is the least processor time of some processes, which other work on the machine changes little; `torch` is what
importing torch and Lightning takes alone, for comparison.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from flgraph.federation import FederatedCallback
from flgraph.federation.callback import Run

CHEM = ("fit", "-c", "configs/data/chem.yaml", "-c", "configs/method/fedstar.yaml")
COMMANDS = {
    "flgraph --help": ("--help",),
    "flgraph fit --help": ("fit", "--help"),
    "flgraph report --help": ("report", "--help"),
    "a mistyped option": (*CHEM, "--trainer.roundz", "3"),
    "a mistyped class": (*CHEM, "--trainer.aggregator", "FedAgv"),
}


class EndAtOnce(FederatedCallback):
    """Ends the process where the first round would begin."""

    def on_round_start(self, trainer: Run) -> None:
        """Called before the first round."""
        os._exit(0)


def seconds(command: Sequence[str], times: int) -> float:
    """Least processor time of a process and its children."""
    found = []
    for _ in range(times):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, capture_output=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=3, help="processes per line")
    times = parser.parse_args().times
    python = sys.executable
    alone = seconds([python, "-c", "import torch, pytorch_lightning, torch_geometric"], times)
    print(f"{'import of torch, Lightning, PyG':34} {alone:6.2f} s")
    for name, words in COMMANDS.items():
        print(f"{name:34} {seconds([python, '-m', 'flgraph', *words], times):6.2f} s")
    with tempfile.TemporaryDirectory() as folder:
        stopped = ("--trainer.callbacks+", "benchmarks.startup.EndAtOnce", "--trainer.default_root_dir", folder)
        began = seconds([python, "-m", "flgraph", *CHEM, *stopped], times)
    print(f"{'CHEM, up to the first round':34} {began:6.2f} s")


if __name__ == "__main__":
    main()
