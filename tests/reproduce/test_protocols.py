"""Which round's metric is reported."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from flgraph.reproduce.protocols import value_of


def results_of(folder: Path, metric: str, rounds: list[dict[str, float | None]], split: int) -> dict[str, Any]:
    """A run of clients, each with a value per round, that were split into clusters in round ``split``."""
    lines = []
    for number, values in enumerate(rounds, start=1):
        known = [value for value in values.values() if value is not None]
        mean = {metric: sum(known) / len(known)} if known else {}
        metrics = {client: {metric: value} for client, value in values.items()}
        lines.append(json.dumps({"round": number, "metrics": metrics, "mean": mean}) + "\n")
    (folder / "history.jsonl").write_text("".join(lines))
    clients = {client: {metric: value} for client, value in rounds[-1].items()}
    splits = [{"round": split, "into": [[client] for client in clients]}]
    return {
        "folder": str(folder),
        "rounds": len(rounds),
        "final": {"clients": clients},
        "aggregator": {"splits": splits},
    }


@pytest.mark.parametrize(
    ("metric", "best_test", "best_client", "best_cluster"),
    # Best cluster: per client the better one of round 1, the last before the split, and of round 3.
    [
        ("test/accuracy", 0.7, (0.8 + 0.7) / 2, (0.8 + 0.65) / 2),
        ("test/loss", 0.425, (0.2 + 0.6) / 2, (0.2 + 0.6) / 2),
    ],
)
def test_best_is_most_or_least(
    tmp_path: Path, metric: str, best_test: float, best_client: float, best_cluster: float
) -> None:
    rounds: list[dict[str, float | None]] = [{"a": 0.8, "b": 0.6}, {"a": 0.3, "b": 0.7}, {"a": 0.2, "b": 0.65}]
    results = results_of(tmp_path, metric, rounds, split=2)
    assert value_of(results, "best_test", metric, "mean") == pytest.approx(best_test)
    assert value_of(results, "best_client", metric, "mean") == pytest.approx(best_client)
    assert value_of(results, "best_client", metric, "weighted_mean") is None
    assert value_of(results, "best_cluster", metric, "mean") == pytest.approx(best_cluster)


def test_the_last_evaluation_before_a_split_counts(tmp_path: Path) -> None:
    """Where not every round has one."""
    results = results_of(tmp_path, "test/accuracy", [{"a": 0.8}, {"a": 0.9}, {"a": 0.1}, {"a": 0.2}], split=4)
    file = tmp_path / "history.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text(
        "".join(json.dumps({**line, "metrics": {}} if line["round"] == 3 else line) + "\n" for line in lines)
    )
    assert value_of(results, "best_cluster", "test/accuracy", "mean") == 0.9
    assert value_of(results, "best_cluster", "test/accuracy", "weighted_mean") is None


def test_who_was_left_out_has_no_part_in_it(tmp_path: Path) -> None:
    results = results_of(tmp_path, "test/accuracy", [{"a": 0.8, "b": 0.6}, {"a": 0.3, "b": 0.7}], split=2)
    results["final"]["clients"].pop("b")
    assert value_of(results, "best_cluster", "test/accuracy", "mean") == 0.8


@pytest.mark.parametrize("metric", ["test/accuracy", "test/loss"])
def test_rounds_without_a_value_are_passed_over(tmp_path: Path, metric: str) -> None:
    results = results_of(tmp_path, metric, [{"a": 0.5}, {"a": None}, {"a": None}], split=2)
    assert value_of(results, "best_test", metric, "mean") == 0.5
    assert value_of(results, "best_client", metric, "mean") == 0.5
    assert value_of(results, "best_cluster", metric, "mean") == 0.5
    nothing = results_of(tmp_path, metric, [{"a": None}, {"a": None}], split=2)
    for protocol in ("best_test", "best_client"):
        best = value_of(nothing, protocol, metric, "mean")
        assert best is not None
        assert math.isnan(best)
