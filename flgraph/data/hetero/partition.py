"""How the edges of a heterogeneous graph are assigned to clients (FedHGN, Fu and King, IJCAI 2023, Appendix A).

Edges are assigned in one direction; reverse edges are added to each client afterwards.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flgraph.data.cache import content_key
from flgraph.data.checks import require
from flgraph.data.hetero.container import HeteroGraph
from flgraph.data.hetero.schema import reverses, with_reverse
from flgraph.errors import InputError, expect, first_line
from flgraph.nn.sparse.adjacency import offsets


@dataclass(frozen=True)
class HeteroPartition:
    """Which edges each client has.

    Attributes:
        clients: columns of the graph's ``edge_index`` of each client, ascending; clients may share edges.
        graph: digest of the graph (:attr:`HeteroGraph.content`), which has no reverse relations.
        settings: plain values that describe how edges were assigned.
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
        names = (f"{graph.name}, client-{number}" for number in range(1, len(self.clients) + 1))
        parts = [graph.cut(edges, name) for edges, name in zip(self.clients, names, strict=True)]
        return [with_reverse(part) for part in parts] if reverse else parts

    def save(self, path: str | Path) -> None:
        """Writes the partition with its digest to a file ``.npz``."""
        Path(path).write_bytes(self.to_bytes())

    def to_bytes(self) -> bytes:
        """The content of such a file."""
        about = {"digest": self.digest, "graph": self.graph, "settings": self.settings}
        counts = torch.tensor([edges.numel() for edges in self.clients], dtype=torch.long)
        stream = io.BytesIO()
        np.savez_compressed(
            stream,
            about=np.array(json.dumps(about, sort_keys=True)),
            edges=torch.cat(self.clients).numpy(),
            ptr=offsets(counts).numpy(),
        )
        return stream.getvalue()

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
            raise InputError(str(path), "a partition of a heterogeneous graph", first_line(error)) from error
        wanted = f"a partition with the digest {named[:16]} that it names"
        expect(made.digest == named, str(path), wanted, made.digest[:16])
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

    Example:
        >>> own = torch.arange(6).expand(2, 6)  # person i and book i
        >>> likes = {("person", f"likes {i}", "book"): own for i in range(5)}
        >>> sizes, y = {"person": 6, "book": 6}, torch.arange(6) % 2
        >>> graph = HeteroGraph.from_edges(sizes, likes, target="person", y=y)
        >>> [len(edges) for edges in random_edges(graph, num_clients=3).clients]
        [18, 17, 13]
    """
    generator = _check(graph, num_clients, seed)
    has = _assign(graph.num_edges, num_clients, generator, "edges")
    return _partition(graph, has, "random_edges", seed)


def random_edge_types(graph: HeteroGraph, num_clients: int, seed: int = 123) -> HeteroPartition:
    """Random Edge Types: as :func:`random_edges`, but relations are assigned, each with all of its edges.

    Args:
        graph: the whole graph, without reverse relations.
        num_clients: number of clients, 3 or more.
        seed: of the partition.

    Raises:
        InputError: there are too few clients or relations, or the graph has reverse relations.

    Example:
        >>> own = torch.arange(6).expand(2, 6)  # person i and book i
        >>> likes = {("person", f"likes {i}", "book"): own for i in range(5)}
        >>> sizes, y = {"person": 6, "book": 6}, torch.arange(6) % 2
        >>> graph = HeteroGraph.from_edges(sizes, likes, target="person", y=y)
        >>> [len(edges) for edges in random_edge_types(graph, num_clients=3).clients]
        [12, 18, 18]
    """
    generator = _check(graph, num_clients, seed)
    has = _assign(len(graph.edge_types), num_clients, generator, "relations")
    return _partition(graph, has[:, graph.relation], "random_edge_types", seed)


def with_validation(graph: HeteroGraph, fraction: float, seed: int) -> HeteroGraph:
    """The same graph with a random ``fraction`` of the training nodes (rounded) as validation nodes.

    A graph that has validation nodes is left as it is.
    """
    expect(0 <= fraction < 1, "data.val_fraction", "0 or more and below 1", fraction)
    held = round(fraction * graph.train.numel())
    if graph.val.numel() or not held:
        return graph
    order = torch.randperm(graph.train.numel(), generator=torch.Generator().manual_seed(seed))
    order = order.to(graph.train.device)
    val, train = graph.train[order[:held]].sort().values, graph.train[order[held:]].sort().values
    return graph.replace(train=train, val=val)


def _check(graph: HeteroGraph, num_clients: int, seed: int) -> torch.Generator:
    wanted = "3 or more, since some edges go to 2 clients or more but not to all,"
    expect(num_clients >= 3, "data.num_clients", wanted, num_clients)
    expect(0 <= seed < 2**32, "data.partition_seed", "between 0 and 2^32 - 1", seed)
    require(
        not reverses(graph), "graph", "without reverse relations, for a partition,", f"{len(reverses(graph))} of them"
    )
    return torch.Generator().manual_seed(seed)


def _assign(count: int, num_clients: int, generator: torch.Generator, what: str) -> Tensor:
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
