"""A miniature study, and results written by hand."""

from __future__ import annotations

import contextlib
import json
import math
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from flgraph.reproduce import Study, runner

TINY = (
    "--data=flgraph.data.SyntheticFederation --data.domains=[trees,rings] --data.num_graphs=30 "
    "--trainer.enable_progress_bar=false --trainer.logger=false"
)
METHODS = {
    "Local": "--model=GNN --model.hidden_channels=4 --trainer.aggregator=Local",
    "FedStar": "--model=FedStar --model.hidden_channels=4 --trainer.aggregator=FedStar",
}


def _tiny_study(rounds: int = 3) -> Study:
    paper = {"TINY": {"Local": [50.0, 60.0]}}
    return Study("tiny/table", "A tiny study", "accuracy", rounds, [1, 2], {"TINY": TINY}, METHODS, paper)


def _write_results(folder: Path, final: float, best: float, tests: list[float], **further: object) -> None:
    folder.mkdir(parents=True)
    mean = {"clients": {}, "mean": {"test/accuracy": final}}
    best_val = {"clients": {}, "mean": {"test/accuracy": best, "val/accuracy": 0.5}}
    fields = {"rounds": len(tests), "seconds_per_round": 0.5, "versions": {"torch": "2"}, "seed": 1, **further}
    (folder / "results.json").write_text(json.dumps({"final": mean, "best_val": best_val, **fields}))
    lines = [json.dumps({"round": n, "mean": {"test/accuracy": value}}) for n, value in enumerate(tests, start=1)]
    (folder / "history.jsonl").write_text("\n".join(lines) + "\n")


@pytest.fixture
def tiny_study() -> Callable[..., Study]:
    """Makes a study of two methods with two seeds that takes seconds."""
    return _tiny_study


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of studies are calls in this process, which begins in a fraction of a second."""

    one_by_one = threading.Lock()

    def call(lock: str, args: list[str], log: Path, stopped: threading.Event, deadline: float = math.inf) -> int:
        with (
            one_by_one,
            open(log, "a") as stream,
            contextlib.redirect_stdout(stream),
            contextlib.redirect_stderr(stream),
        ):
            try:
                runner.run_locked(lock, *args)
            except SystemExit as end:
                return int(end.code or 0)
        return 0

    monkeypatch.setattr(runner, "_call", call)


@pytest.fixture
def write_results() -> Callable[..., None]:
    """Writes what a run leaves behind."""
    return _write_results
