"""Finds run folders and reads what they hold, whole or cut short."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from flgraph.errors import InputError, expect
from flgraph.runs.compatibility import flatten
from flgraph.runs.files import read_text
from flgraph.runs.history import Metrics, default_monitor, mean_metrics, mode_of, read_records
from flgraph.runs.results import version_of

FILES = ("results.json", "history.jsonl")
"""A folder with one of these is a run."""


@dataclass(frozen=True)
class Round:
    """A line of ``history.jsonl``.

    Args:
        number: counts from 1.
        seconds: wall-clock time; NaN if not recorded.
        up: bytes of all uploads.
        down: bytes of all downloads.
        clients: metrics per client, NaN where the run wrote null; empty in a round without evaluation.
        mean: metrics as means over clients.
        server: what else the server wrote down.
        dropped: clients that were left out, and why.
    """

    number: int
    seconds: float
    up: float
    down: float
    clients: Metrics
    mean: dict[str, float]
    server: dict[str, float]
    dropped: dict[str, str]


@dataclass(frozen=True)
class Run:
    """What one run folder holds.

    Args:
        folder: where it lies.
        position: of the argument it was found by.
        seed: of the run, where it is recorded.
        config: nested settings; empty if none were written.
        rounds: the history; empty if there is none.
        results: ``results.json``; empty if the run has not come to its end.
    """

    folder: Path
    position: int = 0
    seed: int | None = None
    config: dict[str, Any] = field(default_factory=dict)
    rounds: tuple[Round, ...] = ()
    results: dict[str, Any] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Whether the results are there, and of the last round: a continued run's are not until it ends again."""
        return bool(self.results) and not (self.rounds and self.rounds[-1].number > self.count_in_results)

    @property
    def count_in_results(self) -> int:
        """Rounds according to ``results.json``."""
        count = number(self.results.get("rounds"))
        return int(count) if math.isfinite(count) else 0

    @property
    def done(self) -> int:
        """Rounds so far."""
        return self.count_in_results if self.finished else self.rounds[-1].number if self.rounds else 0

    @property
    def planned(self) -> int | None:
        """Rounds it was meant to do."""
        count = number(mapping(self.config.get("trainer")).get("rounds", self.config.get("rounds")))
        return int(count) if math.isfinite(count) else None

    @property
    def stopped_early(self) -> bool:
        """Whether it came to its end before the rounds that were planned."""
        return self.finished and self.results.get("stopped_early") is True

    @cached_property
    def dropped(self) -> dict[str, list[tuple[int, str]]]:
        """Every client that was left out: in which rounds, and why."""
        found: dict[str, list[tuple[int, str]]] = {}
        for record in self.rounds:
            for client, why in record.dropped.items():
                found.setdefault(client, []).append((record.number, why))
        return found | {client: [] for client in self.excluded if client not in found}

    @property
    def excluded(self) -> list[str]:
        """Clients that were left out for the rest of the run."""
        dropped = mapping(self.results.get("dropped")).items()
        return [client for client, how in dropped if mapping(how).get("excluded") is True]

    @property
    def monitor(self) -> tuple[str, str]:
        """The metric that decides its best round, and ``max`` or ``min``."""
        trainer = mapping(self.config.get("trainer")) or self.config
        evaluated = (record.clients for record in self.rounds if record.clients)
        given = trainer.get("monitor") or self.results.get("monitor")
        metric = str(given or default_monitor(next(evaluated, {})))
        return metric, str(trainer.get("monitor_mode") or mode_of(metric))

    @property
    def name(self) -> str:
        """The run's name without its seed: ``FedStar`` of ``FedStar-seed1/version_0``."""
        folder = self.folder.resolve()
        name = folder.parent.name if version_of(folder) is not None else folder.name
        return re.sub(r"[-_. ]*seed[-_=]?\d+", "", name) or name

    @property
    def versions(self) -> dict[str, Any]:
        """What computed it; ``git`` is ``None`` if that is not recorded."""
        return {"git": None, **mapping(self.results.get("versions"))}

    @cached_property
    def flat(self) -> dict[str, Any]:
        """Its settings by dotted names."""
        return flatten(self.config)

    @cached_property
    def clients(self) -> list[str]:
        """Every client that reported a metric."""
        final = self.protocol("final")[1]
        return list(dict.fromkeys([*final, *(client for record in self.rounds for client in record.clients)]))

    @property
    def metrics(self) -> set[str]:
        """Names of all that was measured."""
        return {name for record in self.rounds for name in record.mean} | set(self.protocol("final")[0])

    def protocol(self, name: str) -> tuple[dict[str, float], Metrics]:
        """Means and per-client metrics of ``final`` or ``best_val``; empty if nothing was evaluated yet."""
        return self._protocols[name]

    @cached_property
    def _protocols(self) -> dict[str, tuple[dict[str, float], Metrics]]:
        """Read once: there may be thousands of clients, and each is asked for."""
        return {name: self._protocol(name) for name in ("final", "best_val")}

    def _protocol(self, name: str) -> tuple[dict[str, float], Metrics]:
        if self.finished:
            part = mapping(self.results.get(name))
            clients = _metrics(mapping(part.get("clients")))
            return _numbers(mapping(part.get("mean"))) or mean_metrics(clients), clients
        evaluated = [record for record in self.rounds if record.mean]
        if name == "best_val":
            metric, mode = self.monitor
            scored = [record for record in evaluated if math.isfinite(record.mean.get(metric, math.nan))]
            sign = -1 if mode == "min" else 1
            evaluated = [max(scored, key=lambda record: sign * record.mean[metric])] if scored else []
        return (evaluated[-1].mean, evaluated[-1].clients) if evaluated else ({}, {})

    def curve(self, metric: str) -> list[float]:
        """The mean over clients in every round from the first; NaN in rounds without it."""
        return self._over_rounds({record.number: record.mean.get(metric, math.nan) for record in self.rounds})

    def server_curve(self, key: str) -> list[float]:
        """A record of the server in every round from the first."""
        return self._over_rounds({record.number: record.server.get(key, math.nan) for record in self.rounds})

    def _over_rounds(self, values: Mapping[int, float]) -> list[float]:
        return [values.get(number, math.nan) for number in range(1, max(values, default=0) + 1)]

    def per_round(self, what: str) -> float:
        """Mean per round of ``seconds``, ``up`` or ``down`` (bytes)."""
        if self.finished:
            bytes_ = mapping(self.results.get("bytes_per_round"))
            mean = number(self.results.get("seconds_per_round") if what == "seconds" else bytes_.get(what))
            if math.isfinite(mean):
                return mean
        values = [value for record in self.rounds if math.isfinite(value := getattr(record, what))]
        return math.fsum(values) / len(values) if values else math.nan


