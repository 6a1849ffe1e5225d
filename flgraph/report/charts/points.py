"""Points in the plane: clients around a centre, embeddings by class."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flgraph.report.charts.style import COLOURS, empty_figure, plain_text, shortened

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def around_center(panels: Mapping[str, Mapping[str, float]]) -> Figure:
    """How far every client is from the middle of a circle: one circle per method, four side by side, all of one scale.

    Args:
        panels: method to client to distance; clients stand at equal angles in the order of their coming.
    """
    width, columns = 11.0, 4
    known = [value for distances in panels.values() for value in distances.values() if math.isfinite(value)]
    furthest = max(known, default=1.0) or 1.0
    rows = -(-len(panels) // columns)
    with empty_figure((width, 1.1 * rows * width / columns)) as figure:
        for number, (name, distances) in enumerate(panels.items()):
            axes: Any = figure.add_subplot(rows, columns, number + 1, projection="polar")
            angles = [2 * math.pi * place / len(distances) for place in range(len(distances))]
            axes.scatter(angles, list(distances.values()), color=COLOURS[0], s=22, zorder=3)
            axes.scatter([0], [0], color=COLOURS[1], marker="*", s=60, zorder=3)
            axes.set(ylim=(0, 1.1 * furthest), title=plain_text(name))
            axes.set_xticks(angles, [shortened(client, 12) for client in distances], fontsize=6.5)
            axes.tick_params(axis="y", labelsize=6.5)
    return figure


def embedding_panels(panels: Mapping[str, tuple[Sequence[Sequence[float]], Sequence[int]]]) -> Figure:
    """Points in the plane, coloured by class; a panel per title, three side by side.

    Args:
        panels: title to places ``[n][2]`` and their classes ``[n]``.
    """
    width, across = 4.2, min(3, max(1, len(panels)))
    rows = -(-len(panels) // across)
    classes = sorted({label for _, labels in panels.values() for label in labels})
    with empty_figure((width * across, 0.9 * width * rows)) as figure:
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
            axes.set(title=plain_text(title), xticks=[], yticks=[])
            if number == 1:
                axes.legend(title="class", fontsize=7, markerscale=2)
    return figure
