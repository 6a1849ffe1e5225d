"""What a run writes down: a record per round, and the results at its end."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from flgraph.errors import InputError

Metrics = dict[str, dict[str, float]]
"""Client to metric to value."""

SAMPLES = "samples"
"""``GROUP/samples`` tells on how many samples a client measured the other metrics of the group, as ``val/samples``."""


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
        server: what the algorithm's server half told of the round (:meth:`Aggregator.log_scalars`).
    """

    round: int
    seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    metric_bytes: int = 0
    clients: list[str] = field(default_factory=list)
    metrics: Metrics = field(default_factory=dict)
    server: dict[str, float] = field(default_factory=dict)

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

    Metrics of a group that some client reports without its number of samples are left out.
    """
    means = {}
    for name, column in _columns(metrics).items():
        counts = {client: metrics[client].get(samples_of(name)) for client in column}
        total = math.fsum(count or 0.0 for count in counts.values())
        if total and None not in counts.values():
            means[name] = math.fsum((counts[client] or 0.0) * value for client, value in column.items()) / total
    return means


def samples_of(metric: str) -> str:
    """The name under which clients tell on how many samples they measured a metric."""
    return f"{metric.rpartition('/')[0]}/{SAMPLES}"


def evaluation(round: int, metrics: Metrics) -> dict[str, Any]:
    """All clients' metrics after a round, and both means, as they stand in ``results.json``."""
    means = {"mean": mean_metrics(metrics), "weighted_mean": weighted_mean_metrics(metrics)}
    return {"round": round, "clients": metrics, **means}


def _columns(metrics: Metrics) -> Metrics:
    """Metric to client to value."""
    names = {name: None for values in metrics.values() for name in values if name != samples_of(name)}
    return {name: {client: own[name] for client, own in metrics.items() if name in own} for name in names}


class History:
    """All rounds so far: totals and the best round in memory, the rounds themselves in ``history.jsonl``.

    Args:
        monitor: metric that decides the best round.
        mode: ``"max"`` or ``"min"``.
    """

    def __init__(self, monitor: str, mode: str) -> None:
        self.monitor, self.mode = monitor, mode
        self.rounds = 0
        self.totals = {"seconds": 0.0, "bytes_up": 0, "bytes_down": 0, "metric_bytes": 0}
        self.last: dict[str, Any] = {}
        self.best: dict[str, Any] = {}
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
        score = self.last["mean"].get(self.monitor)
        if score is not None and not math.isnan(score) and self._improves(score):
            self.best = dict(self.last)

    def _improves(self, score: float) -> bool:
        if not self.best:
            return True
        best = self.best["mean"][self.monitor]
        return bool(score > best if self.mode == "max" else score < best)

    def state(self) -> dict[str, Any]:
        """For checkpoints."""
        return {
            "rounds": self.rounds, "totals": self.totals, "last": self.last, "best": self.best, "final": self.final
        }  # fmt: skip

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Puts back what :meth:`state` returned."""
        self.rounds, self.totals = state["rounds"], dict(state["totals"])
        self.last, self.best = dict(state["last"]), dict(state["best"])
        self.final = dict(state.get("final", {}))

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


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Says where it was when something could not be written.

    Raises:
        InputError: the disk is full, or the folder not writable.
    """
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error  # Lightning's TensorBoard logger makes a ValueError of a full disk
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__cause__ or cause.__context__
        if cause is None:
            raise
        raise InputError(f"Expected `{folder}` to take the run's files but got: {cause.strerror or cause}.") from error


def append_record(record: RoundRecord, file: Path) -> None:
    """Adds a round to ``history.jsonl``."""
    with open(file, "a") as stream:
        stream.write(_line(record))


