"""What a table says: of finished runs, and of the table that is there already."""

from __future__ import annotations

import csv
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

from flgraph.errors import InputError
from flgraph.reproduce.index import RunIndex
from flgraph.reproduce.protocols import PROTOCOLS, value_of
from flgraph.reproduce.runner import find_results
from flgraph.reproduce.study import Study, logged_name, unit_of

Done = Mapping[tuple[str, str], Sequence[dict[str, Any]]]
"""Setting and method to the results of the finished runs, one per seed."""


@dataclass(frozen=True)
class Cell:
    """One row of the CSV: a method in a setting under a protocol. Values in percent, errors and statistics as they are.

    Args:
        table: the study.
        setting: column of the paper's table.
        method: row of the paper's table.
        metric: what is reported.
        protocol: which round is reported, see :data:`PROTOCOLS`.
        paper_mean: as printed; NaN if the paper has no such cell.
        paper_std: as printed; NaN if it is not.
        mean: over seeds, of the mean over clients.
        std: sample standard deviation over seeds; NaN for one seed, or where one has no value.
        seeds: number of seeds.
        rounds: communication rounds, or the most of them.
        which: the seeds, with blanks between them.
        digest: of the settings of the first seed's run; empty in older tables.
        parameters: of a client's model, mean over clients; NaN, as all that follows, where it is not known.
        shared: how many of them are.
        up: 10^6 wire bytes of all uploads of a whole run; metrics are not counted.
        down: the same of downloads.
        seconds: of a round, wall clock on one thread; the median, as some runs share a processor or are paused.
    """

    table: str
    setting: str
    method: str
    metric: str
    protocol: str
    paper_mean: float
    paper_std: float
    mean: float
    std: float
    seeds: int
    rounds: int
    which: str = ""
    digest: str = ""
    parameters: float = math.nan
    shared: float = math.nan
    up: float = math.nan
    down: float = math.nan
    seconds: float = math.nan

    @property
    def verdict(self) -> str:
        """Whether the mean lies ``within`` the paper's spread, ``above`` or ``below``; empty where one is not known."""
        if math.isnan(self.paper_std) or math.isnan(self.mean):
            return ""
        gap = self.mean - self.paper_mean
        return "within" if abs(gap) <= self.paper_std else "above" if gap > 0 else "below"


def finished(study: Study, runs: Path, index: RunIndex | None = None) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The results of all finished runs of a study, in the study's order.

    Args:
        study: whose runs.
        runs: where run folders are.
        index: what is recorded of runs, for those without a folder.
    """
    done = {}
    for setting in study.settings:
        for method in study.methods:
            found = [find_results(study, study.run(setting, method, seed), runs, index) for seed in study.seeds]
            results = [result for result in found if result is not None]
            if results:
                done[setting, method] = results
    return done


def collect(study: Study, done: Done) -> list[Cell]:
    """A cell for every method, setting and protocol with at least one finished run."""
    cells = []
    protocols = [name for name in PROTOCOLS if name != "best_client" or name in study.protocols]
    costs = {place: _costs(results) for place, results in done.items() if results}
    for metric, ((setting, method), results), protocol in product(study.metrics, done.items(), protocols):
        unit = unit_of(metric)
        found = [(run, value_of(run, protocol, logged_name(metric), study.mean_key)) for run in results]
        told = [(run, unit * value) for run, value in found if value is not None]
        if not told or (protocol == "best_client" and len(told) < len(found)):  # older records lack it
            continue
        values = [value for _, value in told]
        std = statistics.stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else math.nan
        which, known_by = " ".join(str(run["seed"]) for run, _ in told), str(told[0][0].get("digest", ""))
        printed, at = study.printed(metric, setting, method), (study.name, setting, method, metric, protocol)
        rounds, mean = study.rounds_of(method), statistics.fmean(values)
        of = costs[setting, method]
        cells.append(Cell(*at, *printed, mean, std, len(values), rounds, which, known_by, **of))
    return cells


def _costs(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The last fields of a cell."""
    counts = (results[0].get("parameters") or {}).values()
    found = {name: statistics.fmean(count[kind] for count in counts) for name, kind in _KINDS.items() if counts}
    for way in ("up", "down"):
        totals = [
            run["bytes_per_round"][way] * run["rounds"] + run.get("setup_bytes", {}).get(way, 0)
            for run in results
            if "bytes_per_round" in run
        ]
        found |= {way: statistics.fmean(totals) / 1e6} if totals else {}
    return {**found, "seconds": statistics.median(run["seconds_per_round"] for run in results)}


_KINDS = {"parameters": "total", "shared": "shared"}


@dataclass(frozen=True)
class Earlier:
    """A table that is there, of as many rounds.

    Args:
        cells: by metric, setting, method and protocol.
        lists: versions and checksums below the page, by heading and name.
    """

    cells: Mapping[tuple[str, str, str, str], Cell] = field(default_factory=dict)
    lists: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def lacking(self, study: Study, setting: str, method: str, runs: Sequence[Mapping[str, Any]]) -> set[int]:
        """All seeds of a method in a setting, if the finished runs, of no other settings, have not all of them."""
        last = [cell for (_, *at), cell in self.cells.items() if at == [setting, method, "final"]]
        seeds = {int(seed) for cell in last for seed in cell.which.split()}
        if seeds <= {run["seed"] for run in runs}:
            return set()
        return seeds if not runs or is_of(last[0], study) else set()


