"""Graph isomorphism network layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from flgraph.nn.activations import Activation, activate
from flgraph.nn.half import half_linear, is_half
from flgraph.nn.linear import ConcatLinear, OneHot, concat_linear, fold
from flgraph.nn.products import with_room
from flgraph.nn.sparse.adjacency import Adjacency, add_neighbours
from flgraph.nn.sparse.closed import closed_linear, halves
from flgraph.nn.sparse.twins import merge_inputs


class GINConv(torch.nn.Module):
    r"""Graph isomorphism layer with :math:`\epsilon = 0`.

    `"How Powerful are Graph Neural Networks?" <https://arxiv.org/abs/1810.00826>`_:

    .. math::
        \mathbf{x}^{\prime}_i = \mathbf{W}_2 \, \mathrm{ReLU} \Big( \mathbf{W}_1
        \big( \mathbf{x}_i + \sum_{j \in \mathcal{N}(i)} \mathbf{x}_j \big) + \mathbf{b}_1 \Big) + \mathbf{b}_2

    The neighbour sum and :math:`\mathbf{W}_1` are both linear, so the input is projected first and summed after: rows
    of ``hidden_channels`` columns are summed instead of rows of ``in_channels``.

    Args:
        in_channels: columns of the input (of ``x`` and ``extra`` together, where there are two).
        out_channels: columns of the output.
        hidden_channels: columns between the two linear maps; ``out_channels`` when ``None``.

    Shapes:
        - **input:** ``x [N, C1]``, ``adj`` of ``N`` nodes, optionally ``extra [N, C2]``; ``C1 + C2 = in_channels``
        - **output:** ``[N, out_channels]``
    """

    def __init__(self, in_channels: int, out_channels: int, hidden_channels: int | None = None) -> None:
        super().__init__()
        self.in_channels, self.out_channels = in_channels, out_channels
        self.hidden_channels = out_channels if hidden_channels is None else hidden_channels
        self.lin1 = ConcatLinear(in_channels, self.hidden_channels)
        self.lin2 = ConcatLinear(self.hidden_channels, out_channels)

    def reset_parameters(self) -> None:
        """Draws new weights, as :class:`torch.nn.Linear` does."""
        self.lin1.reset_parameters()
        self.lin2.reset_parameters()

    def forward(
        self,
        x: Tensor | OneHot,
        adj: Adjacency,
        extra: Tensor | None = None,
        before: Sequence[torch.nn.Linear] = (),
        activation: Activation = "none",
    ) -> Tensor:
        """Node representations after one step and ``activation``; ``extra`` stands to the right of ``x``.

        ``before`` are linear maps that come first, of ``x`` and of ``extra``, see :func:`~flgraph.nn.fold`.
        """
        if is_half(self.lin1.weight):
            h = closed_linear(x, extra, adj, before, self.lin1.weight, self.lin1.bias, "relu")
            inside, after = halves(activation, adj)
            return activate(adj.spread(half_linear(h, None, self.lin2.weight, self.lin2.bias, inside)), after)
        x, extra, merged = merge_inputs(x, extra, adj, before)
        z = concat_linear(x, extra, *fold(self.lin1.weight, before))
        summed = z if merged else adj.merge(z)
        h = _SumBiasReLU.apply(summed, self.lin1.bias, adj.quotient)
        # Twins have equal results, so a row for each of their classes goes through the second map, too.
        return activate(adj.spread(self.lin2(h.to(z.dtype))), activation)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels}, hidden_channels={self.hidden_channels})"


class _SumBiasReLU(torch.autograd.Function):
    """``relu(A z + z + b)`` in one tensor: single steps would spend much of their time on memory for their results."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, bias: Tensor, adj: Adjacency) -> Tensor:
        h = add_neighbours(z, z, adj, out=with_room(z)).add_(bias.to(z.dtype)).relu_()
        ctx.save_for_backward(h)
        ctx.adj, ctx.bias_type = adj, bias.dtype
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        (h,) = ctx.saved_tensors
        grad = torch.ops.aten.threshold_backward(grad, h, 0)
        out = with_room(grad)
        return add_neighbours(grad, grad, ctx.adj, out=out, transpose=True), grad.sum(0, dtype=ctx.bias_type), None
