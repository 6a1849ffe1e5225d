"""What a table says: of finished runs, and of the table that is there already."""

from __future__ import annotations

import csv
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

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

    @property
    def verdict(self) -> str:
        """Whether the mean lies ``within`` the paper's spread, ``above`` or ``below``; empty where one is not known."""
        if math.isnan(self.paper_std) or math.isnan(self.mean):
            return ""
        gap = self.mean - self.paper_mean
        return "within" if abs(gap) <= self.paper_std else "above" if gap > 0 else "below"


def finished(study: Study, runs: Path, index: RunIndex | None = None) -> Done:
    """The results of all finished runs of a study, in the study's order.

    Args:
        study: whose runs.
        runs: where run folders are.
        index: what is recorded of runs, for those without a folder.
    """
    done: dict[tuple[str, str], list[dict[str, Any]]] = {}
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
    for metric, ((setting, method), results), protocol in product(study.metrics, done.items(), protocols):
        unit = unit_of(metric)
        found = [(run["seed"], value_of(run, protocol, logged_name(metric), study.mean_key)) for run in results]
        values = [unit * value for _, value in found if value is not None]
        if not values or (protocol == "best_client" and len(values) < len(found)):  # older records lack it
            continue
        known = len(values) > 1 and all(map(math.isfinite, values))
        std = statistics.stdev(values) if known else math.nan
        numbers = (*study.printed(metric, setting, method), statistics.fmean(values), std, len(values))
        which = " ".join(str(seed) for seed, value in found if value is not None)
        of = (study.rounds_of(method), which, str(results[0].get("digest", "")))
        cells.append(Cell(study.name, setting, method, metric, protocol, *numbers, *of))
    return cells


@dataclass(frozen=True)
class Earlier:
    """A table that is there, of as many rounds.

    Args:
        cells: by metric, setting, method and protocol.
        rows: rows of the page by title of their section and method, as text by column.
        lists: versions and checksums below the page, by heading and name.
        seconds: of a round, by setting and method.
    """

    cells: Mapping[tuple[str, str, str, str], Cell] = field(default_factory=dict)
    rows: Mapping[tuple[str, str], Mapping[str, str]] = field(default_factory=dict)
    lists: Mapping[tuple[str, str], str] = field(default_factory=dict)
    seconds: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def lacking(self, study: Study, setting: str, method: str, runs: Sequence[Mapping[str, Any]]) -> set[int]:
        """All seeds of a method in a setting, if the finished runs, of no other settings, have not all of them."""
        last = [cell for (_, *at), cell in self.cells.items() if at == [setting, method, "final"]]
        seeds = {int(seed) for cell in last for seed in cell.which.split()}
        if seeds <= {run["seed"] for run in runs}:
            return set()
        known = last[0].digest, study.run(setting, method, int(last[0].which.split()[0])).digest if runs else ""
        return seeds if "" in known or known[0] == known[1] else set()


def table_files(study: Study, out: Path) -> tuple[Path, Path]:
    """``TABLE.csv`` and ``TABLE.md`` of a study in ``out/PAPER``."""
    folder = out / study.paper_name
    return folder / f"{study.table}.csv", folder / f"{study.table}.md"


def read_earlier(study: Study, out: Path) -> Earlier:
    """The table that is there; older ones do not name their seeds, which are a study's first then."""
    file, page = table_files(study, out)
    if not file.is_file():
        return Earlier()
    cells = {}
    with open(file, newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            at, seeds = (row["metric"], row["setting"], row["method"], row["protocol"]), int(row["seeds"])
            mean, std = (float(row[name]) if row[name] else math.nan for name in ("mean", "std"))
            which = row.get("which") or " ".join(map(str, study.seeds[:seeds]))
            known = at[0] in study.metrics and at[1] in study.settings and at[2] in study.methods
            if known and int(row["rounds"]) == study.rounds_of(at[2]):
                metric, setting, method, protocol = at
                numbers = (*study.printed(metric, setting, method), mean, std, seeds)
                of = (int(row["rounds"]), which, row.get("digest") or "")
                cells[at] = Cell(study.name, setting, method, metric, protocol, *numbers, *of)
    text = page.read_text(encoding="utf-8") if page.is_file() else ""
    return Earlier(cells, *_read_page(text, dict.fromkeys((setting, method) for _, setting, method, _ in cells)))


def _read_page(text: str, places: Iterable[tuple[str, str]]) -> tuple[Any, Any, Any]:
    rows, lists, columns, heading = {}, {}, list[str](), ""
    for line in text.splitlines():
        if line.startswith("## ") or line.endswith(":"):
            heading, columns = line.removeprefix("## "), []
        elif line.startswith("| "):
            parts = [part.strip() for part in line.strip("|").split("|")]
            if columns:
                rows[heading, parts[0]] = dict(zip(columns, parts, strict=False))
            columns = columns or parts
        elif found := re.fullmatch(r"- (.+?): (.+)", line):
            lists[heading, found[1]] = found[2]
    took = next((line for line in text.splitlines() if line.startswith("Seconds a round")), "")
    seconds = {}
    for place in places:
        if found := re.search(rf"[:,] {re.escape(' '.join(place))} (\d+\.\d+)(?:,|\.?$)", took):
            seconds[place] = float(found[1])
    return rows, lists, seconds


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
    new = {(cell.metric, cell.setting, cell.method, cell.protocol): cell for cell in collect(study, used)}
    cells = []
    for at in product(study.metrics, study.settings, study.methods, PROTOCOLS):
        own, old = new.get(at), earlier.cells.get(at) if stays[at[1], at[2]] else None
        if found := [cell for cell in (old, own) if cell is not None]:
            cells.append(_pooled(*found) if len(found) == 2 else found[0])
    return cells, {place: runs for place, runs in used.items() if runs}


def _pooled(one: Cell, other: Cell) -> Cell:
    """Of the seeds of both: the mean and the sample standard deviation, which follow from theirs."""
    count = one.seeds + other.seeds
    mean = (one.seeds * one.mean + other.seeds * other.mean) / count
    within = [(cell.seeds - 1) * cell.std**2 if cell.seeds > 1 else 0.0 for cell in (one, other)]
    between = one.seeds * other.seeds / count * (one.mean - other.mean) ** 2
    std = math.sqrt((math.fsum(within) + between) / (count - 1))
    return replace(one, mean=mean, std=std, seeds=count, which=f"{one.which} {other.which}")
