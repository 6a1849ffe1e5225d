"""Methods whose runs must be the same bits wherever the clients run; a further one is added by its file's name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import federations
import yaml

from flgraph.cli import main

CONFIGS = Path(__file__).parents[2] / "configs" / "method"

METHODS = ["fedavg", "fedstar", "fedego", "fedhgn", "gcflplus_chem", "graphfl", "fedgcn", "fclg"]

ROUNDS = 4
CUT = 2
"""The round after which runs are continued with another engine; clients move after it, too."""

SMALL = {"hidden_channels": 4, "num_layers": 2, "num_bases": 3}


def arguments(method: str, folder: Path, rounds: int, *further: str) -> list[str]:
    """The command line of a run of ``method`` in ``folder``."""
    config = CONFIGS / f"{method}.yaml"
    model = yaml.safe_load(config.read_text())["model"]
    kind = federations.KINDS.get(model["class_path"].rpartition(".")[2], federations.Graphs)
    return [
        *("fit", "-c", str(config), f"--data=federations.{kind.__name__}"),
        *(f"--model.{name}={value}" for name, value in _sizes(model["class_path"]).items()),
        *("--trainer.local_epochs", "2", "--trainer.client_fraction", "0.8", "--trainer.rounds", str(rounds)),
        *("--trainer.default_root_dir", str(folder), "--trainer.name", method, "--trainer.logger", "false"),
        *("--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false", *further),
    ]


def run(method: str, folder: Path, rounds: int, *further: str) -> None:
    """Runs it in this process."""
    main(arguments(method, folder, rounds, *further))


def _sizes(model: str) -> dict[str, Any]:
    import inspect
    from importlib import import_module

    module, _, name = model.rpartition(".")
    known = inspect.signature(getattr(import_module(module), name)).parameters
    return {key: value for key, value in SMALL.items() if key in known}
