"""FCLG: Li et al., "Federated Contrastive Learning of Graph-Level Representations", 2023."""

from __future__ import annotations

from typing import Any, get_args

from torch import Tensor
from torch_geometric.data import Data

from flgraph.errors import expect
from flgraph.models.base import OptimizerName, expect_positive
from flgraph.models.graphs import inputs
from flgraph.models.unsupervised.base import EmbeddingName, Encoded, GraphEmbedding
from flgraph.nn import Adjacency, GINEncoder, NormName, Similarity, instance_contrast


class FCLG(GraphEmbedding):
    r"""A graph isomorphism network that tells graphs apart by two views of each: its edges and their diffusion.

    .. math::
        \mathbf{H} = \mathrm{concat}_l \, \mathbf{H}^{(l)}, \qquad
        \mathbf{u}_G = \sum_{i \in G} \mathbf{h}_i, \qquad
        \mathbf{v}_G \text{ the same on the diffused graph}

    The loss is the intra-contrast :func:`~flgraph.nn.instance_contrast` of :math:`\mathbf{u}` and :math:`\mathbf{v}`
    (Eq. 5 and 6); embeddings are :math:`\mathbf{u}`, of which a cosine sees the direction only. The inter-contrast with
    other models' representations is added by :class:`flgraph.callbacks.FCLG`; without it, in any Trainer, this is the
    paper's local learner.

    Args:
        in_channels: columns of the node features; -1: given by the data.
        num_classes: number of clusters in a test; -1: given by the data.
        hidden_channels: columns of each layer.
        num_layers: number of graph isomorphism layers.
        norm: ``batch`` normalisation after each layer, ``batch_per_view``, or ``none``; see
            :class:`~flgraph.nn.GINEncoder`.
        temperature: :math:`\tau` of Eq. 5.
        similarity: ``cosine``, as in SimCLR, whose loss Eq. 5 is, or ``dot``, as it is written.
        lr: learning rate.
        weight_decay: weight decay.
        optimizer: ``adamw``, as in the paper, ``adam`` or ``sgd``.
        embedding: ``unit``, the direction of :math:`\mathbf{u}`; ``raw``, :math:`\mathbf{u}` itself; or ``log``, see
            :func:`~flgraph.models.unsupervised.base.embedded`.
        kwargs: see :class:`~flgraph.models.GraphEmbedding` and :class:`~flgraph.models.base.SizedModule`.

    Shapes:
        - **input:** a PyG batch of ``N`` nodes and ``B`` graphs with ``x [N, in_channels]``, ``edge_index`` or ``adj``,
          ``batch [N]`` and, except for prediction and tests, ``diffused``, a :class:`~flgraph.nn.WeightedAdjacency`
        - **output:** embeddings ``[B, num_layers * hidden_channels]``
    """

    def __init__(
        self,
        in_channels: int = -1,
        num_classes: int = -1,
        hidden_channels: int = 32,
        num_layers: int = 3,
        norm: NormName = "none",
        temperature: float = 0.5,
        similarity: Similarity = "cosine",
        lr: float = 1e-3,
        weight_decay: float = 1e-2,
        optimizer: OptimizerName = "adamw",
        embedding: EmbeddingName = "unit",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            in_channels, num_classes, embedding, lr=lr, weight_decay=weight_decay, optimizer=optimizer, **kwargs
        )
        expect_positive(hidden_channels=hidden_channels, num_layers=num_layers)
        expect(0 < temperature < float("inf"), "model.temperature", "a positive, finite number", temperature)
        expect(similarity in get_args(Similarity), "model.similarity", "cosine or dot", similarity)
        expect(norm in get_args(NormName), "model.norm", "none, batch or batch_per_view", norm)
        self.temperature, self.similarity = temperature, similarity
        if self.is_template:
            return
        self.encoder = GINEncoder(in_channels, hidden_channels, num_layers, norm)

    def encode(self, batch: Data) -> Encoded:
        """Representations on the graphs' own edges."""
        return self.encode_views(batch, inputs.neighbours(batch))[0]

    def contrast(self, batch: Data) -> tuple[Tensor, Encoded]:
        """The intra-contrast (Eq. 6) of the graphs and their diffusion."""
        own, other = self.encode_views(batch, inputs.neighbours(batch), self.view(batch))
        return instance_contrast(own.graphs, other.graphs, self.temperature, self.similarity), own

    def encode_views(self, batch: Data, *adjacencies: Adjacency) -> list[Encoded]:
        """Representations with each of some neighbourhoods: the graphs' own edges, or another view."""
        self.check_sizes()
        x = inputs.features(batch, self.in_channels, self.encoder.dtype)
        return [Encoded(nodes, self.pooled(batch, nodes)) for nodes in self.encoder.views(x, adjacencies)]
