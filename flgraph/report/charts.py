"""Charts of runs: matplotlib figures, and the SVG text that a page takes in.

Nothing here touches ``pyplot``, so no figure outlives its use and no display is needed. matplotlib is imported when the
first figure is made: whoever only trains does not wait for it.
"""

from __future__ import annotations

import html
import io
import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, GRID, PAPER = "#1a1d21", "#5f6671", "#e2e5ea", "#ffffff"
"""What a figure is drawn in; in SVG these four become the page's CSS variables, so that a chart follows its theme."""

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Okabe and Ito's palette for the colour-blind, but for yellow and black, which vanish on one of the themes."""

BASELINE_COLOUR = "#868d99"
DASHES: tuple[tuple[float, ...], ...] = ((), (4.0, 1.6), (1.0, 1.4))
HATCHES = ("", "/////", ".....")
MAX_POINTS = 600
"""Of longer runs so many rounds are drawn: a screen shows no more, and the page stays small."""

MAX_BARS = 110
"""So many bars lie side by side before clients go into a second row."""

_VARIABLES = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--grid)", PAPER: "var(--paper)"}
_RC: Any = {
    "font.size": 8.5,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "hatch.linewidth": 0.7,
    "legend.frameon": False,
    "svg.fonttype": "none",  # text stays text: smaller, searchable, in the page's font
    "svg.hashsalt": "flgraph",  # else identifiers are random, and no two pages of the same runs the same
    "path.simplify": True,
}

Spread = tuple[float, float]
"""Mean and standard deviation; NaN where there is none."""


@dataclass(frozen=True)
class Style:
    """How a method looks in every chart.

    Args:
        colour: of lines and bars.
        dashes: on and off lengths of its lines; empty for solid.
        hatch: of its bars.
        key: what its shapes in SVG carry as CSS class, so that a page can hide them.
    """

    colour: str
    dashes: tuple[float, ...]
    hatch: str
    key: str


def styles_for(names: Sequence[str], baseline: str | None = None) -> dict[str, Style]:
    """A style per name: colours first, then the same colours dashed and hatched.

    Args:
        names: methods, in the order of their colours.
        baseline: the one that is grey and takes none of the colours.
    """
    styles, taken = {}, 0
    for number, name in enumerate(names):
        if name == baseline:
            styles[name] = Style(BASELINE_COLOUR, (), "", f"series-{number}")
            continue
        cycle = taken // len(COLOURS) % len(DASHES)
        styles[name] = Style(COLOURS[taken % len(COLOURS)], DASHES[cycle], HATCHES[cycle], f"series-{number}")
        taken += 1
    return styles


def spread(values: Sequence[float]) -> Spread:
    """Mean and sample standard deviation of the finite ones of ``values``."""
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return math.nan, math.nan
    return statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else math.nan


