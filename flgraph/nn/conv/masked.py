"""Layers whose weights are multiplied by a learned mask (FED-PUB)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from flgraph.nn.conv.gcn import SparseGCNConv
from flgraph.nn.sparse.csr import rows_times, sparse_matmul


class MaskedGCNConv(SparseGCNConv):
    r"""The map of a graph convolution with masked weights, :math:`\hat{A} X (W \odot M) + b`.

    Args:
        in_channels: columns of the input.
        out_channels: columns of the output.
        prune: outside of training, entries of the mask below this in absolute value count as 0.

    Shapes:
        - **weight**, **mask:** ``[in_channels, out_channels]``; the mask begins with ones
        - **input**, **output:** see :class:`SparseGCNConv`
    """

    def __init__(self, in_channels: int, out_channels: int, prune: float = 0.0) -> None:
        super().__init__(in_channels, out_channels)
        self.prune = prune
        self.mask = torch.nn.Parameter(torch.ones(in_channels, out_channels))

    def reset_parameters(self) -> None:
        """Glorot weights, a zero bias, and a mask of ones."""
        super().reset_parameters()
        if hasattr(self, "mask"):  # not yet where the base class is made
            torch.nn.init.ones_(self.mask)

    def forward(self, x: Tensor, matrix: Tensor | None) -> Tensor:
        """Node representations after one step."""
        z = rows_times(x, self.weight * pruned(self.mask, self.prune, self.training))
        z = z if matrix is None else sparse_matmul(matrix, z)
        return z + self.bias.to(z.dtype)


class MaskedLinear(torch.nn.Linear):
    r"""A linear map with masked weights, :math:`X (W \odot M)^{\top} + b`.

    Args:
        in_features: columns of the input.
        out_features: columns of the output.
        prune: see :class:`MaskedGCNConv`.
    """

    def __init__(self, in_features: int, out_features: int, prune: float = 0.0) -> None:
        super().__init__(in_features, out_features)
        self.prune = prune
        self.mask = torch.nn.Parameter(torch.ones(out_features, in_features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot weights, a zero bias, and a mask of ones."""
        torch.nn.init.xavier_uniform_(self.weight)
        torch.nn.init.zeros_(self.bias)
        if hasattr(self, "mask"):
            torch.nn.init.ones_(self.mask)

    def forward(self, input: Tensor) -> Tensor:
        """``[n, out_features]`` of ``[n, in_features]``."""
        return F.linear(input, self.weight * pruned(self.mask, self.prune, self.training), self.bias)


def pruned(mask: Tensor, below: float, training: bool) -> Tensor:
    """The mask, outside of training without entries below ``below`` in absolute value."""
    return mask if training else mask.masked_fill(mask.abs() < below, 0.0)
