"""Sparse neighbourhood sums on sorted edges."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from flgraph.nn.precision import at_least_float32


class Adjacency:
    """An unweighted adjacency matrix in compressed sparse rows, made once per batch and used by every layer.

    Row ``i`` lists the nodes whose messages node ``i`` receives. ``adj.sum(x)`` is 2 to 3 times faster than gather and
    scatter on a CPU. Its gradient is the product with the transpose, which for undirected graphs is the matrix itself.

    Args:
        rowptr: ``[N + 1]``; the senders of node ``i`` are ``col[rowptr[i]:rowptr[i + 1]]``.
        col: ``[E]``.
        transposed: ``(rowptr, col)`` of the transpose; ``None`` where the matrix is symmetric.
        degree: ``[N, 1]``, float32; the number of senders when ``None``.
    """

    weighted = False
    """Whether entries differ from one."""

    def __init__(
        self,
        rowptr: Tensor,
        col: Tensor,
        transposed: tuple[Tensor, Tensor] | None = None,
        degree: Tensor | None = None,
    ) -> None:
        self._rows, self.transposed = (rowptr, col), transposed
        self.derived: dict[Any, Any] = {}  # what layers compute from this matrix, once for all of them
        self._matrices: dict[tuple[torch.dtype, bool, bool], Tensor] = {}
        self._degree = degree

    @classmethod
    def from_sorted(cls, edge_index: Tensor, num_nodes: int, symmetric: bool) -> Adjacency:
        """From ``edge_index [2, E]`` sorted by source; row 0 holds sources (senders), row 1 targets (receivers)."""
        by_source = (offsets(torch.bincount(edge_index[0], minlength=num_nodes)), edge_index[1])
        if symmetric:
            return cls(*by_source)
        order = edge_index[1].argsort(stable=True)
        return cls(offsets(torch.bincount(edge_index[1], minlength=num_nodes)), edge_index[0][order], by_source)

    @classmethod
    def from_edges(cls, edge_index: Tensor, num_nodes: int) -> Adjacency:
        """From any ``edge_index [2, E]``."""
        edge_index = edge_index.long()  # keys of large graphs are beyond int32
        order = (edge_index[0] * max(num_nodes, 1) + edge_index[1]).argsort()
        return cls.from_sorted(edge_index[:, order], num_nodes, symmetric=False)

    @property
    def rowptr(self) -> Tensor:
        """Where each row begins in :attr:`col`, ``[N + 1]``."""
        return self._rows[0]

    @property
    def col(self) -> Tensor:
        """Senders of all rows, one after another, ``[E]``."""
        return self._rows[1]

    @property
    def row(self) -> Tensor:
        """The receiver of each entry of :attr:`col`, ``[E]``."""
        return torch.repeat_interleave(self.rowptr.diff(), output_size=self.col.numel())

    @property
    def num_nodes(self) -> int:
        """Rows, and columns."""
        return self.rowptr.numel() - 1

    @property
    def quotient(self) -> Adjacency:
        """What layers compute on, between :meth:`merge` and :meth:`spread`: the matrix itself, but for twins."""
        return self

    def merge(self, x: Tensor) -> Tensor:
        """Sum of each row of ``quotient``'s nodes, ``[N, C] -> [N', C]``."""
        return x

    def spread(self, x: Tensor) -> Tensor:
        """Rows of ``quotient`` copied to each of their nodes, ``[N', C] -> [N, C]``."""
        return x

    @property
    def degree(self) -> Tensor:
        """Number of senders per node ``[N, 1]``, float32."""
        if self._degree is None:
            with lasting():
                self._degree = self.rowptr.diff().unsqueeze(1).float()
        return self._degree

    def sum(self, x: Tensor) -> Tensor:
        """Sum of the senders' rows: ``A x``, shapes ``[N, C] -> [N, C]``; differentiable in ``x``.

        Half-precision rows are added in float32, autocast or not.
        """
        total: Tensor = _NeighbourSum.apply(x, self)
        return total

    def matrix(self, dtype: torch.dtype, transpose: bool = False, scale: Tensor | None = None) -> Tensor:
        """The matrix as a sparse CSR tensor ``[N, N]``.

        Args:
            dtype: type of the values.
            transpose: of the transpose.
            scale: ``[N]``; the value at ``(i, j)`` is ``scale[i] * scale[j]``. Ones when ``None``.
        """
        transpose = transpose and self.transposed is not None
        key = (dtype, transpose, scale is not None)
        if key not in self._matrices:
            with lasting():
                self._matrices[key] = self._matrix(dtype, transpose, scale)
        return self._matrices[key]

    def _matrix(self, dtype: torch.dtype, transpose: bool, scale: Tensor | None) -> Tensor:
        rowptr, col = self.transposed if transpose and self.transposed else (self.rowptr, self.col)
        if scale is None:
            values = torch.ones(col.numel(), dtype=dtype, device=col.device)
        else:
            row = torch.repeat_interleave(rowptr.diff(), output_size=col.numel())
            values = (scale.index_select(0, row) * scale.index_select(0, col)).to(dtype)
        # 32-bit indices: the kernels would make them of wider ones at every product.
        parts, size = (rowptr.int(), col.int(), values), (self.num_nodes, self.num_nodes)
        return torch.sparse_csr_tensor(*parts, size, check_invariants=False)

    def to(self, device: torch.device | str, **kwargs: Any) -> Adjacency:
        """The same matrix on another device."""
        if self.col.device == torch.device(device):
            return self
        move = [tensor.to(device, **kwargs) for tensor in (self.rowptr, self.col, *(self.transposed or ()))]
        degree = None if self._degree is None else self._degree.to(device, **kwargs)
        return Adjacency(move[0], move[1], (move[2], move[3]) if self.transposed else None, degree)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(num_nodes={self.num_nodes}, num_edges={self.col.numel()})"


def add_neighbours(
    to: Tensor, x: Tensor, adj: Adjacency, out: Tensor, transpose: bool = False, scale: Tensor | None = None
) -> Tensor:
    """``to + M x`` ``[N, C]``, for use inside of autograd functions: not differentiable itself.

    Args:
        to: ``[N, C]``.
        x: ``[N, C]``, of the same type.
        adj: whose matrix ``M`` is, see :meth:`Adjacency.matrix`.
        out: what the result is written to, which may be ``to`` and not ``x``.
        transpose: see there.
        scale: see there.
    """
    if not _in_bags(adj, x, scale) and x.dtype == to.dtype == at_least_float32(x).dtype and adj.col.numel():
        out = out if out is to else out.copy_(to)
        with torch.autocast(x.device.type, enabled=False):
            return torch.addmm(out, adj.matrix(x.dtype, transpose, scale), x, out=out)
    return torch.add(to, _times(adj, x, transpose, scale), out=out)


class _NeighbourSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, adj: Adjacency) -> Tensor:
        ctx.adj = adj
        return _times(adj, x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _times(ctx.adj, grad.contiguous(), transpose=True), None


def _times(adj: Adjacency, x: Tensor, transpose: bool = False, scale: Tensor | None = None) -> Tensor:
    """``M x``; half-precision rows are added in float32, autocast or not."""
    if adj.col.numel() == 0:
        return torch.zeros_like(x)
    if _in_bags(adj, x, scale):
        matrix = adj.matrix(x.dtype, transpose, scale)
        weights = matrix.values() if adj.weighted or scale is not None else None
        rowptr, col = matrix.crow_indices(), matrix.col_indices()
        return F.embedding_bag(col, x, rowptr, mode="sum", per_sample_weights=weights, include_last_offset=True)
    # Sparse kernels exist for float32 and float64 on every device, and autocast would choose a narrower type.
    wide = at_least_float32(x)
    with torch.autocast(x.device.type, enabled=False):
        # Not `matrix @ wide`: that takes ten times as long with two threads on a CPU.
        return torch.addmm(wide, adj.matrix(wide.dtype, transpose, scale), wide, beta=0).to(x.dtype)


def _in_bags(adj: Adjacency, x: Tensor, scale: Tensor | None) -> bool:
    """Whether to add up rows as those of bags of words, which takes a CPU half the time of a sparse product.

    In float32 without weights, rows are added in the same order either way. With weights, and float64, the bits of
    results would be others. Half-precision rows need not be made float32 first.
    """
    if x.device.type != "cpu" or x.dtype == torch.float64:
        return False
    return x.dtype != torch.float32 or not (adj.weighted or scale is not None)


def offsets(lengths: Tensor) -> Tensor:
    """Where ranges of these ``lengths [n]`` begin and end, one after another: ``[n + 1]``, int64."""
    ptr = torch.zeros(lengths.numel() + 1, dtype=torch.long, device=lengths.device)
    torch.cumsum(lengths, 0, out=ptr[1:])
    return ptr


def gather_ranges(ptr: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Positions of the ranges ``ptr[i]:ptr[i + 1]`` for ``i`` of ``index``, one after another, and new offsets."""
    start = ptr.index_select(0, index)
    length = ptr.index_select(0, index + 1) - start
    new_ptr = offsets(length)
    total = int(new_ptr[-1])
    positions = torch.repeat_interleave(start - new_ptr[:-1], length, output_size=total)
    return positions.add_(torch.arange(total, device=ptr.device)), new_ptr


def lasting() -> torch.inference_mode:
    """What is made during an evaluation is used in later training steps, which take no tensors of inference mode."""
    return torch.inference_mode(False)
