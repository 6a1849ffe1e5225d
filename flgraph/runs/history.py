"""What a run measures: a record per round, means over clients, and the sums and best round of all of them."""

from __future__ import annotations

import copy
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from flgraph.errors import InputError
from flgraph.runs.files import finite, read_text, write_text

Metrics = dict[str, dict[str, float]]
"""Client to metric to value."""

SAMPLES = "samples"
"""``GROUP/samples``, such as ``val/samples``: on how many samples a client measured the other metrics of the group."""


ACCURACY = "val/accuracy"

EPSILON = "privacy/epsilon"
"""Under which name a round says what it and all before it have cost a client."""

TOTALS = ("seconds", "bytes_up", "bytes_down", "metric_bytes")
"""Fields of a round that are summed up."""


_LOWER = re.compile(r"loss|error|perplexity|divergence|(?<![a-z])(mae|mse|msle|rmse|mape|nll|brier|ece)(?![a-z])")


def lower_is_better(metric: str) -> bool:
    """Whether a metric's name says that less of it is better.

    >>> [name for name in ("test/loss", "val_MAE", "MeanSquaredError", "val/recall") if lower_is_better(name)]
    ['test/loss', 'val_MAE', 'MeanSquaredError']
    """
    return bool(_LOWER.search(metric.lower()))


def mode_of(metric: str) -> Literal["max", "min"]:
    """Which of a metric's values is the best, as its name says."""
    return "min" if lower_is_better(metric) else "max"


def default_monitor(metrics: Metrics) -> str:
    """The metric that decides where nobody says which: ``val/accuracy``, or else the first of validation but the loss.

    Metrics that fewer clients report than others are left aside: what one client makes up does not decide.

    >>> default_monitor({"north": {"val/rmse": 0.4, "val/mae": 0.3, "val/loss": 0.16}})
    'val/rmse'
    """
    counts = Counter(name for own in metrics.values() for name in own if name.startswith("val/"))
    names = [name for name, count in counts.items() if count == max(counts.values()) and name != samples_of(name)]
    usual = [ACCURACY] if ACCURACY in names or not names else sorted(names, key="val/loss".__eq__)
    return usual[0]


@dataclass
class RoundRecord:
    """One round as it is logged and written to ``history.jsonl``.

    Args:
        round: counts from 1.
        seconds: wall-clock time of the round, evaluation included, checkpoint not.
        bytes_up: wire bytes of all uploads of the algorithm.
        bytes_down: wire bytes of all downloads.
        metric_bytes: wire bytes with which clients reported metrics.
        clients: who took part.
        metrics: client to metric to value; empty in rounds without evaluation.
        server: what the algorithm's server half reports of the round (:meth:`Aggregator.log_scalars`).
        dropped: who was left out, and why: a failure, or an answer that could not be used.
        silent: who was asked for metrics, told none, and will be asked again.
    """

    round: int
    seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    metric_bytes: int = 0
    clients: list[str] = field(default_factory=list)
    metrics: Metrics = field(default_factory=dict)
    server: dict[str, float] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    silent: list[str] = field(default_factory=list)

    @property
    def mean(self) -> dict[str, float]:
        """The unweighted mean over clients of every metric."""
        return mean_metrics(self.metrics)

    @property
    def weighted_mean(self) -> dict[str, float]:
        """The mean over clients, weighted by their numbers of samples, of every metric measured on such."""
        return weighted_mean_metrics(self.metrics)


def mean_metrics(metrics: Metrics) -> dict[str, float]:
    """Metric to its unweighted mean over the clients that report it; numbers of samples are left out."""
    return {name: math.fsum(column.values()) / len(column) for name, column in _columns(metrics).items()}


def weighted_mean_metrics(metrics: Metrics) -> dict[str, float]:
    """Metric to its mean over clients, weighted by how many samples each measured it on (``GROUP/samples``).

    Clients that do not tell how many are left out of a group's means.
    """
    means = {}
    for name, column in _columns(metrics).items():
        counts = {client: metrics[client].get(samples_of(name), 0.0) for client in column}
        total = math.fsum(counts.values())
        if total:
            means[name] = math.fsum(counts[client] * value for client, value in column.items()) / total
    return means


def of_both(one: Metrics, other: Metrics) -> tuple[Metrics, Metrics]:
    """Metrics of two rounds, of the clients that both are of."""
    return {name: own for name, own in one.items() if name in other}, {n: own for n, own in other.items() if n in one}


def samples_of(metric: str) -> str:
    """The name under which clients report on how many samples they measured a metric."""
    return f"{metric.rpartition('/')[0]}/{SAMPLES}"


def evaluation(round: int, metrics: Metrics) -> dict[str, Any]:
    """All clients' metrics after a round, and both means, as they stand in ``results.json``."""
    means = {"mean": mean_metrics(metrics), "weighted_mean": weighted_mean_metrics(metrics)}
    return {"round": round, "clients": metrics, **means}


