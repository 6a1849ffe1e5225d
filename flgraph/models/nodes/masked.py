"""A graph convolutional network with masked weights, for nodes (FED-PUB)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from flgraph.models.base import expect_finite
from flgraph.models.nodes.classifier import NodeClassifier
from flgraph.nn import gcn_matrix
from flgraph.nn.batches import WholeGraph
from flgraph.nn.conv.masked import MaskedGCNConv, MaskedLinear


class MaskedGCN(NodeClassifier[WholeGraph]):
    r"""Two graph convolutions and a linear classifier, whose weights are multiplied by masks, on a whole graph at once.

    `"Personalized Subgraph Federated Learning" <https://arxiv.org/abs/2206.10206>`_, with the layers of its published
    code; ReLU and dropout after each convolution.

    Args:
        in_channels: columns of the features; -1: given by the data.
        num_classes: number of classes; -1: given by the data.
        hidden_channels: columns of both convolutions' output.
        prune: outside of training, entries of masks below this in absolute value count as 0.
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
        prune: float = 1e-3,
        **kwargs: Any,
    ) -> None:
        super().__init__(in_channels, num_classes, hidden_channels, **kwargs)
        expect_finite(prune=prune)
        if not self.is_template:
            sizes = ((in_channels, hidden_channels), (hidden_channels, hidden_channels))
            self.convs = torch.nn.ModuleList(MaskedGCNConv(*size, prune=prune) for size in sizes)
            self.classifier = MaskedLinear(hidden_channels, num_classes, prune=prune)

    def convolve(self, batch: WholeGraph) -> Tensor:
        """What the second convolution gives, before its ReLU, ``[N, hidden_channels]``."""
        self.check_batch(batch, WholeGraph)
        matrix = gcn_matrix(batch.adj)
        hidden = self.dropout(self.convs[0](batch.x, matrix), rectify=True)
        out: Tensor = self.convs[1](hidden, matrix)
        return out

    def encode(self, batch: WholeGraph) -> Tensor:
        """What the classifier gets, a row per node ``[N, hidden_channels]``."""
        return self.dropout(self.convolve(batch), rectify=True)

    def head(self, encoded: Tensor, batch: WholeGraph) -> Tensor:
        """Logits of the nodes ``batch.index``."""
        logits: Tensor = self.classifier(encoded.index_select(0, batch.index))
        return logits
