"""How the nodes of one graph are assigned to clients, and each client's nodes to training, validation and test.

All node numbers are those of the whole graph. Every partition is decided by its arguments and its seed alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypedDict, Unpack, get_args

import torch
from torch import Tensor
from torch_geometric.utils import index_to_mask

from flgraph.data.graphs.partition import dirichlet_shards
from flgraph.data.nodes.container import NodeGraph
from flgraph.data.splits import check_fractions, fewest_for, split_client
from flgraph.errors import InputError, expect

LocalOf = Literal["graph", "pool"]

FRACTIONS = (0.6, 0.2, 0.2)


class Division(TypedDict, total=False):
    """What every partition into disjoint clients takes.

    Attributes:
        global_fraction: share of all nodes that is the global test graph, drawn before; 0, for none, by default.
        fractions: training, validation and test share of each client's nodes, stratified by label where possible;
            0.6, 0.2 and 0.2 by default.
        seed: of all draws; 123 by default.
    """

    global_fraction: float
    fractions: Sequence[float]
    seed: int


@dataclass(frozen=True)
class ClientNodes:
    """One client's nodes.

    Attributes:
        nodes: all of them ``[n]``, ascending; the client's graph is that of these nodes and the edges between them.
        train: those to train on, in random order, as the other two.
        val: those to validate on.
        test: those to test on.
        query: those that are in the query sets of meta-learning and nowhere else.
    """

    nodes: Tensor
    train: Tensor
    val: Tensor
    test: Tensor
    query: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))


@dataclass(frozen=True)
class NodePartition:
    """A federation's nodes.

    Attributes:
        clients: of each client.
        global_test: nodes of the global test graph, ascending; no client has any of them.
    """

    clients: list[ClientNodes]
    global_test: Tensor


def label_skew(
    graph: NodeGraph,
    num_clients: int,
    local_fraction: float = 0.3,
    global_fraction: float = 0.3,
    major_labels: int | None = None,
    major_rate: float = 0.8,
    num_test: int | None = None,
    val_fraction: float = 0.2,
    local_of: LocalOf = "graph",
    exclusive_test: bool = False,
    num_train: int | None = None,
    num_query: int = 0,
    seed: int = 123,
) -> NodePartition:
    """Clients with a few frequent labels each (FedEgo, Zhang et al., 2022, Section 5.1, and its published code).

    A random ``global_fraction`` of the nodes is the global test graph; the others are the pool. Clients draw one after
    another. Each draws ``major_labels`` labels among those that the pool still has; ``major_rate`` of its nodes come
    from these labels, or as many as there are, and the others are random nodes of the pool, of any label. All clients
    ask for equally many nodes, and get all that the pool still has where it has fewer. Nodes without an edge to another
    node of the client are dropped. Of the rest, in random order, the last ``num_test`` are its test nodes, and
    ``val_fraction`` of all its nodes, taken from the others, its validation nodes.

    Clients may share nodes. With ``exclusive_test`` a test node has no other use: a client's test nodes leave the pool,
    so that no later client has them, and earlier clients do not train, validate or query on them, though they may be
    among their neighbours. (The published code does the former only, see
    :func:`~flgraph.reproduce.fedego.published.authors_label_skew`.) The paper does not ask for this, and on Cora and
    CiteSeer its 300 test nodes per client leave others little.

    Args:
        graph: the whole graph.
        num_clients: number of clients.
        local_fraction: nodes that a client asks for, as a share of those that ``local_of`` names.
        global_fraction: share of all nodes that is the global test graph.
        major_labels: frequent labels per client; 3 when ``None``, or as many as the graph has.
        major_rate: share of a client's nodes that have them.
        num_test: test nodes per client; when ``None``, 300, or three in ten where a client has fewer than 500 nodes.
        val_fraction: validation nodes, as a share of all nodes of the client.
        local_of: ``"graph"``, all nodes, as for ``global_fraction``, or ``"pool"``, those outside of the global test
            graph (before any client has taken test nodes). The paper does not say which; its code takes all nodes.
        exclusive_test: whether a client's test nodes are kept from the others.
        num_train: training nodes per client; what is left has no use then but as neighbours. All that are left when
            ``None`` or where there are fewer.
        num_query: of what ``num_train`` leaves, the nodes per client that are in query sets of meta-learning only.
        seed: of all draws.

    Raises:
        InputError: a number is out of range, or a client would have no edge, too few nodes or too few labels.

    Example:
        >>> from torch_geometric.datasets import KarateClub
        >>> graph = NodeGraph.from_pyg(KarateClub()[0])
        >>> partition = label_skew(graph, num_clients=2, major_labels=1, local_fraction=0.6, num_test=2)
        >>> [len(client.nodes) for client in partition.clients], len(partition.global_test)
        ([17, 13], 10)
    """
    asked = num_test or 0
    check_skew(graph, num_clients, local_fraction, global_fraction, major_rate, asked, val_fraction, num_train, seed)
    expect(num_query >= 0, "data.num_query", "0 or more", num_query)
    expect(local_of in get_args(LocalOf), "data.local_of", f"one of {', '.join(get_args(LocalOf))}", local_of)
    present = graph.y.unique().numel()
    major_labels = min(3, present) if major_labels is None else major_labels
    valid = 1 <= major_labels <= present
    expect(valid, "data.major_labels", f"between 1 and the {present} labels of {graph.name}", major_labels)
    generator = torch.Generator().manual_seed(seed)
    global_test, pool = _draw_global(graph, global_fraction, generator)
    size = _round(local_fraction * (graph.num_nodes if local_of == "graph" else pool.numel()))
    clients = []
    for number in range(1, num_clients + 1):
        labels = graph.y[pool].unique()
        left = f"at most {labels.numel()}, the labels left for client `client-{number}`,"
        expect(labels.numel() >= major_labels, "data.major_labels", left, major_labels)
        chosen = labels[torch.randperm(labels.numel(), generator=generator)[:major_labels]]
        major = _shuffled(pool[torch.isin(graph.y[pool], chosen)], generator)[: _round(major_rate * size)]
        others = _shuffled(pool[~torch.isin(pool, major)], generator)
        nodes = torch.cat([major, others[: size - major.numel()]])
        nodes = nodes[_with_edges(graph, nodes)]
        what = f"large enough for client `client-{number}` to have an edge"
        expect(nodes.numel() > 0, "data.local_fraction", what, local_fraction)
        nodes = _shuffled(nodes, generator)
        num_val = _round(val_fraction * nodes.numel())
        tested = (300 if nodes.numel() >= 500 else _round(0.3 * nodes.numel())) if num_test is None else num_test
        clients.append(divide_nodes(nodes, tested, num_val, num_train, num_query, f"client-{number}"))
        if exclusive_test:
            pool = pool[~torch.isin(pool, clients[-1].test)]
    return NodePartition(_without_tests(clients) if exclusive_test else clients, global_test)


def _without_tests(clients: Sequence[ClientNodes]) -> list[ClientNodes]:
    """The clients without the later ones' test nodes among those that they learn from; earlier ones' are not there."""
    left = []
    for number, own in enumerate(clients, start=1):
        tests = torch.cat([own.test[:0], *(other.test for other in clients[number:])])
        train, val, query = (index[~torch.isin(index, tests)] for index in (own.train, own.val, own.query))
        what = f"small enough for client `client-{number}` to have a training node that no other client tests on"
        expect(train.numel() > 0, "data.num_test", what, own.test.numel())
        left.append(replace(own, train=train, val=val, query=query))
    return left


def divide_nodes(
    nodes: Tensor, num_test: int, num_val: int, num_train: int | None, num_query: int, client: str
) -> ClientNodes:
    """The uses of one client's nodes, which come in random order, see :func:`label_skew`.

    Args:
        nodes: ``[n]``; the first are validation nodes, the last test nodes.
        num_test: how many of them.
        num_val: likewise.
        num_train: training nodes, see :func:`label_skew`.
        num_query: see there.
        client: for error messages.

    Raises:
        InputError: the nodes do not suffice.
    """
    what = f"below {nodes.numel()}, the nodes with an edge that client `{client}` has"
    expect(num_test < nodes.numel(), "data.num_test", what, num_test)
    rest, test = nodes[: nodes.numel() - num_test], nodes[nodes.numel() - num_test :]
    what = f"small enough for client `{client}` to have a training node"
    expect(num_val < rest.numel(), "data.val_fraction", what, num_val / nodes.numel())
    train = rest[num_val:][:num_train]
    spare = rest[num_val + train.numel() :]
    what = f"at most {spare.numel()}, the nodes that `data.num_train` leaves to client `{client}`,"
    expect(num_query <= spare.numel(), "data.num_query", what, num_query)
    return ClientNodes(nodes.sort().values, train, rest[:num_val], test, spare[:num_query])


def check_skew(
    graph: NodeGraph,
    num_clients: int,
    local_fraction: float,
    global_fraction: float,
    major_rate: float,
    num_test: int,
    val_fraction: float,
    num_train: int | None,
    seed: int,
) -> None:
    """Checks arguments of :func:`label_skew`.

    Raises:
        InputError: a number is out of range.
    """
    _check(graph, num_clients, global_fraction, seed)
    most = f"at most {graph.num_nodes}, the nodes of {graph.name},"
    expect(num_clients <= graph.num_nodes, "data.num_clients", most, num_clients)
    expect(0 < local_fraction <= 1, "data.local_fraction", "above 0 and at most 1", local_fraction)
    expect(0 <= major_rate <= 1, "data.major_rate", "between 0 and 1", major_rate)
    expect(0 <= val_fraction < 1, "data.val_fraction", "0 or more and below 1", val_fraction)
    expect(num_test >= 0, "data.num_test", "0 or more", num_test)
    expect(num_train is None or num_train >= 1, "data.num_train", "1 or more, or null for all", num_train)


def dirichlet(graph: NodeGraph, num_clients: int, alpha: float = 1.0, **division: Unpack[Division]) -> NodePartition:
    """Disjoint clients with unequal label shares, see :func:`~flgraph.data.dirichlet_shards`.

    Args:
        graph: the whole graph.
        num_clients: number of clients.
        alpha: concentration; small values give clients few labels each.
        **division: see :class:`~flgraph.data.nodes.partition.Division`.

    Raises:
        InputError: a number is out of range, or some client would have no nodes for a split, in 1000 draws.

    Example:
        >>> from torch_geometric.datasets import KarateClub
        >>> graph = NodeGraph.from_pyg(KarateClub()[0])
        >>> partition = dirichlet(graph, num_clients=2)
        >>> [len(client.nodes) for client in partition.clients]
        [26, 8]
    """

    def cut(pool: NodeGraph, seed: int) -> list[Tensor]:
        try:
            fractions = division.get("fractions", FRACTIONS)
            fewest = fewest_for(fractions, max(1, pool.num_nodes // max(1, num_clients)))
            return dirichlet_shards(pool.y, num_clients, alpha, seed, fewest)
        except InputError as error:
            raise InputError(f"data.{error.field}", error.expected, error.got) from None

    return disjoint(graph, num_clients, cut, **division)


# ------------------------------------------------------------------------------------------------------------ helpers
def disjoint(
    graph: NodeGraph,
    num_clients: int,
    cut: Callable[[NodeGraph, int], list[Tensor]],
    global_fraction: float = 0.0,
    fractions: Sequence[float] = FRACTIONS,
    seed: int = 123,
) -> NodePartition:
    """The global test graph, then the parts into which ``cut`` cuts the others' graph, each split three ways."""
    _check(graph, num_clients, global_fraction, seed)
    check_fractions(fractions, "data.fractions")
    global_test, pool = _draw_global(graph, global_fraction, torch.Generator().manual_seed(seed))
    most = f"at most {pool.numel()}, the nodes outside of the global test graph,"
    expect(num_clients <= pool.numel(), "data.num_clients", most, num_clients)
    clients = []
    for number, part in enumerate(cut(graph.subgraph(pool), seed), start=1):
        what = f"small enough for client `client-{number}` to have a node"
        expect(part.numel() > 0, "data.num_clients", what, num_clients)
        nodes = pool[part].sort().values
        split = split_client(graph.y[nodes], fractions, seed, f"client-{number}", alike=True)
        clients.append(ClientNodes(nodes, *(nodes[index] for index in split)))
    return NodePartition(clients, global_test)


