"""Which round's metric of a run is reported."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from flgraph.errors import InputError, expect
from flgraph.reproduce.study import PARTITION, Study, logged_name
from flgraph.runs.history import lower_is_better, read_records
from flgraph.runs.reader import mapping, number

PROTOCOLS = {
    "final": "the last round, or the one that a run with early stopping went back to",
    "best_val": "the round with the best mean validation metric",
    "best_test": "the round with the best mean test metric: optimistic, it looks at the test data",
    "best_client": "per client the round with its own best test metric: more optimistic still",
    "best_cluster": "per client the best of the models of all clusters it was in, each as it was when the cluster was "
    "split or the run ended: optimistic, it looks at the test data (the protocol of GCFL's published code)",
}
"""Which round's test metric is reported. ``best_cluster`` exists for algorithms that split clusters only, and
``best_client`` is in tables of studies that ask for it."""


def value_of(results: Mapping[str, Any], protocol: str, metric: str, mean: str) -> float | None:
    """A run's metric under a protocol; ``None`` where the protocol makes no sense, NaN where nothing was measured.

    Args:
        results: of the run, with its ``folder``, or what :mod:`flgraph.reproduce.index` keeps of it.
        protocol: one of :data:`PROTOCOLS`.
        metric: as runs log it.
        mean: which mean over clients, ``mean`` or ``weighted_mean``.
    """
    if metric.startswith(PARTITION):
        means = partition_means(results) if protocol == "final" else None
        return None if means is None else means.get(metric.removeprefix(PARTITION), math.nan)
    if protocol in ("final", "best_val") or "folder" not in results:
        values = (results.get(protocol) or {}).get(mean, {})
        # Clients that hold nothing back for validation have no best round.
        measured = values and (protocol != "best_val" or any(name.startswith("val/") for name in values))
        return number(values.get(metric)) if measured else None
    if protocol == "best_test":
        return _best_test(results, metric, mean)
    if mean != "mean":  # the others choose a round for every client; their means are unweighted
        return None
    return _best_client(results, metric) if protocol == "best_client" else _best_cluster(results, metric)


def check_metrics(study: Study, results: Mapping[str, Any]) -> None:
    """Refuses a study of metrics of which a finished run has none.

    Raises:
        InputError: names those that it has.
    """
    there = [name for name in mapping(mapping(results.get("final")).get("mean")) if not name.startswith("train/")]
    known = any(metric.startswith(PARTITION) or logged_name(metric) in there for metric in study.metrics)
    expect(known or not there, "metric", f"one that runs have, such as {', '.join(there)},", study.metric)


def partition_means(results: Mapping[str, Any]) -> dict[str, float]:
    """Means over clients of the partition's statistics in ``results.json``; empty if there are none."""
    partition = mapping(results.get("partition"))
    clients = [mapping(client) for client in mapping(partition.get("clients")).values()]
    names = clients[0] if clients else {}
    means = {name: statistics.fmean(number(client.get(name)) for client in clients) for name in names}
    return {name: number(mean) for name, mean in {**means, **mapping(partition.get("mean"))}.items()}


def _best_test(results: Mapping[str, Any], metric: str, mean: str) -> float:
    values = [number(record.get(mean, {}).get(metric)) for record in rounds_of(results)]
    return _better_of(metric)((value for value in values if not math.isnan(value)), default=math.nan)


def _best_client(results: Mapping[str, Any], metric: str) -> float:
    choose, best = _better_of(metric), dict[str, float]()
    for record in rounds_of(results):
        for client, values in record.get("metrics", {}).items():
            value = number(values.get(metric))
            if not math.isnan(value):
                best[client] = choose(value, best.get(client, value))
    return statistics.fmean(best.values()) if best else math.nan


def _best_cluster(results: Mapping[str, Any], metric: str) -> float | None:
    splits = results.get("aggregator", {}).get("splits")
    if splits is None:
        return None
    choose = _better_of(metric)
    rounds = {record["round"]: record["metrics"] for record in rounds_of(results) if record["metrics"]}
    best = {client: number(values.get(metric)) for client, values in results["final"]["clients"].items()}
    for split in splits:
        # The last evaluation before the split: not every round need have one.
        before = rounds.get(max((done for done in rounds if done < split["round"]), default=0), {})
        for client in (client for part in split["into"] for client in part if client in best):  # not who was left out
            value = number(before.get(client, {}).get(metric))
            known = [one for one in (best[client], value) if not math.isnan(one)]
            best[client] = choose(known, default=math.nan)
    return statistics.fmean(best.values())


def _better_of(metric: str) -> Callable[..., float]:
    """``min`` or ``max``."""
    return min if lower_is_better(metric) else max


def rounds_of(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The records of a run's rounds, those that led to its results: in the same folder it may be going on.

    Raises:
        InputError: the file that has them is not there, or is damaged.
    """
    file = Path(results["folder"]) / "history.jsonl"
    try:
        records = _read(file, file.stat().st_mtime_ns)
    except (OSError, ValueError) as error:
        raise InputError(str(file), "the rounds of a run", getattr(error, "strerror", None) or error) from error
    last = max((record["round"] for record in records), default=0)
    expect(last >= results["rounds"], str(file), f"of {results['rounds']} rounds, as its results are,", last)
    return [record for record in records if record["round"] <= results["rounds"]]


@lru_cache(maxsize=2)
def _read(file: Path, changed: int) -> list[dict[str, Any]]:
    """A run's rounds, read once for all its metrics; ``changed`` tells versions of the file apart."""
    return read_records(file)
