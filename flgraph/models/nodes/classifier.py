"""What all node classifiers have in common: sizes, and the checks of their batches."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

from torch import Tensor

from flgraph.errors import expect
from flgraph.models.base import expect_positive, expect_share, expect_sizes
from flgraph.models.classifier import Classifier
from flgraph.nn import Dropout
from flgraph.nn.batches import EgoBatch, SampledGraph, WholeGraph

NodeBatchT = TypeVar("NodeBatchT", EgoBatch, WholeGraph)

_WANTED = {
    WholeGraph: "one whose batches are whole graphs, such as flgraph.data.WholeGraphFederation,",
    EgoBatch: "one whose batches are ego-graphs, such as NodeFederation, or NodeClients with `ego_graphs: true`,",
}


class NodeClassifier(Classifier[NodeBatchT]):
    """One class per node: a base for networks on a whole graph at once, or on ego-graphs.

    Args:
        in_channels: columns of the node features; -1: given by the data.
        num_classes: number of classes; -1: given by the data.
        hidden_channels: columns of all hidden layers.
        dropout: probability of a zero after each hidden layer.
        kwargs: see :class:`~flgraph.models.base.SizedModule`.

    Attributes:
        takes_samples: whether a batch may be a part of a graph, with sampled neighbours.
    """

    takes_samples: ClassVar[bool] = False

    def __init__(
        self,
        in_channels: int = -1,
        num_classes: int = -1,
        hidden_channels: int = 64,
        dropout: float = 0.5,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_classes, **kwargs)
        expect_sizes(in_channels=in_channels)
        expect_positive(hidden_channels=hidden_channels)
        expect_share(dropout=dropout)
        self.in_channels, self.hidden_channels = in_channels, hidden_channels
        self.dropout = Dropout(dropout)

    def rows(self, encoded: Tensor, batch: NodeBatchT) -> Tensor:
        """The representations of the nodes to classify: on a whole graph all nodes have one."""
        return encoded.index_select(0, batch.index) if isinstance(batch, WholeGraph) else encoded

    def check_batch(self, batch: NodeBatchT, kind: type[WholeGraph] | type[EgoBatch]) -> None:
        """What subclasses call first in ``encode``.

        Raises:
            InputError: the module is a template, or the batch is of another kind, or of other columns.
        """
        expect(isinstance(batch, kind), "data", _WANTED[kind], f"batches of type {type(batch).__name__}")
        self.check_sizes()
        whole = self.takes_samples or not isinstance(batch, SampledGraph)
        expect(whole, "data.sampled", f"false for {type(self).__name__}, which needs whole graphs,", True)
        fits = batch.x.dim() == 2 and batch.x.size(1) == self.in_channels
        expect(fits, "batch.x", f"of shape [nodes, {self.in_channels}]", list(batch.x.shape))
