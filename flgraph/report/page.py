"""The page: one HTML file with its style and its charts inside, and nothing fetched from anywhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2
import yaml

from flgraph.report.charts import (
    Spread,
    Style,
    distributions,
    grouped_bars,
    learning_curves,
    level_bars,
    metric_over_bytes,
    spread,
    styles_for,
    to_svg,
)
from flgraph.report.compare import Comparison, Method, Metric
from flgraph.report.settings import shown
from flgraph.runs.reader import Run, mapping

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDE, HALF = 11.4, 5.5
"""Inches of charts that take the page's width, and half of it: letters come out equally large in both."""

MANY_CLIENTS = 30
"""More than these are shown as distributions."""

Write = Callable[[float, float], tuple[str, str]]
"""From mean and deviation to what is written, and what stands behind it in smaller letters."""


def render(comparisons: Sequence[Comparison], metric: Metric, waiting: Sequence[Path] = ()) -> str:
    """The page's HTML.

    Args:
        comparisons: one section each.
        metric: what is compared.
        waiting: folders of runs that have not finished a round.
    """
    labels = list(dict.fromkeys(method.label for part in comparisons for method in part.methods))
    styles = styles_for(labels, next((part.baseline.label for part in comparisons if part.baseline), None))
    runs = [run for part in comparisons for method in part.methods for run in method.all]
    page = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    page.filters |= {
        "count": lambda count, noun: f"{count} {noun}{'' if count == 1 else 's'}",
        "or_dash": lambda value: "–" if value is None else value,
        "shown": shown,
        "yaml": partial(yaml.safe_dump, sort_keys=False, allow_unicode=True),
    }
    return page.get_template("page.html").render(
        titles=", ".join(part.title for part in comparisons),
        metric=metric,
        styles=styles,
        runs=runs,
        going=sum(not run.finished for run in runs),
        waiting=waiting,
        many=MANY_CLIENTS,
        sections=[Section(part, metric, styles, f"s{number}") for number, part in enumerate(comparisons, start=1)],
    )


@dataclass(frozen=True)
class Cell:
    """A number in a table: its text, what stands behind it in smaller letters, and whether it is the best one."""

    text: str
    small: str
    best: bool


@dataclass(frozen=True)
class Column:
    """A column of the summary: its head, what explains it, and a cell per method."""

    head: str
    why: str
    cells: list[Cell]


@dataclass(frozen=True)
class Panel:
    """A chart with its title and caption."""

    title: str
    svg: str
    caption: str
    wide: bool


