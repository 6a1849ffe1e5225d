"""MVGRL: Hassani and Khasahmadi, "Contrastive Multi-View Representation Learning on Graphs", ICML 2020."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import Data

from flgraph.errors import expect
from flgraph.models.base import OptimizerName
from flgraph.models.graphs import inputs
from flgraph.models.unsupervised.base import EmbeddingName, Encoded, GraphEmbedding
from flgraph.nn import Adjacency, GCNConv, OneHot, WeightedAdjacency, jsd_contrast


class DiffusedConv(torch.nn.Module):
    r""":math:`\mathbf{S} \mathbf{X} \mathbf{W}^{\top} + \mathbf{b}` with the weights :math:`\mathbf{S}` as they are.

    Args:
        in_channels: columns of the input.
        out_channels: columns of the output.

    Shapes:
        - **input:** ``x [N, in_channels]`` and a :class:`~flgraph.nn.WeightedAdjacency` of ``N`` nodes
        - **output:** ``[N, out_channels]``
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.lin = torch.nn.Linear(in_channels, out_channels, bias=False)
        self.bias = torch.nn.Parameter(torch.empty(out_channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot weights and a zero bias."""
        torch.nn.init.xavier_uniform_(self.lin.weight)
        torch.nn.init.zeros_(self.bias)

    def forward(self, x: Tensor | OneHot, adj: Adjacency) -> Tensor:
        """Node representations after one step."""
        projected = x.linear(self.lin.weight) if isinstance(x, OneHot) else self.lin(x)
        out: Tensor = adj.sum(projected) + self.bias
        return out


class GCNEncoder(torch.nn.Module):
    """Graph convolutions with PReLU, of one view.

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
        kind = DiffusedConv if diffused else GCNConv
        sizes = [in_channels, *[hidden_channels] * (num_layers - 1)]
        self.convs = torch.nn.ModuleList(kind(size, hidden_channels) for size in sizes)
        self.activations = torch.nn.ModuleList(torch.nn.PReLU() for _ in sizes)

    def forward(self, x: Tensor | OneHot, adj: Adjacency) -> list[Tensor]:
        """Representations of all nodes after each layer."""
        layers: list[Tensor] = []
        for conv, activation in zip(self.convs, self.activations, strict=True):
            layers.append(activation(conv(layers[-1] if layers else x, adj)))
        return layers


class PReLUProjection(torch.nn.Module):
    """Three linear maps with PReLU after each, beside a linear shortcut.

    Args:
        in_channels: columns of the input.
        out_channels: columns of the output.

    Shapes:
        - **input:** ``[N, in_channels]``
        - **output:** ``[N, out_channels]``
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        layers: list[torch.nn.Module] = []
        for size in (in_channels, out_channels, out_channels):
            layers += [torch.nn.Linear(size, out_channels), torch.nn.PReLU()]
        self.block = torch.nn.Sequential(*layers)
        self.shortcut = torch.nn.Linear(in_channels, out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """Maps every row."""
        x = x.to(self.shortcut.weight.dtype)  # sums over nodes come in float32
        out: Tensor = self.block(x) + self.shortcut(x)
        return out


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
        weight_decay: weight decay.
        optimizer: ``adam``, ``adamw`` or ``sgd``.
        embedding: see :class:`GraphEmbedding`.
        cluster_seed: see there.
        cluster_restarts: see there.
        probe: see there.

    Shapes:
        - **input:** a PyG batch of ``N`` nodes and ``B`` graphs with ``x [N, in_channels]``, ``edge_index`` or ``adj``,
          ``batch [N]`` and ``diffused``, a :class:`~flgraph.nn.WeightedAdjacency`
        - **output:** embeddings ``[B, hidden_channels]``

    Raises:
        InputError: a hyper-parameter or a batch cannot be used.
    """

    def __init__(
        self,
        in_channels: int = -1,
        num_classes: int = -1,
        hidden_channels: int = 128,
        num_layers: int = 4,
        lr: float = 1e-3,
        weight_decay: float = 0.0,
        optimizer: OptimizerName = "adam",
        embedding: EmbeddingName = "raw",
        cluster_seed: int = 0,
        cluster_restarts: int = 10,
        probe: bool = False,
    ) -> None:
        super().__init__(
            *(in_channels, num_classes, lr, weight_decay, optimizer, embedding),
            *(cluster_seed, cluster_restarts, probe),
        )
        self.save_hyperparameters()
        for name, size in (("hidden_channels", hidden_channels), ("num_layers", num_layers)):
            expect(size >= 1, f"model.{name}", "a positive integer", size)
        if self.is_template:
            return
        self.encoders = torch.nn.ModuleList(
            GCNEncoder(in_channels, hidden_channels, num_layers, diffused) for diffused in (False, True)
        )
        self.local_projection = PReLUProjection(hidden_channels, hidden_channels)
        self.global_projection = PReLUProjection(num_layers * hidden_channels, hidden_channels)

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
        x = inputs.features(batch, self.in_channels, self.local_projection.shortcut.weight.dtype)
        adjacencies: tuple[Adjacency, WeightedAdjacency] = inputs.neighbours(batch), self.view(batch)
        views = []
        for encoder, adj in zip(self.encoders, adjacencies, strict=True):
            layers = encoder(x, adj)
            graphs = torch.cat([self.pooled(batch, layer) for layer in layers], dim=1)
            views.append(Encoded(self.local_projection(layers[-1]), self.global_projection(graphs)))
        return views
