"""Graph convolutional network layers: of an adjacency, of a matrix and sparse rows, and of given weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from flgraph.nn.activations import Activation, activate
from flgraph.nn.half import is_half
from flgraph.nn.linear import ConcatLinear, OneHot, concat_linear, fold
from flgraph.nn.products import with_room
from flgraph.nn.sparse.adjacency import Adjacency, add_neighbours
from flgraph.nn.sparse.closed import closed_linear, halves
from flgraph.nn.sparse.csr import rows_times, sparse_matmul
from flgraph.nn.sparse.norm import gcn_norm
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
        activation: Activation = "none",
    ) -> Tensor:
        """Node representations after one step and ``activation``; ``extra`` stands to the right of ``x``.

        ``before`` are linear maps that come first, of ``x`` and of ``extra``, see :func:`~flgraph.nn.fold`.
        """
        if is_half(self.lin.weight):
            inside, after = halves(activation, adj)
            rows = closed_linear(x, extra, adj, before, self.lin.weight, self.bias, inside, normalised=True)
            return activate(adj.spread(rows), after)
        x, extra, merged = merge_inputs(x, extra, adj, before)
        z = concat_linear(x, extra, *fold(self.lin.weight, before))
        summed = z if merged else adj.merge(z)
        scale, loops = gcn_norm(adj.quotient, summed.dtype)
        out: Tensor = _NormalisedSum.apply(summed, self.bias, adj.quotient, scale, loops.to(summed.dtype))
        return activate(adj.spread(out.to(z.dtype)), activation)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels})"


class SparseGCNConv(torch.nn.Module):
    r"""The map of a graph convolution, :math:`\hat{A} X W + b`, where :math:`\hat{A}` is given as a matrix.

    Args:
        in_channels: columns of the input.
        out_channels: columns of the output.

    Shapes:
        - **weight:** ``[in_channels, out_channels]``: of sparse rows each word then chooses a contiguous row
        - **input:** ``x [M, in_channels]`` dense or sparse CSR; ``matrix [N, M]`` sparse CSR, for example
          :func:`~flgraph.nn.gcn_matrix`; without it ``x`` is taken as :math:`\hat{A} X`
        - **output:** ``[N, out_channels]``
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.in_channels, self.out_channels = in_channels, out_channels
        self.weight = torch.nn.Parameter(torch.empty(in_channels, out_channels))
        self.bias = torch.nn.Parameter(torch.empty(out_channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot weights and a zero bias."""
        torch.nn.init.xavier_uniform_(self.weight)
        torch.nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, matrix: Tensor | None) -> Tensor:
        """Node representations after one step."""
        z = rows_times(x, self.weight)
        z = z if matrix is None else sparse_matmul(matrix, z)
        return z + self.bias.to(z.dtype)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels})"


class DiffusedConv(GCNConv):
    r""":math:`\mathbf{S} \mathbf{X} \mathbf{W}^{\top} + \mathbf{b}` with the weights :math:`\mathbf{S}` as they are.

    Args:
        in_channels: columns of the input.
        out_channels: columns of the output.

    Shapes:
        - **input:** ``x [N, in_channels]`` and a :class:`~flgraph.nn.WeightedAdjacency` of ``N`` nodes
        - **output:** ``[N, out_channels]``
    """

    def forward(self, x: Tensor | OneHot, adj: Adjacency) -> Tensor:  # type: ignore[override]
        """Node representations after one step."""
        out: Tensor = adj.sum(self.lin(x)) + self.bias
        return out


class _NormalisedSum(torch.autograd.Function):
    """The normalised sum and the bias, with the normalisation in the matrix's values instead of steps of their own."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, bias: Tensor, adj: Adjacency, scale: Tensor, loops: Tensor) -> Tensor:
        ctx.adj, ctx.scale, ctx.loops, ctx.bias_type = adj, scale.squeeze(1), loops, bias.dtype
        out = torch.addcmul(bias.to(z.dtype), z, loops, out=with_room(z))
        return add_neighbours(out, z, adj, out=out, scale=ctx.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        grad = grad.contiguous()
        back = torch.mul(grad, ctx.loops, out=with_room(grad))
        back = add_neighbours(back, grad, ctx.adj, out=back, transpose=True, scale=ctx.scale)
        return back, grad.sum(0, dtype=ctx.bias_type), None, None, None
