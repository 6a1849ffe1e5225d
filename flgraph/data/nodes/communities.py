"""Clients made of communities of one graph: nodes that have more edges among them than to others.

All node numbers are those of the whole graph. Every partition is decided by its arguments and its seed alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import networkx as nx
import numpy as np
import torch
from torch import Tensor
from torch_geometric.index import index2ptr
from torch_geometric.utils import one_hot

from flgraph.data.checks import sorted_edges
from flgraph.data.nodes.container import NodeGraph
from flgraph.data.nodes.partition import Division, NodePartition, disjoint
from flgraph.errors import InputError, expect

_PER_CLIENT = 10
"""Parts that METIS+ cuts for each client."""


def louvain(graph: NodeGraph, num_clients: int, **division: Unpack[Division]) -> NodePartition:
    """Disjoint clients made of whole communities (Blondel et al., 2008, as networkx implements it).

    Communities, the largest first, each go to the client that has the fewest nodes so far. None is cut, so clients are
    of similar size only where no community is larger than a client.

    Args:
        graph: the whole graph; the direction of edges does not matter.
        num_clients: number of clients.
        **division: see :class:`~flgraph.data.nodes.partition.Division`, as in all that follow.

    Raises:
        InputError: a number is out of range, there are fewer communities than clients, or a client would have no
            training node.

    Example:
        >>> from torch_geometric.datasets import KarateClub
        >>> graph = NodeGraph.from_pyg(KarateClub()[0])
        >>> [len(client.nodes) for client in louvain(graph, num_clients=2).clients]
        [17, 17]
    """

    def cut(pool: NodeGraph, seed: int) -> list[Tensor]:
        return _shared_out(_enough(_communities(pool, seed), num_clients, graph.name), num_clients)

    return disjoint(graph, num_clients, cut, **division)


def louvain_balanced(graph: NodeGraph, num_clients: int, **division: Unpack[Division]) -> NodePartition:
    """Disjoint clients of nearly equal size, made of communities that are cut where they are larger than a client.

    As :func:`louvain`, but what a community has beyond an equal share of the nodes is a community of its own. OpenFGL
    cuts by the numbers of nodes, too; it deals pieces out in turn until they do not fit.

    Args:
        graph: see :func:`louvain`.
        num_clients: see there.
        **division: see there.

    Raises:
        InputError: a number is out of range, or a client would have no training node.

    Example:
        >>> from torch_geometric.datasets import KarateClub
        >>> graph = NodeGraph.from_pyg(KarateClub()[0])
        >>> [len(client.nodes) for client in louvain_balanced(graph, num_clients=2).clients]
        [17, 17]
    """

    def cut(pool: NodeGraph, seed: int) -> list[Tensor]:
        most = max(1, pool.num_nodes // num_clients)
        pieces = [members[i : i + most] for members in _communities(pool, seed) for i in range(0, len(members), most)]
        return _shared_out(pieces, num_clients)

    return disjoint(graph, num_clients, cut, **division)


def louvain_plus(graph: NodeGraph, num_clients: int, **division: Unpack[Division]) -> NodePartition:
    """Disjoint clients made of whole communities that have like shares of labels (Louvain+ of OpenFGL).

    K-means on the communities' label shares says which go together; clients differ in size.

    Args:
        graph: see :func:`louvain`.
        num_clients: see there.
        **division: see there.

    Raises:
        InputError: a number is out of range, there are fewer communities, or fewer unlike ones, than clients, or a
            client would have no training node.

    Example:
        >>> from torch_geometric.datasets import KarateClub
        >>> graph = NodeGraph.from_pyg(KarateClub()[0])
        >>> [len(client.nodes) for client in louvain_plus(graph, num_clients=2).clients]
        [29, 5]
    """

    def cut(pool: NodeGraph, seed: int) -> list[Tensor]:
        return _by_labels(pool, _enough(_communities(pool, seed), num_clients, graph.name), num_clients, seed)

    return disjoint(graph, num_clients, cut, **division)


def metis(graph: NodeGraph, num_clients: int, **division: Unpack[Division]) -> NodePartition:
    """Disjoint clients of nearly equal size with few edges between them (Karypis and Kumar, 1998).

    Needs the package ``pymetis``, which holds the METIS library: ``pip install 'flgraph[metis]'``.

    Args:
        graph: see :func:`louvain`.
        num_clients: see there.
        **division: see there; ``seed`` is METIS's own, too.

    Raises:
        InputError: ``pymetis`` is missing, a number is out of range, or a client would have no training node.

    Example:
        >>> from torch_geometric.datasets import KarateClub
        >>> graph = NodeGraph.from_pyg(KarateClub()[0])
        >>> [len(client.nodes) for client in metis(graph, num_clients=2).clients]
        [17, 17]
    """
    _expect_metis()
    return disjoint(graph, num_clients, lambda pool, seed: _cut(pool, num_clients, seed), **division)


def metis_plus(graph: NodeGraph, num_clients: int, **division: Unpack[Division]) -> NodePartition:
    """Disjoint clients made of parts by :func:`metis` that have like shares of labels (METIS+ of OpenFGL).

    METIS cuts ten parts for every client; K-means on their label shares says which go together.

    Args:
        graph: see :func:`louvain`.
        num_clients: see there.
        **division: see there; ``seed`` is METIS's own, too.

    Raises:
        InputError: ``pymetis`` is missing, a number is out of range, there are fewer unlike parts than clients, or a
            client would have no training node.

    Example:
        >>> from torch_geometric.datasets import KarateClub
        >>> graph = NodeGraph.from_pyg(KarateClub()[0])
        >>> [len(client.nodes) for client in metis_plus(graph, num_clients=2).clients]
        [29, 5]
    """
    _expect_metis()

    def cut(pool: NodeGraph, seed: int) -> list[Tensor]:
        parts = [part.tolist() for part in _cut(pool, _PER_CLIENT * num_clients, seed) if part.numel()]
        return _by_labels(pool, _enough(parts, num_clients, graph.name), num_clients, seed)

    return disjoint(graph, num_clients, cut, **division)


# ------------------------------------------------------------------------------------------------------------ helpers
def _communities(pool: NodeGraph, seed: int) -> list[list[int]]:
    """Louvain's communities, each with its nodes ascending."""
    network = nx.Graph()
    network.add_nodes_from(range(pool.num_nodes))
    network.add_edges_from(pool.edge_index.t().tolist())
    return [sorted(members) for members in nx.community.louvain_communities(network, seed=seed)]


