"""What all graph classifiers have in common: the layers after the encoder, and what they read of a batch."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor
from torch_geometric.data import Data

from flgraph.errors import expect
from flgraph.models.classifier import Classifier, OptimizerName
from flgraph.models.graphs import inputs
from flgraph.nn import Adjacency, Dropout, OneHot, PoolName, graph_pool


class GraphClassifier(Classifier):
    """One class per graph: a base for modules that turn a batch into one row per graph (:meth:`encode`).

    Sizes of -1 are given by the data, see :class:`Classifier`. Subclasses call ``save_hyperparameters()``, build their
    layers, and then call :meth:`add_head`, where :attr:`is_template` is false.

    Args:
        in_channels: columns of the node features.
        num_classes: number of classes.
        hidden_channels: columns of all hidden layers.
        num_layers: number of graph convolutions.
        dropout: probability of a zero after each hidden layer.
        pool: how the nodes of a graph become one row: ``sum``, ``mean`` or ``max``.
        lr: learning rate.
        weight_decay: weight decay (an L2 penalty, except with ``adamw``).
        optimizer: ``adam``, ``adamw`` or ``sgd``.

    Shapes:
        - **input:** a PyG batch with ``x [N, in_channels]``, ``edge_index [2, E]``, ``batch [N]`` and, except for
          prediction, ``y [B]``; its ``adj``, an :class:`~flgraph.nn.Adjacency`, is used where it has one
        - **output:** logits ``[B, num_classes]``

    Raises:
        InputError: a hyper-parameter or a batch cannot be used.
    """

    def __init__(
        self,
        in_channels: int = -1,
        num_classes: int = -1,
        hidden_channels: int = 64,
        num_layers: int = 3,
        dropout: float = 0.5,
        pool: PoolName = "sum",
        lr: float = 1e-3,
        weight_decay: float = 5e-4,
        optimizer: OptimizerName = "adam",
    ) -> None:
        super().__init__(in_channels, num_classes, lr, weight_decay, optimizer)
        for name, size in (("hidden_channels", hidden_channels), ("num_layers", num_layers)):
            expect(size >= 1, f"model.{name}", "a positive integer", size)
        expect(0 <= dropout < 1, "model.dropout", "at least 0 and less than 1", dropout)
        self.pool = graph_pool(pool, field="model.pool")
        self.hidden_channels, self.num_layers, self.pool_name = hidden_channels, num_layers, pool
        self.dropout = Dropout(dropout)

    def add_head(self) -> None:
        """Adds what follows the encoder: ``post`` and ``readout``. Subclasses call it last."""
        self.post = torch.nn.Linear(self.hidden_channels, self.hidden_channels)
        self.readout = torch.nn.Linear(self.hidden_channels, self.num_classes)

    # ---------------------------------------------------------------------------------------------------- forward
    @abstractmethod
    def encode(self, batch: Data) -> Tensor:
        """One row per graph ``[B, hidden_channels]``; what a subclass must say."""

    def forward(self, batch: Data) -> Tensor:
        """Logits ``[B, num_classes]``."""
        self.check_sizes()
        h: Tensor = self.encode(batch)
        logits: Tensor = self.readout(self.dropout(self.post(h), rectify=True))
        return logits

    def node_input(self, batch: Data, name: str, columns: int) -> Tensor:
        """See :func:`~flgraph.models.graphs.inputs.node_input`; in the precision of the weights."""
        return inputs.node_input(batch, name, columns, self.post.weight.dtype)

    def features(self, batch: Data) -> Tensor | OneHot:
        """The input ``x``, see :func:`~flgraph.models.graphs.inputs.features`."""
        return inputs.features(batch, self.in_channels, self.post.weight.dtype)

    def neighbours(self, batch: Data) -> Adjacency:
        """The adjacency that the batch brings along, or a new one of its edges."""
        return inputs.neighbours(batch)

    def pool_nodes(self, batch: Data, *rows: Tensor) -> list[Tensor]:
        """Each of ``rows [N, C]`` pooled to ``[B, C]``. Data without a batch vector counts as one graph."""
        graph, count = inputs.graph_of_nodes(batch, rows[0].device)
        return [self.pool(row, graph, count) for row in rows]
