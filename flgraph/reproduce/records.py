"""What is recorded of every method in every setting: from ``runs.jsonl``, or from tables that are older than it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flgraph.errors import expect
from flgraph.reproduce.cells import collect, is_of, read_earlier
from flgraph.reproduce.index import RunIndex, index_file, read_index, recorded
from flgraph.reproduce.study import PARTITION, Study, list_studies, load_study


@dataclass(frozen=True)
class Record:
    """The last round of a method in a setting, over seeds; NaN for what is not recorded.

    Args:
        mean: of the study's first metric, in percent; errors as they are.
        std: sample standard deviation over seeds.
        seeds: how many.
        seconds: a round, wall clock on one thread; the median, as some runs share a processor or are paused.
        megabytes: a round, up and down, all clients together; 10^6 bytes.
        rounds: of a run.
        runs: digest and seed of every run that is known by them.
    """

    mean: float
    std: float
    seeds: int
    seconds: float
    megabytes: float
    rounds: float
    runs: frozenset[tuple[str, int]]


Records = Mapping[tuple[str, str], Record]
"""Setting and method to what is recorded; cells of which nothing is are left out."""


def papers_studies(paper: str | None = None) -> list[Study]:
    """The studies of all papers, or of one, that measure methods: tables first.

    Raises:
        InputError: there is no such paper.
    """
    names = list_studies()
    papers = list(dict.fromkeys(name.partition("/")[0] for name in names))
    expect(paper is None or paper in papers, "PAPER", f"one of {', '.join(papers)}", paper)
    found = [load_study(name) for name in names if paper is None or name.startswith(f"{paper}/")]
    measured = [study for study in found if not study.metrics[0].startswith(PARTITION)]
    return sorted(measured, key=lambda study: (study.paper_name, "/table" not in study.name))


def read_records(studies: Sequence[Study], out: Path) -> Iterator[tuple[Study, Records]]:
    """What is recorded of studies.

    Args:
        studies: whose.
        out: where tables and ``runs.jsonl`` lie.
    """
    indices = {study.paper_name: read_index(index_file(study, out)) for study in studies}
    for study in studies:
        tables = _of_table(study, out)
        found = {}
        for cell in ((setting, method) for setting in study.settings for method in study.methods):
            known = [one for one in (_of_index(study, *cell, indices[study.paper_name]), tables.get(cell)) if one]
            if known:
                found[cell] = max(known, key=lambda one: one.seeds)  # of as many seeds the first, which knows more
        yield study, found


def run_of(study: Study, setting: str, method: str, seed: int) -> tuple[str, int]:
    """Digest and seed, by which a run is known in all studies of a paper."""
    return study.run(setting, method, seed).digest, seed


def _of_index(study: Study, setting: str, method: str, index: RunIndex) -> Record | None:
    if not index:
        return None
    found: dict[int, dict[str, Any]] = {}
    digests: dict[tuple[str, ...], str] = {}  # of most seeds' runs the same: configuration files are read for it
    for seed in study.seeds:
        args = (run := study.run(setting, method, seed)).args
        digests[args] = digests.get(args) or run.digest
        if (record := recorded(index, digests[args], seed, study.rounds_of(method))) is not None:
            found[seed] = record
    results = list(found.values())
    cells = collect(study, {(setting, method): results}) if results else []
    final = next((cell for cell in cells if (cell.metric, cell.protocol) == (study.metrics[0], "final")), None)
    if final is None:
        return None
    sent = [one["bytes_per_round"] for one in results if "bytes_per_round" in one]
    return Record(
        final.mean,
        final.std,
        final.seeds,
        statistics.median(one["seconds_per_round"] for one in results),
        statistics.fmean(ways["up"] + ways["down"] for ways in sent) / 1e6 if sent else math.nan,
        statistics.fmean(one["rounds"] for one in results),
        frozenset((one["digest"], seed) for seed, one in found.items()),
    )


def _of_table(study: Study, out: Path) -> dict[tuple[str, str], Record]:
    """From the table, if it is of runs with today's settings."""
    found = {}
    for cell in read_earlier(study, out).cells.values():
        if (cell.metric, cell.protocol) == (study.metrics[0], "final") and is_of(cell, study):
            at = (cell.setting, cell.method)
            runs = frozenset(run_of(study, *at, int(seed)) for seed in cell.which.split())
            found[at] = Record(cell.mean, cell.std, cell.seeds, cell.seconds, math.nan, math.nan, runs)
    return found
