"""Charts of a comparison, each drawn for where it will be seen: on a page, on a phone, in print."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
)
from flgraph.report.compare import Comparison, Method
from flgraph.report.tables import gains
from flgraph.runs.reader import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MANY_CLIENTS = 30
"""More than these are shown as distributions."""


@dataclass(frozen=True)
class Layout:
    """Where charts are seen.

    Args:
        whole: inches of those that take the width.
        half: inches of those that take half of it: letters come out equally large in both.
        row: inches from top to bottom of a row of bars.
        curve: inches from top to bottom of curves.
        legend: whether each names its methods; a page does so once.
    """

    whole: float
    half: float
    row: float
    curve: float
    legend: bool = False


PAGE = Layout(11.4, 5.5, 3.2, 3.5)
PHONE = Layout(3.9, 3.9, 2.4, 2.9)
PRINT = Layout(7.2, 3.5, 2.2, 2.5, legend=True)
"""Two columns of a journal's page, and one."""


@dataclass(frozen=True)
class Panel:
    """A chart.

    Args:
        title: what stands above it.
        name: of its files.
        draw: draws it for a layout.
        caption: what stands below it.
        wide: whether it takes the width of a page.
    """

    title: str
    name: str
    draw: Callable[[Layout], Figure]
    caption: str = ""
    wide: bool = False


def styles_of(comparisons: Sequence[Comparison]) -> dict[str, Style]:
    """How each method looks, the same in all charts."""
    labels = list(dict.fromkeys(method.label for part in comparisons for method in part.methods))
    return styles_for(labels, next((part.baseline.label for part in comparisons if part.baseline), None))


