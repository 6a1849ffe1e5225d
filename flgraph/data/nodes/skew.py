"""Clients of unlike features or structure, and clients that the data names.

All node numbers are those of the whole graph. Every partition is decided by its arguments and its seed alone.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from flgraph.data.graphs.partition import sorted_shards
from flgraph.data.nodes.container import NodeGraph
from flgraph.data.nodes.partition import Division, NodePartition, disjoint
from flgraph.errors import expect


def feature_skew(graph: NodeGraph, num_clients: int, **division: Unpack[Division]) -> NodePartition:
    """Disjoint clients of equal size with unlike features: nodes in the order of their mean feature, cut into pieces.

    What OpenFGL does with graphs (:func:`~flgraph.data.sorted_shards`).

    Args:
        graph: the whole graph.
        num_clients: number of clients.
        **division: see :class:`~flgraph.data.nodes.partition.Division`; the seed orders nodes of equal means, too.

    Raises:
        InputError: a number is out of range, or a client would have no training node.

    Example:
        >>> x, y = torch.tensor([[3.0], [1.0], [2.0], [9.0], [8.0], [7.0]]), torch.zeros(6, dtype=torch.long)
        >>> graph = NodeGraph(x, torch.tensor([[0, 1], [1, 0]]), y)
        >>> [client.nodes.tolist() for client in feature_skew(graph, 2, fractions=(1, 0, 0)).clients]
        [[0, 1, 2], [3, 4, 5]]
    """

    def cut(pool: NodeGraph, seed: int) -> list[Tensor]:
        # A product sums the rows of a sparse matrix, too; in float64 nodes of equal features have equal sums.
        return sorted_shards(pool.x.double() @ torch.ones(pool.num_features, 1).double(), num_clients, seed)

    return disjoint(graph, num_clients, cut, **division)


def topology_skew(graph: NodeGraph, num_clients: int, **division: Unpack[Division]) -> NodePartition:
    """Disjoint clients of equal size with unlike structure: nodes in the order of their degree, cut into pieces.

    Args:
        graph: the whole graph.
        num_clients: number of clients.
        **division: see :class:`~flgraph.data.nodes.partition.Division`; the seed orders nodes of equal degree, too.
            Degrees are those among the nodes outside of the global test graph.

    Raises:
        InputError: a number is out of range, or a client would have no training node.

    Example:
        >>> edges = torch.tensor([[0, 1, 1, 1, 2, 3], [1, 0, 2, 3, 1, 1]])
        >>> graph = NodeGraph(torch.ones(4, 1), edges, torch.zeros(4, dtype=torch.long))
        >>> [client.nodes.tolist() for client in topology_skew(graph, 4, fractions=(1, 0, 0)).clients][-1]
        [1]
    """

    def cut(pool: NodeGraph, seed: int) -> list[Tensor]:
        return sorted_shards(pool.degree, num_clients, seed)

    return disjoint(graph, num_clients, cut, **division)


def natural(graph: NodeGraph, key: str, **division: Unpack[Division]) -> tuple[list[str], NodePartition]:
    """Whose a node is, the data says: ``graph.keys[key]``, such as the name of its hospital.

    Args:
        graph: the whole graph.
        key: one of its keys.
        **division: see :class:`~flgraph.data.nodes.partition.Division`.

    Returns:
        Names of the clients, the key's values in alphabetical order, and their partition.

    Raises:
        InputError: the graph has no such key, a number is out of range, or a client would have no training node.

    Example:
        >>> from flgraph.data import read_nodes
        >>> names, partition = natural(read_nodes("homophily-0.3"), "community")
        >>> names, len(partition.clients[0].nodes)
        (['c1', 'c2', 'c3', 'c4', 'c5'], 240)
    """
    expect(key in graph.keys, "data.partition_key", f"a key of the nodes of {graph.name}", key)
    names = sorted(set(graph.keys[key].tolist()))

    def cut(pool: NodeGraph, seed: int) -> list[Tensor]:
        return [torch.from_numpy((pool.keys[key] == name).nonzero()[0]) for name in names]

    return names, disjoint(graph, len(names), cut, **division)