def _columns(metrics: Metrics) -> Metrics:
    """Metric to client to value."""
    columns: dict[str, dict[str, float]] = {}
    for client, values in metrics.items():
        for name, value in values.items():
            if name != samples_of(name):
                columns.setdefault(name, {})[client] = value
    return columns


_STATE = ("rounds", "totals", "last", "best", "partial", "final")


class History:
    """All rounds so far: totals and the best round in memory, the rounds themselves in ``history.jsonl``.

    Rounds are compared by the mean over the clients that both have metrics of: a client that is left out for the rest
    of the run makes no round better. One in which a client was silent never beats one in which none was.

    Args:
        monitor: metric that decides the best round.
        mode: ``"max"`` or ``"min"``.
    """

    def __init__(self, monitor: str, mode: str) -> None:
        self.monitor, self.mode = monitor, mode
        self.rounds = 0
        self.totals: dict[str, float] = dict.fromkeys(TOTALS, 0)
        self.last: dict[str, Any] = {}
        self.best: dict[str, Any] = {}
        self.partial: list[str] = []
        """Who was silent in the best round."""
        self.final: dict[str, Any] = {}
        """What is reported in place of the last evaluation, for clients that went back to an earlier round."""

    def add(self, record: RoundRecord) -> None:
        """Takes in a round."""
        self.rounds = record.round
        for key in self.totals:
            self.totals[key] += getattr(record, key)
        self.final = {}
        if not record.metrics:
            return
        self.last = evaluation(record.round, record.metrics)
        if self._improves(record.silent):
            self.best, self.partial = dict(self.last), list(record.silent)

    def _improves(self, silent: Sequence[str]) -> bool:
        if math.isnan(self.last["mean"].get(self.monitor, math.nan)):
            return False
        if not self.best:
            return True
        if bool(silent) != bool(self.partial):
            return not silent
        means = (mean_metrics(part) for part in of_both(self.last["clients"], self.best["clients"]))
        score, best = (mean.get(self.monitor, math.nan) for mean in means)
        return score > best if self.mode == "max" else score < best

    def state(self) -> dict[str, Any]:
        """For checkpoints."""
        return {name: getattr(self, name) for name in _STATE}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Puts back what :meth:`state` returned."""
        for name in _STATE:
            setattr(self, name, copy.copy(state.get(name, {})))

    def results(self) -> dict[str, Any]:
        """The measured part of ``results.json``."""
        rounds = max(self.rounds, 1)
        per_round = {key: total / rounds for key, total in self.totals.items()}
        none: dict[str, Any] = {"clients": {}, "mean": {}, "weighted_mean": {}}
        return {
            "final": self.final or self.last or none,
            "best_val": self.best or none,
            "rounds": self.rounds,
            "seconds_per_round": per_round["seconds"],
            "bytes_per_round": {"up": per_round["bytes_up"], "down": per_round["bytes_down"]},
            "metric_bytes_per_round": per_round["metric_bytes"],
        }


def append_record(record: RoundRecord, file: Path) -> None:
    """Adds a round to ``history.jsonl``."""
    with open(file, "a") as stream:
        stream.write(_line(record))


def add_evaluation(record: RoundRecord, file: Path) -> None:
    """Puts a later evaluation, and its bytes, into the last round of ``history.jsonl`` if that has none."""
    *lines, last = file.read_text().splitlines(keepends=True)
    before = json.loads(last)
    if not before["metrics"]:
        values = {field.name: before[field.name] for field in fields(RoundRecord) if field.name in before}
        for key in TOTALS:
            values[key] += getattr(record, key)
        evaluated = {"metrics": record.metrics, "silent": record.silent}
        write_text("".join([*lines, _line(RoundRecord(**{**values, **evaluated}))]), file)


def _line(record: RoundRecord) -> str:
    told = {**asdict(record), "mean": record.mean, "weighted_mean": record.weighted_mean}
    if not record.silent:
        del told["silent"]
    return json.dumps(finite(told)) + "\n"


def truncate_records(file: Path, rounds: int) -> None:
    """Drops the rounds after ``rounds``, and a line that was cut short, before a run goes on from there."""
    if file.exists():
        kept = [line for line in file.read_text().splitlines() if 0 < (_round_of(line) or 0) <= rounds]
        write_text("".join(line + "\n" for line in kept), file)


def read_records(file: Path) -> list[dict[str, Any]]:
    """The rounds in a ``history.jsonl``, without a last line that is being written, or was cut short.

    Returns:
        A dictionary with at least ``round`` for every line; none where there is no file.

    Raises:
        InputError: a line is not what a run writes.
    """
    lines = [line for line in (read_text(file) or "").splitlines() if line.strip()]
    if lines and _round_of(lines[-1]) is None:
        lines.pop()
    for position, line in enumerate(lines, start=1):
        if not _round_of(line):
            raise InputError(str(file), "a round per line", f"{line[:60]!r} in line {position}")
    return [json.loads(line) for line in lines]


def _round_of(line: str) -> int | None:
    """The number of the round in a line; 0 if it has none, ``None`` if it was cut short."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    round = record.get("round") if isinstance(record, dict) else None
    return round if isinstance(round, int) and round > 0 else 0
