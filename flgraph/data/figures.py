"""A picture of how labels are spread over clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def label_figure(statistics: Mapping[str, Any], max_clients: int = 40, unit: str = "nodes") -> Figure:
    """Shares of the classes among each client's training data, with their number and EMD, and in the global test graph.

    Args:
        statistics: what :func:`~flgraph.data.partition_statistics` returns; a global test without ``labels`` is left
            out.
        max_clients: of more clients, only so many are drawn.
        unit: what a client has: nodes, or graphs.
    """
    clients = dict(list(statistics["clients"].items())[:max_clients])
    rows = {name: [float(count) for count in client["train_labels"]] for name, client in clients.items()}
    notes: dict[Any, str] = {name: f"{one['train']} {unit}, EMD {one['emd']:.2f}" for name, one in clients.items()}
    everywhere = statistics.get("global_test", {})
    if any(everywhere.get("labels", ())):
        rows["global test"] = [float(count) for count in everywhere["labels"]]
        notes["global test"] = f"{everywhere['nodes']} {unit}"
    figure = share_figure(rows, f"share of {unit}", "classes of every client's training data")
    for name, words in notes.items():
        figure.axes[0].text(1.01, name, words, va="center", fontsize=8)
    return figure


def share_figure(counts: Mapping[str, Sequence[float]], xlabel: str, title: str) -> Figure:
    """A bar per row, divided by classes.

    Args:
        counts: row to how often it has each class, in numbers or shares.
        xlabel: what shares are of.
        title: of the figure.
    """
    from matplotlib import colormaps  # loads slowly, and most runs draw nothing
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1.2 + 0.32 * len(counts)), layout="constrained")
    axes = figure.add_subplot()
    classes = max(len(row) for row in counts.values())
    colours = colormaps["tab20"]
    left = [0.0] * len(counts)
    for label in range(classes):
        shares = [row[label] / sum(row) for row in counts.values()]
        axes.barh(list(counts), shares, left=left, color=colours(label % 20), label=str(label))
        left = [start + share for start, share in zip(left, shares, strict=True)]
    axes.invert_yaxis()
    axes.set(xlim=(0, 1), xlabel=xlabel, title=title)
    if classes <= 20:
        figure.legend(loc="outside right upper", title="class", fontsize=8)
    return figure
