"""Lines over rounds, settings and bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from flgraph.report.charts.style import (
    Spread,
    Style,
    empty_figure,
    legend_below,
    mark,
    panel,
    plain_text,
    shortened,
    slices,
    spread,
    styles_for,
    value_text,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_POINTS = 600
"""Of longer runs so many rounds are drawn: a screen shows no more, and the page stays small."""

MAX_TOLD = 60
"""Of so many rounds a hover text tells the values: fingers and pointers meet no thinner strips."""


def learning_curves(
    series: Mapping[str, Sequence[Sequence[float]]],
    *,
    ylabel: str = "",
    title: str = "",
    size: tuple[float, float] = (7.0, 4.0),
    styles: Mapping[str, Style] | None = None,
    legend: bool = True,
    unfinished: Mapping[str, Sequence[Sequence[float]]] | None = None,
) -> Figure:
    """Mean lines over rounds with bands of one standard deviation on either side.

    Args:
        series: method to its runs (seeds), each a value per round, from round 1; NaN for rounds without one. At every
            round the mean is over the runs that have a value there; a round that no run has a value for is skipped.
        ylabel: what is measured.
        title: above the panel.
        size: inches.
        styles: method to its looks; made from the names if not given, ``Local`` grey.
        legend: whether the figure names the methods; if not, hover texts of rounds do, with all values, on a page.
        unfinished: more runs, drawn one by one as thin dotted lines and in no mean.

    Returns:
        A figure that no ``pyplot`` knows of; :func:`save_figure` and :func:`to_svg` write it.
    """
    unfinished = unfinished or {}
    styles = styles or styles_for(list(dict.fromkeys([*series, *unfinished])), "Local")
    with empty_figure(size) as figure:
        axes = panel(figure, title, "round", ylabel)
        longest, labelled, told = 1, set(series), dict[int, list[str]]()
        for name, runs in series.items():
            rounds, means, stds = _over_rounds(runs)
            if not rounds:
                continue
            longest = max(longest, rounds[-1])
            style = styles[name]
            for number, mean, std in zip(rounds, means, stds, strict=True):
                told.setdefault(number, []).append(f"{name}: {value_text(mean, std)}")
            if any(std > 0 for std in stds):
                lower = [mean - (0 if math.isnan(std) else std) for mean, std in zip(means, stds, strict=True)]
                upper = [mean + (0 if math.isnan(std) else std) for mean, std in zip(means, stds, strict=True)]
                band = axes.fill_between(rounds, lower, upper, color=style.colour, alpha=0.13, linewidth=0, zorder=1.5)
                mark(band, style, name)
            _line(axes, rounds, means, style, name)
        for name, runs in unfinished.items():
            for run in runs:
                rounds, values, _ = _over_rounds([run])
                if not rounds:
                    continue
                for number, value in zip(rounds, values, strict=True):
                    told.setdefault(number, []).append(f"{name}, unfinished: {value_text(value, math.nan)}")
                longest = max(longest, rounds[-1])
                style = styles[name]
                label = None if name in labelled else plain_text(name)
                labelled.add(name)
                (line,) = axes.plot(
                    rounds, values, color=style.colour, linewidth=0.9, linestyle=(0, (1, 1.2)), label=label, zorder=2.2
                )
                mark(line, style, f"{name}, unfinished")
        axes.set_xlim(1 if longest > 1 else 0.5, longest * 1.01 if longest > 1 else 1.5)
        _whole_numbers(axes)
        if legend:
            legend_below(figure, axes.get_legend_handles_labels()[0])
        else:
            _tell(axes, told)
    return figure


def error_bars(
    series: Mapping[str, Mapping[str, Spread]], settings: Sequence[str], *, xlabel: str, ylabel: str
) -> Figure:
    """Means with error bars over settings that have names, a line per method.

    Args:
        series: method to setting to mean and standard deviation.
        settings: from left to right.
        xlabel: what the settings are of.
        ylabel: what is measured.
    """
    styles = styles_for(list(series), "Local")
    with empty_figure((7.0, 4.0)) as figure:
        axes = panel(figure, "", xlabel, ylabel)
        for number, (name, spreads) in enumerate(series.items()):
            style = styles[name]
            # A little beside each other, so that error bars do not hide one another.
            beside = 0.4 * ((number + 0.5) / len(series) - 0.5)
            known = [(place, *spreads[key]) for place, key in enumerate(settings) if key in spreads]
            points = [(place + beside, mean, std) for place, mean, std in known if math.isfinite(mean)]
            places, means = [place for place, _, _ in points], [mean for _, mean, _ in points]
            look: dict[str, Any] = {"dashes": style.dashes} if style.dashes else {}
            (line,) = axes.plot(
                places,
                means,
                color=style.colour,
                linewidth=1.4,
                marker="o",
                markersize=4,
                label=plain_text(name),
                **look,
            )
            mark(line, style, name)
            for place, mean, std in points:
                if not math.isnan(std):
                    stroke = axes.vlines(place, mean - std, mean + std, color=style.colour, linewidth=1.2)
                    mark(stroke, style)
        axes.set_xticks(range(len(settings)), [shortened(setting) for setting in settings])
        legend_below(figure, axes.get_legend_handles_labels()[0])
    return figure


def metric_over_bytes(
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    free: Mapping[str, float],
    *,
    ylabel: str,
    styles: Mapping[str, Style],
    size: tuple[float, float],
    legend: bool = False,
) -> Figure:
    """What a method reached after so many megabytes.

    Args:
        series: method to megabytes sent so far and the metric then.
        free: method that sends nothing to its metric at the end, drawn as a level line.
        ylabel: the metric.
        styles: method to its looks.
        size: inches.
        legend: whether the figure names the methods.
    """
    with empty_figure(size) as figure:
        axes = panel(figure, "", "megabytes sent so far (up and down, all clients)", ylabel)
        for name, (megabytes, values) in series.items():
            _line(axes, megabytes, values, styles[name], name, f": {values[-1]:.4g} after {megabytes[-1]:.3g} MB")
        for name, value in free.items():
            line = axes.axhline(value, color=styles[name].colour, linewidth=1.2, linestyle=(0, (5, 2)), zorder=1.8)
            line.set_label(plain_text(name))
            mark(line, styles[name], f"{name}: {value:.4g}, nothing sent")
        ends = [xs[-1] for xs, _ in series.values() if len(xs)]
        starts = [xs[0] for xs, _ in series.values() if len(xs) and xs[0] > 0]
        if ends and starts and max(ends) > 20 * min(ends):
            axes.set_xscale("log")  # else the frugal methods are a vertical stroke at the left
        elif ends:
            axes.set_xlim(0, max(ends) * 1.01)
        if legend:
            legend_below(figure, axes.get_legend_handles_labels()[0])
    return figure


def thinned(count: int, most: int = MAX_POINTS) -> list[int]:
    """At most ``most`` even-spaced positions in ``range(count)``, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return [round(number * (count - 1) / (most - 1)) for number in range(most)]


