"""Sparse neighbourhood sums on sorted edges."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from flgraph.nn.precision import at_least_float32
from flgraph.nn.products import with_room


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
        self._bags: dict[bool, tuple[Tensor, Tensor]] = {}
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

    def bags(self, transpose: bool = False) -> tuple[Tensor, Tensor] | None:
        """``rowptr`` and ``col`` (of the transpose) in 32 bits; ``None`` where entries have weights."""
        transpose = transpose and self.transposed is not None
        if transpose not in self._bags:
            with lasting():
                rowptr, col = self.transposed if transpose and self.transposed else (self.rowptr, self.col)
                self._bags[transpose] = rowptr.int(), col.int()
        return self._bags[transpose]

    def _matrix(self, dtype: torch.dtype, transpose: bool, scale: Tensor | None) -> Tensor:
        rowptr, col = Adjacency.bags(self, transpose)
        if scale is None:
            values = torch.ones(col.numel(), dtype=dtype, device=col.device)
        else:
            row = torch.repeat_interleave(rowptr.diff(), output_size=col.numel())
            values = (scale.index_select(0, row) * scale.index_select(0, col)).to(dtype)
        # 32-bit indices: the kernels would make them of wider ones at every product.
        size = (self.num_nodes, self.num_nodes)
        return torch.sparse_csr_tensor(rowptr, col, values, size, check_invariants=False)

    def to(self, device: torch.device | str, **kwargs: Any) -> Adjacency:
        """The same matrix on another device."""
        if self.col.device == torch.device(device):
            return self
        move = [tensor.to(device, **kwargs) for tensor in (self.rowptr, self.col, *(self.transposed or ()))]
        degree = None if self._degree is None else self._degree.to(device, **kwargs)
        return Adjacency(move[0], move[1], (move[2], move[3]) if self.transposed else None, degree)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(num_nodes={self.num_nodes}, num_edges={self.col.numel()})"


def add_neighbours(to: Tensor, x: Tensor, adj: Adjacency, transpose: bool = False) -> Tensor:
    """``to + A x`` as a new tensor ``[N, C]``, for use inside of autograd functions: not differentiable itself.

    Args:
        to: ``[N, C]``.
        x: ``[N, C]``, of the same type; half-precision rows are added in float32.
        adj: whose matrix ``A`` is, see :meth:`Adjacency.matrix`.
        transpose: see there.
    """
    if adj.col.numel() == 0:
        return to.clone()
    return torch.add(to, _times(adj, x, transpose), out=with_room(to, *to.shape))


class _NeighbourSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, adj: Adjacency) -> Tensor:
        ctx.adj = adj
        return _times(adj, x, transpose=False) if adj.col.numel() else torch.zeros_like(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad = grad.contiguous()
        return _times(ctx.adj, grad, transpose=True) if ctx.adj.col.numel() else torch.zeros_like(grad), None


def _times(adj: Adjacency, x: Tensor, transpose: bool) -> Tensor:
    """``A x``; half-precision rows are added in float32, autocast or not."""
    bags = adj.bags(transpose)
    if bags is not None and x.device.type == "cpu" and x.dtype != torch.float64:
        # Without a matrix of ones a kernel adds up rows in the same order in half the time.
        return F.embedding_bag(bags[1], x, bags[0], mode="sum", include_last_offset=True)
    # Sparse kernels exist for float32 and float64 on every device, and autocast would choose a narrower type.
    wide = at_least_float32(x)
    with torch.autocast(x.device.type, enabled=False):
        # Not `matrix @ wide`: that takes ten times as long with two threads on a CPU.
        return torch.addmm(wide, adj.matrix(wide.dtype, transpose), wide, beta=0).to(x.dtype)


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
