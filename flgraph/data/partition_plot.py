"""A picture of how labels are spread over clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def label_figure(statistics: Mapping[str, Any], max_clients: int = 40, unit: str = "nodes") -> Figure:
    """Shares of the classes among each client's training data, with their number and EMD.

    Args:
        statistics: what :func:`~flgraph.data.partition_statistics` returns.
        max_clients: of more clients, only so many are drawn.
        unit: what a client has: nodes, or graphs.
    """
    from matplotlib import colormaps  # loads slowly, and most runs draw nothing
    from matplotlib.figure import Figure

    clients = dict(list(statistics["clients"].items())[:max_clients])
    figure = Figure(figsize=(8, 1.2 + 0.32 * len(clients)), layout="constrained")
    axes = figure.add_subplot()
    classes = max(len(client["train_labels"]) for client in clients.values())
    colours = colormaps["tab20"]
    left = [0.0] * len(clients)
    for label in range(classes):
        shares = [client["train_labels"][label] / sum(client["train_labels"]) for client in clients.values()]
        axes.barh(list(clients), shares, left=left, color=colours(label % 20), label=str(label))
        left = [start + share for start, share in zip(left, shares, strict=True)]
    for name, client in clients.items():
        axes.text(1.01, name, f"{client['train']} {unit}, EMD {client['emd']:.2f}", va="center", fontsize=8)
    axes.invert_yaxis()
    axes.set(xlim=(0, 1), xlabel=f"share of training {unit}", title="classes of every client")
    if classes <= 20:
        figure.legend(loc="outside right upper", title="class", fontsize=8)
    return figure
