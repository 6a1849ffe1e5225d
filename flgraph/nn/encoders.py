"""Stacked layers: graph isomorphism and graph convolution with all their outputs, and projections after them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from flgraph.errors import expect
from flgraph.nn.batch_norm import BatchNorm
from flgraph.nn.conv.gcn import DiffusedConv, GCNConv
from flgraph.nn.conv.gin import GINConv
from flgraph.nn.linear import OneHot
from flgraph.nn.sparse.adjacency import Adjacency

NormName = Literal["none", "batch", "batch_per_view"]


class GINEncoder(torch.nn.Module):
    r"""Graph isomorphism layers, the outputs of all side by side, as in jumping-knowledge networks.

    .. math::
        \mathbf{H}^{(l)} = \mathrm{norm}_l(\mathrm{ReLU}(\mathrm{GIN}_l(\mathbf{H}^{(l-1)}))), \qquad
        \mathbf{H} = [\mathbf{H}^{(1)} \,\Vert\, \dots \,\Vert\, \mathbf{H}^{(L)}]

    Args:
        in_channels: columns of the node features.
        hidden_channels: columns of each layer's output.
        num_layers: :math:`L`.
        norm: ``batch`` normalisation after each layer, with the statistics of all views of a batch together;
            ``batch_per_view``, with those of each view, as code that passes views one after another has it; or
            ``none``.

    Shapes:
        - **input:** ``x [N, in_channels]`` and an adjacency of ``N`` nodes, weighted or not
        - **output:** ``[N, num_layers * hidden_channels]``
    """

    def __init__(self, in_channels: int, hidden_channels: int, num_layers: int, norm: NormName = "none") -> None:
        super().__init__()
        expect(norm in get_args(NormName), "model.norm", "none, batch or batch_per_view", norm)
        sizes = [in_channels, *[hidden_channels] * (num_layers - 1)]
        self.convs = torch.nn.ModuleList(GINConv(size, hidden_channels) for size in sizes)
        make = torch.nn.Identity if norm == "none" else BatchNorm
        self.norms = torch.nn.ModuleList(make(hidden_channels) for _ in range(num_layers))
        self.norm = norm
        self.out_channels = num_layers * hidden_channels

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights."""
        return next(self.parameters()).dtype

    def forward(self, x: Tensor | OneHot, adj: Adjacency) -> Tensor:
        """Representations of all nodes."""
        return self.views(x, [adj])[0]

    def views(self, x: Tensor | OneHot, adjacencies: Sequence[Adjacency]) -> list[Tensor]:
        """Representations of all nodes with each of several neighbourhoods.

        With statistics over all views together every view is normalised, in training, as the running statistics will do
        it afterwards. With those of each view the running ones are a mean over views, the last one weighing most.
        """
        layers: list[list[Tensor]] = []
        for conv, norm in zip(self.convs, self.norms, strict=True):
            inputs = layers[-1] if layers else [x] * len(adjacencies)
            rows = [torch.relu(conv(view, adj)) for view, adj in zip(inputs, adjacencies, strict=True)]
            if self.norm == "batch":
                rows = list(norm(torch.cat(rows)).chunk(len(rows)))
            elif self.norm == "batch_per_view":
                rows = [norm(view) for view in rows]
            layers.append(rows)
        return [torch.cat(view, dim=1) for view in zip(*layers, strict=True)]


class GCNEncoder(torch.nn.Module):
    """Graph convolutions with PReLU, of one view (MVGRL).

    Args:
        in_channels: columns of the node features.
        hidden_channels: columns of each layer.
        num_layers: number of layers.
        diffused: whether the view is a diffusion, whose weights need no normalisation.

    Shapes:
        - **input:** ``x [N, in_channels]`` and an adjacency of ``N`` nodes
        - **output:** one ``[N, hidden_channels]`` per layer
    """

    def __init__(self, in_channels: int, hidden_channels: int, num_layers: int, diffused: bool) -> None:
        super().__init__()
        conv = DiffusedConv if diffused else GCNConv
        sizes = [in_channels, *[hidden_channels] * (num_layers - 1)]
        self.convs = torch.nn.ModuleList(conv(size, hidden_channels) for size in sizes)
        self.activations = torch.nn.ModuleList(torch.nn.PReLU() for _ in sizes)

    def forward(self, x: Tensor | OneHot, adj: Adjacency) -> list[Tensor]:
        """Representations of all nodes after each layer."""
        layers: list[Tensor] = []
        for conv, activation in zip(self.convs, self.activations, strict=True):
            layers.append(activation(conv(layers[-1] if layers else x, adj)))
        return layers


class Projection(torch.nn.Module):
    """Three linear maps with an activation after each, beside a linear shortcut (InfoGraph, MVGRL).

    Args:
        in_channels: columns of the input.
        out_channels: columns of the output.
        activation: made anew for each of the three.

    Shapes:
        - **input:** ``[N, in_channels]``
        - **output:** ``[N, out_channels]``
    """

    def __init__(self, in_channels: int, out_channels: int, activation: type[torch.nn.Module] = torch.nn.ReLU) -> None:
        super().__init__()
        sizes = (in_channels, out_channels, out_channels)
        layers = [layer for size in sizes for layer in (torch.nn.Linear(size, out_channels), activation())]
        self.block = torch.nn.Sequential(*layers)
        self.shortcut = torch.nn.Linear(in_channels, out_channels)

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights."""
        return self.shortcut.weight.dtype

    def forward(self, x: Tensor) -> Tensor:
        """Maps every row."""
        x = x.to(self.dtype)  # sums over nodes come in float32
        out: Tensor = self.block(x) + self.shortcut(x)
        return out
