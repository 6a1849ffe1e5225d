"""Edges of many types in one flat list, and sums over them without a loop over the types."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from flgraph.nn.precision import at_least_float32
from flgraph.nn.sparse.adjacency import lasting, offsets
from flgraph.nn.sparse.csr import csr, sparse_times


class SparseMap:
    """A sparse matrix of a fixed pattern, with its transpose at hand for gradients.

    Args:
        row: ``[E]`` int64, ascending.
        col: ``[E]`` int64.
        shape: rows and columns.
    """

    def __init__(self, row: Tensor, col: Tensor, shape: tuple[int, int]) -> None:
        self.row, self.col, self.shape = row, col, shape
        self._forward: tuple[Tensor, Tensor] | None = None
        self._backward: tuple[Tensor, Tensor, Tensor] | None = None

    def matrix(self, values: Tensor) -> Tensor:
        """The matrix with these values ``[E]`` as sparse CSR."""
        if self._forward is None:
            with lasting():
                self._forward = (_compressed(self.row, self.shape[0]), self.col.int())
        return csr(*self._forward, values, self.shape[1])

    def transposed(self, values: Tensor) -> Tensor:
        """The transpose of the matrix with these values ``[E]`` as sparse CSR."""
        if self._backward is None:
            with lasting():
                order = self.col.argsort(stable=True)
                self._backward = (_compressed(self.col[order], self.shape[1]), self.row[order].int(), order)
        rowptr, col, order = self._backward
        return csr(rowptr, col, values.index_select(0, order), self.shape[0])

    def sum(self, x: Tensor, values: Tensor) -> Tensor:
        """``M x`` for ``x [columns, C]``, differentiable in ``x`` alone."""
        total: Tensor = _Product.apply(x, self, values)
        return total


class Relations:
    """Edges of many types: who sends to whom, by which weight, and with which share of a mean.

    Each edge type's messages to a node are averaged. Made once per graph and used by every layer.

    Args:
        source: ``[E]`` int64.
        target: ``[E]`` int64, ascending.
        row: which weight each edge has ``[E]`` int64.
        count: over how many edges the mean that each edge is part of is taken ``[E]`` int64.
        num_sources: nodes that may send.
        num_targets: nodes that may receive.
        num_rows: number of weights.
        senders: which nodes the sources are ``[num_sources]``; all in their order when ``None``.
    """

    def __init__(
        self,
        source: Tensor,
        target: Tensor,
        row: Tensor,
        count: Tensor,
        num_sources: int,
        num_targets: int,
        num_rows: int,
        senders: Tensor | None = None,
    ) -> None:
        self.senders = senders
        self.source, self.target, self.row, self.count = source, target, row, count
        self.num_sources, self.num_targets, self.num_rows = num_sources, num_targets, num_rows
        self.pattern = SparseMap(target, source, (num_targets, num_sources))
        self.derived: dict[Any, Any] = {}  # what models compute from these edges, once for all steps
        self._shares: dict[torch.dtype, Tensor] = {}
        self._by_row: SparseMap | None = None
        self._row_order: Tensor | None = None
        self._pairs: Pairs | None = None
        self._stacked: dict[int, Stacked] = {}
        self._beside: dict[int, SparseMap] = {}

    @classmethod
    def of(
        cls,
        edge_index: Tensor,
        edge_ptr: Tensor,
        num_nodes: int,
        rows: Tensor | None = None,
        num_rows: int | None = None,
    ) -> Relations:
        """From edges sorted by (edge type, target).

        Args:
            edge_index: ``[2, E]``, sources and targets.
            edge_ptr: ``[R + 1]``; edges of type ``r`` are the columns ``edge_ptr[r]:edge_ptr[r + 1]``.
            num_nodes: number of nodes.
            rows: which weight each type has ``[R]``; a weight for each when ``None``. Means are over each type
                alone in any case.
            num_rows: number of weights; that of the types when ``None``.
        """
        source, target = edge_index
        edge_type = torch.repeat_interleave(edge_ptr.diff(), output_size=source.numel())
        count = torch.unique_consecutive(edge_type * num_nodes + target, return_counts=True)[1]
        shared = torch.repeat_interleave(count, count, output_size=source.numel())
        order = target.argsort(stable=True)
        row = edge_type if rows is None else rows[edge_type]
        sizes = (num_nodes, num_nodes, edge_ptr.numel() - 1 if num_rows is None else num_rows)
        return cls(source[order], target[order], row[order], shared[order], *sizes)

    def into(self, index: Tensor) -> Relations:
        """The edges into the nodes ``index [n]``, different ones; these are then the targets 0 to n - 1.

        The sources are the nodes that have such an edge, so that all work is in proportion to these edges.
        """
        number = torch.full((self.num_targets,), -1, dtype=torch.long, device=index.device)
        number[index] = torch.arange(index.numel(), device=index.device)
        target = number[self.target]
        edges = (target >= 0).nonzero()[:, 0]
        edges = edges[target[edges].argsort(stable=True)]
        used, source = self.source[edges].unique(return_inverse=True)
        senders = used if self.senders is None else self.senders[used]
        parts = (source, target[edges], self.row[edges], self.count[edges])
        return Relations(*parts, used.numel(), index.numel(), self.num_rows, senders)

    def to(self, device: torch.device | str) -> Relations:
        """The same on another device."""
        if self.source.device == torch.device(device):
            return self
        source, target, row, count = (part.to(device) for part in (self.source, self.target, self.row, self.count))
        senders = None if self.senders is None else self.senders.to(device)
        sizes = (self.num_sources, self.num_targets, self.num_rows)
        return Relations(source, target, row, count, *sizes, senders)

    def sent(self, x: Tensor) -> Tensor:
        """The sources' rows of ``x [N, C]``, ``[num_sources, C]``, in a type that sparse kernels have."""
        chosen = x if self.senders is None else x.index_select(0, self.senders)
        return at_least_float32(chosen)

    @property
    def num_edges(self) -> int:
        """E."""
        return self.source.numel()

    def shares(self, dtype: torch.dtype) -> Tensor:
        """What each edge's message is multiplied by for the mean, ``[E]``."""
        if dtype not in self._shares:
            with lasting():
                self._shares[dtype] = self.count.to(dtype).reciprocal_()
        return self._shares[dtype]

    def mean_sum(self, x: Tensor) -> Tensor:
        """The sum over edge types of the mean over a node's senders, ``[N, C] -> [num_targets, C]``."""
        wide = self.sent(x)
        with torch.autocast(x.device.type, enabled=False):
            return self.pattern.sum(wide, self.shares(wide.dtype)).to(x.dtype)

    def row_sum(self, values: Tensor) -> Tensor:
        """The sum of ``values [E, k]`` over the edges of each weight, times their shares: ``[num_rows, k]``."""
        if self._by_row is None or self._row_order is None:
            with lasting():
                self._row_order = self.row.argsort(stable=True)
                self._by_row = SparseMap(self.row[self._row_order], self._row_order, (self.num_rows, self.num_edges))
        shares = self.shares(values.dtype).index_select(0, self._row_order)
        return sparse_times(self._by_row.matrix(shares), values)

    def stacked(self, k: int) -> Stacked:
        """A matrix of ``k`` rows per target, see :class:`Stacked`; made when first asked for."""
        if k not in self._stacked:
            with lasting():
                self._stacked[k] = Stacked(self, k)
        return self._stacked[k]

    def beside(self, k: int) -> SparseMap:
        """A matrix of ``k`` columns per source, each edge with a value for each: ``[num_targets, k num_sources]``."""
        if k not in self._beside:
            with lasting():
                self._beside[k] = self._make_beside(k)
        return self._beside[k]

    def _make_beside(self, k: int) -> SparseMap:
        col = self.source.unsqueeze(1) * k + torch.arange(k, device=self.source.device)
        shape = (self.num_targets, self.num_sources * k)
        return SparseMap(self.target.repeat_interleave(k), col.flatten(), shape)

    @property
    def pairs(self) -> Pairs:
        """All (weight, target) between which there is an edge, made when first read."""
        if self._pairs is None:
            with lasting():
                self._pairs = Pairs(self)
        return self._pairs

    def __repr__(self) -> str:
        return f"{type(self).__name__}(edges={self.num_edges}, rows={self.num_rows}, targets={self.num_targets})"


