"""A graph convolutional network on a whole graph, for nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from flgraph.models.nodes.classifier import NodeClassifier
from flgraph.nn import SparseGCNConv, gcn_matrix
from flgraph.nn.batches import TensorBatch, WholeGraph


@dataclass
class NeighbourSums(TensorBatch):
    r"""Neighbourhood sums of a client's nodes in a larger graph than its own (FedGCN).

    Args:
        nodes: numbers of the client's nodes in that graph ``[N]``; batches of the same nodes are meant.
        first: rows of :math:`\hat{A} X` of that graph, those of ``nodes`` first, then those of neighbours that
            the client does not hold ``[N + M, F]``, sparse CSR or dense.
        second: rows of :math:`\hat{A}` of ``nodes``, its columns as the rows of ``first``, ``[N, N + M]`` sparse CSR;
            the client's own graph is used when ``None`` (``M`` is then 0).
    """

    nodes: Tensor
    first: Tensor
    second: Tensor | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> NeighbourSums:
        """Itself: nothing changes it, and torch copies no sparse CSR."""
        return self


class NodeGCN(NodeClassifier[WholeGraph]):
    r"""Two graph convolutions with ReLU and dropout between them, on a whole graph at once.

    `"Semi-supervised Classification with Graph Convolutional Networks" <https://arxiv.org/abs/1609.02907>`_:
    :math:`\hat{A} \, \mathrm{relu}(\hat{A} X W_1 + b_1) W_2 + b_2` with
    :math:`\hat{A} = \tilde{D}^{-1/2} (A + I) \tilde{D}^{-1/2}`. After :meth:`use_sums`, the products with
    :math:`\hat{A}` are those of a larger graph that the batch's nodes are a part of (FedGCN).

    Args:
        in_channels: columns of the features; -1: given by the data.
        num_classes: number of classes; -1: given by the data.
        hidden_channels: columns between the layers.
        kwargs: see :class:`~flgraph.models.nodes.classifier.NodeClassifier`.

    Shapes:
        - **input:** a :class:`~flgraph.nn.batches.WholeGraph`
        - **output:** logits of the nodes ``index``, ``[n, num_classes]``
    """

    takes_samples: ClassVar[bool] = True

    def __init__(self, in_channels: int = -1, num_classes: int = -1, hidden_channels: int = 512, **kwargs: Any) -> None:
        super().__init__(in_channels, num_classes, hidden_channels, **kwargs)
        self.sums: NeighbourSums | None = None
        if not self.is_template:
            sizes = ((in_channels, hidden_channels), (hidden_channels, num_classes))
            self.convs = torch.nn.ModuleList(SparseGCNConv(*size) for size in sizes)

    def use_sums(self, sums: NeighbourSums | None) -> None:
        """Sets what is used in place of the client's own graph for batches of these nodes.

        It is no part of the weights, but of checkpoints.
        """
        self.sums = sums

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds the sums, so that the module gives the same logits wherever it is loaded."""
        checkpoint["known_neighbours"] = None if self.sums is None else dict(vars(self.sums.to("cpu")))

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Puts them back."""
        stored = checkpoint.get("known_neighbours")
        self.use_sums(None if stored is None else NeighbourSums(**stored))

    def encode(self, batch: WholeGraph) -> Tensor:
        """What the second convolution gets: a row per node; after :meth:`use_sums` of ``second`` per column of it."""
        self.check_batch(batch, WholeGraph)
        sums = self._sums_of(batch.nodes)
        conv: Any = self.convs[0]
        if sums is None:
            hidden = conv(batch.x, gcn_matrix(batch.adj))
        else:
            hidden = conv(sums.first if sums.first.is_sparse_csr else sums.first.to(conv.weight.dtype), None)
        return self.dropout(hidden, rectify=True)

    def head(self, encoded: Tensor, batch: WholeGraph) -> Tensor:
        """Logits of the nodes ``batch.index``."""
        sums = self._sums_of(batch.nodes)
        matrix = gcn_matrix(batch.adj) if sums is None or sums.second is None else sums.second
        logits: Tensor = self.convs[1](encoded, matrix)
        return logits.index_select(0, batch.index)

    def _sums_of(self, nodes: Tensor) -> NeighbourSums | None:
        """The sums of these nodes; nothing where they are another graph's, such as the global test graph's."""
        if self.sums is None:
            return None
        if self.sums.nodes.device != nodes.device:
            self.sums = self.sums.to(nodes.device)
        return self.sums if torch.equal(self.sums.nodes, nodes) else None