def add_evaluation(record: RoundRecord, file: Path) -> None:
    """Puts a later evaluation, and its bytes, into the last round of ``history.jsonl`` if that has none."""
    *lines, last = file.read_text().splitlines(keepends=True)
    before = json.loads(last)
    if not before["metrics"]:
        known = {field.name: before[field.name] for field in fields(RoundRecord)}
        sums = {key: known[key] + getattr(record, key) for key in ("seconds", "bytes_up", "bytes_down", "metric_bytes")}
        whole = RoundRecord(**{**known, **sums, "metrics": record.metrics})
        write_text("".join([*lines, _line(whole)]), file)


def _line(record: RoundRecord) -> str:
    return json.dumps(_plain({**asdict(record), "mean": record.mean, "weighted_mean": record.weighted_mean})) + "\n"


def truncate_records(file: Path, rounds: int) -> None:
    """Drops the rounds after ``rounds``, and a line that was cut short, before a run goes on from there."""
    if not file.exists():
        return
    kept = [line for line in file.read_text().splitlines() if _round_of(line) <= rounds]
    write_text("".join(line + "\n" for line in kept), file)


def discard_results(folder: Path, rounds: int) -> None:
    """Removes the results of more than ``rounds`` rounds, and what was told of an error, before a run goes on."""
    (folder / "error.txt").unlink(missing_ok=True)
    file = folder / "results.json"
    if file.is_file():
        try:
            done = float(json.loads(file.read_text())["rounds"])
        except (ValueError, KeyError, TypeError):
            done = math.inf
        if done > rounds:
            file.unlink()


def read_records(file: Path) -> list[dict[str, Any]]:
    """The rounds in a ``history.jsonl``, without a last line that is being written, or was cut short."""
    lines = file.read_text().splitlines()
    if lines and not math.isfinite(_round_of(lines[-1])):
        lines.pop()
    return [json.loads(line) for line in lines]


def write_json(value: Any, file: Path) -> None:
    """Writes JSON that any parser reads (NaN and infinity become null), whole or not at all."""
    write_text(json.dumps(_plain(value), indent=2) + "\n", file)


def write_text(text: str, file: Path) -> None:
    """Writes a text file, in UTF-8, whole or not at all."""
    write_bytes(text.encode(), file)


def write_bytes(content: bytes, file: Path) -> None:
    """Writes a file whole or not at all, also where several processes write it at the same time."""
    temporary = file.with_name(f".{file.name}.{uuid.uuid4().hex}.writing")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def plain_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of ``values`` that JSON can hold: what settings of a run can be compared by."""
    return {name: value for name, value in values.items() if _is_json(value)}


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


@cache
def versions() -> dict[str, str]:
    """Versions of what computed the results, and the git revision of the package where it lies in a checkout."""
    found = {"python": ".".join(map(str, __import__("sys").version_info[:3]))}
    for package in ("flgraph", "torch", "torch_geometric", "pytorch-lightning", "torchmetrics", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    found["git"] = _git_revision()
    return found


def new_version(runs: Path) -> Path:
    """Makes the folder of a new run, ``version_N`` in ``runs``, with the lowest number above all that are there."""
    runs.mkdir(parents=True, exist_ok=True)
    number = max((taken for path in runs.iterdir() if (taken := version_of(path)) is not None), default=-1) + 1
    while True:  # another process may take the number first
        try:
            folder = runs / f"version_{number}"
            folder.mkdir()
            return folder
        except FileExistsError:
            number += 1


def version_of(folder: Path) -> int | None:
    """The N of ``version_N``; None for folders of other names."""
    found = re.fullmatch(r"version_(\d+)", folder.name)
    return int(found[1]) if found else None


def _git_revision() -> str:
    folder = Path(__file__).resolve().parent
    try:
        command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() or "unknown"


def _round_of(line: str) -> float:
    try:
        return int(json.loads(line)["round"])
    except (ValueError, KeyError, TypeError):
        return math.inf


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, str) or not isinstance(value, Iterable):
        return None if isinstance(value, float) and not math.isfinite(value) else value
    return [_plain(inner) for inner in value]