class Stacked:
    """A matrix with ``k`` rows per target, one below another, in each of which it has all its edges.

    Args:
        relations: whose edges.
        k: rows per target.
    """

    def __init__(self, relations: Relations, k: int) -> None:
        target, device = relations.target, relations.target.device
        begin = offsets(torch.bincount(target, minlength=relations.num_targets))
        start, count = begin[:-1][target], begin.diff()[target]
        number = torch.arange(target.numel(), device=device)
        # Where the value of each edge in each of the k rows lies.
        self.position = (start * k + number - start).unsqueeze(1) + count.unsqueeze(1) * torch.arange(k, device=device)
        self.order = torch.empty(target.numel() * k, dtype=torch.long, device=device)
        self.order[self.position.flatten()] = torch.arange(target.numel() * k, device=device)
        row = (target.unsqueeze(1) * k + torch.arange(k, device=device)).flatten()[self.order]
        col = relations.source[self.order.div(k, rounding_mode="floor")]
        self.pattern = SparseMap(row, col, (relations.num_targets * k, relations.num_sources))

    def arrange(self, values: Tensor) -> Tensor:
        """Values ``[E, k]`` of the edges as values of the matrix ``[E k]``."""
        return values.flatten().index_select(0, self.order)

    def restore(self, values: Tensor) -> Tensor:
        """Values of the matrix ``[E k]`` as values ``[E, k]`` of the edges."""
        return values.index_select(0, self.position.flatten()).view_as(self.position)