def _check(graph: NodeGraph, num_clients: int, global_fraction: float, seed: int) -> None:
    expect(num_clients >= 1, "data.num_clients", "1 or more", num_clients)
    expect(0 <= global_fraction < 1, "data.global_fraction", "0 or more and below 1", global_fraction)
    expect(0 <= seed < 2**32, "data.partition_seed", "between 0 and 2^32 - 1", seed)
    expect(graph.y.device.type == "cpu", "graph", "on the CPU, for a partition,", graph.y.device)


def _draw_global(graph: NodeGraph, fraction: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Nodes of the global test graph and all others, both ascending."""
    order = torch.randperm(graph.num_nodes, generator=generator)
    held = _round(fraction * graph.num_nodes)
    expect(held < graph.num_nodes, "data.global_fraction", f"small enough to leave nodes of {graph.name}", fraction)
    return order[:held].sort().values, order[held:].sort().values


def _shuffled(nodes: Tensor, generator: torch.Generator) -> Tensor:
    return nodes[torch.randperm(nodes.numel(), generator=generator)]


def _with_edges(graph: NodeGraph, nodes: Tensor) -> Tensor:
    """Which of ``nodes`` have an edge to or from another of them ``[n]``, bool."""
    kept, _ = edges_of_nodes(graph, nodes)
    return index_to_mask(graph.edge_index[:, kept].flatten(), graph.num_nodes)[nodes]


def edges_of_nodes(graph: NodeGraph, nodes: Tensor) -> tuple[Tensor, Tensor]:
    """Which edges join two of ``nodes``, and which join one of them to another node, ``[E]``."""
    source, target = index_to_mask(nodes, graph.num_nodes)[graph.edge_index]
    return source & target, source ^ target


def _round(number: float) -> int:
    """To the nearest whole number, halves up; Python's own rounds them to even ones."""
    return int(number + 0.5)