class Section:
    """All about one data set, as the template asks for it.

    Args:
        part: its methods.
        metric: what is compared.
        styles: method to its looks.
        anchor: identifier of the section; those of its parts begin with it.
    """

    def __init__(self, part: Comparison, metric: Metric, styles: Mapping[str, Style], anchor: str) -> None:
        self.part, self.metric, self.anchor = part, metric, anchor
        self.styles = {method.label: styles[method.label] for method in part.methods}
        self.label = f"{metric.words}{metric.unit}"
        self.shown = [method for method in part.methods if method.finished] or part.methods
        self.going = any(not run.finished for method in part.methods for run in method.all)
        keys = sorted({key for m in part.methods for run in m.all for record in run.rounds for key in record.server})
        self.keys = [key for key in keys if "/" not in key]
        self.groups = list(dict.fromkeys(f"{key.partition('/')[0]}/…" for key in keys if "/" in key))
        """What the server wrote down for each client or cluster, which is not drawn."""
        self._digits = 2 if metric.scale == 100 else 4
        self._sign = -1 if metric.lower else 1
        self._charts = 0

    # ------------------------------------------------------------------------------------------------------- tables
    def summary(self) -> list[Column]:
        """The columns behind each method's name, seeds and rounds."""
        part, columns, digits, sign = self.part, [], self._digits, self._sign
        methods, baseline, none = part.methods, part.baseline, (math.nan, math.nan)
        finished = [method.finished for method in methods]

        def add(head: str, why: str, values: list[Spread], write: Write, direction: int = 0) -> None:
            columns.append(Column(head, why, _cells(values, write, direction, finished)))

        add("final", "after the last round", [m.final() for m in methods], self._value, sign)
        why = "in the round with the best validation metric"
        add("best val", why, [m.best_val() for m in methods], self._value, sign)
        why = "optimistic: the round is chosen by the test data"
        add("best test*", why, [m.best_test() for m in methods], self._value, sign)
        if baseline is not None and part.compared:
            values = [m.gain(baseline) if m in part.compared else none for m in methods]
            why = "of the final metric, runs of the same seed paired"
            add(f"gain over {baseline.label}", why, values, partial(_value, digits=digits, sign="+"), sign)
            of_all = f" of {len(part.clients)}"
            values = [(self._better(m) if m in part.compared else math.nan, math.nan) for m in methods]
            add("clients better", "by the mean over seeds", values, lambda mean, _: (f"{mean:.0f}", of_all), 1)
        for head, which in (("parameters / client", "total"), ("shared parameters", "shared")):
            values = [(method.parameters(which), math.nan) for method in methods]
            if any(math.isfinite(count) for count, _ in values):
                add(head, "mean over clients", values, lambda mean, _: (f"{mean:,.0f}", ""))
        for what in ("up", "down"):
            add(f"kB {what} / round", "all clients together", [m.per_round(what) for m in methods], _kilobytes)
        add("s / round", "wall clock, evaluation included", [m.per_round("seconds") for m in methods], _seconds)
        return columns

    def _value(self, mean: float, std: float) -> tuple[str, str]:
        return _value(mean, std, self._digits)

    def _better(self, method: Method) -> float:
        """How many clients gain; NaN if there is no number."""
        gains = [mean for mean, _ in self._gains(method) if math.isfinite(mean)]
        return sum(map(self.metric.better, gains)) if gains else math.nan

    def _gains(self, method: Method) -> list[Spread]:
        assert self.part.baseline is not None
        return [method.gain(self.part.baseline, client) for client in self.part.clients]

    def client_rows(self) -> list[tuple[str, list[Cell]]]:
        """Every client's final metric, and the mean over them, by method."""
        rows = [(client, [method.client(client) for method in self.shown]) for client in self.part.clients]
        rows.append(("mean over clients", [method.final() for method in self.shown]))
        ranked = [True] * len(self.shown)
        return [(head, _cells(values, self._value, self._sign, ranked)) for head, values in rows]

    @property
    def clusters(self) -> list[tuple[Method, Run, str, str]]:
        """Who ended up with whom, where an algorithm puts clients into clusters: rounds of splits, and members."""
        rows = []
        for method in self.part.methods:
            for run in method.all:
                summary = mapping(run.results.get("aggregator"))
                clusters, splits = summary.get("clusters"), summary.get("splits")
                if isinstance(clusters, list) and isinstance(splits, list):
                    rounds = ", ".join(str(mapping(split).get("round")) for split in splits) or "–"
                    rows.append((method, run, rounds, "; ".join(", ".join(map(str, cluster)) for cluster in clusters)))
        return rows

    # ------------------------------------------------------------------------------------------------------- charts
    def curves(self) -> list[Panel]:
        """What was measured over rounds, where any run has it."""
        metric, panels = self.metric, []

        def of(name: str) -> Callable[[Method, Sequence[Run]], list[list[float]]]:
            return lambda method, runs: method.curves(name, runs)

        def of_server(key: str) -> Callable[[Method, Sequence[Run]], list[list[float]]]:
            return lambda _, runs: [run.server_curve(key) for run in runs]

        wanted = [
            (metric.words.capitalize(), self.label, (WIDE, 4.3), of(metric.test)),
            (f"Validation {metric.bare}", f"validation {metric.bare}{metric.unit}", (HALF, 3.5), of(metric.val)),
            ("Training loss", "training loss", (HALF, 3.5), of("train/loss")),
        ]
        for key in self.keys:
            wanted.append((f"Server: {key}", key, (HALF, 3.0), of_server(key)))
        for title, ylabel, size, get in wanted:
            series = {method.label: get(method, method.runs) for method in self.part.methods if method.finished}
            going = {m.label: get(m, [run for run in m.all if not run.finished]) for m in self.part.methods}
            lines = [line for group in (series, going) for lines in group.values() for line in lines]
            if any(math.isfinite(value) for line in lines for value in line):
                figure = learning_curves(
                    series, ylabel=ylabel, size=size, styles=self.styles, legend=False, unfinished=going
                )
                panels.append(self._panel(title, figure, wide=size[0] == WIDE, description=f"{title} over rounds"))
        return panels

    def clients(self) -> list[Panel]:
        """Every client's final metric, and its gain over the baseline."""
        part, baseline = self.part, self.part.baseline
        title = f"Final {self.metric.words} of every client"
        finals = {method.label: [method.client(client) for client in part.clients] for method in self.shown}
        caption = "Mean over seeds; error bars: one standard deviation."
        panels = [self._by_client(title, self.label, part.clients, finals, caption)]
        if baseline is None or not part.compared:
            return panels
        gains = {method.label: self._gains(method) for method in part.compared}
        columns = list(zip(*gains.values(), strict=True))
        typical = [spread([mean for mean, _ in column])[0] for column in columns]
        order = sorted(range(len(typical)), key=lambda n: (math.isnan(typical[n]), -self._sign * typical[n], n))
        ordered = {label: [spreads[place] for place in order] for label, spreads in gains.items()}
        ylabel = f"gain over {baseline.label}" + (" (points)" if self.metric.scale == 100 else "")
        caption = "Clients by their mean gain over all methods. Error bars: standard deviation over pairs of runs."
        title = f"Gain over {baseline.label} of every client"
        names = [part.clients[place] for place in order]
        return [*panels, self._by_client(title, ylabel, names, ordered, caption, zero=True)]

    def _by_client(
        self,
        title: str,
        label: str,
        clients: Sequence[str],
        spreads: Mapping[str, Sequence[Spread]],
        caption: str,
        zero: bool = False,
    ) -> Panel:
        if len(clients) <= MANY_CLIENTS:
            figure = grouped_bars(clients, spreads, ylabel=label, styles=self.styles, width=WIDE)
            return self._panel(title, figure, caption)
        means = {name: [mean for mean, _ in values] for name, values in spreads.items()}
        figure = distributions(means, xlabel=label, styles=self.styles, width=WIDE, zero=zero)
        box = "" if zero else " Box: quartiles and median; whiskers: 1.5 times the box."
        return self._panel(title, figure, f"A dot is a client, the mean over seeds.{box}")

    def cost(self) -> list[Panel]:
        """The metric by megabytes, and seconds per round."""
        lines, free, panels = {}, {}, []
        for method in self.shown:
            megabytes, values = method.over_bytes()
            if megabytes and megabytes[-1] > 0:
                lines[method.label] = (megabytes, values)
            elif values:
                free[method.label] = values[-1]
        if lines:
            figure = metric_over_bytes(lines, free, ylabel=self.label, styles=self.styles, size=(HALF, 3.5))
            caption = "Means over seeds. Without what is sent before the first round, and without metrics."
            if free:
                caption += f" Level line: {', '.join(free)} at the end, without sending anything."
            panels.append(self._panel(f"{self.metric.words.capitalize()} by megabytes sent", figure, caption, False))
        seconds = {method.label: method.per_round("seconds") for method in self.shown}
        if any(math.isfinite(mean) for mean, _ in seconds.values()):
            height = max(1.6, min(3.5, 0.9 + 0.42 * len(seconds))) if not lines else 3.5
            figure = level_bars(seconds, xlabel="seconds per round", styles=self.styles, size=(HALF, height))
            caption = "Wall clock with evaluation, beside whatever else the machine did. Mean and deviation over seeds."
            panels.append(self._panel("Seconds per round", figure, caption, False))
        return panels

    def _panel(self, title: str, figure: Figure, caption: str = "", wide: bool = True, description: str = "") -> Panel:
        self._charts += 1
        return Panel(title, to_svg(figure, f"{self.anchor}c{self._charts}", description or title), caption, wide)


