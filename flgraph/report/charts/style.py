"""What figures look like, and the parts that all of them have.

Nothing here touches ``pyplot``, so no figure outlives its use and no display is needed. matplotlib is imported when the
first figure is made: whoever only trains does not wait for it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
    "pdf.fonttype": 42,  # journals refuse Type 3 fonts
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


@contextmanager
def settings(outlines: bool = False) -> Iterator[None]:
    """What is drawn or written inside looks as this module says; the user's own settings stay as they are.

    Args:
        outlines: whether letters in SVG are shapes.
    """
    import matplotlib

    with matplotlib.rc_context({**_RC, "svg.fonttype": "path"} if outlines else _RC):
        yield


@contextmanager
def empty_figure(size: tuple[float, float]) -> Iterator[Figure]:
    """An empty figure, drawn with this module's settings, whatever the user's are."""
    from matplotlib.figure import Figure

    with settings():
        yield Figure(figsize=size, layout="constrained")


def panel(figure: Figure, title: str, xlabel: str, ylabel: str) -> Axes:
    """The one panel of a figure, with a grid."""
    axes = figure.add_subplot()
    axes.set_title(plain_text(title))
    axes.set_xlabel(plain_text(xlabel))
    axes.set_ylabel(plain_text(ylabel))
    axes.grid(True)
    return axes


def legend_below(figure: Figure, handles: Sequence[Artist]) -> None:
    """Below the panel, in as many columns as fit; the figure grows by as much."""
    labels = [str(handle.get_label()) for handle in handles]
    for columns in range(min(len(labels), 6), 0, -1):
        legend = figure.legend(handles, labels, loc="outside lower center", ncols=columns)
        extent = legend.get_window_extent()
        if columns == 1 or extent.width <= figure.bbox.width:
            figure.set_figheight(figure.get_figheight() + extent.height / figure.dpi)
            for handle, shape, text in zip(handles, legend.legend_handles, legend.get_texts(), strict=True):
                for part in (shape, text):  # they go where their line goes
                    if part is not None:
                        part.set_gid(f"{str(handle.get_gid()).partition(' ')[0]} ")
            return
        legend.remove()


def mark(artist: Artist, style: Style, text: str = "") -> None:
    """Says in the SVG whose shape it is; ``to_svg`` makes a class and a hover text of it."""
    artist.set_gid(f"{style.key} {text}")


def slices(axes: Axes, ends: Sequence[float], texts: Sequence[str]) -> None:
    """Upright strips that nobody sees, with a hover text each: a page shows what all lines are at there.

    Args:
        axes: with its limits set.
        ends: where one strip ends and the next begins, ascending; one more than there are texts.
        texts: from left to right.
    """
    for left, right, text in zip(ends, ends[1:], texts, strict=False):
        axes.axvspan(left, right, alpha=0, linewidth=0, zorder=9).set_gid(f"slice {text}")


def value_text(mean: float, std: float) -> str:
    """A value as hover texts show it."""
    return f"{mean:.4g}" + ("" if math.isnan(std) else f" ± {std:.3g}")


def names_down(axes: Axes, names: Sequence[str]) -> None:
    """Names along the vertical axis, the first on top."""
    axes.set_yticks(range(len(names)), [shortened(name, 28) for name in names], color=INK)
    axes.set_ylim(max(len(names), 3) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)


def shortened(name: str, letters: int = 18) -> str:
    """Cut to a length."""
    return plain_text(name if len(name) <= letters else name[: letters - 1] + "…")


def plain_text(name: str) -> str:
    """Without what matplotlib would read as mathematics."""
    return name.replace("$", r"\$")