class Pairs:
    """All (weight, target) that have an edge, and the tiles in which they meet their weights.

    A tile is a fixed number of pairs of one weight, the last of a weight filled up with zeros: one batched product of
    all tiles replaces one product per weight, and wastes less than a tile for each.

    Args:
        relations: whose pairs.
    """

    def __init__(self, relations: Relations) -> None:
        self.relations = relations
        device, targets = relations.row.device, relations.num_targets
        keys = relations.row * targets + relations.target
        self.order = keys.argsort(stable=True)
        found, counts = torch.unique_consecutive(keys[self.order], return_counts=True)
        number, count = torch.repeat_interleave(counts), found.numel()
        self.gather = SparseMap(number, relations.source[self.order], (count, relations.num_sources))
        row, target = found.div(max(targets, 1), rounding_mode="floor"), found % max(targets, 1)
        by_target = target.argsort(stable=True)
        self.spread = SparseMap(target[by_target], by_target, (targets, count))
        per_row = torch.bincount(row, minlength=relations.num_rows)
        mean = max(1, count // max(1, relations.num_rows))
        self.tile = min(128, max(8, 1 << (mean - 1).bit_length()))
        tiles = (per_row + self.tile - 1).div(self.tile, rounding_mode="floor")
        self.tile_row = torch.repeat_interleave(tiles)
        rank = torch.arange(count, device=device) - offsets(per_row)[row]
        self.slot = offsets(tiles)[row] * self.tile + rank

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        """The sum over edge types of the mean over a node's senders times the type's weight.

        Args:
            x: ``[num_sources, C]``, float32 or float64.
            weight: ``[num_rows, C, D]``.

        Returns:
            ``[num_targets, D]``.
        """
        shares = self.relations.shares(x.dtype).index_select(0, self.order)
        sums = self.gather.sum(x, shares)
        tiles = x.new_zeros(self.tile_row.numel() * self.tile, x.size(1)).index_copy(0, self.slot, sums)
        done = torch.bmm(tiles.view(-1, self.tile, x.size(1)), weight.index_select(0, self.tile_row))
        moved = done.flatten(0, 1).index_select(0, self.slot)
        return self.spread.sum(moved, moved.new_ones(moved.size(0)))


def _compressed(rows: Tensor, count: int) -> Tensor:
    # 32-bit indices: the kernels would make them of wider ones at every product.
    return offsets(torch.bincount(rows, minlength=count)).int()


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, pattern: SparseMap, values: Tensor) -> Tensor:
        ctx.pattern, ctx.values = pattern, values
        return sparse_times(pattern.matrix(values), x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return sparse_times(ctx.pattern.transposed(ctx.values), grad.contiguous()), None, None
