"""A network of PyG's layers on a whole graph, for nodes, which uses features of edges."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from flgraph.errors import expect
from flgraph.models.base import expect_positive
from flgraph.models.nodes.classifier import NodeClassifier
from flgraph.nn import SparseLinear
from flgraph.nn.batches import WholeGraph
from flgraph.nn.conv.edges import EDGE_CONVS, EdgeConvName, edge_channels_of, edge_features, make_edge_conv


class NodeGNN(NodeClassifier[WholeGraph]):
    r"""Layers that use features of edges between two linear maps, on a whole graph at once.

    .. math::
        \mathbf{X}^{(l)} = \mathrm{dropout}(\mathrm{ReLU}(\mathrm{conv}_l(\mathbf{X}^{(l-1)}, \mathbf{E}))), \qquad
        \mathbf{X}^{(0)} = \mathrm{pre}(\mathbf{X})

    Args:
        in_channels: columns of the features; -1: given by the data.
        num_classes: number of classes; -1: given by the data.
        hidden_channels: columns of all layers.
        conv: ``gat``, ``gine`` or ``pna``, see :func:`~flgraph.nn.conv.edges.make_edge_conv`.
        num_layers: number of them.
        edge_channels: columns of the edges' features; 0: they are not used; -1: given by the data.
        kwargs: see :class:`~flgraph.models.nodes.classifier.NodeClassifier`.

    Shapes:
        - **input:** a :class:`~flgraph.nn.batches.WholeGraph`
        - **output:** logits of the nodes ``index``, ``[n, num_classes]``
    """

    data_sizes: ClassVar[tuple[str, ...]] = ("in_channels", "num_classes", "edge_channels")
    takes_samples: ClassVar[bool] = True

    def __init__(
        self,
        in_channels: int = -1,
        num_classes: int = -1,
        hidden_channels: int = 64,
        conv: EdgeConvName = "gat",
        num_layers: int = 2,
        edge_channels: int = -1,
        **kwargs: Any,
    ) -> None:
        super().__init__(in_channels, num_classes, hidden_channels, **kwargs)
        expect_positive(num_layers=num_layers)
        expect(conv in EDGE_CONVS, "model.conv", f"one of {', '.join(EDGE_CONVS)}", conv)
        self.edge_channels = edge_channels_of(self, conv, edge_channels)
        if not self.is_template:
            self.pre = SparseLinear(in_channels, hidden_channels)
            layers = (make_edge_conv(conv, hidden_channels, edge_channels) for _ in range(num_layers))
            self.convs = torch.nn.ModuleList(layers)
            self.readout = torch.nn.Linear(hidden_channels, num_classes)

    def encode(self, batch: WholeGraph) -> Tensor:
        """What ``readout`` gets, a row per node ``[N, hidden_channels]``."""
        self.check_batch(batch, WholeGraph)
        x: Tensor = self.pre(batch.x)
        edges = edge_features(batch.edge_attr, self.edge_channels, x.dtype)
        ends = batch.edge_index
        if ends is None:
            target = torch.arange(batch.adj.num_nodes, device=x.device).repeat_interleave(batch.adj.rowptr.diff())
            ends = torch.stack([batch.adj.col, target])
        for conv in self.convs:
            x = self.dropout(conv(x, ends, edges), rectify=True)
        return x

    def head(self, encoded: Tensor, batch: WholeGraph) -> Tensor:
        """Logits of the nodes ``batch.index``."""
        logits: Tensor = self.readout(encoded.index_select(0, batch.index))
        return logits
