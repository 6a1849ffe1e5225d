"""Graph attention on a whole graph, for nodes."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.nn import GATConv

from flgraph.errors import expect
from flgraph.models.base import expect_positive
from flgraph.models.nodes.classifier import NodeClassifier
from flgraph.nn import Adjacency
from flgraph.nn.batches import WholeGraph


class NodeGAT(NodeClassifier[WholeGraph]):
    r"""Two layers of graph attention with an ELU and dropout between them, on a whole graph at once.

    `"Graph Attention Networks" <https://arxiv.org/abs/1710.10903>`_ by PyG's ``GATConv``: the first layer's heads stand
    side by side, the second has one. Sparse features become dense.

    Args:
        in_channels: columns of the features; -1: given by the data.
        num_classes: number of classes; -1: given by the data.
        hidden_channels: columns between the layers, of all heads together.
        heads: of the first layer; must divide ``hidden_channels``.
        kwargs: see :class:`~flgraph.models.nodes.classifier.NodeClassifier`.

    Shapes:
        - **input:** a :class:`~flgraph.nn.batches.WholeGraph`
        - **output:** logits of the nodes ``index``, ``[n, num_classes]``
    """

    takes_samples: ClassVar[bool] = True

    def __init__(
        self,
        in_channels: int = -1,
        num_classes: int = -1,
        hidden_channels: int = 64,
        heads: int = 8,
        **kwargs: Any,
    ) -> None:
        super().__init__(in_channels, num_classes, hidden_channels, **kwargs)
        expect_positive(heads=heads)
        expect(hidden_channels % heads == 0, "model.heads", f"a divisor of {hidden_channels} columns", heads)
        if not self.is_template:
            first = GATConv(in_channels, hidden_channels // heads, heads)
            self.convs = torch.nn.ModuleList([first, GATConv(hidden_channels, num_classes)])

    def encode(self, batch: WholeGraph) -> Tensor:
        """What the second layer gets, a row per node ``[N, hidden_channels]``."""
        self.check_batch(batch, WholeGraph)
        x = batch.x.to_dense() if batch.x.layout == torch.sparse_csr else batch.x
        hidden: Tensor = self.dropout(F.elu(self.convs[0](x, edges_of(batch.adj))))
        return hidden

    def head(self, encoded: Tensor, batch: WholeGraph) -> Tensor:
        """Logits of the nodes ``batch.index``."""
        logits: Tensor = self.convs[1](encoded, edges_of(batch.adj))
        return logits.index_select(0, batch.index)


def edges_of(adj: Adjacency) -> Tensor:
    """Its edges from senders to receivers ``[2, E]``, made once."""
    edges: Tensor | None = adj.derived.get("edge_index")
    if edges is None:
        receivers = torch.repeat_interleave(adj.rowptr.diff(), output_size=adj.col.numel())
        edges = adj.derived["edge_index"] = torch.stack([adj.col, receivers])
    return edges
