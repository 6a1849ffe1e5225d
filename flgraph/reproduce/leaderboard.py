"""One page of every method on every data set, from what is recorded: ``reproduction/README.md`` and a picture."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from flgraph.errors import InputError
from flgraph.reproduce.index import alone_in
from flgraph.reproduce.records import Record, Records, papers_studies, read_records, run_of
from flgraph.reproduce.study import Study, digits_of, in_words
from flgraph.runs.files import write_text
from flgraph.runs.history import lower_is_better

PAGE, PICTURE = "README.md", "leaderboard.svg"

_HEAD = """# Leaderboard

Every method on every data set that was run here. What follows: [which method for my data?](../docs/choosing.md)
"""

_READING = """## How to read the tables

`flgraph reproduce --leaderboard` writes this page and its picture from the recorded runs (`runs.jsonl`) and tables
(`*.csv`) beside it; no number in it was typed.

A number is the metric of the last round in percent: mean over clients, then mean ± standard deviation over seeds, and
in brackets how many seeds. Errors such as rmse are in the unit of what is predicted, and less is better. The best of
each column is bold. Seconds (median over seeds) and megabytes (mean; 10^6 bytes, up and down, all clients together) are
of one round; a run had one thread, and other runs beside it. A dash: not recorded.

Data sets, partitions and rounds differ from paper to paper: compare within a table.
"""

FEWEST = 5
"""On fewer data sets than these a method is not counted."""

TOGETHER, ALONE = ("Central",), ("Local", "Local Only")
"""Methods that are no federated ones: all data in one place, and every client for itself."""


def write_leaderboard(out: Path) -> list[Path]:
    """Writes the page and the picture.

    Args:
        out: where tables and ``runs.jsonl`` lie.
    """
    from flgraph.report.charts import number_grids, save_figure  # matplotlib loads slowly

    page, picture = out / PAGE, out / PICTURE
    with alone_in(out):
        found = recorded_studies(out)
        pictured = [(study, records) for study, records in found if study.leaderboard]
        if not pictured:
            raise InputError("--leaderboard", f"given where {out} has records of papers' tables", "none")
        figure = number_grids(
            {study.title: means_by_method(study, records) for study, records in pictured},
            [study.title for study, _ in pictured if lower_is_better(study.metrics[0])],
        )
        save_figure(figure, picture, outlines=False)
        write_text(as_markdown(found), page)
    return [page, picture]


def has_leaderboard(out: Path) -> bool:
    """Whether a leaderboard is there, which new runs make another one."""
    file = out / PAGE
    return file.is_file() and file.read_text(encoding="utf-8").startswith(_HEAD.partition("\n")[0])


def recorded_studies(out: Path) -> list[tuple[Study, Records]]:
    """Studies with records, those first that compare whole methods; one with no run but another's is left out."""
    everything = [(study, records) for study, records in read_records(papers_studies(), out) if records]
    everything.sort(key=lambda pair: not pair[0].leaderboard)
    seen: set[str] = set()
    kept = []
    for study, records in everything:
        digests = {run_of(study, *cell, study.seeds[0])[0] for cell in records}
        if not digests <= seen:
            kept.append((study, records))
        seen |= digests
    return kept


def as_markdown(found: Sequence[tuple[Study, Records]]) -> str:
    """The page as Markdown."""
    compared = [(study, records) for study, records in found if study.leaderboard]
    lines = [_HEAD, *_verdict(compared), "", "## Which method for which data?", ""]
    lines += [
        "Variants, with brackets behind their names, are left out. Alone: every client for itself. Together: all data",
        "in one place, which is no federation. Level: behind the best by no more than its standard deviation.",
        "",
        "| data | best | next | level | alone | together |",
        "|---|---|---|---|---|---|",
    ]
    for study, records in compared:
        lines += [f"| **{study.title}** ||||||", *_choices(study, records)]
    lines += [
        "",
        _READING,
        f"![means over seeds]({PICTURE})",
        "",
        "The darker, the nearer to the best of its column; white is ten points behind it, or more",
        "(of errors: a quarter more than the least).",
    ]
    for study, records in found:
        lines += ["", f"## {study.title}", "", *_table(study, records)]
    return "\n".join(lines) + "\n"


def _verdict(compared: Sequence[tuple[Study, Records]]) -> Iterator[str]:
    """How often each method is first, or level with the first."""
    ran, leads = Counter[str](), Counter[str]()
    for study, records in compared:
        for setting in study.settings:
            ranked, level, _ = _ranked(study, records, setting)
            if len(ranked) > 1:
                ran.update("Local" if name in ALONE else name for name in ranked)
                leads.update("Local" if name in ALONE else name for name in ranked[: 1 + level])
    often = sorted((name for name in ran if ran[name] >= FEWEST), key=lambda name: (-leads[name] / ran[name], name))
    if not often:
        return
    yield "How often a method is the best or level with it, of how many data sets. Rivals differ, so it is no ranking:"
    yield ", ".join(f"{name} {leads[name]} of {ran[name]}" for name in often) + "."


