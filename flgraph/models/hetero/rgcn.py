"""The network of FedHGN: relational graph convolutions on learned node embeddings."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from flgraph.errors import expect
from flgraph.models.base import OptimizerName, expect_positive
from flgraph.models.classifier import Classifier
from flgraph.models.hetero.inputs import HeteroInputs
from flgraph.nn import BasisRGCNConv, RelationMean, RGCNConv
from flgraph.nn.batches import HeteroBatch


class RGCN(HeteroInputs, Classifier[HeteroBatch]):
    r"""Node classification on a heterogeneous graph, with weights that do not tell the graph's schema.

    `"FedHGN: A Federated Framework for Heterogeneous Graph Neural Networks" <https://arxiv.org/abs/2305.09729>`_,
    Appendix C, and its published code. Every node has a learned embedding; node types with features have a linear map
    of these instead. The first layer adds up the means over each relation's neighbours, without a weight; further
    layers have a weight for each relation, :math:`\mathbf{W}_r = \sum_b \beta_{rb} \mathbf{V}_b` (Eq. 2), all but the
    last followed by a ReLU; then a ReLU and a linear classifier.

    Parameters by name:

    ==========================  ==============================================================================
    ``embedding.weight``        ``[nodes of types without features, hidden_channels]``: of this graph alone
    ``inputs.T.*``              linear map of node type number ``T``'s features: of this graph's schema
    ``convs.L.coefficients``    ``[num_relations, num_bases]``, a row per relation: of this graph's schema
    ``convs.L.bases``           ``[num_bases, hidden_channels, hidden_channels]``: of no schema
    ``convs.L.weight``          ``[num_relations, ...]`` instead of the two where there are no bases
    ``convs.L.bias``            of no schema, as ``classifier.*``
    ==========================  ==============================================================================

    Names of node types and relations are in none of them.

    Args:
        num_nodes: number of nodes of each type; -1: given by the data.
        num_relations: number of weights of a layer; -1: given by the data.
        num_classes: number of classes; -1: given by the data.
        num_features: columns of each node type's features, 0 where it has none; -1: given by the data.
        hidden_channels: columns of embeddings and layers.
        num_layers: number of layers, 2 or more.
        num_bases: bases of each layer with weights; 0 for a full weight per relation.
        lr: learning rate.
        optimizer: ``adam``, ``adamw`` or ``sgd``.
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
        lr: float = 0.1,
        optimizer: OptimizerName = "sgd",
        **kwargs: Any,
    ) -> None:
        super().__init__(num_classes, lr=lr, optimizer=optimizer, **kwargs)
        expect_positive(hidden_channels=hidden_channels)
        expect(num_layers >= 2, "model.num_layers", "2 or more", num_layers)
        expect(num_bases >= 0, "model.num_bases", "0 or more", num_bases)
        self.num_nodes, self.num_relations, self.num_features = num_nodes, num_relations, num_features
        self._check_types()
        if self.is_template:
            return
        self._make_inputs(hidden_channels)
        sizes = (hidden_channels, hidden_channels, num_relations)
        weighted = [BasisRGCNConv(*sizes, num_bases) if num_bases else RGCNConv(*sizes) for _ in range(num_layers - 1)]
        self.convs = torch.nn.ModuleList([RelationMean(hidden_channels), *weighted])
        self.classifier = torch.nn.Linear(hidden_channels, num_classes)

    def encode(self, batch: HeteroBatch) -> Tensor:
        """What the classifier gets of the nodes ``batch.index``, ``[n, hidden_channels]``."""
        self.check_sizes()
        h = self._embed(batch.x)
        self._check_relations(batch)
        for conv in self.convs[:-1]:
            h = torch.relu(conv(h, batch.relations))
        return torch.relu(self.convs[-1](h, batch.last))

    def head(self, encoded: Tensor, batch: HeteroBatch) -> Tensor:
        """Logits of the nodes ``batch.index``."""
        logits: Tensor = self.classifier(encoded)
        return logits
