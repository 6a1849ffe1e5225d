"""A picture of how labels are spread over clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#7f7f7f")
"""Okabe and Ito's, which the colour-blind can tell apart; of more classes each has a shade of one scale."""

_MOST_CLIENTS = 20
"""Of more only the first are drawn."""

_WIDTH, _DPI = 3.4, 100
"""TensorBoard shows pictures 320 pixels wide and scales them by leaving out pixels: letters of this size stay whole."""


def label_figure(statistics: Mapping[str, Any], unit: str = "nodes") -> Figure:
    """Shares of the classes among each client's training data, with their number and EMD, and in the global test graph.

    Args:
        statistics: what :func:`~flgraph.data.partition_statistics` returns; a global test without ``labels`` is left
            out.
        unit: what a client has: nodes, or graphs.
    """
    clients = dict(list(statistics["clients"].items())[:_MOST_CLIENTS])
    rows = {name: [float(count) for count in client["train_labels"]] for name, client in clients.items()}
    notes: dict[Any, str] = {name: f"{one['train']}, EMD {one['emd']:.2f}" for name, one in clients.items()}
    everywhere = statistics.get("global_test", {})
    if any(everywhere.get("labels", ())):
        rows["global test"] = [float(count) for count in everywhere["labels"]]
        notes["global test"] = str(everywhere["nodes"])
    more, known = len(statistics["clients"]) - len(clients), len(clients)
    title = f"training data of {known} of {known + more} clients" if more else "training data of every client"
    return share_figure(rows, f"share of {unit}, beside their number", f"Classes in the {title}", notes)


def share_figure(
    counts: Mapping[str, Sequence[float]], xlabel: str, title: str, notes: Mapping[str, str] | None = None
) -> Figure:
    """A bar per row, divided by classes.

    Args:
        counts: row to how often it has each class, in numbers or shares.
        xlabel: what shares are of.
        title: of the figure.
        notes: row to what stands beside its bar.
    """
    import matplotlib  # loads slowly, and most runs draw nothing
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"font.size": 8}):
        figure = Figure(figsize=(_WIDTH, 1.1 + 0.2 * len(counts)), dpi=_DPI, layout="constrained")
        axes = figure.add_subplot()
        classes = max(len(row) for row in counts.values())
        scale = matplotlib.colormaps["viridis"].resampled(classes)
        left = [0.0] * len(counts)
        for label in range(classes):
            shares = [row[label] / (sum(row) or 1) for row in counts.values()]
            colour = _COLOURS[label] if classes <= len(_COLOURS) else scale(label)
            axes.barh(list(counts), shares, left=left, color=colour, edgecolor="white", linewidth=0.6, label=str(label))
            left = [start + share for start, share in zip(left, shares, strict=True)]
        axes.invert_yaxis()
        axes.margins(y=0.02)
        axes.set(xlim=(0, 1), xlabel=xlabel)
        axes.spines[["top", "right"]].set_visible(False)
        for name, words in (notes or {}).items():
            axes.text(1.02, name, words, va="center")  # type: ignore[arg-type]  # a name is a place, too
        figure.suptitle(title, x=0.01, ha="left", fontsize=9)
        if classes <= 20:
            columns = {"ncols": min(classes, 7), "columnspacing": 1.0, "handlelength": 1.0}
            figure.legend(loc="outside lower center", title="class", frameon=False, **columns)
    return figure
