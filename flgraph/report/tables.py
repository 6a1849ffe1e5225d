"""Tables of a comparison: numbers, and how each is written."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from flgraph.report.charts import Spread
from flgraph.report.compare import Comparison, Method
from flgraph.runs.reader import Run, mapping

Write = Callable[[float, float], tuple[str, str]]
"""From mean and deviation to what is written, and what stands behind it in smaller letters."""

_NONE = (math.nan, math.nan)


@dataclass(frozen=True)
class Cell:
    """A number in a table: its text, what stands behind it in smaller letters, and whether it is the best one."""

    text: str
    small: str
    best: bool


@dataclass(frozen=True)
class Column:
    """A column of the summary, with a cell per method.

    Args:
        key: what files call it.
        head: what the page calls it.
        why: what explains it.
        values: mean and deviation.
        cells: the same as it is written.
    """

    key: str
    head: str
    why: str
    values: list[Spread]
    cells: list[Cell]


def result_columns(part: Comparison) -> list[Column]:
    """What methods reached, in the order of importance: the last round, the gain, other protocols."""
    write, sign = partial(value, digits=digits(part)), -1 if part.metric.lower else 1
    methods, baseline = part.methods, part.baseline
    add = partial(_column, part)
    columns = [add("final", "final", "after the last round", [m.final() for m in methods], write, sign)]
    if baseline is not None and part.compared:
        values = [m.gain(baseline) if m in part.compared else _NONE for m in methods]
        why = "of the final metric, runs of the same seed paired"
        title = f"{part.metric.difference} {baseline.label}"
        columns.append(add("gain", title, why, values, partial(write, sign="+"), sign))
    why = "in the round with the best validation metric"
    columns.append(add("best_val", "best val", why, [m.best_val() for m in methods], write, sign))
    why = "optimistic: the round is chosen by the test data"
    columns.append(add("best_test", "best test*", why, [m.best_test() for m in methods], write, sign))
    if baseline is not None and part.compared:
        values = [(_better(part, m) if m in part.compared else math.nan, math.nan) for m in methods]
        of_all = f" of {len(part.clients)}"
        why = "by the mean over seeds"
        columns.append(add("better", "clients better", why, values, lambda mean, _: (f"{mean:.0f}", of_all), 1))
    # Where nothing is held back for validation, no round is best by it.
    return [columns[0], *(one for one in columns[1:] if any(math.isfinite(mean) for mean, _ in one.values))]


def cost_columns(part: Comparison) -> list[Column]:
    """What methods took: parameters, bytes, seconds."""
    columns, add = [], partial(_column, part)
    for key, head, which in (
        ("parameters", "parameters / client", "total"),
        ("shared_parameters", "shared parameters", "shared"),
    ):
        values = [(method.parameters(which), math.nan) for method in part.methods]
        if any(math.isfinite(count) for count, _ in values):
            columns.append(add(key, head, "mean over clients", values, lambda mean, _: (f"{mean:,.0f}", "")))
    spent = [[mapping(run.results.get("privacy")).get("epsilon") for run in method.all] for method in part.methods]
    told = [max((float(own) for own in runs if isinstance(own, int | float)), default=math.nan) for runs in spent]
    if any(map(math.isfinite, told)):
        values, why = [(epsilon, math.nan) for epsilon in told], "the largest of its runs; delta in results.json"
        columns.append(add("epsilon", "epsilon", why, values, lambda epsilon, _: (f"{epsilon:.3g}", "")))
    for what in ("up", "down"):
        values = [m.per_round(what) for m in part.methods]
        columns.append(add(f"bytes_{what}", f"kB {what} / round", "all clients together", values, _kilobytes))
    values = [m.per_round("seconds") for m in part.methods]
    columns.append(add("seconds", "s / round", "wall clock, evaluation included", values, _seconds))
    return columns


def client_rows(part: Comparison, methods: Sequence[Method]) -> list[tuple[str, list[Spread], list[Cell]]]:
    """Every client's final metric, and the mean over clients, by method."""
    rows = [(client, [method.client(client) for method in methods]) for client in part.clients]
    rows.append(("mean over clients", [method.final() for method in methods]))
    write, sign = partial(value, digits=digits(part)), -1 if part.metric.lower else 1
    ranked = [True] * len(methods)
    return [(head, values, _cells(values, write, sign, ranked)) for head, values in rows]


