"""Graph convolutional network layer."""

from __future__ import annotations

import torch
from torch import Tensor

from flgraph.nn.adjacency import Adjacency
from flgraph.nn.linear import ConcatLinear


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

    def forward(self, x: Tensor, adj: Adjacency, extra: Tensor | None = None) -> Tensor:
        """Node representations after one step; ``extra`` stands to the right of ``x``."""
        z = self.lin(x, extra)
        scale, own = gcn_norm(adj, z.dtype)
        y = z * scale
        return torch.addcmul(self.bias, torch.addcmul(adj.sum(y), y, own), scale).to(z.dtype)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels})"


def gcn_norm(adj: Adjacency, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    r"""Inverse square roots of the degrees with self-loops, and the weight of the self-loop that each node still lacks.

    Args:
        adj: the adjacency.
        dtype: type of the values that will be scaled; below float32 the result is float32.

    Returns:
        :math:`\hat{d}_i^{-1/2}` and :math:`1 - A_{ii}`, ``[N, 1]`` each. A loop that is present several times
        counts once, so the second may be negative.
    """
    dtype = dtype if dtype == torch.float64 else torch.float32
    known: dict[torch.dtype, tuple[Tensor, Tensor]] = adj.derived.setdefault("gcn norm", {})
    if dtype not in known:
        receivers = torch.repeat_interleave(adj.rowptr.diff(), output_size=adj.col.numel())
        loops = torch.zeros(adj.num_nodes, dtype=dtype, device=adj.col.device)
        loops.index_add_(0, receivers, (receivers == adj.col).to(dtype))
        own = (1 - loops).unsqueeze(1)
        known[dtype] = (adj.degree.to(dtype) + own).rsqrt(), own
    return known[dtype]
