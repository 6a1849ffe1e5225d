"""Linear maps of sums over closed neighbourhoods, a node and its neighbours, in bfloat16 on a CPU.

Rows are summed first; what follows is a part of the product (:mod:`flgraph.nn.half`). In float32 layers project first,
where that leaves fewer columns to sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from flgraph.nn.activations import Activation
from flgraph.nn.half import half_linear
from flgraph.nn.linear import OneHot, fold
from flgraph.nn.products import padded, with_room
from flgraph.nn.sparse.adjacency import Adjacency, add_neighbours
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
        return _sum(adj, x.detach(), normalised, transpose=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _sum(ctx.adj, grad.contiguous(), ctx.normalised, transpose=True), None, None


def _sum(adj: Adjacency, x: Tensor, normalised: bool, transpose: bool) -> Tensor:
    out = with_room(x)
    padded(out)[x.size(0) :].zero_()  # what a product reads there must be finite
    if not normalised:
        return add_neighbours(x, x, adj, out=out, transpose=transpose)
    scale, loops = gcn_norm(adj, x.dtype)
    torch.mul(x, loops.to(x.dtype), out=out)
    return add_neighbours(out, x, adj, out=out, transpose=transpose, scale=scale.squeeze(1))