# ------------------------------------------------------------------------------------------------ lines over rounds
def learning_curves(
    series: Mapping[str, Sequence[Sequence[float]]],
    *,
    ylabel: str = "",
    xlabel: str = "round",
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
        xlabel: what the values are counted by.
        title: above the panel.
        size: inches.
        styles: method to its looks; made from the names if not given, ``Local`` grey.
        legend: whether the figure names the methods.
        unfinished: more runs, drawn one by one as thin dotted lines and in no mean.

    Returns:
        A figure that no ``pyplot`` knows of; :func:`save_png` and :func:`to_svg` write it.
    """
    unfinished = unfinished or {}
    styles = styles or styles_for(list(dict.fromkeys([*series, *unfinished])), "Local")
    with _figure(size) as figure:
        axes = _panel(figure, title, xlabel, ylabel)
        longest, labelled = 1, set(series)
        for name, runs in series.items():
            rounds, means, stds = _over_rounds(runs)
            if not rounds:
                continue
            longest = max(longest, rounds[-1])
            style = styles[name]
            if any(std > 0 for std in stds):
                lower = [mean - (0 if math.isnan(std) else std) for mean, std in zip(means, stds, strict=True)]
                upper = [mean + (0 if math.isnan(std) else std) for mean, std in zip(means, stds, strict=True)]
                band = axes.fill_between(rounds, lower, upper, color=style.colour, alpha=0.13, linewidth=0, zorder=1.5)
                _mark(band, style, name)
            _line(axes, rounds, means, style, name)
        for name, runs in unfinished.items():
            for run in runs:
                rounds, values, _ = _over_rounds([run])
                if not rounds:
                    continue
                longest = max(longest, rounds[-1])
                style = styles[name]
                label = None if name in labelled else _plain(name)
                labelled.add(name)
                (line,) = axes.plot(
                    rounds, values, color=style.colour, linewidth=0.9, linestyle=(0, (1, 1.2)), label=label, zorder=2.2
                )
                _mark(line, style, f"{name}, unfinished")
        axes.set_xlim(1 if longest > 1 else 0.5, longest * 1.01 if longest > 1 else 1.5)
        _whole_numbers(axes)
        if legend:
            _legend(figure, axes)
    return figure


def error_bars(
    series: Mapping[str, Mapping[str, Spread]],
    *,
    ylabel: str = "",
    xlabel: str = "",
    title: str = "",
    size: tuple[float, float] = (7.0, 4.0),
    styles: Mapping[str, Style] | None = None,
    legend: bool = True,
) -> Figure:
    """Means with error bars over settings that have names, a line per method.

    Args:
        series: method to setting to mean and standard deviation; settings are shown in the order of their coming.
        ylabel: what is measured.
        xlabel: what the settings are of.
        title: above the panel.
        size: inches.
        styles: method to its looks; made from the names if not given, ``Local`` grey.
        legend: whether the figure names the methods.
    """
    styles = styles or styles_for(list(series), "Local")
    settings = list(dict.fromkeys(setting for spreads in series.values() for setting in spreads))
    with _figure(size) as figure:
        axes = _panel(figure, title, xlabel, ylabel)
        for number, (name, spreads) in enumerate(series.items()):
            style = styles[name]
            # A little beside each other, so that error bars do not hide one another.
            beside = 0.4 * ((number + 0.5) / len(series) - 0.5)
            known = [(place, *spreads[key]) for place, key in enumerate(settings) if key in spreads]
            points = [(place + beside, mean, std) for place, mean, std in known if math.isfinite(mean)]
            places, means = [place for place, _, _ in points], [mean for _, mean, _ in points]
            look: dict[str, Any] = {"dashes": style.dashes} if style.dashes else {}
            (line,) = axes.plot(
                places, means, color=style.colour, linewidth=1.4, marker="o", markersize=4, label=_plain(name), **look
            )
            _mark(line, style, name)
            for place, mean, std in points:
                if not math.isnan(std):
                    stroke = axes.vlines(place, mean - std, mean + std, color=style.colour, linewidth=1.2)
                    _mark(stroke, style)
        axes.set_xticks(range(len(settings)), [_short(setting) for setting in settings])
        if legend:
            _legend(figure, axes)
    return figure


def metric_over_bytes(
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    free: Mapping[str, float],
    *,
    ylabel: str,
    styles: Mapping[str, Style],
    size: tuple[float, float],
    title: str = "",
) -> Figure:
    """What a method reached after so many megabytes.

    Args:
        series: method to megabytes sent so far and the metric then.
        free: method that sends nothing to its metric at the end, drawn as a level line.
        ylabel: the metric.
        styles: method to its looks.
        size: inches.
        title: above the panel.
    """
    with _figure(size) as figure:
        axes = _panel(figure, title, "megabytes sent so far, up and down, all clients", ylabel)
        for name, (megabytes, values) in series.items():
            _line(axes, megabytes, values, styles[name], name)
        for name, value in free.items():
            line = axes.axhline(value, color=styles[name].colour, linewidth=1.2, linestyle=(0, (5, 2)), zorder=1.8)
            _mark(line, styles[name], f"{name}: nothing sent")
        ends = [xs[-1] for xs, _ in series.values() if len(xs)]
        starts = [xs[0] for xs, _ in series.values() if len(xs) and xs[0] > 0]
        if ends and starts and max(ends) > 20 * min(ends):
            axes.set_xscale("log")  # else the frugal methods are a vertical stroke at the left
        elif ends:
            axes.set_xlim(0, max(ends) * 1.01)
    return figure


def around_center(panels: Mapping[str, Mapping[str, float]], *, width: float = 11.0, columns: int = 4) -> Figure:
    """How far every client is from the middle of a circle: one circle per method, the same scale in all.

    Args:
        panels: method to client to distance; clients stand at equal angles in the order of their coming.
        width: inches.
        columns: circles side by side.
    """
    known = [value for distances in panels.values() for value in distances.values() if math.isfinite(value)]
    furthest = max(known, default=1.0) or 1.0
    rows = -(-len(panels) // columns)
    with _figure((width, 1.1 * rows * width / columns)) as figure:
        for number, (name, distances) in enumerate(panels.items()):
            axes: Any = figure.add_subplot(rows, columns, number + 1, projection="polar")
            angles = [2 * math.pi * place / len(distances) for place in range(len(distances))]
            axes.scatter(angles, list(distances.values()), color=COLOURS[0], s=22, zorder=3)
            axes.scatter([0], [0], color=COLOURS[1], marker="*", s=60, zorder=3)
            axes.set(ylim=(0, 1.1 * furthest), title=_plain(name))
            axes.set_xticks(angles, [_short(client, 12) for client in distances], fontsize=6.5)
            axes.tick_params(axis="y", labelsize=6.5)
    return figure


def embedding_panels(
    panels: Mapping[str, tuple[Sequence[Sequence[float]], Sequence[int]]], *, width: float = 4.2, columns: int = 3
) -> Figure:
    """Points in the plane, coloured by class; a panel per title.

    Args:
        panels: title to places ``[n][2]`` and their classes ``[n]``.
        width: inches of a panel.
        columns: panels side by side.
    """
    across = min(columns, max(1, len(panels)))
    rows = -(-len(panels) // across)
    classes = sorted({label for _, labels in panels.values() for label in labels})
    with _figure((width * across, 0.9 * width * rows)) as figure:
        for number, (title, (places, labels)) in enumerate(panels.items(), start=1):
            axes = figure.add_subplot(rows, across, number)
            for place, label in enumerate(classes):
                own = [point for point, kind in zip(places, labels, strict=True) if kind == label]
                colour = COLOURS[place % len(COLOURS)]
                axes.scatter(
                    [x for x, _ in own],
                    [y for _, y in own],
                    s=7,
                    color=colour,
                    linewidths=0,
                    alpha=0.8,
                    label=str(label),
                )
            axes.set(title=_plain(title), xticks=[], yticks=[])
            if number == 1:
                axes.legend(title="class", fontsize=7, markerscale=2)
    return figure


# ------------------------------------------------------------------------------------------------------------- bars
def grouped_bars(
    groups: Sequence[str],
    values: Mapping[str, Sequence[Spread]],
    *,
    ylabel: str,
    styles: Mapping[str, Style],
    width: float,
    height: float = 3.2,
    title: str = "",
) -> Figure:
    """A group of bars per client, a bar per method, with error bars; in several rows if there are many.

    Args:
        groups: clients.
        values: method to mean and standard deviation per client.
        ylabel: what is measured.
        styles: method to its looks.
        width: inches.
        height: inches of one row.
        title: above the first row.
    """
    rows = max(1, math.ceil(len(groups) * len(values) / MAX_BARS))
    columns = math.ceil(len(groups) / rows)
    rows = math.ceil(len(groups) / columns)
    with _figure((width, height * rows)) as figure:
        panels = figure.subplots(rows, 1, sharey=True, squeeze=False)[:, 0]
        bar = 0.84 / max(len(values), 4)
        for row, axes in enumerate(panels):
            here = list(groups[row * columns : (row + 1) * columns])
            axes.grid(axis="y")
            axes.set_ylabel(ylabel)
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
                    _mark(patch, style, f"{name}, {here[round(place)]}: {_number(mean, std)}")
                    if not math.isnan(std):
                        stroke = axes.vlines(place, mean - std, mean + std, color=INK, linewidth=0.8, zorder=3)
                        _mark(stroke, style)
            axes.axhline(0, color=MUTED, linewidth=0.8)
            axes.set_xlim(-0.6, columns - 0.4)
            letters = sum(len(group) for group in here) + 2 * len(here)
            tilted = letters > 13 * width
            axes.set_xticks(range(len(here)), [_short(group) for group in here], color=INK)
            if tilted:
                for label in axes.get_xticklabels():
                    label.set(rotation=35, ha="right", rotation_mode="anchor")
            axes.tick_params(axis="x", length=0)
        panels[0].set_title(title)
    return figure


def distributions(
    values: Mapping[str, Sequence[float]],
    *,
    xlabel: str,
    styles: Mapping[str, Style],
    width: float,
    title: str = "",
    zero: bool = False,
) -> Figure:
    """A box and a dot per client for every method: what remains readable with very many clients.

    Args:
        values: method to one value per client.
        xlabel: what is measured.
        styles: method to its looks.
        width: inches.
        title: above the panel.
        zero: marks zero, for differences.
    """
    with _figure((width, 0.75 + 0.5 * max(len(values), 1))) as figure:
        axes = _panel(figure, title, xlabel, "")
        axes.grid(axis="y", visible=False)
        for number, (name, given) in enumerate(values.items()):
            style, known = styles[name], [value for value in given if math.isfinite(value)]
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
                    _mark(artist, style, f"{name}: median {statistics.median(known):.4g}")
            # Spread by the golden ratio: even, and the same in every report.
            heights = [number + 0.42 * ((index * 0.618034) % 1 - 0.5) for index in range(len(known))]
            dots = axes.scatter(known, heights, s=7, color=style.colour, alpha=0.7, linewidths=0, zorder=3)
            _mark(dots, style, name)
        if zero:
            axes.axvline(0, color=MUTED, linewidth=0.8)
        _names_down(axes, list(values))
    return figure


def level_bars(
    values: Mapping[str, Spread],
    *,
    xlabel: str,
    styles: Mapping[str, Style],
    size: tuple[float, float],
    title: str = "",
) -> Figure:
    """One horizontal bar per method with its value beside it."""
    with _figure(size) as figure:
        axes = _panel(figure, title, xlabel, "")
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
            _mark(patch, style, f"{name}: {_number(mean, std)}")
            end = mean
            if not math.isnan(std):
                stroke = axes.hlines(number, mean - std, mean + std, color=INK, linewidth=0.9, zorder=3)
                _mark(stroke, style)
                end += std
            note = axes.text(end + 0.015 * longest, number, f"{mean:.3g}", va="center", fontsize=8)
            _mark(note, style)
        axes.set_xlim(0, 1.12 * longest)
        _names_down(axes, list(values))
    return figure


# ---------------------------------------------------------------------------------------------------------- writing
def save_png(figure: Figure, file: Path, dpi: int = 160) -> None:
    """Writes a figure as PNG; the same figure gives the same bytes."""
    with _settings():
        figure.savefig(file, format="png", dpi=dpi, facecolor=PAPER, metadata={"Software": None})


def to_svg(figure: Figure, name: str, description: str) -> str:
    """A figure as an ``<svg>`` element for a page.

    Args:
        figure: any.
        name: makes the identifiers in it different from those of other charts on the page.
        description: for those who do not see it.
    """
    stream = io.StringIO()
    with _settings():
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(stream, format="svg", transparent=True, metadata=nothing)
    text = stream.getvalue()
    text = text[text.index("<svg") :].replace("xlink:href", "href")
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", text, flags=re.DOTALL)  # its style has no bounds
    text = re.sub(r"font-family: [^;\"]*;", "", text)
    text = re.sub(r"\bd=\"([^\"]*)\"", lambda match: f'd="{_compact(match[1])}"', text)
    text = re.sub(r"<svg[^>]*?(viewBox=\"[^\"]*\")[^>]*>", r"<svg \1>", text, count=1)
    text = re.sub(r"<g id=([\"'])(series-\d+) (.*?)\1>", _marked, text)
    used = set(re.findall(r"(?:href=\"|url\()#([^\")]+)", text))
    text = re.sub(r" id=\"([^\"]*)\"", lambda match: f' id="{name}-{match[1]}"' if match[1] in used else "", text)
    text = re.sub(r"(href=\"|url\()#", rf"\g<1>#{name}-", text)
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, variable)
    text = re.sub(r">\s*\n\s*<", ">\n<", text)
    label = html.escape(description)
    return text.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1).strip()


def _marked(group: re.Match[str]) -> str:
    title = f"<title>{group[3]}</title>" if group[3] else ""
    return f'<g class="{group[2]}">{title}'


def _compact(path: str) -> str:
    """The same strokes to a hundredth of a point, on one line."""
    return " ".join(re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.2f}", path).split())


# ------------------------------------------------------------------------------------------------------------ parts
@contextmanager
def _settings() -> Iterator[None]:
    import matplotlib

    with matplotlib.rc_context(_RC):
        yield


@contextmanager
def _figure(size: tuple[float, float]) -> Iterator[Figure]:
    """An empty figure, drawn with this module's settings, whatever the user's are."""
    from matplotlib.figure import Figure

    with _settings():
        yield Figure(figsize=size, layout="constrained")


def _panel(figure: Figure, title: str, xlabel: str, ylabel: str) -> Axes:
    axes = figure.add_subplot()
    axes.set_title(title)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.grid(True)
    return axes


def _legend(figure: Figure, axes: Axes) -> None:
    """Below the panel, in as many columns as fit."""
    handles, labels = axes.get_legend_handles_labels()
    for columns in range(min(len(labels), 6), 0, -1):
        legend = figure.legend(handles, labels, loc="outside lower center", ncols=columns)
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            return
        legend.remove()


def _mark(artist: Artist, style: Style, text: str = "") -> None:
    """Says in the SVG whose shape it is; :func:`to_svg` makes a class and a hover text of it."""
    artist.set_gid(f"{style.key} {text}")


def _number(mean: float, std: float) -> str:
    return f"{mean:.4g}" + ("" if math.isnan(std) else f" ± {std:.3g}")


def _line(axes: Axes, xs: Sequence[float], ys: Sequence[float], style: Style, name: str) -> None:
    look: dict[str, Any] = {"color": style.colour, "linewidth": 1.4, "solid_joinstyle": "round"}
    if style.dashes:
        look["dashes"] = style.dashes
    (line,) = axes.plot(xs, ys, label=_plain(name), zorder=2.5, **look)
    _mark(line, style, name)
    (end,) = axes.plot(xs[-1:], ys[-1:], marker="o", markersize=3.6, color=style.colour, zorder=2.6, clip_on=False)
    _mark(end, style, name)


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


def thinned(count: int) -> list[int]:
    """At most :data:`MAX_POINTS` even-spaced positions in ``range(count)``, the first and the last among them."""
    if count <= MAX_POINTS:
        return list(range(count))
    return [round(number * (count - 1) / (MAX_POINTS - 1)) for number in range(MAX_POINTS)]


def _whole_numbers(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, steps=[1, 2, 5, 10]))


def _names_down(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), [_short(name, 28) for name in names], color=INK)
    axes.set_ylim(max(len(names), 3) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)


def _short(name: str, letters: int = 18) -> str:
    """Cut to a length."""
    return _plain(name if len(name) <= letters else name[: letters - 1] + "…")


def _plain(name: str) -> str:
    """Without what matplotlib would read as mathematics."""
    return name.replace("$", r"\$")
