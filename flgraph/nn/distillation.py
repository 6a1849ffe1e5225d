"""Graphs that a generator makes up, and what models are made to agree on there (FedTAD)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from flgraph.nn.sparse.adjacency import Adjacency


class NodeGenerator(torch.nn.Module):
    """Features of nodes from noise and a class: an embedding of the class beside the noise, and layers with tanh.

    Args:
        noise_dim: columns of the noise.
        num_classes: number of classes, and columns of their embedding.
        out_channels: columns of the features.
        hidden: columns of the layers.
    """

    def __init__(
        self, noise_dim: int, num_classes: int, out_channels: int, hidden: Sequence[int] = (64, 128, 256)
    ) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(num_classes, num_classes)
        sizes = [noise_dim + num_classes, *hidden]
        self.layers = torch.nn.ModuleList(torch.nn.Linear(*size) for size in pairwise(sizes))
        self.out = torch.nn.Linear(sizes[-1], out_channels)

    def forward(self, noise: Tensor, classes: Tensor) -> Tensor:
        """Features ``[n, out_channels]`` of ``noise [n, noise_dim]`` and ``classes [n]``."""
        hidden = torch.cat([self.embedding(classes), noise], dim=1)
        for layer in self.layers:
            hidden = layer(hidden).tanh()
        out: Tensor = self.out(hidden)
        return out


def nearest_graph(x: Tensor, k: int) -> Adjacency:
    """Joins every node with those of its ``k`` nearest by the angle between features, itself among them; undirected.

    Args:
        x: features ``[n, F]``.
        k: how many, at least 1 and at most ``n``.
    """
    rows = F.normalize(x.detach(), dim=1)
    cosines = (rows @ rows.t()).fill_diagonal_(torch.inf)  # itself first, also where others point the same way
    near = torch.zeros(len(x), len(x), dtype=torch.bool).scatter_(1, cosines.topk(k, dim=1).indices, True)
    joined = (near | near.t()).fill_diagonal_(False)
    return Adjacency.from_sorted(joined.nonzero().t().contiguous(), len(x), symmetric=True)


def diversity_loss(noise: Tensor, x: Tensor) -> Tensor:
    r""":math:`\exp(-\frac{1}{n^2} \sum_{ij} d_{ij} e_{ij})`: small where unlike noise gives unlike features.

    Args:
        noise: ``[n, D]``; :math:`d_{ij}` are mean squared differences of its rows.
        x: ``[n, F]``; :math:`e_{ij}` are mean absolute differences of its rows.
    """
    apart = torch.cdist(noise, noise).square() / noise.size(1)
    return (-(apart * torch.cdist(x, x, p=1) / x.size(1)).mean()).exp()