def clusters(part: Comparison) -> Iterator[tuple[Method, Run, str, str]]:
    """Who ended up with whom, where an algorithm puts clients into clusters: rounds of splits, and members."""
    for method in part.methods:
        for run in method.all:
            summary = mapping(run.results.get("aggregator"))
            members, splits = summary.get("clusters"), summary.get("splits")
            if isinstance(members, list) and isinstance(splits, list):
                rounds = ", ".join(str(mapping(split).get("round")) for split in splits) or "–"
                yield method, run, rounds, "; ".join(", ".join(map(str, cluster)) for cluster in members)


def left_out(part: Comparison) -> Iterator[tuple[Method, Run, str, str, str]]:
    """Clients that failed, or sent what could not be used: in which rounds, and why the last time."""
    for method in part.methods:
        for run in method.all:
            for client, times in run.dropped.items():
                rounds = _ranges([number for number, _ in times]) or "before round 1"
                why = " ".join(times[-1][1].split()) if times else "–"
                why = why if len(why) <= 160 else f"{why[:159]}…"
                yield method, run, client, rounds + ", then for good" * (client in run.excluded), why


def gains(part: Comparison, method: Method) -> list[Spread]:
    """Every client's gain over the baseline."""
    assert part.baseline is not None
    return [method.gain(part.baseline, client) for client in part.clients]


def digits(part: Comparison) -> int:
    """Behind the point."""
    return 2 if part.metric.scale == 100 else 4


def value(mean: float, std: float, digits: int, sign: str = "") -> tuple[str, str]:
    """A mean, and its deviation if there is one."""
    text = f"{mean:{sign}.{digits}f}".replace("-", "−")
    return text, "" if math.isnan(std) else f" ± {std:.{digits}f}"


def _column(
    part: Comparison, key: str, head: str, why: str, values: list[Spread], write: Write, direction: int = 0
) -> Column:
    return Column(key, head, why, values, _cells(values, write, direction, [m.finished for m in part.methods]))


def _better(part: Comparison, method: Method) -> float:
    """How many clients gain; NaN if there is no number."""
    known = [mean for mean, _ in gains(part, method) if math.isfinite(mean)]
    return sum(map(part.metric.better, known)) if known else math.nan


def _cells(values: Sequence[Spread], write: Write, direction: int, ranked: Sequence[bool]) -> list[Cell]:
    """Numbers as cells, the best of them marked; what is printed alike is equally good.

    Args:
        values: a number per method.
        write: how a number is written.
        direction: whether more (1) or less (-1) is best, or neither (0).
        ranked: whether a method is compared with the others.
    """
    written = [Cell(*(write(mean, std) if math.isfinite(mean) else ("–", "")), False) for mean, std in values]
    known = [
        (direction * mean, cell.text)
        for (mean, _), cell, compared in zip(values, written, ranked, strict=True)
        if compared and math.isfinite(mean)
    ]
    top = max(known)[1] if direction and len({text for _, text in known}) > 1 else None
    return [replace(cell, best=compared and cell.text == top) for cell, compared in zip(written, ranked, strict=True)]


def _ranges(numbers: Sequence[int]) -> str:
    """``1, 4–6`` for 1, 4, 5 and 6."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1][1:] = [number]
        else:
            ranges.append([number])
    return ", ".join("–".join(map(str, ends)) for ends in ranges)


def _kilobytes(mean: float, _: float) -> tuple[str, str]:
    return "0" if mean == 0 else f"{mean / 1e3:,.1f}" if mean < 1e5 else f"{mean / 1e3:,.0f}", ""


def _seconds(mean: float, std: float) -> tuple[str, str]:
    return value(mean, std, 2 if mean >= 0.1 else 4)