def _enough(communities: list[list[int]], num_clients: int, name: str) -> list[list[int]]:
    enough = num_clients <= len(communities)
    expect(enough, "data.num_clients", f"at most {len(communities)}, the communities of {name},", num_clients)
    return communities


def _shared_out(communities: Sequence[list[int]], num_clients: int) -> list[Tensor]:
    """The largest first, each to the client that has the fewest nodes so far."""
    parts: list[list[int]] = [[] for _ in range(num_clients)]
    for members in sorted(communities, key=lambda members: (-len(members), members[0])):
        min(parts, key=len).extend(members)
    return [torch.tensor(part, dtype=torch.long) for part in parts]


def _by_labels(pool: NodeGraph, communities: Sequence[list[int]], num_clients: int, seed: int) -> list[Tensor]:
    """Those with like shares of labels together."""
    from sklearn.cluster import KMeans  # loads slowly

    ordered = sorted(communities, key=lambda members: members[0])
    labels = one_hot(pool.y, pool.num_classes).double()
    shares = torch.stack([labels[members].mean(dim=0) for members in ordered])
    unlike = len(shares.unique(dim=0))
    enough = num_clients <= unlike
    expect(enough, "data.num_clients", f"at most {unlike}, the communities with other label shares,", num_clients)
    owner = KMeans(num_clients, random_state=seed, n_init=10).fit_predict(shares.numpy())
    parts: list[list[int]] = [[] for _ in range(num_clients)]
    for client, members in zip(owner.tolist(), ordered, strict=True):
        parts[client].extend(members)
    return [torch.tensor(part, dtype=torch.long) for part in parts]


def _expect_metis() -> None:
    try:
        import pymetis  # noqa: F401
    except ImportError as error:  # no other method in its place: a name means the same clients on every machine
        needs = "'metis', which needs `pip install 'flgraph[metis]'`"
        raise InputError("data.partition", "one that can be made here", needs) from error


def _cut(pool: NodeGraph, count: int, seed: int) -> list[Tensor]:
    """METIS's parts of nearly equal size; some may be empty where there are few nodes."""
    import pymetis

    edges = sorted_edges(pool.edge_index, pool.num_nodes)
    owner = np.zeros(pool.num_nodes, dtype=np.int64)
    if count > 1:
        adjacency = pymetis.CSRAdjacency(index2ptr(edges[0], pool.num_nodes).tolist(), edges[1].tolist())
        _, part = pymetis.part_graph(count, adjacency, options=pymetis.Options(seed=seed % 2**31))
        owner = np.asarray(part, dtype=np.int64)
    return [torch.from_numpy(np.flatnonzero(owner == number)) for number in range(count)]
