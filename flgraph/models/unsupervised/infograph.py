"""Sun et al., "InfoGraph: Unsupervised and Semi-supervised Graph-Level Representation Learning", ICLR 2020."""

from __future__ import annotations

from typing import Any, get_args

from torch import Tensor
from torch_geometric.data import Data

from flgraph.errors import expect
from flgraph.models.base import expect_positive
from flgraph.models.graphs import inputs
from flgraph.models.unsupervised.base import Encoded, GraphEmbedding
from flgraph.nn import GINEncoder, NormName, Projection, jsd_contrast


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
        kwargs: see :class:`~flgraph.models.GraphEmbedding` and :class:`~flgraph.models.base.SizedModule`.

    Shapes:
        - **input:** a PyG batch of ``N`` nodes and ``B`` graphs with ``x [N, in_channels]``, ``edge_index`` or ``adj``,
          and ``batch [N]``
        - **output:** embeddings ``[B, num_layers * hidden_channels]``
    """

    def __init__(
        self,
        in_channels: int = -1,
        num_classes: int = -1,
        hidden_channels: int = 32,
        num_layers: int = 5,
        norm: NormName = "batch",
        **kwargs: Any,
    ) -> None:
        super().__init__(in_channels, num_classes, **kwargs)
        expect_positive(hidden_channels=hidden_channels, num_layers=num_layers)
        expect(norm in get_args(NormName), "model.norm", "none, batch or batch_per_view", norm)
        if self.is_template:
            return
        self.encoder = GINEncoder(in_channels, hidden_channels, num_layers, norm)
        self.local_projection = Projection(self.encoder.out_channels, self.encoder.out_channels)
        self.global_projection = Projection(self.encoder.out_channels, self.encoder.out_channels)

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
