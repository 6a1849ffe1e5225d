"""How the edges of a heterogeneous graph are dealt to clients (FedHGN, Fu and King, IJCAI 2023, Appendix A).

Edges are dealt in one direction; reverse edges are added to each client afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flgraph.data.cache import content_key
from flgraph.data.hetero.container import EdgeType, HeteroGraph
from flgraph.errors import InputError, expect, first_line
from flgraph.nn.sparse.adjacency import offsets


@dataclass(frozen=True)
class HeteroPartition:
    """Which edges each client has.

    Attributes:
        clients: columns of the graph's ``edge_index`` of each client, ascending; clients may share edges.
        graph: digest of the graph (:attr:`HeteroGraph.content`), which has no reverse relations.
        settings: plain values that tell how edges were dealt.
    """

    clients: list[Tensor]
    graph: str
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """What two runs have in common that use the same partition of the same graph, 64 hexadecimal digits."""
        return content_key("hetero partition", self.graph, self.clients)

    def cut(self, graph: HeteroGraph, reverse: bool = True) -> list[HeteroGraph]:
        """The clients' graphs, called ``client-1`` and so on.

        Args:
            graph: the graph that the partition was made of.
            reverse: whether to add reverse relations to each.

        Raises:
            InputError: the graph is another one, or a client has no node of the target type.
        """
        expect(graph.content == self.graph, "graph", f"the one with digest {self.graph[:16]}", graph.content[:16])
        parts = []
        for number, edges in enumerate(self.clients, start=1):
            part = graph.cut(edges, f"{graph.name}, client-{number}")
            parts.append(part.with_reverse() if reverse else part)
        return parts

    def save(self, path: str | Path) -> None:
        """Writes the partition with its digest to a file ``.npz``."""
        about = {"digest": self.digest, "graph": self.graph, "settings": self.settings}
        counts = torch.tensor([edges.numel() for edges in self.clients], dtype=torch.long)
        with open(path, "wb") as file:
            np.savez_compressed(
                file,
                about=np.array(json.dumps(about, sort_keys=True)),
                edges=torch.cat(self.clients).numpy(),
                ptr=offsets(counts).numpy(),
            )

    @classmethod
    def load(cls, path: str | Path) -> HeteroPartition:
        """Reads what :meth:`save` wrote.

        Raises:
            InputError: the file is missing or damaged, or its content does not have the digest that it names.
        """
        try:
            with np.load(path, allow_pickle=False) as file:
                about = json.loads(str(file["about"]))
                clients = list(torch.from_numpy(file["edges"]).split(np.diff(file["ptr"]).tolist()))
            made = cls([edges.clone() for edges in clients], about["graph"], about["settings"])
            named = about["digest"]
        except Exception as error:  # an archive may be damaged in as many ways as there are
            raise InputError(
                f"Expected {path} to be a partition of a heterogeneous graph but got: {first_line(error)}"
            ) from error
        expect(
            made.digest == named, str(path), f"a partition with the digest {named[:16]} that it names", made.digest[:16]
        )
        return made


def random_edges(graph: HeteroGraph, num_clients: int, seed: int = 123) -> HeteroPartition:
    """Random Edges: all edges in random order are cut into ``num_clients + 2`` segments of equal size.

    Each client has a segment of its own; each edge of another one goes to k random clients, k uniform in 2 to
    ``num_clients - 1``; the last segment, with what the division leaves over (as in the published code), goes to all.

    Args:
        graph: the whole graph, without reverse relations.
        num_clients: number of clients, 3 or more.
        seed: of the partition.

    Raises:
        InputError: there are too few clients or edges, or the graph has reverse relations.
    """
    generator = _check(graph, num_clients, seed)
    has = _deal(graph.num_edges, num_clients, generator, "edges")
    return _partition(graph, has, "random_edges", seed)


def random_edge_types(graph: HeteroGraph, num_clients: int, seed: int = 123) -> HeteroPartition:
    """Random Edge Types: as :func:`random_edges`, but relations are dealt, each with all of its edges.

    Args:
        graph: the whole graph, without reverse relations.
        num_clients: number of clients, 3 or more.
        seed: of the partition.

    Raises:
        InputError: there are too few clients or relations, or the graph has reverse relations.
    """
    generator = _check(graph, num_clients, seed)
    has = _deal(len(graph.edge_types), num_clients, generator, "relations")
    return _partition(graph, has[:, graph.relation], "random_edge_types", seed)


def partition_of(graph: HeteroGraph, clients: Sequence[HeteroGraph], settings: Mapping[str, Any]) -> HeteroPartition:
    """The partition that ready-made clients are.

    Args:
        graph: the whole graph, without reverse relations and repeated edges.
        clients: parts of it, whose ``nodes`` are numbers within the node types of ``graph``; reverse relations are
            passed over.
        settings: plain values that tell where they come from.

    Raises:
        InputError: a client has a relation or an edge that the graph lacks.
    """
    chosen = []
    for client in clients:
        part = client.without_reverse()
        # From numbers among the client's nodes to numbers within the node types of the whole graph.
        ends = part.nodes[part.edge_index]
        chosen.append(edge_columns(graph, part.edge_types, part.relation, ends, client.name).sort().values)
    return HeteroPartition(chosen, graph.content, dict(settings))


def edge_columns(
    graph: HeteroGraph, kinds: Sequence[EdgeType], relation: Tensor, edge_index: Tensor, name: str
) -> Tensor:
    """Which columns of a graph's ``edge_index`` some edges are.

    Args:
        graph: the graph, without repeated edges.
        kinds: relations that the edges have.
        relation: relation of each edge, its place in ``kinds``, ``[E]``.
        edge_index: sources and targets, numbered within their node types, ``[2, E]``.
        name: what error messages call the edges' owner.

    Raises:
        InputError: the graph lacks a relation or an edge.
    """
    n, place = graph.num_nodes, {kind: r for r, kind in enumerate(graph.edge_types)}
    first = dict(zip(graph.node_types, graph.node_ptr.tolist(), strict=False))
    unknown = [kind[1] for kind in kinds if kind not in place]
    expect(not unknown, f"{name}.edge_types", f"relations of `{graph.name}`", ", ".join(unknown[:3]))
    shift = torch.tensor([[first[kind[0]], first[kind[2]]] for kind in kinds], dtype=torch.long).view(-1, 2).t()
    source, target = edge_index + shift[:, relation]
    keys = (graph.relation * n + graph.edge_index[1]) * n + graph.edge_index[0]
    places = torch.tensor([place[kind] for kind in kinds], dtype=torch.long)
    wanted = (places[relation] * n + target) * n + source
    found = torch.searchsorted(keys, wanted).clamp(max=max(0, keys.numel() - 1))
    missing = int((keys[found] != wanted).sum())
    expect(missing == 0, f"{name}.edges", f"edges of `{graph.name}`", f"{missing} others")
    return found


def hetero_statistics(clients: Mapping[str, HeteroGraph]) -> dict[str, Any]:
    """Node types, relations, nodes, edges, and nodes of each split: of each client, and the mean over clients."""
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


def _check(graph: HeteroGraph, num_clients: int, seed: int) -> torch.Generator:
    wanted = "3 or more, since some edges go to 2 clients or more but not to all,"
    expect(num_clients >= 3, "data.num_clients", wanted, num_clients)
    expect(0 <= seed < 2**32, "data.partition_seed", "between 0 and 2^32 - 1", seed)
    expect(not graph.reverses, "graph", "without reverse relations, for a partition,", f"{len(graph.reverses)} of them")
    return torch.Generator().manual_seed(seed)


def _deal(count: int, num_clients: int, generator: torch.Generator, what: str) -> Tensor:
    """Which client has which of ``count`` things, ``[num_clients, count]`` bool."""
    size = count // (num_clients + 2)
    expect(size >= 1, "data.num_clients", f"at most {max(0, count - 2)}, two less than there are {what},", num_clients)
    order = torch.randperm(count, generator=generator)
    has = torch.zeros(num_clients, count, dtype=torch.bool)
    own = order[: num_clients * size].view(num_clients, size)
    has.scatter_(1, own, True)
    some = order[num_clients * size : (num_clients + 1) * size]
    k = torch.randint(2, num_clients, (size,), generator=generator)
    # The k clients with the lowest of random numbers are a random set of k.
    rank = torch.rand(num_clients, size, generator=generator).argsort(dim=0).argsort(dim=0)
    has[:, some] = rank < k
    has[:, order[(num_clients + 1) * size :]] = True
    return has


def _partition(graph: HeteroGraph, has: Tensor, kind: str, seed: int) -> HeteroPartition:
    clients = [row.nonzero()[:, 0] for row in has]
    return HeteroPartition(clients, graph.content, {"partition": kind, "num_clients": len(clients), "seed": seed})
