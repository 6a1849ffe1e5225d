"""Sparse matrices in compressed rows (CSR), such as bags of words, and products with them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from flgraph.nn.precision import at_least_float32
from flgraph.nn.sparse.adjacency import gather_ranges, lasting, offsets


def sparse_matmul(matrix: Tensor, dense: Tensor) -> Tensor:
    """``matrix @ dense``, differentiable in ``dense``, as often as one likes.

    Args:
        matrix: ``[N, M]``, sparse CSR.
        dense: ``[M, C]``.

    Returns:
        ``[N, C]``, in the type of ``dense``; computed in float32 at least, autocast or not.

    Example:
        >>> matrix = torch.tensor([[0.0, 2.0], [0.0, 0.0]]).to_sparse_csr()
        >>> sparse_matmul(matrix, torch.tensor([[1.0], [3.0]]))
        tensor([[6.],
                [0.]])
    """
    wide = at_least_float32(dense)
    product: Tensor = _SparseProduct.apply(wide, matrix.to(wide.dtype))
    return product.to(dense.dtype)


def rows_times(rows: Tensor, dense: Tensor) -> Tensor:
    """``rows @ dense``, where ``rows`` ``[N, M]`` are dense or sparse CSR; see :func:`sparse_matmul`."""
    return rows @ dense if rows.layout == torch.strided else sparse_matmul(rows, dense)


def sparse_times(matrix: Tensor, dense: Tensor, to: Tensor | None = None) -> Tensor:
    """``matrix @ dense``, for use inside of autograd functions: not differentiable itself.

    Args:
        matrix: ``[N, M]``, sparse CSR, float32 or float64.
        dense: ``[M, C]``, of the same type.
        to: ``[N, C]``; the product is added to it in place.

    Returns:
        ``[N, C]``: ``to``, or a new tensor.
    """
    shape = (matrix.size(0), dense.size(1))
    if not matrix.values().numel():
        return dense.new_zeros(shape) if to is None else to
    # Not `matrix @ dense`: that takes ten times as long with two threads on a CPU.
    out = dense.new_empty(shape) if to is None else to
    # Not without `out`: the summand would be copied into the result first, though it counts for nothing.
    return torch.addmm(out, matrix, dense, beta=0 if to is None else 1, out=out)


def transpose_csr(matrix: Tensor) -> Tensor:
    """The transpose of a sparse CSR matrix, as sparse CSR.

    Example:
        >>> transpose_csr(torch.tensor([[0.0, 2.0]]).to_sparse_csr()).to_dense()
        tensor([[0.],
                [2.]])
    """
    rows, columns = matrix.shape
    row, column = torch.repeat_interleave(matrix.crow_indices().diff()), matrix.col_indices()
    order = column.argsort(stable=True)  # a third quicker than torch's own conversion, and never another order
    rowptr = offsets(torch.bincount(column, minlength=columns))
    return csr(rowptr, row.index_select(0, order), matrix.values().index_select(0, order), rows)


def csr(rowptr: Tensor, col: Tensor, value: Tensor, num_columns: int) -> Tensor:
    """A sparse CSR tensor ``[n, num_columns]`` from its parts, unchecked."""
    # 32-bit indices: the kernels would make them of wider ones at every product.
    narrow = torch.int32 if col.numel() < 2**31 else torch.int64
    size = (rowptr.numel() - 1, num_columns)
    return torch.sparse_csr_tensor(rowptr.to(narrow), col.to(narrow), value, size, check_invariants=False)


def take_rows(x: Tensor, index: Tensor) -> Tensor:
    """Rows ``index [n]`` of a dense or sparse CSR ``x [N, F]`` in the same layout, ``[n, F]``; one gather, no loop."""
    if x.layout != torch.sparse_csr:
        return x.index_select(0, index)
    positions, rowptr = gather_ranges(x.crow_indices(), index)
    return csr(rowptr, x.col_indices()[positions], x.values()[positions], x.size(1))


class _SparseProduct(torch.autograd.Function):
    """The gradient is a product of the same kind, so that it can be differentiated again (meta-learning does)."""

    @staticmethod
    def forward(ctx: Any, dense: Tensor, matrix: Tensor) -> Tensor:
        ctx.matrix = matrix
        return sparse_times(matrix, dense)  # whose type autocast does not change: it gives `out`

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        if ctx.matrix not in _transposes:
            with lasting():
                _transposes[ctx.matrix] = transpose_csr(ctx.matrix)
        return _SparseProduct.apply(grad.contiguous(), _transposes[ctx.matrix]), None


_transposes = WeakTensorKeyDictionary()
"""Matrix to its transpose, while the matrix lives: that of a whole graph is the same in every step."""