class Panels:
    """The charts of one comparison.

    Args:
        part: what is compared.
        styles: method to its looks.
    """

    def __init__(self, part: Comparison, styles: Mapping[str, Style]) -> None:
        self.part, self.metric, self.styles = part, part.metric, styles
        self.label = f"{part.metric.words}{part.metric.unit}"
        self.shown = part.shown
        """The methods that are compared."""
        keys = sorted({key for m in part.methods for run in m.all for record in run.rounds for key in record.server})
        self.keys = [key for key in keys if "/" not in key]
        self.groups = list(dict.fromkeys(f"{key.partition('/')[0]}/…" for key in keys if "/" in key))
        """What the server wrote down for each client or cluster, which is not drawn."""

    def all(self) -> list[Panel]:
        """Every chart."""
        return [*self.curves(), *self.clients(), *self.cost()]

    # ------------------------------------------------------------------------------------------------------- rounds
    def curves(self) -> list[Panel]:
        """What was measured over rounds, where any run has it."""
        metric = self.metric

        def of(name: str) -> Callable[[Method, Sequence[Run]], list[list[float]]]:
            return lambda method, runs: method.curves(name, runs)

        def of_server(key: str) -> Callable[[Method, Sequence[Run]], list[list[float]]]:
            return lambda _, runs: [run.server_curve(key) for run in runs]

        wanted = {
            metric.words.capitalize(): (self.label, of(metric.test)),
            f"Validation {metric.bare}": (f"validation {metric.bare}{metric.unit}", of(metric.val)),
            "Training loss": ("training loss", of("train/loss")),
            **{f"Server: {key}": (key, of_server(key)) for key in self.keys},
        }
        panels: list[Panel] = []
        for title, (ylabel, get) in wanted.items():
            series = {method.label: get(method, method.runs) for method in self.part.methods if method.finished}
            going = {m.label: get(m, [run for run in m.all if not run.finished]) for m in self.part.methods}
            lines = [line for group in (series, going) for lines in group.values() for line in lines]
            if any(math.isfinite(value) for line in lines for value in line):
                panels.append(self._curve(title, ylabel, series, going, wide=not panels))
        return panels

    def _curve(
        self,
        title: str,
        ylabel: str,
        series: Mapping[str, Sequence[Sequence[float]]],
        going: Mapping[str, Sequence[Sequence[float]]],
        wide: bool,
    ) -> Panel:
        def draw(layout: Layout) -> Figure:
            whole = wide and not layout.legend  # a curve is well seen in a column
            size = (layout.whole if whole else layout.half, layout.curve * (1.2 if whole else 1))
            return learning_curves(
                series,
                ylabel=ylabel,
                size=size,
                styles=self.styles,
                legend=layout.legend,
                unfinished=going,
            )

        return Panel(title, f"{title} over rounds", draw, wide=wide)

    # ------------------------------------------------------------------------------------------------------ clients
    def clients(self) -> list[Panel]:
        """Every client's final metric, and its gain over the baseline."""
        part, baseline = self.part, self.part.baseline
        if not part.clients:
            return []
        title = f"Final {self.metric.words} of every client"
        finals = {method.label: [method.client(client) for client in part.clients] for method in self.shown}
        caption = "Mean over seeds; error bars: one standard deviation."
        panels = [self._by_client(title, self.label, part.clients, finals, caption)]
        if baseline is None or not part.compared:
            return panels
        gained = {method.label: gains(part, method) for method in part.compared}
        columns = list(zip(*gained.values(), strict=True))
        typical = [spread([mean for mean, _ in column])[0] for column in columns]
        sign = -1 if self.metric.lower else 1
        order = sorted(range(len(typical)), key=lambda n: (math.isnan(typical[n]), -sign * typical[n], n))
        ordered = {label: [spreads[place] for place in order] for label, spreads in gained.items()}
        ylabel = f"{self.metric.difference} {baseline.label}" + (" (points)" if self.metric.scale == 100 else "")
        caption = "Clients by their mean over all methods. Error bars: standard deviation over pairs of runs."
        title = f"{self.metric.difference.capitalize()} {baseline.label} of every client"
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
        def bars(layout: Layout) -> Figure:
            return grouped_bars(
                clients,
                spreads,
                ylabel=label,
                styles=self.styles,
                width=layout.whole,
                height=layout.row,
                legend=layout.legend,
            )

        def dots(layout: Layout) -> Figure:
            means = {name: [mean for mean, _ in values] for name, values in spreads.items()}
            return distributions(clients, means, xlabel=label, styles=self.styles, width=layout.whole, zero=zero)

        if len(clients) <= MANY_CLIENTS:
            return Panel(title, title, bars, caption, wide=True)
        box = "" if zero else " Box: quartiles and median; whiskers: 1.5 times the box."
        return Panel(title, title, dots, f"A dot is a client, the mean over seeds.{box}", wide=True)

    # --------------------------------------------------------------------------------------------------------- cost
    def cost(self) -> list[Panel]:
        """The metric by megabytes, and seconds per round."""
        return [*self._by_bytes(), *self._seconds()]

    def _by_bytes(self) -> Iterator[Panel]:
        lines, free = dict[str, tuple[list[float], list[float]]](), dict[str, float]()
        for method in self.shown:
            megabytes, values = method.over_bytes()
            if megabytes and megabytes[-1] > 0:
                lines[method.label] = (megabytes, values)
            elif values:
                free[method.label] = values[-1]
        if not lines:
            return

        def draw(layout: Layout) -> Figure:
            size = (layout.half, layout.curve)
            return metric_over_bytes(
                lines, free, ylabel=self.label, styles=self.styles, size=size, legend=layout.legend
            )

        caption = "Means over seeds. Without what is sent before the first round, and without metrics."
        if free:
            caption += f" Level line: {', '.join(free)} at the end, without sending anything."
        title = f"{self.metric.words.capitalize()} by megabytes sent"
        yield Panel(title, title, draw, caption)

    def _seconds(self) -> Iterator[Panel]:
        seconds = {method.label: method.per_round("seconds") for method in self.shown}
        if not any(math.isfinite(mean) for mean, _ in seconds.values()):
            return

        def draw(layout: Layout) -> Figure:
            height = max(1.6 if layout.legend else layout.curve, 0.8 + 0.28 * len(seconds))
            return level_bars(seconds, xlabel="seconds per round", styles=self.styles, size=(layout.half, height))

        caption = "Wall clock with evaluation, beside whatever else the machine did. Mean and deviation over seeds."
        yield Panel("Seconds per round", "Seconds per round", draw, caption)
