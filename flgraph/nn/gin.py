"""Graph isomorphism network layer."""

from __future__ import annotations

import torch
from torch import Tensor

from flgraph.nn.adjacency import Adjacency
from flgraph.nn.linear import ConcatLinear, concat_linear


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
        self.lin2 = torch.nn.Linear(self.hidden_channels, out_channels)

    def reset_parameters(self) -> None:
        """Draws new weights, as :class:`torch.nn.Linear` does."""
        self.lin1.reset_parameters()
        self.lin2.reset_parameters()

    def forward(self, x: Tensor, adj: Adjacency, extra: Tensor | None = None) -> Tensor:
        """Node representations after one step; ``extra`` stands to the right of ``x``."""
        z = concat_linear(x, extra, self.lin1.weight)
        out: Tensor = self.lin2(torch.relu(adj.sum(z) + z + self.lin1.bias))
        return out

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels}, hidden_channels={self.hidden_channels})"
