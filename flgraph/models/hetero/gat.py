"""Attention over typed neighbours, with weights that do not tell the graph's schema."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from flgraph.errors import expect
from flgraph.models.base import expect_positive
from flgraph.models.classifier import Classifier
from flgraph.models.hetero.inputs import HeteroInputs
from flgraph.nn import TypedAttentionConv
from flgraph.nn.batches import HeteroBatch


class HeteroGAT(HeteroInputs, Classifier[HeteroBatch]):
    r"""Node classification on a heterogeneous graph by attention, for FedHGN (Fu and King, IJCAI 2023, Section 4.1).

    FedHGN is a framework for any network whose weights belong to node types, to edge types or to neither; this one has
    all three. Layers are :class:`~flgraph.nn.TypedAttentionConv` (attention as in Simple-HGN): projections of node
    types and vectors of edge types are combinations of bases, attention and biases belong to no type. All layers are
    followed by an ELU, the last by a linear classifier.

    Parameters by name, beside those that :class:`RGCN` has before its layers (``embedding.weight``, ``inputs.T.*``):

    ==============================  ==========================================================================
    ``convs.L.nodes.coefficients``  ``[node types, num_bases]``: of this graph's schema
    ``convs.L.edges.coefficients``  ``[num_relations, num_bases]``: of this graph's schema
    ``convs.L.nodes.bases``         of no schema, as ``convs.L.edges.bases``, ``convs.L.attention``,
                                    ``convs.L.bias`` and ``classifier.*``
    ==============================  ==========================================================================

    Args:
        num_nodes: number of nodes of each type; -1: given by the data.
        num_relations: number of edge types; -1: given by the data.
        num_classes: number of classes; -1: given by the data.
        num_features: columns of each node type's features, 0 where it has none; -1: given by the data.
        hidden_channels: columns of embeddings and layers.
        num_layers: number of layers.
        num_bases: bases in each layer, of node types and of edge types.
        heads: attention heads; must divide ``hidden_channels``.
        edge_channels: columns of a head's vectors of edge types.
        kwargs: see :class:`~flgraph.models.base.SizedModule`.

    Shapes:
        - **input:** a :class:`~flgraph.nn.batches.HeteroBatch`
        - **output:** logits of the nodes ``index``, ``[n, num_classes]``
    """

    tasks: ClassVar[tuple[str, ...]] = ("multiclass",)
    data_sizes: ClassVar[tuple[str, ...]] = ("num_nodes", "num_relations", "num_classes", "num_features")

    def __init__(
        self,
        num_nodes: list[int] | int = -1,
        num_relations: int = -1,
        num_classes: int = -1,
        num_features: list[int] | int = -1,
        hidden_channels: int = 64,
        num_layers: int = 2,
        num_bases: int = 20,
        heads: int = 4,
        edge_channels: int = 16,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_classes, **kwargs)
        expect_positive(hidden_channels=hidden_channels, num_layers=num_layers)
        check_attention(hidden_channels, num_bases, heads, edge_channels)
        self.num_nodes, self.num_relations, self.num_features = num_nodes, num_relations, num_features
        self._check_types()
        if self.is_template:
            return
        assert not isinstance(num_nodes, int)
        self._make_inputs(hidden_channels)
        sizes = (hidden_channels, len(num_nodes), num_relations, num_bases, heads, edge_channels)
        self.convs = torch.nn.ModuleList([TypedAttentionConv(*sizes) for _ in range(num_layers)])
        self.classifier = torch.nn.Linear(hidden_channels, num_classes)

    def encode(self, batch: HeteroBatch) -> Tensor:
        """What the classifier gets of the nodes ``batch.index``, ``[n, hidden_channels]``."""
        self.check_sizes()
        h, types = self._embed(batch.x), self._types_of_nodes(batch.x)
        self._check_relations(batch, "types")
        for conv in self.convs[:-1]:
            h = F.elu(conv(h, types, batch.relations))
        return F.elu(self.convs[-1](h, types, batch.last, batch.index))

    def head(self, encoded: Tensor, batch: HeteroBatch) -> Tensor:
        """Logits of the nodes ``batch.index``."""
        logits: Tensor = self.classifier(encoded)
        return logits


def check_attention(channels: int, num_bases: int, heads: int, edge_channels: int) -> None:
    """Checks the sizes of attention layers.

    Raises:
        InputError: there is none of something, or heads do not divide the channels.
    """
    expect_positive(num_bases=num_bases, heads=heads, edge_channels=edge_channels)
    expect(channels % heads == 0, "model.heads", f"a divisor of {channels}, the hidden channels,", heads)
