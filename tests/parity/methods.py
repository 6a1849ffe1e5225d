"""Methods whose runs must be the same bits wherever the clients run; a further one is added by its file's name."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import federations
import yaml

from flgraph.cli import fit
from flgraph.federation import loop
from flgraph.federation.callback import defaults

CONFIGS = Path(__file__).parents[2] / "configs" / "method"

METHODS = [
    *("fedstar", "fedego", "fedhgn", "fedsageplus", "fclg", "scaffold", "graphfl"),
    *("fedstar@bf16-mixed", "fedego@bf16-mixed", "fedhgn@bf16-true"),
    *("fedavg@32-true+transforms", "fedstar@32-true+secure"),
]
"""Files of methods, some with ``@PRECISION``, one with :data:`TRANSFORMS` and one with secure sums.

One of each kind of data and of exchange: an engine carries bytes and states, and does not know whose.
``tests/callbacks/test_all_algorithms.py`` has the clients of every algorithm made anew from their states.
"""

TRANSFORMS = (
    "[{class_path: Clip, init_args: {norm: 0.5}}, {class_path: TopK, init_args: {share: 0.5}}, {class_path: Quantise}]"
)

CONTINUED = ("fedstar", "fedego", "fedhgn", "fedsageplus", "fedego@bf16-mixed", "fedavg@32-true+transforms")
"""Those of them that are continued with another engine; of all the checkpoints are compared, from which they could."""

ROUNDS = 3
CUT = 2
"""The round after which runs are continued with another engine; clients move after it, too."""

KEEP = ("--trainer.keep_checkpoints", str(ROUNDS))

SMALL = {
    "model": {"hidden_channels": 4, "num_layers": 2, "num_bases": 3},
    "trainer.aggregator": {"pretrain_epochs": 2, "generator_rounds": 2, "federated_rounds": 1},
}
"""Arguments of models and algorithms that have them."""


def arguments(method: str, folder: Path, rounds: int, *further: str) -> list[str]:
    """The command line of a run of ``method`` in ``folder``."""
    where = ("--trainer.default_root_dir", str(folder), "--trainer.name", method, "--trainer.logger", "false")
    data = f"--data=federations.{kind(method).__name__}"  # last: files of some methods name data, too
    return [*settings(method, rounds), data, *where, *further]


def settings(method: str, rounds: int) -> list[str]:
    """What is run, wherever."""
    name, _, precision = method.partition("@")
    precision, _, more = precision.partition("+")
    options = {"transforms": f"--trainer.transforms={TRANSFORMS}", "secure": "--trainer.secure_sums={threshold: 0.6}"}
    return [
        *([options[more]] if more else []),
        *("-c", str(CONFIGS / f"{name}.yaml"), f"--trainer.precision={precision or '32-true'}"),
        *_sizes(name),
        *("--trainer.local_epochs", "2", "--trainer.client_fraction", "0.8", "--trainer.rounds", str(rounds)),
        *("--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"),
    ]


def skip_collections() -> None:
    """Runs of this process begin without a collection of garbage, which takes longer than most of them."""
    loop.gc = SimpleNamespace(collect=lambda: 0, freeze=gc.freeze, unfreeze=gc.unfreeze)  # type: ignore[assignment]


def kind(method: str) -> type:
    """The data that a method takes."""
    return federations.KINDS.get(_class(method.partition("@")[0], "model").rpartition(".")[2], federations.Graphs)


def cut(runs: Path) -> str:
    """The checkpoint from which a run is continued with another engine; ``runs`` is its folder with versions."""
    return str(runs / "version_0" / "checkpoints" / f"round-{CUT:05d}")


def run(method: str, folder: Path, rounds: int, *further: str, ckpt_path: str | None = None) -> None:
    """Runs it in this process, as ``flgraph fit`` does."""
    continued = [] if ckpt_path is None else ["--ckpt_path", ckpt_path]
    fit.main(["fit", *arguments(method, folder, rounds, *further), *continued])


def takes(method: str, name: str) -> bool:
    """Whether the method's model has an argument of that name."""
    return name in _arguments(_class(method, "model"))


def _sizes(method: str) -> list[str]:
    found = []
    for field, sizes in SMALL.items():
        arguments = _arguments(_class(method, field))
        found += [f"--{field}.{name}={value}" for name, value in sizes.items() if name in arguments]
    return found


def _class(method: str, field: str) -> str:
    content = yaml.safe_load((CONFIGS / f"{method}.yaml").read_text())
    for part in field.split("."):
        content = content[part]
    return str(content["class_path"])


def _arguments(kind: str) -> Mapping[str, Any]:
    """Arguments that a class takes, with those that it hands on to its base classes."""
    module, _, name = kind.rpartition(".")
    return defaults(getattr(import_module(module), name))
