"""What tables need of every run, a line each beside the tables: ``runs.jsonl``.

Run folders are large and stay where they were made. The index is small enough to be kept with the tables: it has every
seed's value, and a study can be continued with it on another machine, or after the folders are gone.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock

from flgraph.errors import InputError
from flgraph.reproduce.protocols import PROTOCOLS, partition_means, value_of
from flgraph.reproduce.study import Run, Study
from flgraph.runs.files import write_text

_MEANS = ("mean", "weighted_mean")
_AS_THEY_ARE = ("seed", "rounds", "stopped_early", "seconds_per_round", "bytes_per_round", "setup_bytes", "versions")
MANY_CLIENTS = 40
"""Of more than these a table names no checksums, and no record holds them."""

RunIndex = dict[tuple[str, int], dict[int, dict[str, Any]]]
"""Digest and seed of a run to its rounds to what is kept of it: a part of ``results.json``, with ``best_test``,
``best_client`` and, where it exists, ``best_cluster`` beside ``final`` and ``best_val``, means over clients only."""


def index_file(study: Study, out: Path) -> Path:
    """Where the index of a study's paper lies."""
    return out / study.paper_name / "runs.jsonl"


def read_index(file: Path) -> RunIndex:
    """What was recorded; empty if there is no file.

    Raises:
        InputError: a line is no record of a run; names it.
    """
    index: RunIndex = {}
    for number, line in enumerate(file.read_bytes().splitlines() if file.is_file() else (), start=1):
        try:
            record = json.loads(line)
            float(record["seconds_per_round"])  # which tables need
            index.setdefault((record["digest"], record["seed"]), {})[record["rounds"]] = record
        except (ValueError, KeyError, TypeError) as error:
            got = repr(line[:60].decode(errors="replace"))
            raise InputError(f"line {number} of {file}", "the record of a run", got) from error
    return index


def recorded(index: RunIndex, digest: str, seed: int, rounds: int) -> dict[str, Any] | None:
    """The record of a run of so many rounds, or of the longest that stopped early before them."""
    lengths = index.get((digest, seed), {})
    shorter = [done for done, one in lengths.items() if done < rounds and one.get("stopped_early", False)]
    return lengths.get(rounds if rounds in lengths else max(shorter, default=rounds))


def record_runs(file: Path, found: Iterable[tuple[Run, Mapping[str, Any]]]) -> None:
    """Adds runs to an index, or puts them in the place of older ones alike.

    Several commands may do so at the same time.

    Args:
        file: the index; made if it does not exist.
        found: runs with their results, which have their ``folder``.
    """
    new = [_condensed(run, results) for run, results in found]
    if not new:
        return
    with alone_in(file.parent):
        index = read_index(file)
        for record in new:
            lengths = index.setdefault((record["digest"], record["seed"]), {})
            before = lengths.get(record["rounds"], record)  # another table may have recorded the run under its own name
            lengths[record["rounds"]] = {**record, "run": before["run"]}
        records = (one for lengths in index.values() for one in lengths.values())
        ordered = sorted(records, key=lambda one: (one["run"], one["digest"], one["seed"], one["rounds"]))
        write_text("".join(f"{json.dumps(record)}\n" for record in ordered), file)


def alone_in(folder: Path) -> FileLock:
    """Makes a folder; as a context it waits until no other process is in here."""
    folder.mkdir(parents=True, exist_ok=True)
    return FileLock(folder / ".lock")


def _condensed(run: Run, results: Mapping[str, Any]) -> dict[str, Any]:
    record: dict[str, Any] = {"run": run.name, "digest": run.digest}
    record |= {key: results[key] for key in _AS_THEY_ARE if key in results}
    for protocol in PROTOCOLS:
        means = {mean: _values(results, protocol, mean) for mean in _MEANS}
        record |= {protocol: kept} if (kept := {mean: values for mean, values in means.items() if values}) else {}
    counts = (results.get("parameters") or {}).values()
    if counts:
        shares = {kind: statistics.fmean(count[kind] for count in counts) for kind in ("total", "shared")}
        record["parameters"] = {"mean": shares}
    known = {name: mean for name, mean in partition_means(results).items() if math.isfinite(mean)}
    if known:
        record["partition"] = {"mean": known}
    contents = {name: {"content": one["content"]} for name, one in results.get("data", {}).items() if "content" in one}
    if 0 < len(contents) <= MANY_CLIENTS:
        record["data"] = contents
    return record


def _values(results: Mapping[str, Any], protocol: str, mean: str) -> dict[str, float]:
    """All metrics under a protocol, to nine digits, which is more than float32 has."""
    names = results["final"].get(mean, {})
    found = {name: value_of(results, protocol, name, mean) for name in names}
    return {name: float(f"{value:.9g}") for name, value in found.items() if value is not None and math.isfinite(value)}
