"""Which printed numbers have no run yet, or fewer seeds than the paper, and what they will take."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flgraph.reproduce.records import Records, papers_studies, read_records, run_of
from flgraph.reproduce.settings import resolve
from flgraph.reproduce.study import Run, Study
from flgraph.runs.reader import mapping

NOT_AT_HAND = {
    "BGS": "no copy of its graph could be had where these tables were made, only its label splits",
    "CoraFull": "no copy of its file could be had where these tables were made; PyG downloads it",
    "WikiCS": "no copy of its file could be had where these tables were made; PyG downloads it",
}
"""Data sets that no run here could read, and why."""


@dataclass(frozen=True)
class Gap:
    """A printed number with fewer seeds than the paper.

    Args:
        study: the table.
        setting: column of the table.
        method: row of the table.
        have: seeds that are recorded.
        want: seeds of the paper.
        hours: core hours of :attr:`left`; NaN where nothing like them was timed.
        left: the runs that are missing and in no gap before it.
        data: the data set, where it is not at hand.
    """

    study: Study
    setting: str
    method: str
    have: int
    want: int
    hours: float
    left: tuple[Run, ...] = ()
    data: str = ""


def find_gaps(out: Path, paper: str | None = None) -> list[Gap]:
    """Compares what papers print with what is recorded.

    Args:
        out: where tables and ``runs.jsonl`` lie.
        paper: one paper; all if not given.

    Raises:
        InputError: there is no such paper.
    """
    everything = list(read_records(papers_studies(paper), out))
    done = {run for _, records in everything for record in records.values() for run in record.runs}
    known = {digest: record for _, records in everything for record in records.values() for digest, _ in record.runs}
    counted = set(done)
    gaps = []
    for study, records in everything:
        cells = [(setting, method) for setting in study.settings for method in study.methods]
        digests = {cell: run_of(study, *cell, study.seeds[0])[0] for cell in cells}  # tables share runs
        timed = {cell: found for cell, one in digests.items() if (found := records.get(cell) or known.get(one))}
        for setting, method in _printed(study):
            runs = {run_of(study, setting, method, seed): study.run(setting, method, seed) for seed in study.seeds}
            record = records.get((setting, method))
            have = max(record.seeds if record else 0, len(runs.keys() & done))
            if have >= len(study.seeds):
                continue
            left = tuple(run for known_by, run in runs.items() if known_by not in counted)
            counted |= runs.keys()
            hours = len(left) * _hours(study, timed, setting, method) if left else 0.0
            data = _data(study, setting, method)
            lacking = data if data in NOT_AT_HAND else ""
            gaps.append(Gap(study, setting, method, have, len(study.seeds), hours, left, lacking))
    return gaps


def dearest_first(gaps: list[Gap]) -> list[tuple[Study, Run, float]]:
    r"""The runs of gaps that can be had here, the most informative per core hour first, and the core hours of each.

    The first run of a number that has none comes before all others, the quickest first. Run :math:`n + 1` of a number
    takes :math:`1/n - 1/(n + 1)` of a single run's variance from the variance of its mean; that by the hour is its
    place. Among runs alike those that were never timed come last.
    """
    found = []
    for gap in gaps:
        for number, run in enumerate(() if gap.data else gap.left, start=gap.have):
            hours = gap.hours / len(gap.left)
            gain = 1 / (number * (number + 1)) if number else 1.0
            unknown = math.isnan(hours)
            place = (number > 0, unknown, -gain if unknown else -gain / max(hours, 1e-9))
            found.append((place, (gap.study, run, hours)))
    return [one for _, one in sorted(found, key=lambda ranked: ranked[0])]


def told(gaps: list[Gap]) -> Iterator[str]:
    """Gaps as lines: one per table and setting, the sum, and what cannot be run here."""
    runnable = [gap for gap in gaps if not gap.data]
    for place in dict.fromkeys((gap.study.name, gap.setting) for gap in runnable):
        here = [gap for gap in runnable if (gap.study.name, gap.setting) == place]
        methods = ", ".join(f"{gap.method} {gap.have} of {gap.want}" for gap in here)
        yield f"{': '.join(place)}: {methods} seeds; {_sum(here)}"
    if runnable:
        yield f"{len(runnable)} numbers, {_sum(runnable)}"
    for data, why in NOT_AT_HAND.items():
        if lacking := [gap for gap in gaps if gap.data == data]:
            yield f"{data}, {len(lacking)} numbers: {why}"


def _sum(gaps: list[Gap]) -> str:
    known = [gap.hours for gap in gaps if math.isfinite(gap.hours)]
    unknown = len(gaps) - len(known)
    hours = f"{math.fsum(known):.1f} core hours" if any(known) else "" if unknown else "runs of tables above"
    return ", ".join(part for part in (hours, f"{unknown} never timed" if unknown else "") if part)


def _printed(study: Study) -> Iterator[tuple[str, str]]:
    """Settings and methods with a number in the paper."""
    for setting in study.settings:
        for method in study.methods:
            if any(math.isfinite(study.printed(metric, setting, method)[0]) for metric in study.metrics):
                yield setting, method


def _hours(study: Study, records: Records, setting: str, method: str) -> float:
    """Core hours of one run: by its own record, or others of its setting, or of its method; as long as it may take."""
    own = [records[setting, method]] if (setting, method) in records else []
    beside = [record for (where, _), record in records.items() if where == setting]
    like = [record for (_, name), record in records.items() if name == method]
    for group in (own, beside, like):
        seconds = [record.seconds for record in group if math.isfinite(record.seconds)]
        if seconds:
            rounds = own[0].rounds if own and math.isfinite(own[0].rounds) else study.rounds_of(method)
            return statistics.fmean(seconds) * rounds / 3600
    return math.nan


def _data(study: Study, setting: str, method: str) -> str:
    """The data set of a run."""
    data = mapping(resolve(study.run(setting, method, study.seeds[0]).args).get("data"))
    return str(mapping(data.get("init_args")).get("dataset", ""))
