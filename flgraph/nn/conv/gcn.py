"""Graph convolutional network layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from flgraph.nn.linear import ConcatLinear, OneHot, concat_linear, fold
from flgraph.nn.sparse.adjacency import Adjacency, add_neighbours, lasting
from flgraph.nn.sparse.twins import merge_inputs


class GCNConv(torch.nn.Module):
    r"""Graph convolution with symmetric normalisation.

    `"Semi-supervised Classification with Graph Convolutional Networks" <https://arxiv.org/abs/1609.02907>`_:

    .. math::
        \mathbf{X}^{\prime} = \mathbf{\hat{D}}^{-1/2} \mathbf{\hat{A}} \mathbf{\hat{D}}^{-1/2} \mathbf{X}
        \mathbf{W}^{\top} + \mathbf{b}, \qquad \mathbf{\hat{A}} = \mathbf{A} + \mathbf{I},

    where :math:`\mathbf{\hat{D}}` counts the senders of a node, itself included. A node that has a self-loop already
    gets no second one, as in :class:`torch_geometric.nn.GCNConv`.

    Args:
        in_channels: columns of the input (of ``x`` and ``extra`` together, where there are two).
        out_channels: columns of the output.

    Shapes:
        - **input:** ``x [N, C1]``, ``adj`` of ``N`` nodes, optionally ``extra [N, C2]``; ``C1 + C2 = in_channels``
        - **output:** ``[N, out_channels]``
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.in_channels, self.out_channels = in_channels, out_channels
        self.lin = ConcatLinear(in_channels, out_channels, bias=False)
        self.bias = torch.nn.Parameter(torch.empty(out_channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot weights and a zero bias."""
        torch.nn.init.xavier_uniform_(self.lin.weight)
        torch.nn.init.zeros_(self.bias)

    def forward(
        self,
        x: Tensor | OneHot,
        adj: Adjacency,
        extra: Tensor | None = None,
        before: Sequence[torch.nn.Linear] = (),
    ) -> Tensor:
        """Node representations after one step; ``extra`` stands to the right of ``x``.

        ``before`` are linear maps that come first, of ``x`` and of ``extra``, see :func:`~flgraph.nn.fold`.
        """
        x, extra, merged = merge_inputs(x, extra, adj, before)
        z = concat_linear(x, extra, *fold(self.lin.weight, before))
        scale, loops = gcn_norm(adj.quotient, z.dtype)
        if z.dtype in (torch.float32, torch.float64):
            z = z if merged else adj.merge(z)
            return adj.spread(_NormalisedSum.apply(z, self.bias, adj.quotient, scale, loops))
        scale, loops = adj.spread(scale), adj.spread(loops)
        y = z * scale
        return torch.addcmul(self.bias, adj.sum(y), scale).addcmul(z, loops).to(z.dtype)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels})"


def gcn_norm(adj: Adjacency, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    r"""Inverse square roots of the degrees with self-loops, and the weights of the self-loops that nodes still lack.

    Args:
        adj: the adjacency.
        dtype: type of the values that will be scaled; below float32 the result is float32.

    Returns:
        :math:`\hat{d}_i^{-1/2}` and :math:`(1 - A_{ii}) / \hat{d}_i`, ``[N, 1]`` each. A loop that is present several
        times counts once, so the second may be negative.
    """
    dtype = dtype if dtype == torch.float64 else torch.float32
    known: dict[torch.dtype, tuple[Tensor, Tensor]] = adj.derived.setdefault("gcn norm", {})
    if dtype not in known:
        with lasting():
            receivers = torch.repeat_interleave(adj.rowptr.diff(), output_size=adj.col.numel())
            present = torch.zeros(adj.num_nodes, dtype=dtype, device=adj.col.device)
            present.index_add_(0, receivers, (receivers == adj.col).to(dtype))
            own = (1 - present).unsqueeze(1)
            scale = (adj.degree.to(dtype) + own).rsqrt()
            known[dtype] = scale, own * scale * scale
    return known[dtype]


class _NormalisedSum(torch.autograd.Function):
    """The normalised sum and the bias, with the normalisation in the matrix's values instead of steps of their own."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, bias: Tensor, adj: Adjacency, scale: Tensor, loops: Tensor) -> Tensor:
        ctx.adj, ctx.scale, ctx.loops = adj, scale.squeeze(1), loops
        return add_neighbours(torch.addcmul(bias, z, loops), z, adj, scale=ctx.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        grad = grad.contiguous()
        back = add_neighbours(grad * ctx.loops, grad, ctx.adj, transpose=True, scale=ctx.scale)
        return back, grad.sum(0), None, None, None
