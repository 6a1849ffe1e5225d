"""Bars and boxes: a value per client, a value per method."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flgraph.report.charts.style import (
    INK,
    MUTED,
    PAPER,
    Spread,
    Style,
    empty_figure,
    legend_below,
    mark,
    names_down,
    panel,
    plain_text,
    shortened,
    value_text,
)

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

MAX_BARS = 110
"""So many bars lie side by side on a whole page before clients go into a second row, and fewer where it is narrower."""

MAX_DOTS = 240
"""More dots than these have no hover text each."""

_WHOLE = 11.4  # inches


def grouped_bars(
    groups: Sequence[str],
    values: Mapping[str, Sequence[Spread]],
    *,
    ylabel: str,
    styles: Mapping[str, Style],
    width: float,
    height: float = 3.2,
    legend: bool = False,
) -> Figure:
    """A group of bars per client, a bar per method, with error bars; in several rows if there are many.

    Args:
        groups: clients.
        values: method to mean and standard deviation per client.
        ylabel: what is measured.
        styles: method to its looks.
        width: inches.
        height: inches of every row.
        legend: whether the figure names the methods.
    """
    most = MAX_BARS * min(1.0, width / _WHOLE)
    rows = max(1, math.ceil(len(groups) * len(values) / most))
    columns = math.ceil(len(groups) / rows)
    rows = math.ceil(len(groups) / columns)
    with empty_figure((width, height * rows)) as figure:
        panels = figure.subplots(rows, 1, sharey=True, squeeze=False)[:, 0]
        bar = 0.84 / max(len(values), 4)
        handles: dict[str, Artist] = {}
        for row, axes in enumerate(panels):
            here = list(groups[row * columns : (row + 1) * columns])
            axes.grid(axis="y")
            axes.set_ylabel(plain_text(ylabel))
            for number, (name, spreads) in enumerate(values.items()):
                style = styles[name]
                part = spreads[row * columns : (row + 1) * columns]
                places = [group + (number - (len(values) - 1) / 2) * bar for group in range(len(here))]
                for place, (mean, std) in zip(places, part, strict=True):
                    if math.isnan(mean):
                        continue
                    (patch,) = axes.bar(place, mean, 0.9 * bar, color=style.colour, linewidth=0)
                    if style.hatch:
                        patch.set(hatch=style.hatch, edgecolor=PAPER)
                    patch.set_label(plain_text(name))
                    handles.setdefault(name, patch)
                    text = f"{name}, {here[round(place)]}: {value_text(mean, std)}"
                    mark(patch, style, text)
                    if not math.isnan(std):
                        stroke = axes.vlines(place, mean - std, mean + std, color=INK, linewidth=0.8, zorder=3)
                        mark(stroke, style, text)
            axes.axhline(0, color=MUTED, linewidth=0.8)
            axes.set_xlim(-0.6, columns - 0.4)
            letters = sum(len(group) for group in here) + 2 * len(here)
            tilted = letters > 13 * width
            axes.set_xticks(range(len(here)), [shortened(group) for group in here], color=INK)
            if tilted:
                for label in axes.get_xticklabels():
                    label.set(rotation=35, ha="right", rotation_mode="anchor")
            axes.tick_params(axis="x", length=0)
        if legend:
            legend_below(figure, [handles[name] for name in values if name in handles])
    return figure


def distributions(
    groups: Sequence[str],
    values: Mapping[str, Sequence[float]],
    *,
    xlabel: str,
    styles: Mapping[str, Style],
    width: float,
    zero: bool = False,
) -> Figure:
    """A box and a dot per client for every method: what remains readable with very many clients.

    Args:
        groups: clients.
        values: method to one value per client.
        xlabel: what is measured.
        styles: method to its looks.
        width: inches.
        zero: marks zero, for differences.
    """
    with empty_figure((width, 0.75 + 0.5 * max(len(values), 1))) as figure:
        axes = panel(figure, "", xlabel, "")
        axes.grid(axis="y", visible=False)
        for number, (name, given) in enumerate(values.items()):
            found = [(group, value) for group, value in zip(groups, given, strict=True) if math.isfinite(value)]
            style, known = styles[name], [value for _, value in found]
            if not known:
                continue
            box = axes.boxplot(
                [known],
                positions=[number],
                orientation="horizontal",
                widths=0.55,
                showfliers=False,
                patch_artist=True,
                boxprops={"facecolor": style.colour, "alpha": 0.25, "linewidth": 0},
                whiskerprops={"color": style.colour, "linewidth": 1},
                capprops={"color": style.colour, "linewidth": 1},
                medianprops={"color": style.colour, "linewidth": 2},
            )
            for artists in box.values():
                for artist in artists:
                    mark(artist, style, f"{name}: median {statistics.median(known):.4g}")
            # Spread by the golden ratio: even, and the same in every report.
            heights = [number + 0.42 * ((index * 0.618034) % 1 - 0.5) for index in range(len(known))]
            look: dict[str, Any] = {"s": 7, "color": style.colour, "alpha": 0.7, "linewidths": 0, "zorder": 3}
            if len(groups) * len(values) > MAX_DOTS:
                mark(axes.scatter(known, heights, **look), style, name)
                continue
            for (group, value), height in zip(found, heights, strict=True):
                mark(axes.scatter(value, height, **look), style, f"{name}, {group}: {value:.4g}")
        if zero:
            axes.axvline(0, color=MUTED, linewidth=0.8)
        names_down(axes, list(values))
    return figure


def level_bars(
    values: Mapping[str, Spread],
    *,
    xlabel: str,
    styles: Mapping[str, Style],
    size: tuple[float, float],
) -> Figure:
    """One horizontal bar per method with its value beside it."""
    with empty_figure(size) as figure:
        axes = panel(figure, "", xlabel, "")
        axes.grid(axis="y", visible=False)
        known = [mean + (0 if math.isnan(std) else std) for mean, std in values.values() if math.isfinite(mean)]
        longest = max(known, default=1.0) or 1.0
        for number, (name, (mean, std)) in enumerate(values.items()):
            if math.isnan(mean):
                continue
            style = styles[name]
            (patch,) = axes.barh(number, mean, 0.66, color=style.colour, linewidth=0)
            if style.hatch:
                patch.set(hatch=style.hatch, edgecolor=PAPER)
            mark(patch, style, f"{name}: {value_text(mean, std)}")
            end = mean
            if not math.isnan(std):
                stroke = axes.hlines(number, mean - std, mean + std, color=INK, linewidth=0.9, zorder=3)
                mark(stroke, style)
                end += std
            note = axes.text(end + 0.015 * longest, number, f"{mean:.3g}", va="center", fontsize=8)
            mark(note, style)
        axes.set_xlim(0, 1.12 * longest)
        names_down(axes, list(values))
    return figure
