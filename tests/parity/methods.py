"""Methods whose runs must be the same bits wherever the clients run; a further one is added by its file's name."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import federations
import yaml

from flgraph.cli.main import main

CONFIGS = Path(__file__).parents[2] / "configs" / "method"

METHODS = [
    *("fedavg", "fedstar", "fedego", "fedhgn", "gcflplus_chem", "graphfl", "fedgcn", "fedsageplus", "fclg"),
    *("fedstar@bf16-mixed", "fedego@bf16-mixed", "fedhgn@bf16-true"),
]
"""Files of methods, some with ``@PRECISION``."""

ROUNDS = 4
CUT = 2
"""The round after which runs are continued with another engine; clients move after it, too."""

SMALL = {"hidden_channels": 4, "num_layers": 2, "num_bases": 3}


def arguments(method: str, folder: Path, rounds: int, *further: str) -> list[str]:
    """The command line of a run of ``method`` in ``folder``."""
    where = ("--trainer.default_root_dir", str(folder), "--trainer.name", method, "--trainer.logger", "false")
    data = f"--data=federations.{kind(method).__name__}"  # last: files of some methods name data, too
    return ["fit", *settings(method, rounds), data, *where, *further]


def settings(method: str, rounds: int) -> list[str]:
    """What is run, wherever."""
    name, _, precision = method.partition("@")
    return [
        *("-c", str(CONFIGS / f"{name}.yaml"), f"--trainer.precision={precision or '32-true'}"),
        *(f"--model.{name}={value}" for name, value in _sizes(_model(name)).items()),
        *("--trainer.local_epochs", "2", "--trainer.client_fraction", "0.8", "--trainer.rounds", str(rounds)),
        *("--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"),
    ]


def kind(method: str) -> type:
    """The data that a method takes."""
    return federations.KINDS.get(_model(method.partition("@")[0]).rpartition(".")[2], federations.Graphs)


def run(method: str, folder: Path, rounds: int, *further: str) -> None:
    """Runs it in this process."""
    main(arguments(method, folder, rounds, *further))


def takes(method: str, name: str) -> bool:
    """Whether the method's model has an argument of that name."""
    return name in _arguments(_model(method))


def _model(method: str) -> str:
    return str(yaml.safe_load((CONFIGS / f"{method}.yaml").read_text())["model"]["class_path"])


def _sizes(model: str) -> dict[str, Any]:
    known = _arguments(model)
    return {key: value for key, value in SMALL.items() if key in known}


def _arguments(model: str) -> Mapping[str, Any]:
    module, _, name = model.rpartition(".")
    return dict(getattr(import_module(module), name)().hparams)