def _ranked(study: Study, records: Records, setting: str) -> tuple[list[str], int, dict[str, Record]]:
    """Methods of a setting, the best first; how many of the others are level with it; what is recorded of all."""
    sign = _better(study)
    here = {name: one for (where, name), one in records.items() if where == setting and math.isfinite(one.mean)}
    ranked = sorted((name for name in here if _is_choice(name)), key=lambda name: -sign * here[name].mean)
    near = [name for name in ranked[1:] if sign * (here[ranked[0]].mean - here[name].mean) <= here[ranked[0]].std]
    return ranked, len(near), here


def _choices(study: Study, records: Records) -> Iterator[str]:
    """A line per data set."""
    number = partial(_number, digits=digits_of(study.metrics[0], 1))
    for setting in study.settings:
        ranked, near, here = _ranked(study, records, setting)
        if len(ranked) < 2:
            continue
        level = ", ".join(ranked[1 : 1 + near])
        beside = [next((number(here[name]) for name in names if name in here), "–") for names in (ALONE, TOGETHER)]
        first = [f"{name} {number(here[name])} ({here[name].seeds})" for name in ranked[:2]]
        cells = [setting, *first, level or "–", *beside]
        yield f"| {' | '.join(cells)} |"


def _better(study: Study) -> int:
    """1 where more is better, -1 where less is."""
    return -1 if lower_is_better(study.metrics[0]) else 1


def _is_choice(method: str) -> bool:
    """Whether a method is one of its own, and can be had in a federation."""
    return "(" not in method and method not in TOGETHER


def _table(study: Study, records: Records) -> Iterator[str]:
    """Results, and below them what a round takes."""
    rounds = ", ".join(f"{method} {number}" for method, number in study.method_rounds.items())
    mean = "unweighted" if study.average == "clients" else "weighted by samples"
    sign, digits = _better(study), digits_of(study.metrics[0], 1)
    yield (
        in_words(study.metrics[0]).capitalize()
        + (", less being better" if sign < 0 else "")
        + f", mean over clients {mean}, {study.rounds} rounds"
        + (f" ({rounds})" if rounds else "")
        + f". `flgraph reproduce {study.name}`"
    )
    yield ""
    settings = [name for name in study.settings if any(where == name for where, _ in records)]
    methods = [name for name in study.methods if any(method == name for _, method in records)]
    best = {
        name: sign * max((sign * r.mean for (where, _), r in records.items() if where == name), default=math.nan)
        for name in settings
    }
    yield from _rows(settings, methods, lambda cell: _result(records.get(cell), best[cell[0]], digits))
    costs = [record for record in records.values() if math.isfinite(record.seconds) or math.isfinite(record.megabytes)]
    if costs:
        yield from ("", "Seconds / megabytes of a round:", "")
        yield from _rows(settings, methods, lambda cell: _cost(records.get(cell)))


def _rows(settings: Sequence[str], methods: Sequence[str], write: Callable[[tuple[str, str]], str]) -> Iterator[str]:
    yield f"| method | {' | '.join(settings)} |"
    yield "|---" * (len(settings) + 1) + "|"
    for method in methods:
        yield f"| {method} | {' | '.join(write((setting, method)) for setting in settings)} |"


def _result(record: Record | None, best: float, digits: int) -> str:
    if record is None or math.isnan(record.mean):
        return "–"
    text = f"{_number(record, digits)} ({record.seeds})"
    return f"**{text}**" if record.mean == best else text


def _cost(record: Record | None) -> str:
    numbers = (record.seconds, record.megabytes) if record else (math.nan, math.nan)
    if not any(map(math.isfinite, numbers)):
        return "–"
    return " / ".join(f"{number:.3g}" if math.isfinite(number) else "–" for number in numbers)


def _number(record: Record, digits: int) -> str:
    return f"{record.mean:.{digits}f}" + ("" if math.isnan(record.std) else f" ± {record.std:.{digits}f}")


def means_by_method(study: Study, records: Records) -> Mapping[str, Mapping[str, float]]:
    """Method to setting to its mean, without variants."""
    means: dict[str, dict[str, float]] = {}
    for setting in study.settings:
        for method in study.methods:
            if (setting, method) in records and _is_choice(method):
                means.setdefault(method, {})[setting] = records[setting, method].mean
    return means