# -------------------------------------------------------------------------------------------------------------- cells
def _cells(values: Sequence[Spread], write: Write, direction: int, ranked: Sequence[bool]) -> list[Cell]:
    """Numbers as cells, the best of them marked; what is printed alike is equally good.

    Args:
        values: a number per method.
        write: how a number is written.
        direction: whether more (1) or less (-1) is best, or neither (0).
        ranked: whether a method is compared with the others.
    """
    written = [write(mean, std) if math.isfinite(mean) else ("–", "") for mean, std in values]
    known = [
        (direction * mean, text)
        for (mean, _), (text, _), compared in zip(values, written, ranked, strict=True)
        if compared and math.isfinite(mean)
    ]
    top = max(known)[1] if direction and len({text for _, text in known}) > 1 else None
    return [Cell(*texts, compared and texts[0] == top) for texts, compared in zip(written, ranked, strict=True)]


def _value(mean: float, std: float, digits: int, sign: str = "") -> tuple[str, str]:
    text = f"{mean:{sign}.{digits}f}".replace("-", "−")
    return text, "" if math.isnan(std) else f" ± {std:.{digits}f}"


def _kilobytes(mean: float, _: float) -> tuple[str, str]:
    return "0" if mean == 0 else f"{mean / 1e3:,.1f}" if mean < 1e5 else f"{mean / 1e3:,.0f}", ""


def _seconds(mean: float, std: float) -> tuple[str, str]:
    return _value(mean, std, 2 if mean >= 0.1 else 4)
