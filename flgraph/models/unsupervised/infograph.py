"""Sun et al., "InfoGraph: Unsupervised and Semi-supervised Graph-Level Representation Learning", ICLR 2020."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import Data

from flgraph.errors import expect
from flgraph.models.base import OptimizerName
from flgraph.models.graphs import inputs
from flgraph.models.unsupervised.base import EmbeddingName, Encoded, GraphEmbedding
from flgraph.nn import GINEncoder, NormName, jsd_contrast


class Projection(torch.nn.Module):
    """Three linear maps with ReLU after each, beside a linear shortcut.

    Args:
        channels: columns of input and output.

    Shapes:
        - **input and output:** ``[N, channels]``
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        layers = [layer for _ in range(3) for layer in (torch.nn.Linear(channels, channels), torch.nn.ReLU())]
        self.block = torch.nn.Sequential(*layers)
        self.shortcut = torch.nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Maps every row."""
        x = x.to(self.shortcut.weight.dtype)  # sums over nodes come in float32
        out: Tensor = self.block(x) + self.shortcut(x)
        return out


class InfoGraph(GraphEmbedding):
    r"""A graph isomorphism network whose nodes tell which graph they belong to.

    The loss is the Jensen-Shannon estimate of the mutual information between projected nodes and projected graphs,
    negated (:func:`~flgraph.nn.jsd_contrast`). Embeddings are the sums over nodes before projection. Defaults are those
    of the published code (unsupervised, without prior).

    Args:
        in_channels: columns of the node features; -1: given by the data.
        num_classes: number of clusters in a test; -1: given by the data.
        hidden_channels: columns of each layer.
        num_layers: number of graph isomorphism layers.
        norm: ``batch`` normalisation after each layer, or ``none``.
        lr: learning rate.
        weight_decay: weight decay.
        optimizer: ``adam``, ``adamw`` or ``sgd``.
        embedding: see :class:`GraphEmbedding`.
        cluster_seed: see there.
        cluster_restarts: see there.
        probe: see there.

    Shapes:
        - **input:** a PyG batch of ``N`` nodes and ``B`` graphs with ``x [N, in_channels]``, ``edge_index`` or ``adj``,
          and ``batch [N]``
        - **output:** embeddings ``[B, num_layers * hidden_channels]``

    Raises:
        InputError: a hyper-parameter or a batch cannot be used.
    """

    def __init__(
        self,
        in_channels: int = -1,
        num_classes: int = -1,
        hidden_channels: int = 32,
        num_layers: int = 5,
        norm: NormName = "batch",
        lr: float = 1e-2,
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
        expect(norm in ("none", "batch"), "model.norm", "none or batch", norm)
        if self.is_template:
            return
        self.encoder = GINEncoder(in_channels, hidden_channels, num_layers, norm)
        self.local_projection = Projection(self.encoder.out_channels)
        self.global_projection = Projection(self.encoder.out_channels)

    def encode(self, batch: Data) -> Encoded:
        """Representations before projection."""
        self.check_sizes()
        x = inputs.features(batch, self.in_channels, self.encoder.dtype)
        nodes = self.encoder(x, inputs.neighbours(batch))
        return Encoded(nodes, self.pooled(batch, nodes))

    def contrast(self, batch: Data) -> tuple[Tensor, Encoded]:
        """Nodes against graphs."""
        encoded = self.encode(batch)
        graph, _ = inputs.graph_of_nodes(batch, encoded.nodes.device)
        local, summary = self.local_projection(encoded.nodes), self.global_projection(encoded.graphs)
        return jsd_contrast(local, summary, graph), encoded
