"""Stacked graph isomorphism layers whose outputs are all kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from flgraph.errors import expect
from flgraph.nn.conv.gin import GINConv
from flgraph.nn.linear import OneHot
from flgraph.nn.sparse.adjacency import Adjacency

NormName = Literal["none", "batch"]


class GINEncoder(torch.nn.Module):
    r"""Graph isomorphism layers, the outputs of all side by side, as in jumping-knowledge networks.

    .. math::
        \mathbf{H}^{(l)} = \mathrm{norm}_l(\mathrm{ReLU}(\mathrm{GIN}_l(\mathbf{H}^{(l-1)}))), \qquad
        \mathbf{H} = [\mathbf{H}^{(1)} \,\Vert\, \dots \,\Vert\, \mathbf{H}^{(L)}]

    Args:
        in_channels: columns of the node features.
        hidden_channels: columns of each layer's output.
        num_layers: :math:`L`.
        norm: ``batch`` normalisation after each layer, or ``none``.

    Shapes:
        - **input:** ``x [N, in_channels]`` and an adjacency of ``N`` nodes, weighted or not
        - **output:** ``[N, num_layers * hidden_channels]``
    """

    def __init__(self, in_channels: int, hidden_channels: int, num_layers: int, norm: NormName = "none") -> None:
        super().__init__()
        expect(norm in ("none", "batch"), "model.norm", "none or batch", norm)
        sizes = [in_channels, *[hidden_channels] * num_layers]
        self.convs = torch.nn.ModuleList(GINConv(size, hidden_channels) for size in sizes[:-1])
        kind = torch.nn.BatchNorm1d if norm == "batch" else torch.nn.Identity
        self.norms = torch.nn.ModuleList(kind(hidden_channels) for _ in range(num_layers))
        self.out_channels = num_layers * hidden_channels

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights."""
        return next(self.parameters()).dtype

    def reset_parameters(self) -> None:
        """Draws new weights."""
        for layer in (*self.convs, *self.norms):
            if hasattr(layer, "reset_parameters"):
                layer.reset_parameters()

    def forward(self, x: Tensor | OneHot, adj: Adjacency) -> Tensor:
        """Representations of all nodes."""
        return self.views(x, [adj])[0]

    def views(self, x: Tensor | OneHot, adjacencies: Sequence[Adjacency]) -> list[Tensor]:
        """Representations of all nodes with each of several neighbourhoods.

        Batch normalisation takes its statistics over all views together: in training, therefore, every view is
        normalised as the running statistics will do it afterwards.
        """
        layers: list[list[Tensor]] = []
        for conv, norm in zip(self.convs, self.norms, strict=True):
            given = layers[-1] if layers else [x] * len(adjacencies)
            rows = [torch.relu(conv(own, adj)) for own, adj in zip(given, adjacencies, strict=True)]
            if not isinstance(norm, torch.nn.Identity):
                rows = list(norm(torch.cat(rows)).chunk(len(rows)))
            layers.append(rows)
        return [torch.cat(view, dim=1) for view in zip(*layers, strict=True)]