def is_of(cell: Cell, study: Study) -> bool:
    """Whether a cell is of runs with the study's settings, as far as it tells."""
    first = study.run(cell.setting, cell.method, int(cell.which.split()[0]))
    return cell.digest in ("", first.digest)


def table_files(study: Study, out: Path) -> tuple[Path, Path]:
    """``TABLE.csv`` and ``TABLE.md`` of a study in ``out/PAPER``."""
    folder = out / study.paper_name
    return folder / f"{study.table}.csv", folder / f"{study.table}.md"


def read_earlier(study: Study, out: Path) -> Earlier:
    """The table that is there, without what the study has no more.

    Raises:
        InputError: it cannot be read.
    """
    file, page = table_files(study, out)
    if not file.is_file():
        return Earlier()
    cells = {}
    with open(file, newline="", encoding="utf-8") as stream:
        for number, row in enumerate(csv.DictReader(stream), start=2):
            try:
                cell = _cell(study, row)
            except (ValueError, TypeError, KeyError) as error:
                raise InputError(f"line {number} of {file}", "a row of a table", f"{row}") from error
            known = cell.metric in study.metrics and cell.setting in study.settings and cell.method in study.methods
            if known and cell.rounds == study.rounds_of(cell.method):
                mean, std = study.printed(cell.metric, cell.setting, cell.method)
                cells[_at(cell)] = replace(cell, paper_mean=mean, paper_std=std)
    lists, heading = {}, ""
    for line in page.read_text(encoding="utf-8").splitlines() if page.is_file() else ():
        heading = line if line.endswith(":") else heading
        if found := re.fullmatch(r"- (.+): (.+)", line):
            lists[heading, found[1]] = found[2]
    return Earlier(cells, lists)


def _cell(study: Study, row: Mapping[str, str | None]) -> Cell:
    """From a row of a CSV; older ones lack the last columns."""
    values: dict[str, Any] = {}
    for column in fields(Cell):
        text = row.get(column.name) or ""
        if column.type == "float":
            values[column.name] = float(text or "nan")
        else:
            values[column.name] = int(text) if column.type == "int" else text
    # One that does not name its seeds is of the study's first.
    values["which"] = values["which"] or " ".join(map(str, study.seeds[: values["seeds"]]))
    if not all(seed.isdigit() for seed in values["which"].split()):
        raise ValueError(values["which"])
    return Cell(**values)


def _at(cell: Cell) -> tuple[str, str, str, str]:
    return cell.metric, cell.setting, cell.method, cell.protocol


def joined(study: Study, done: Done, earlier: Earlier) -> tuple[list[Cell], Done]:
    """The cells of a table with those of the one that is there, whose runs may be gone.

    Where the finished runs have not all its seeds, a cell is of its seeds and of those that it lacks; unless its runs
    had other settings.

    Returns:
        The cells, in the study's order, and those of the finished runs that are in them.
    """
    used, stays = {}, {}
    for place in product(study.settings, study.methods):
        runs = done.get(place, ())
        stays[place] = earlier.lacking(study, *place, runs)
        used[place] = [run for run in runs if run["seed"] not in stays[place]]
    new = {_at(cell): cell for cell in collect(study, used)}
    cells = []
    for metric, setting, method in product(study.metrics, study.settings, study.methods):
        ats, old = [(metric, setting, method, protocol) for protocol in PROTOCOLS], stays[setting, method]
        both = [[known[at] for known in (earlier.cells if old else {}, new) if at in known] for at in ats]
        here = [_pooled(*pair) if len(pair) == 2 else pair[0] for pair in both if pair]
        most = max((cell.seeds for cell in here), default=0)
        cells += [cell for cell in here if cell.seeds == most or not old]  # a protocol that some seeds lack is left out
    return cells, {place: runs for place, runs in used.items() if runs}


def _pooled(one: Cell, other: Cell) -> Cell:
    """Of the seeds of both: the mean and the sample standard deviation, which follow from theirs."""
    count = one.seeds + other.seeds
    costs: dict[str, Any] = {}
    for name in ("parameters", "shared", "up", "down", "seconds"):
        known = [(cell.seeds, getattr(cell, name)) for cell in (one, other) if not math.isnan(getattr(cell, name))]
        costs[name] = sum(n * value for n, value in known) / sum(n for n, _ in known) if known else math.nan
    within = [(cell.seeds - 1) * cell.std * cell.std if cell.seeds > 1 else 0.0 for cell in (one, other)]
    apart = one.mean - other.mean
    std = math.sqrt((sum(within) + one.seeds * other.seeds / count * apart * apart) / (count - 1))
    return replace(
        one,
        mean=(one.seeds * one.mean + other.seeds * other.mean) / count,
        std=std,
        seeds=count,
        which=f"{one.which} {other.which}",
        **costs,
    )
