"""MVGRL: Hassani and Khasahmadi, "Contrastive Multi-View Representation Learning on Graphs", ICML 2020."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from flgraph.models.base import expect_positive
from flgraph.models.graphs import inputs
from flgraph.models.unsupervised.base import Encoded, GraphEmbedding
from flgraph.nn import Adjacency, GCNEncoder, Projection, WeightedAdjacency, jsd_contrast


class MVGRL(GraphEmbedding):
    r"""Nodes of each of two views of a graph tell which graph of the *other* view they belong to.

    The views are a graph's edges and its diffusion, each with a graph convolutional network of its own; nodes (the last
    layer) and graphs (sums of all layers, side by side) are projected by maps that both views share. The loss is the
    sum of :func:`~flgraph.nn.jsd_contrast` over the two directions; embeddings are the sum of both views' projected
    graphs.

    Args:
        in_channels: columns of the node features; -1: given by the data.
        num_classes: number of clusters in a test; -1: given by the data.
        hidden_channels: columns of each layer; 512 in the published code.
        num_layers: number of graph convolutions per view.
        lr: learning rate.
        kwargs: see :class:`~flgraph.models.GraphEmbedding` and :class:`~flgraph.models.base.SizedModule`.

    Shapes:
        - **input:** a PyG batch of ``N`` nodes and ``B`` graphs with ``x [N, in_channels]``, ``edge_index`` or ``adj``,
          ``batch [N]`` and ``diffused``, a :class:`~flgraph.nn.WeightedAdjacency`
        - **output:** embeddings ``[B, hidden_channels]``
    """

    def __init__(
        self,
        in_channels: int = -1,
        num_classes: int = -1,
        hidden_channels: int = 128,
        num_layers: int = 4,
        lr: float = 1e-3,
        **kwargs: Any,
    ) -> None:
        super().__init__(in_channels, num_classes, lr=lr, **kwargs)
        expect_positive(hidden_channels=hidden_channels, num_layers=num_layers)
        if self.is_template:
            return
        self.encoders = torch.nn.ModuleList(
            GCNEncoder(in_channels, hidden_channels, num_layers, diffused) for diffused in (False, True)
        )
        self.local_projection = Projection(hidden_channels, hidden_channels, torch.nn.PReLU)
        self.global_projection = Projection(num_layers * hidden_channels, hidden_channels, torch.nn.PReLU)

    def encode(self, batch: Data) -> Encoded:
        """Sums over both views, after projection."""
        one, other = self._views(batch)
        return Encoded(one.nodes + other.nodes, one.graphs + other.graphs)

    def contrast(self, batch: Data) -> tuple[Tensor, Encoded]:
        """Nodes of each view against graphs of the other."""
        one, other = self._views(batch)
        graph, _ = inputs.graph_of_nodes(batch, one.nodes.device)
        loss = jsd_contrast(one.nodes, other.graphs, graph) + jsd_contrast(other.nodes, one.graphs, graph)
        return loss, Encoded(one.nodes + other.nodes, one.graphs + other.graphs)

    def _views(self, batch: Data) -> list[Encoded]:
        self.check_sizes()
        x = inputs.features(batch, self.in_channels, self.local_projection.dtype)
        adjacencies: tuple[Adjacency, WeightedAdjacency] = inputs.neighbours(batch), self.view(batch)
        views = []
        for encoder, adj in zip(self.encoders, adjacencies, strict=True):
            layers = encoder(x, adj)
            graphs = torch.cat([self.pooled(batch, layer) for layer in layers], dim=1)
            views.append(Encoded(self.local_projection(layers[-1]), self.global_projection(graphs)))
        return views