def _tell(axes: Axes, told: Mapping[int, Sequence[str]]) -> None:
    """A hover text per round, of at most :data:`MAX_TOLD` rounds."""
    rounds = sorted(told)
    kept = [rounds[place] for place in thinned(len(rounds), MAX_TOLD)]
    if not kept:
        return
    left, right = axes.get_xlim()
    between = [(one + other) / 2 for one, other in pairwise(kept)]
    slices(axes, [left, *between, right], ["\n".join([f"round {number}", *told[number]]) for number in kept])
    axes.set_xlim(left, right)


def _line(axes: Axes, xs: Sequence[float], ys: Sequence[float], style: Style, name: str, text: str = "") -> None:
    look: dict[str, Any] = {"color": style.colour, "linewidth": 1.4, "solid_joinstyle": "round"}
    if style.dashes:
        look["dashes"] = style.dashes
    (line,) = axes.plot(xs, ys, label=plain_text(name), zorder=2.5, **look)
    mark(line, style, name + text)
    (end,) = axes.plot(xs[-1:], ys[-1:], marker="o", markersize=3.6, color=style.colour, zorder=2.6, clip_on=False)
    mark(end, style, name + text)


def _over_rounds(runs: Sequence[Sequence[float]]) -> tuple[list[int], list[float], list[float]]:
    """Rounds for which any run has a value, with mean and standard deviation there."""
    rounds, means, stds = [], [], []
    for index in range(max((len(run) for run in runs), default=0)):
        mean, std = spread([run[index] for run in runs if index < len(run)])
        if math.isfinite(mean):
            rounds.append(index + 1)
            means.append(mean)
            stds.append(std)
    kept = thinned(len(rounds))
    return [rounds[i] for i in kept], [means[i] for i in kept], [stds[i] for i in kept]


def _whole_numbers(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, steps=[1, 2, 5, 10]))
