"""GraphSAGE layers with mean aggregation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from flgraph.nn.activations import Activation, activate
from flgraph.nn.linear import ConcatLinear, OneHot, concat_linear
from flgraph.nn.sparse.adjacency import Adjacency
from flgraph.nn.sparse.csr import rows_times


class SAGEConv(torch.nn.Module):
    r"""GraphSAGE layer with the mean of all neighbours.

    `"Inductive Representation Learning on Large Graphs" <https://arxiv.org/abs/1706.02216>`_:

    .. math::
        \mathbf{x}^{\prime}_i = \mathbf{W}_l \cdot \mathrm{mean}_{j \in \mathcal{N}(i)} \mathbf{x}_j + \mathbf{b}
        + \mathbf{W}_r \mathbf{x}_i

    The mean over no neighbours is zero. The input is projected before the mean is taken.

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
        self.lin_l = ConcatLinear(in_channels, out_channels, bias=False)
        self.lin_r = ConcatLinear(in_channels, out_channels)

    def reset_parameters(self) -> None:
        """Draws new weights, as :class:`torch.nn.Linear` does."""
        self.lin_l.reset_parameters()
        self.lin_r.reset_parameters()

    def forward(
        self,
        x: Tensor | OneHot,
        adj: Adjacency,
        extra: Tensor | None = None,
        before: Sequence[torch.nn.Linear] = (),
        activation: Activation = "none",
    ) -> Tensor:
        """Node representations after one step and ``activation``; ``extra`` stands to the right of ``x``.

        ``before`` are linear maps that come first, of ``x`` and of ``extra``. They are applied as they are: this layer
        has two maps, and to fold both would not save a product.
        """
        if before:
            x = concat_linear(x, None, before[0].weight, before[0].bias)
            extra = None if extra is None else before[1](extra)
        return activate(_plus_mean(self.lin_r(x, extra), self.lin_l(x, extra), adj), activation)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels})"


class SparseSAGEConv(torch.nn.Module):
    r"""GraphSAGE layer with the mean of all neighbours, of rows in several blocks, each sparse or dense.

    The same map as :class:`SAGEConv`. Both of its matrices stand side by side in one weight, so that sparse rows are
    gone through once.

    Args:
        in_channels: columns of the input.
        out_channels: columns of the output.

    Shapes:
        - **weight:** ``[in_channels, 2 * out_channels]``: for the node itself, then for its neighbours
        - **input:** ``blocks``, together ``[N, in_channels]``, each dense or sparse CSR; ``adj`` of ``N`` nodes
        - **output:** ``[N, out_channels]``
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.in_channels, self.out_channels = in_channels, out_channels
        self.weight = torch.nn.Parameter(torch.empty(in_channels, 2 * out_channels))
        self.bias = torch.nn.Parameter(torch.empty(out_channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new weights, from the distribution of :class:`torch.nn.Linear`'s."""
        bound = self.in_channels**-0.5
        torch.nn.init.uniform_(self.weight, -bound, bound)
        torch.nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, blocks: Sequence[Tensor], adj: Adjacency) -> Tensor:
        """Node representations after one step."""
        z = torch.cat([rows_times(rows, self.weight) for rows in blocks])
        root, neighbours = z.split(self.out_channels, dim=1)
        return _plus_mean(root + self.bias.to(z.dtype), neighbours.contiguous(), adj)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels})"


def _plus_mean(root: Tensor, rows: Tensor, adj: Adjacency) -> Tensor:
    """``root`` and the mean of the neighbours' rows; of many of them float16 does not hold the sum."""
    half = rows.dtype in (torch.bfloat16, torch.float16)
    total = adj.sum(rows.float() if half else rows)
    share = adj.degree.clamp(min=1).to(total.dtype).reciprocal()
    return root + (total * share).to(root.dtype) if half else torch.addcmul(root, total, share)
