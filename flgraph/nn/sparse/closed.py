"""Linear maps of sums over closed neighbourhoods, a node and its neighbours, in bfloat16 on a CPU.

Rows are summed first, loops included, by one kernel; what follows is a part of the product (:mod:`flgraph.nn.half`). In
float32 layers project first, where that leaves fewer columns to sum.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from flgraph.nn.activations import Activation
from flgraph.nn.half import half_linear
from flgraph.nn.linear import OneHot, fold
from flgraph.nn.products import room_for
from flgraph.nn.sparse.adjacency import Adjacency, lasting
from flgraph.nn.sparse.norm import gcn_norm

WIDTH = 32
"""Kernels are quick with a multiple of as many columns."""


def closed_linear(
    x: Tensor | OneHot,
    extra: Tensor | None,
    adj: Adjacency,
    before: Sequence[torch.nn.Linear],
    weight: Tensor,
    bias: Tensor,
    activation: Activation = "none",
    normalised: bool = False,
) -> Tensor:
    r""":math:`\sigma ( (\mathbf{A} + \mathbf{I}) [\mathbf{x} \,\Vert\, \mathbf{e}] \mathbf{W}^{\top} + \mathbf{b} )`.

    Args:
        x: first input.
        extra: second input, to the right of it.
        adj: whose quotient's nodes the output is of.
        before: linear maps that come first, see :func:`~flgraph.nn.fold`.
        weight: :math:`\mathbf{W}`.
        bias: :math:`\mathbf{b}`.
        activation: :math:`\sigma`.
        normalised: with the matrix of a graph convolution (:func:`~flgraph.nn.gcn_norm`) for
            :math:`\mathbf{A} + \mathbf{I}`.

    Shapes:
        - **x:** ``[N, C1]``, **extra:** ``[N, C2]``, **weight:** ``[out, C1 + C2]``, before maps that come first,
          **bias:** ``[out]``
        - **output:** ``[N', out]``
    """
    parts = [(part() if isinstance(part, OneHot) else part).bfloat16() for part in (x, extra) if part is not None]
    weight, shift = fold(weight, before)
    if shift is not None:  # a sum of rows has the shift as often as it has rows: so does a column of ones
        spare = -(weight.size(1) + 1) % WIDTH
        weight = F.pad(torch.cat([weight, shift.unsqueeze(1)], dim=1), (0, spare))
        ones = F.pad(parts[0].new_ones(parts[0].size(0), 1), (0, spare))
        parts = [torch.cat([*parts, ones], dim=1)]
    sums = [_ClosedSum.apply(adj.merge(part).bfloat16(), adj.quotient, normalised) for part in parts]
    return half_linear(sums[0], sums[1] if len(sums) > 1 else None, weight, bias, activation)


def halves(activation: Activation, adj: Adjacency) -> tuple[Activation, Activation]:
    """What to do on the quotient and what to do on nodes: twins are dropped one by one."""
    return ("none", activation) if adj.quotient is not adj else (activation, "none")


class _ClosedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, adj: Adjacency, normalised: bool) -> Tensor:
        ctx.adj, ctx.normalised = adj, normalised
        return _times(adj, x.detach(), normalised, transpose=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _times(ctx.adj, grad.contiguous(), ctx.normalised, transpose=True), None, None


def _times(adj: Adjacency, x: Tensor, normalised: bool, transpose: bool) -> Tensor:
    transpose = transpose and (adj.weighted or adj.transposed is not None)
    with lasting():
        pattern = _cached(adj, ("closed", transpose), lambda: _pattern(adj, transpose))
        key = ("closed", transpose, normalised, x.dtype)
        values = _cached(adj, key, lambda: _values(adj, pattern, normalised, transpose, x.dtype))
    rowptr, col = pattern[:2]
    # Sums are added up in float32. Further rows of nothing are the room that a product wants.
    sums = F.embedding_bag(col, x, rowptr, mode="sum", per_sample_weights=values, include_last_offset=True)
    return sums[: x.size(0)]


def _cached(adj: Adjacency, key: Hashable, make: Callable[[], Any]) -> Any:
    if key not in adj.derived:
        adj.derived[key] = make()
    return adj.derived[key]


def _pattern(adj: Adjacency, transpose: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``rowptr`` and ``col`` with each row's loop behind its entries, and then empty rows; and places."""
    rowptr, col = adj.transposed if transpose and adj.transposed is not None else (adj.rowptr, adj.col)
    count, edges = adj.num_nodes, col.numel()
    number = torch.arange(max(count + 1, edges), dtype=torch.int32)
    rowptr = rowptr.int()
    entries = torch.repeat_interleave(rowptr.diff(), output_size=edges).add_(number[:edges])
    closed = F.pad(rowptr + number[: count + 1], (0, room_for(count) - count), value=edges + count)
    loops = closed[1 : count + 1] - 1
    return closed, _joined(col.int(), number[:count], entries, loops), entries, loops


def _values(
    adj: Adjacency, pattern: tuple[Tensor, ...], normalised: bool, transpose: bool, dtype: torch.dtype
) -> Tensor | None:
    if not (normalised or adj.weighted):
        return None
    scale, loops = (
        gcn_norm(adj, torch.float32) if normalised else (None, torch.ones(adj.num_nodes, 1, dtype=torch.float32))
    )
    matrix = adj.matrix(torch.float32, transpose, None if scale is None else scale.squeeze(1))
    return _joined(matrix.values(), loops.squeeze(1), *pattern[2:]).to(dtype)


def _joined(values: Tensor, own: Tensor, entries: Tensor, loops: Tensor) -> Tensor:
    both = values.new_empty(values.numel() + own.numel())
    both[entries], both[loops] = values, own
    return both