def find_runs(paths: Sequence[str | os.PathLike[str]]) -> tuple[list[Run], list[Path]]:
    """Reads every run at or below some folders.

    Args:
        paths: run folders, or folders above them.

    Returns:
        The runs, and the folders of those that are left out because they have not finished a round.

    Raises:
        InputError: a path holds no run, or a file in a run cannot be read.
    """
    runs: dict[Path, Run] = {}
    waiting: list[Path] = []
    for position, given in enumerate(paths):
        path = Path(given)
        expect(path.is_dir(), "RUN", "a run folder or a folder above run folders", str(given))
        folders = list(_run_folders(path))
        expect(bool(folders), "RUN", f"a folder with {' or '.join(FILES)} in it or below", str(given))
        for folder in folders:
            if folder.resolve() in runs:
                continue
            run = read_run(folder, position)
            if run.done == 0:
                expect(len(folders) > 1, str(folder), "a run with at least one round", 0)
                waiting.append(folder)
                continue
            runs[folder.resolve()] = run
    if not runs:
        raise InputError("RUN", "the folder of a run with at least one round, or above one,", f"{len(waiting)} without")
    return list(runs.values()), waiting


def read_run(folder: Path, position: int = 0) -> Run:
    """Reads one run folder.

    Raises:
        InputError: a file in it is not what a run writes.
    """
    results = read_results(folder / "results.json")
    rounds = sorted(map(_round, read_records(folder / "history.jsonl")), key=lambda record: record.number)
    config = mapping(results.get("config"))
    goes_on = rounds and not rounds[-1].number <= number(results.get("rounds"))  # by settings of its own
    if goes_on or not config:
        config = _read_config(folder / "config.yaml") or config
    seed = number(results.get("seed", config.get("seed_everything", config.get("seed"))))
    if math.isnan(seed):
        found = re.search(r"seed[-_=]?(\d+)", folder.resolve().parent.name)
        seed = float(found[1]) if found else math.nan
    return Run(folder, position, None if math.isnan(seed) else int(seed), config, tuple(rounds), results)


def read_results(file: Path) -> dict[str, Any]:
    """The content of a ``results.json``; empty if there is none.

    Raises:
        InputError: the file is not what a run writes.
    """
    text = read_text(file)
    if text is None:
        return {}
    try:
        results = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(str(file), "JSON", error) from error
    expect(isinstance(results, dict) and bool(results), str(file), "a run's results", type(results).__name__)
    return mapping(results)


def number(value: Any) -> float:
    """As a float; NaN for null and whatever is none."""
    with suppress(OverflowError):
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    return math.nan


def mapping(value: Any) -> dict[str, Any]:
    """The value if it is a dictionary, else an empty one."""
    return value if isinstance(value, dict) else {}


def _run_folders(path: Path) -> Iterable[Path]:
    """In natural order: version_2 before version_10."""
    for here, below, files in os.walk(path):
        if any(name in files for name in FILES):
            below.clear()  # checkpoints are not runs
            yield Path(here)
        below.sort(key=natural)


def natural(name: str) -> list[tuple[int, int, str]]:
    """Sorts numbers in names by their value."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"([0-9]+)", name.lower())]


def _read_config(file: Path) -> dict[str, Any]:
    text = read_text(file)
    try:
        return mapping(yaml.safe_load(text or ""))
    except yaml.YAMLError as error:
        raise InputError(str(file), "YAML", " ".join(str(error).split())) from error


def _round(record: Mapping[str, Any]) -> Round:
    clients = _metrics(mapping(record.get("metrics")))
    return Round(
        record["round"],
        number(record.get("seconds")),
        number(record.get("bytes_up")),
        number(record.get("bytes_down")),
        clients,
        _numbers(mapping(record.get("mean"))) or mean_metrics(clients),
        {key: value for key, value in _numbers(mapping(record.get("server"))).items() if math.isfinite(value)},
        {str(client): str(why) for client, why in mapping(record.get("dropped")).items()},
    )


def _metrics(given: Mapping[str, Any]) -> Metrics:
    return {client: _numbers(mapping(values)) for client, values in given.items()}


def _numbers(given: Mapping[str, Any]) -> dict[str, float]:
    return {name: number(value) for name, value in given.items()}
