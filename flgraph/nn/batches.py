"""What models for nodes and for links get at a time; batches of many graphs are PyG's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor

from flgraph.nn.sparse.adjacency import Adjacency
from flgraph.nn.sparse.csr import take_rows
from flgraph.nn.sparse.relations import Relations


@dataclass  # not frozen, as all batches here: Lightning copies them to convert them
class TensorBatch:
    """Fields that are tensors, adjacencies, relations, tuples of these, or plain values."""

    @property
    def device(self) -> torch.device | None:
        """Where its tensors are."""
        return next((part.device for part in vars(self).values() if isinstance(part, Tensor)), None)

    def to(self, device: torch.device | str) -> Self:
        """The same batch on another device."""
        return replace(self, **{part.name: _moved(getattr(self, part.name), device) for part in fields(self)})


@dataclass
class EgoBatch(TensorBatch):
    """Ego-graphs of the same shape.

    Attributes:
        x: features of the batch's distinct nodes ``[n, F]`` float32, sparse CSR where the graph's are.
        index: position in ``x`` of every node of every ego-graph ``[B, P]``, int64; column 0 holds the centers. See
            :func:`~flgraph.data.sample_ego_graphs` for the order of positions.
        y: classes of the centers ``[B]``.
        labels: classes of all positions ``[B, P]``.
        fanouts: neighbours per node, for each hop.
        childless: positions of all hops but the last whose children are not to count ``[B, P']``, bool; ``None`` where
            all do.
        trained: positions of nodes that the client trains on ``[B, P]``, bool; ``None`` where the batch does not say.
    """

    x: Tensor
    index: Tensor
    y: Tensor
    labels: Tensor
    fanouts: tuple[int, ...]
    childless: Tensor | None = None
    trained: Tensor | None = None

    @classmethod
    def gather(cls, x: Tensor, y: Tensor, ego_graphs: Tensor, fanouts: Sequence[int]) -> EgoBatch:
        """The batch of ``ego_graphs [B, P]``, nodes of a graph of features ``x [N, F]`` and classes ``y [N]``."""
        nodes, index = ego_graphs.unique(return_inverse=True)
        labels = y[ego_graphs]
        return cls(take_rows(x, nodes), index, labels[:, 0], labels, tuple(fanouts))


@dataclass
class WholeGraph(TensorBatch):
    """A graph, and the nodes of it that a step is about.

    Attributes:
        x: features of all nodes ``[N, F]``, dense or sparse CSR.
        adj: their adjacency.
        nodes: their numbers in the graph that this one was cut from ``[N]``.
        index: the nodes to classify ``[n]``, numbers of this graph.
        y: their classes ``[n]``, or their labels or numbers ``[n, T]``.
        edge_index: all edges ``[2, E]``, where they have features; layers that use none take ``adj``.
        edge_attr: features of the edges ``[E, D]``; ``None`` where they have none.
    """

    x: Tensor
    adj: Adjacency
    nodes: Tensor
    index: Tensor
    y: Tensor
    edge_index: Tensor | None = None
    edge_attr: Tensor | None = None


@dataclass
class SampledGraph(WholeGraph):
    """A small graph of nodes to classify and neighbours that were sampled for them, out of a larger one."""


@dataclass
class HeteroBatch(TensorBatch):
    """A heterogeneous graph, and the nodes of it that a step is about.

    Attributes:
        x: features of each node type, ``None`` where it has none.
        relations: all edges.
        last: the edges into ``index``, for a last layer that needs no others.
        index: the nodes to classify ``[n]``.
        y: their classes ``[n]``, -1 where unknown.
        known: class of each training node, -1 for all other nodes, ``[N]``.
        schema: digest of the names of node types and relations, in their order; empty where nobody says.
    """

    x: tuple[Tensor | None, ...]
    relations: Relations
    last: Relations
    index: Tensor
    y: Tensor
    known: Tensor
    schema: str = ""


@dataclass
class LinkBatch(TensorBatch):
    """A heterogeneous graph, and links to be told from pairs that are none.

    Attributes:
        x: features of each node type, ``None`` where it has none.
        relations: the edges that messages take; held-out links are not among them.
        source: ``[P]``.
        target: ``[P]``.
        row: which weight the relation of each link has ``[P]``.
        first: number of the first node of the type of each target ``[P]``.
        count: how many nodes of that type there are ``[P]``.
        negatives: targets that each link competes with ``[P, k]``; ``None`` where they are to be drawn.
        schema: see :class:`HeteroBatch`.
    """

    x: tuple[Tensor | None, ...]
    relations: Relations
    source: Tensor
    target: Tensor
    row: Tensor
    first: Tensor
    count: Tensor
    negatives: Tensor | None = None
    schema: str = ""

    def draw_negatives(self, k: int) -> Tensor:
        """Random nodes of the targets' types, ``[P, k]``; a link's own target may be among them."""
        # Drawn on the CPU, so that a seed means the same nodes on every device.
        draws = torch.rand(self.target.numel(), k, dtype=torch.float64).to(self.target.device)
        return self.first.unsqueeze(1) + (draws * self.count.unsqueeze(1)).long()


@dataclass
class GraphLinks(TensorBatch):
    """A graph, and links of it to be told from pairs that are none.

    Attributes:
        x: features of all nodes ``[N, F]``, dense or sparse CSR.
        adj: the edges that messages take; held-out links are not among them.
        nodes: their numbers in the graph that this one was cut from ``[N]``.
        source: ``[P]``.
        target: ``[P]``.
        negatives: targets that each link competes with ``[P, k]``; ``None`` where they are to be drawn.
    """

    x: Tensor
    adj: Adjacency
    nodes: Tensor
    source: Tensor
    target: Tensor
    negatives: Tensor | None = None

    def draw_negatives(self, k: int) -> Tensor:
        """Random nodes ``[P, k]``; a link's own target may be among them."""
        return torch.randint(self.adj.num_nodes, (self.target.numel(), k)).to(self.target.device)


def _moved(part: Any, device: torch.device | str) -> Any:
    if isinstance(part, tuple):
        return tuple(_moved(member, device) for member in part)
    return part.to(device) if isinstance(part, Tensor | Adjacency | Relations) else part
