"""What partitions look like, as plain values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from flgraph.data.graphs.partition import label_emd
from flgraph.data.hetero.container import HeteroGraph
from flgraph.data.nodes.container import NodeGraph
from flgraph.data.nodes.partition import NodePartition, edges_of_nodes


def partition_statistics(
    graph: NodeGraph, partition: NodePartition, names: Sequence[str] | None = None
) -> dict[str, Any]:
    """What a partition looks like, as plain values.

    Args:
        graph: the whole graph.
        partition: of its nodes.
        names: of the clients; ``client-1`` and so on when ``None``.

    Returns:
        ``global_test`` (``nodes``, ``edges``, ``labels``: nodes per class), ``mean_emd`` and ``clients``, by name:
        ``nodes``; ``edges``, those between its nodes, and ``edges_cut``, those between its nodes and others of the
        whole graph (an undirected edge counts once); ``train``, ``val``, ``test``; ``train_labels``, training nodes per
        class; ``emd``, the sum over classes of ``|P_i(c) - P(c)|`` where ``P`` are shares among training nodes, the
        client's and those of the union of all clients' (FedEgo, Eq. 14). Without classes nothing of labels is there.

    Example:
        >>> from torch_geometric.datasets import KarateClub
        >>> graph = NodeGraph.from_pyg(KarateClub()[0])
        >>> from flgraph.data import dirichlet
        >>> found = partition_statistics(graph, dirichlet(graph, num_clients=2))
        >>> sorted(found)
        ['clients', 'global_test', 'mean_emd']
    """
    names = names or [f"client-{number}" for number in range(1, len(partition.clients) + 1)]
    union = torch.cat([client.train for client in partition.clients]).unique()
    overall = _shares(graph, union) if graph.task == "multiclass" else None
    clients: dict[str, dict[str, Any]] = {}
    for name, client in zip(names, partition.clients, strict=True):
        kept, cut = _count_edges(graph, client.nodes)
        clients[name] = {
            "nodes": client.nodes.numel(),
            "edges": kept,
            "edges_cut": cut,
            "train": client.train.numel(),
            "val": client.val.numel(),
            "test": client.test.numel(),
        }
        if overall is not None:
            clients[name]["train_labels"] = _counts(graph, client.train).tolist()
            clients[name]["emd"] = label_emd(_shares(graph, client.train), overall)
    rest = partition.global_test
    everywhere: dict[str, Any] = {"nodes": rest.numel(), "edges": _count_edges(graph, rest)[0]}
    if overall is None:
        return {"global_test": everywhere, "clients": clients}
    everywhere["labels"] = _counts(graph, rest).tolist()
    mean = math.fsum(client["emd"] for client in clients.values()) / len(clients)
    return {"global_test": everywhere, "mean_emd": mean, "clients": clients}


def hetero_statistics(clients: Mapping[str, HeteroGraph]) -> dict[str, Any]:
    """Node types, relations, nodes, edges, and nodes of each split: of each client, and the mean over clients.

    Example:
        >>> likes = {("person", "likes", "book"): torch.tensor([[0, 2, 1], [0, 1, 1]])}
        >>> y = torch.tensor([0, 1, 0])
        >>> graph = HeteroGraph.from_edges({"person": 3, "book": 2}, likes, target="person", y=y)
        >>> hetero_statistics({"north": graph})["mean"]["edges"]
        3.0
    """
    table = {
        name: {
            "node_types": len(graph.node_types),
            "relations": len(graph.edge_types),
            "nodes": graph.num_nodes,
            "edges": graph.num_edges,
            "train": graph.train.numel(),
            "val": graph.val.numel(),
            "test": graph.test.numel(),
        }
        for name, graph in clients.items()
    }
    rows = list(table.values())
    mean = {key: sum(row[key] for row in rows) / len(rows) for key in rows[0]} if rows else {}
    return {"clients": table, "mean": mean}


def _count_edges(graph: NodeGraph, nodes: Tensor) -> tuple[int, int]:
    """Edges between ``nodes``, and edges from or to others; those of undirected graphs count once."""
    kept, cut = edges_of_nodes(graph, nodes)
    both = 2 if graph.undirected else 1
    return int(kept.sum()) // both, int(cut.sum()) // both


def _counts(graph: NodeGraph, nodes: Tensor) -> Tensor:
    return torch.bincount(graph.y[nodes], minlength=graph.num_classes)


def _shares(graph: NodeGraph, nodes: Tensor) -> Tensor:
    counts = _counts(graph, nodes).double()
    return counts / counts.sum().clamp(min=1)
