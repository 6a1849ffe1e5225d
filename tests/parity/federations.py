"""Small data of three kinds, by class names that a command line can give."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch.nn import functional as F
from torch_geometric.data import Data

from flgraph.data import (
    FlatGraphs,
    GraphFederation,
    HeteroFederation,
    HeteroGraph,
    NodeFederation,
    NodeGraph,
    PartitionedGraphFederation,
    WholeGraphFederation,
)


class Graphs(GraphFederation):
    """Four clients with graphs of 4 to 6 nodes, of different numbers and widths."""

    def __init__(self, wl_scores: bool = False) -> None:
        given = {name: toy_graphs(12 + 4 * n, 4, n) for n, name in enumerate("ABCD")}
        super().__init__(given, batch_size=8, dse_dim=3, rwse_dim=3, wl_scores=wl_scores)


class Views(PartitionedGraphFederation):
    """Four clients' shares of graphs with their diffusion as a second view."""

    def __init__(self) -> None:
        super().__init__(FlatGraphs.from_pyg(toy_graphs(48, 4, 0), "views"), num_clients=4, batch_size=8)


class Nodes(NodeFederation):
    """Four clients of a graph of 120 nodes with a global test graph."""

    def __init__(self) -> None:
        super().__init__(
            _nodes(120),
            num_clients=4,
            partition="dirichlet",
            alpha=5.0,
            global_fraction=0.2,
            batch_size=8,
            fanouts=(2, 2),
        )


class Whole(WholeGraphFederation):
    """The same four clients, for full-batch methods."""

    def __init__(self) -> None:
        super().__init__(_nodes(120), num_clients=4, partition="dirichlet", alpha=5.0, global_fraction=0.2)


class Relations(HeteroFederation):
    """Four clients of a graph with four relations between two types of nodes."""

    def __init__(self) -> None:
        super().__init__(_relations(), num_clients=4, partition="random_edges", partition_seed=3)


def toy_graphs(count: int, features: int = 4, seed: int = 0) -> list[Data]:
    """Small graphs with features, two classes by turns."""
    generator = torch.Generator().manual_seed(seed)
    graphs = []
    for number in range(count):
        nodes = 4 + number % 3
        edges = torch.randint(0, nodes, (2, 5), generator=generator)
        edges = torch.cat([edges, edges.flip(0)], dim=1).unique(dim=1)
        x = torch.randn(nodes, features, generator=generator)
        graphs.append(Data(x=x, edge_index=edges, y=torch.tensor([number % 2])))
    return graphs


def _nodes(count: int) -> NodeGraph:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(count) % 3
    ends = torch.randint(count, (2, 3 * count), generator=generator)
    both = torch.cat([ends, ends.flip(0)], dim=1)
    edges = both[:, both[0] != both[1]].unique(dim=1)
    x = (torch.rand(count, 6, generator=generator) + F.one_hot(y, 6)).floor()
    return NodeGraph(x.to_sparse_csr(), edges, y, 3, "toy")


def _relations() -> HeteroGraph:
    generator = torch.Generator().manual_seed(0)
    ends = {"writes": ("a", "b"), "cites": ("b", "a"), "treats": ("a", "a"), "owes": ("b", "b")}
    given = {
        (source, name, target): torch.randint(0, 30, (2, 60), generator=generator).unique(dim=1)
        for name, (source, target) in ends.items()
    }
    y = torch.arange(30) % 3
    return HeteroGraph.from_edges(
        {"a": 30, "b": 30}, given, "a", y, torch.arange(0, 20), None, torch.arange(20, 30), name="Toy"
    )


KINDS = {
    "FCLG": Views,
    "InfoGraph": Views,
    "MVGRL": Views,
    "FedEgo": Nodes,
    "AdaFGL": Whole,
    "FGGP": Whole,
    "MaskedGCN": Whole,
    "NeighGenSAGE": Whole,
    "NodeGCN": Whole,
    "RGCN": Relations,
    "SpreadRGCN": Relations,
    "HeteroGAT": Relations,
}
"""Which data a model takes; graphs, where it is not named here."""


def typed_graph(relations: int = 12, edges: int = 20) -> HeteroGraph:
    """Two node types; every relation has as many different edges."""
    generator = torch.Generator().manual_seed(0)
    kinds, given = [("a", "b"), ("b", "a"), ("a", "a")], {}
    for number in range(relations):
        source, target = kinds[number % 3]
        chosen = torch.randperm(30 * 30, generator=generator)[:edges]
        given[source, f"r{number}", target] = torch.stack([chosen // 30, chosen % 30])
    y = torch.arange(30) % 3
    splits = torch.arange(0, 12), torch.arange(12, 18), torch.arange(18, 30)
    return HeteroGraph.from_edges({"a": 30, "b": 30}, given, "a", y, *splits, name="toy")


RELATIONS = ("writes", "cites", "treats", "owes", "sees", "hears", "knows", "likes", "greets", "pays")


def ten_relations(partition: str = "random_edge_types") -> HeteroFederation:
    """Three clients of a graph with two types of nodes."""
    generator = torch.Generator().manual_seed(0)
    ends = [("a", "b"), ("b", "a"), ("a", "a"), ("b", "b"), ("a", "b")] * 2
    given = {
        (source, name, target): torch.randint(0, 30, (2, 60), generator=generator).unique(dim=1)
        for name, (source, target) in zip(RELATIONS, ends, strict=True)
    }
    y = torch.arange(30) % 3
    graph = HeteroGraph.from_edges(
        {"a": 30, "b": 30}, given, "a", y, torch.arange(20), None, torch.arange(20, 30), name="Toy"
    )
    return HeteroFederation(graph, num_clients=3, partition=partition, partition_seed=5)


def renamed(graph: HeteroGraph, node_names: Mapping[str, str], edge_names: Mapping[str, str]) -> HeteroGraph:
    """The same graph with other names of node types and relations; those that are not given stay."""
    of = lambda kind: node_names.get(kind, kind)  # noqa: E731
    return graph.replace(
        validate=True,
        node_types=[of(kind) for kind in graph.node_types],
        edge_types=[(of(s), edge_names.get(name, name), of(t)) for s, name, t in graph.edge_types],
        target=of(graph.target),
        x={of(kind): x for kind, x in graph.x.items()},
    )


def write_paths_and_cycles(root: Path, name: str, graphs: int, labels: int = 2) -> None:
    """A TU data set of paths (class 0) and cycles (class 1) by turns, with so many node labels, as text files."""
    lines: dict[str, list[str]] = {"A": [], "graph_indicator": [], "graph_labels": [], "node_labels": []}
    for graph in range(graphs):
        first, size = len(lines["graph_indicator"]) + 1, 3 + graph % 4
        pairs = [(first + i, first + i + 1) for i in range(size - 1)] + [(first, first + size - 1)] * (graph % 2)
        lines["A"] += [f"{a}, {b}" for pair in pairs for a, b in (pair, pair[::-1])]
        lines["graph_indicator"] += [str(graph + 1)] * size
        lines["graph_labels"].append(str(graph % 2))
        lines["node_labels"] += [str((graph + i) % labels) for i in range(size)]
    (root / name).mkdir()
    for key, own in lines.items():
        (root / name / f"{name}_{key}.txt").write_text("\n".join(own) + "\n")
