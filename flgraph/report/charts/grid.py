"""Tables as pictures: a number per cell, the darker the better."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from flgraph.report.charts.style import INK, MUTED, PAPER, empty_figure, plain_text, shortened

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_RANGE = 10.0
"""Points behind the best of a column at which a cell is white."""

_MORE = 0.25
"""The same of errors, as a share of the least of a column."""

_CELL, _NAMES = 0.82, 2.1
"""Inches of a column, and of the names beside them."""


def number_grids(tables: Mapping[str, Mapping[str, Mapping[str, float]]], errors: Collection[str] = ()) -> Figure:
    """A grid per table: rows and columns with names, shaded by how far a number is behind the best of its column.

    Args:
        tables: title to row to column to a number in percent, more being better; what is not there stays empty.
        errors: titles of tables of errors, less being better, in units of their own.
    """
    from matplotlib import colormaps

    columns = {
        title: list(dict.fromkeys(name for row in rows.values() for name in row)) for title, rows in tables.items()
    }
    widest = max(map(len, columns.values()), default=1)
    heights = [1.0 + 0.26 * len(rows) for rows in tables.values()]
    with empty_figure((_NAMES + _CELL * widest, sum(heights))) as figure:
        panels = figure.subplots(len(tables), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axes, (title, rows) in zip(panels, tables.items(), strict=True):
            names = columns[title]
            for x, name in enumerate(names):
                known = [row[name] for row in rows.values() if math.isfinite(row.get(name, math.nan))]
                least = title in errors
                best = (min if least else max)(known, default=math.nan)
                width = _MORE * abs(best) if least else _RANGE
                for y, row in enumerate(rows.values()):
                    value = row.get(name, math.nan)
                    if not math.isfinite(value):
                        continue
                    shade = max(0.0, 1 - abs(best - value) / width) if value != best else 1.0
                    axes.fill_between(
                        [x - 0.5, x + 0.5], y - 0.5, y + 0.5, color=colormaps["Blues"](0.75 * shade), lw=0
                    )
                    look = {
                        "color": PAPER if shade > 0.7 else INK,
                        "weight": "bold" if value == best else "normal",
                    }
                    axes.text(x, y, f"{value:.{3 if least else 1}f}", ha="center", va="center", **look)
            axes.set(xlim=(-0.5, widest - 0.5), ylim=(len(rows) - 0.5, -0.5), title=plain_text(title))
            axes.set_yticks(range(len(rows)), [shortened(name, 30) for name in rows], color=INK)
            axes.set_xticks(
                range(len(names)),
                [textwrap.fill(plain_text(name), 11, break_on_hyphens=False) for name in names],
                color=MUTED,
                fontsize=7.5,
            )
            axes.tick_params(length=0, top=False, labeltop=False)
            axes.spines[:].set_visible(False)
    return figure
