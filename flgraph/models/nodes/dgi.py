"""Deep graph infomax: a vector for each node of a whole graph, learned without labels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import DeepGraphInfomax

from flgraph.errors import expect
from flgraph.models.base import expect_positive
from flgraph.models.unsupervised.base import Encoded, GraphEmbedding
from flgraph.nn import SparseGCNConv, gcn_matrix
from flgraph.nn.batches import WholeGraph
from flgraph.nn.sparse.csr import take_rows


class NodeEncoder(torch.nn.Module):
    """A graph convolution with PReLU.

    Args:
        in_channels: columns of the features.
        hidden_channels: columns of the output.
    """

    def __init__(self, in_channels: int, hidden_channels: int) -> None:
        super().__init__()
        self.conv = SparseGCNConv(in_channels, hidden_channels)
        self.activation = torch.nn.PReLU(hidden_channels)

    def forward(self, x: Tensor, matrix: Tensor) -> Tensor:
        """Representations of all nodes ``[N, hidden_channels]``."""
        out: Tensor = self.activation(self.conv(x, matrix))
        return out


class DGI(GraphEmbedding):
    r"""Tells the nodes of a graph from those of one whose features were shuffled, by a summary of the graph.

    `"Deep Graph Infomax" <https://arxiv.org/abs/1809.10341>`_, Eq. 1, with
    :class:`torch_geometric.nn.DeepGraphInfomax`: a graph convolution with PReLU, the sigmoid of the nodes' mean for a
    summary, features in another order for a corruption.

    In tests K-means makes clusters of the embeddings of the test nodes, see
    :class:`~flgraph.models.unsupervised.base.GraphEmbedding`. Monitor ``val/loss``.

    Args:
        in_channels: columns of the features; -1: given by the data.
        num_classes: number of clusters in a test; -1: given by the data.
        hidden_channels: columns of the embeddings.
        kwargs: see :class:`~flgraph.models.unsupervised.base.GraphEmbedding`; ``readout`` is for graphs.

    Shapes:
        - **input:** a :class:`~flgraph.nn.batches.WholeGraph`
        - **output:** embeddings of the nodes ``index``, ``[n, hidden_channels]``
    """

    def __init__(self, in_channels: int = -1, num_classes: int = -1, hidden_channels: int = 64, **kwargs: Any) -> None:
        super().__init__(in_channels, num_classes, **kwargs)
        expect_positive(hidden_channels=hidden_channels)
        expect(self.readout == 0, "model.readout", "0 for nodes", self.readout)
        if not self.is_template:
            encoder = NodeEncoder(in_channels, hidden_channels)
            self.infomax = DeepGraphInfomax(hidden_channels, encoder, summary=_summary, corruption=_shuffled)

    def encode(self, batch: WholeGraph) -> Encoded:
        """Representations of all nodes, and of those that the batch is about."""
        self._check(batch)
        h: Tensor = self.infomax.encoder(batch.x, gcn_matrix(batch.adj))
        return Encoded(h, h.index_select(0, batch.index))

    def contrast(self, batch: WholeGraph) -> tuple[Tensor, Encoded]:
        """The loss of all nodes and as many corrupt ones."""
        self._check(batch)
        h, corrupt, summary = self.infomax(batch.x, gcn_matrix(batch.adj))
        return self.infomax.loss(h, corrupt, summary), Encoded(h, h.index_select(0, batch.index))

    def _check(self, batch: object) -> None:
        self.check_sizes()
        wanted = "one whose batches are whole graphs, such as flgraph.data.WholeGraphFederation,"
        expect(isinstance(batch, WholeGraph), "data", wanted, f"batches of type {type(batch).__name__}")


def _summary(h: Tensor, *_: Tensor) -> Tensor:
    return h.mean(dim=0).sigmoid()


def _shuffled(x: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    # Drawn on the CPU, so that a seed means the same order on every device.
    return take_rows(x, torch.randperm(x.size(0)).to(x.device)), matrix
