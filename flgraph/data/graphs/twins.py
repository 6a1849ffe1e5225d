"""Classes of twins of many graphs, and batches cut from them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from flgraph.nn.sparse.adjacency import Adjacency, gather_ranges, offsets
from flgraph.nn.sparse.twins import TwinAdjacency


@dataclass(frozen=True)
class Twins:
    """What :class:`~flgraph.nn.TwinAdjacency` holds, for all graphs of a set, with offsets.

    Args:
        num_edges: edges of all graphs ``E``.
        class_ptr: graph ``g`` owns the classes ``class_ptr[g]:class_ptr[g + 1]`` of all ``C``.
        pair_ptr: graph ``g`` owns the entries ``pair_ptr[g]:pair_ptr[g + 1]`` of ``neighbour``.
        classes: class of each node within its graph ``[N]``, int32.
        members: nodes within the graph by class ``[N]``, int32.
        sizes: nodes of each class ``[C]``.
        degree: degree of each class's nodes ``[C, 1]``, float32.
        counts: neighbours of each class ``[C]``.
        neighbour: which these are, within the graph, one class after another, int32.
    """

    num_edges: int
    class_ptr: Tensor
    pair_ptr: Tensor
    classes: Tensor
    members: Tensor
    sizes: Tensor
    degree: Tensor
    counts: Tensor
    neighbour: Tensor

    @classmethod
    def find(cls, edge_index: Tensor, node_ptr: Tensor, edge_ptr: Tensor, step: int = 1 << 21) -> Twins | None:
        """The classes of undirected graphs; ``None`` where one has a loop or a repeated edge.

        Args:
            edge_index: ``[2, E]``, nodes numbered within their graph, sorted by (graph, source, target).
            node_ptr: ``[G + 1]``.
            edge_ptr: ``[G + 1]``.
            step: about how many edges to look at together; all of a large set would need much memory.
        """
        if node_ptr.numel() < 2:
            return None
        repeated = (edge_index[:, 1:] == edge_index[:, :-1]).all(0)
        repeated[edge_ptr[1:-1][(edge_ptr[1:-1] > 0) & (edge_ptr[1:-1] < edge_ptr[-1])] - 1] = False
        if bool(repeated.any()) or bool((edge_index[0] == edge_index[1]).any()):
            return None
        bounds = torch.arange(0, int(edge_ptr[-1]) + step, step, device=edge_ptr.device)
        cuts = [0, *torch.searchsorted(edge_ptr, bounds[1:-1]).tolist(), node_ptr.numel() - 1]
        parts = []
        for start, end in pairwise(cuts):
            if start < end:
                edges = slice(int(edge_ptr[start]), int(edge_ptr[end]))
                parts.append(_find(edge_index[:, edges], node_ptr[start : end + 1], edge_ptr[start : end + 1]))
        num_classes, num_pairs, *rest = (torch.cat(part) for part in zip(*parts, strict=True))
        return cls(int(edge_ptr[-1]), offsets(num_classes), offsets(num_pairs), *rest)

    @property
    def pay(self) -> bool:
        """Whether sums over classes are the faster ones: they touch their edges, and each node twice more."""
        return 2 * (self.neighbour.numel() + self.sizes.numel() + 2 * self.classes.numel()) <= self.num_edges

    def batch(self, index: Tensor, nodes: Tensor, node_ptr: Tensor) -> TwinAdjacency:
        """The adjacency of a batch.

        Args:
            index: graph numbers ``[B]``.
            nodes: numbers of their nodes ``[n]``.
            node_ptr: offsets of the graphs in ``nodes``, ``[B + 1]``.
        """
        own, class_ptr = gather_ranges(self.class_ptr, index)
        pairs, pair_ptr = gather_ranges(self.pair_ptr, index)
        shift = class_ptr[:-1]
        to_class = shift.repeat_interleave(node_ptr.diff(), output_size=nodes.numel())
        to_node = node_ptr[:-1].repeat_interleave(node_ptr.diff(), output_size=nodes.numel())
        to_pair = shift.int().repeat_interleave(pair_ptr.diff(), output_size=pairs.numel())
        quotient = Adjacency(
            offsets(self.counts.index_select(0, own)),
            self.neighbour.index_select(0, pairs) + to_pair,
            degree=self.degree.index_select(0, own),
        )
        return TwinAdjacency(
            quotient,
            self.classes.index_select(0, nodes) + to_class,
            offsets(self.sizes.index_select(0, own)),
            self.members.index_select(0, nodes) + to_node,
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors held."""
        return sum(value.numel() * value.element_size() for value in vars(self).values() if isinstance(value, Tensor))

    def to(self, device: torch.device | str) -> Twins:
        """The same on another device."""
        tensors = {name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)}
        return Twins(num_edges=self.num_edges, **tensors)


def edge_index_of(adj: Adjacency) -> Tensor:
    """``[2, E]`` of a symmetric adjacency, sorted by (source, target)."""
    source = torch.arange(adj.num_nodes, device=adj.col.device)
    return torch.stack([source.repeat_interleave(adj.rowptr.diff(), output_size=adj.col.numel()), adj.col])


def _find(edge_index: Tensor, node_ptr: Tensor, edge_ptr: Tensor) -> tuple[Tensor, ...]:
    """Classes and entries of each graph, and the fields of :class:`Twins` from ``classes`` on."""
    start = node_ptr[:-1] - node_ptr[0]
    num_nodes = int(node_ptr[-1] - node_ptr[0])
    adj = TwinAdjacency.from_sorted(edge_index.long() + start.repeat_interleave(edge_ptr.diff()), num_nodes)
    inner = adj.quotient
    graph = torch.arange(start.numel(), device=start.device).repeat_interleave(node_ptr.diff())
    owner = graph.index_select(0, adj.members.index_select(0, adj.member_ptr[:-1]))
    num_classes = torch.bincount(owner, minlength=start.numel())
    before = (offsets(num_classes)[:-1]).int()
    counts = inner.rowptr.diff()
    pair_owner = owner.repeat_interleave(counts)
    return (
        num_classes,
        torch.bincount(pair_owner, minlength=start.numel()),
        adj.classes.int() - before.index_select(0, graph),
        (adj.members - start.index_select(0, graph)).int(),
        adj.member_ptr.diff(),
        inner.degree,
        counts,
        inner.col.int() - before.index_select(0, pair_owner),
    )
