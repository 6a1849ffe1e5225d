"""Types of a heterogeneous graph: reverse relations, another order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from flgraph.data.cache import content_key
from flgraph.data.hetero.container import HeteroGraph, sort_by_relation
from flgraph.errors import expect
from flgraph.nn.sparse.adjacency import offsets

REVERSE = "rev_"
"""What the name of a reverse relation begins with."""


def reverses(graph: HeteroGraph) -> list[int]:
    """Numbers of the relations that are another relation turned round: of its name behind ``rev_``."""
    kinds = set(graph.edge_types)
    return [
        number
        for number, (source, name, target) in enumerate(graph.edge_types)
        if name.startswith(REVERSE) and (target, name.removeprefix(REVERSE), source) in kinds
    ]


def with_reverse(graph: HeteroGraph) -> HeteroGraph:
    """The same graph with every relation turned round as a new relation ``rev_...``, behind all others.

    Raises:
        InputError: a relation is turned round already.

    Example:
        >>> likes = {("person", "likes", "book"): torch.tensor([[0, 2, 1], [0, 1, 1]])}
        >>> y = torch.tensor([0, 1, 0])
        >>> graph = HeteroGraph.from_edges({"person": 3, "book": 2}, likes, target="person", y=y)
        >>> with_reverse(graph).edge_types
        (('person', 'likes', 'book'), ('book', 'rev_likes', 'person'))
    """
    taken = [graph.edge_types[number][1] for number in reverses(graph)]
    expect(not taken, f"{graph.name}.edge_types", "without reverse relations", ", ".join(taken[:3]))
    count = len(graph.edge_types)
    kinds = [(target, REVERSE + name, source) for source, name, target in graph.edge_types]
    flat = torch.cat([graph.edge_index, graph.edge_index.flip(0)], dim=1)
    relation = torch.cat([graph.relation, graph.relation + count])
    edge_index, edge_ptr = sort_by_relation(flat, relation, 2 * count, graph.num_nodes)
    return graph.replace(edge_types=(*graph.edge_types, *kinds), edge_index=edge_index, edge_ptr=edge_ptr)


def without_reverse(graph: HeteroGraph) -> HeteroGraph:
    """The same graph without the relations that :func:`reverses` names.

    Example:
        >>> likes = {("person", "likes", "book"): torch.tensor([[0, 2, 1], [0, 1, 1]])}
        >>> y = torch.tensor([0, 1, 0])
        >>> graph = HeteroGraph.from_edges({"person": 3, "book": 2}, likes, target="person", y=y)
        >>> without_reverse(with_reverse(graph)).edge_types
        (('person', 'likes', 'book'),)
    """
    dropped = set(reverses(graph))
    kept = [number for number in range(len(graph.edge_types)) if number not in dropped]
    wanted = torch.zeros(len(graph.edge_types), dtype=torch.bool, device=graph.y.device)
    wanted[kept] = True
    return graph.replace(
        edge_types=[graph.edge_types[number] for number in kept],
        edge_ptr=offsets(graph.edge_ptr.diff()[wanted]),
        edge_index=graph.edge_index[:, wanted[graph.relation]],
    )


def reordered(graph: HeteroGraph, node_order: Sequence[int], edge_order: Sequence[int]) -> HeteroGraph:
    """The same graph with node types and relations in another order, and nodes numbered accordingly.

    Args:
        graph: the graph.
        node_order: number of each node type in ``graph.node_types``, in the order wanted.
        edge_order: the same of relations, in ``graph.edge_types``.

    Raises:
        InputError: an order names a type twice, or one that is not there.

    Example:
        >>> likes = {("person", "likes", "book"): torch.tensor([[0, 2, 1], [0, 1, 1]])}
        >>> y = torch.tensor([0, 1, 0])
        >>> graph = HeteroGraph.from_edges({"person": 3, "book": 2}, likes, target="person", y=y)
        >>> reordered(graph, [1, 0], [0]).node_types
        ('book', 'person')
    """
    for field, order, count in (
        ("node_order", node_order, len(graph.node_types)),
        ("edge_order", edge_order, len(graph.edge_types)),
    ):
        expect(sorted(order) == list(range(count)), field, f"all of 0 to {count - 1}", list(order))
    counts, edges, ptr = graph.node_ptr.diff().tolist(), graph.edges, graph.node_ptr.tolist()
    return HeteroGraph.from_edges(
        {graph.node_types[t]: counts[t] for t in node_order},
        {graph.edge_types[r]: edges[graph.edge_types[r]] for r in edge_order},
        graph.target,
        graph.y,
        graph.train,
        graph.val,
        graph.test,
        graph.num_classes,
        graph.x,
        graph.name,
        torch.cat([graph.nodes[ptr[t] : ptr[t + 1]] for t in node_order]),
    )


def canonical(graph: HeteroGraph) -> HeteroGraph:
    """The same graph with node types and relations in an order that their contents decide.

    Two graphs that differ in the names or the order of their types alone become the same tensors, so that training
    on them draws the same weights and adds up in the same order. Contents are: which type is the target, numbers of
    nodes, features, edges, and the contents of the types up to two relations away. Types whose contents are equal
    stay in the order given.
    """
    counts, edges = dict(zip(graph.node_types, graph.node_ptr.diff().tolist(), strict=True)), graph.edges
    target = graph.target if graph.labelled else None
    nodes = {t: content_key(count, t == target, graph.x.get(t)) for t, count in counts.items()}
    links = {(s, name, t): content_key(s == t, edges[s, name, t]) for s, name, t in edges}
    for _ in range(2):
        beside = {kind: content_key(own, nodes[kind[0]], nodes[kind[2]]) for kind, own in links.items()}
        ends = {t: sorted((t == kind[0], t == kind[2], beside[kind]) for kind in links) for t in nodes}
        nodes = {t: content_key(own, [end for end in ends[t] if end[0] or end[1]]) for t, own in nodes.items()}
        links = beside
    node_order = sorted(range(len(nodes)), key=lambda t: nodes[graph.node_types[t]])
    edge_order = sorted(range(len(links)), key=lambda r: links[graph.edge_types[r]])
    if node_order == sorted(node_order) and edge_order == sorted(edge_order):
        return graph
    return reordered(graph, node_order, edge_order)


def model_sizes(graph: HeteroGraph, tie_names: bool = False) -> dict[str, Any]:
    """Sizes of a model that the graph decides: nodes and features of each type (0 for none), weights of a layer."""
    return {
        "num_nodes": graph.node_ptr.diff().tolist(),
        "num_features": [graph.x[kind].size(1) if kind in graph.x else 0 for kind in graph.node_types],
        "num_relations": len(graph.weight_rows(tie_names)),
    }
