"""What all graph classifiers have in common: the layers after the encoder, and what they read of a batch."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, get_args

import torch
from torch import Tensor
from torch_geometric.data import Data

from flgraph.errors import expect
from flgraph.models.base import expect_positive, expect_share, expect_sizes
from flgraph.models.classifier import Classifier
from flgraph.models.graphs import inputs
from flgraph.nn import Adjacency, Dropout, OneHot, PoolName, graph_pool
from flgraph.nn.precision import product_type


class GraphClassifier(Classifier[Data]):
    """One class per graph: a base for modules that turn a batch into one row per graph (:meth:`encode_graphs`).

    Sizes of -1 are given by the data, see :class:`~flgraph.models.base.SizedModule`. Subclasses build their layers, and
    then call :meth:`add_head`, where :attr:`is_template` is false.

    Args:
        in_channels: columns of the node features; -1: given by the data.
        num_classes: number of classes; -1: given by the data.
        hidden_channels: columns of all hidden layers.
        num_layers: number of graph convolutions.
        dropout: probability of a zero after each hidden layer.
        pool: how the nodes of a graph become one row: ``sum``, ``mean`` or ``max``.
        lr: learning rate.
        weight_decay: weight decay (an L2 penalty, except with ``adamw``).
        kwargs: see :class:`~flgraph.models.base.SizedModule`.

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
        **kwargs: Any,
    ) -> None:
        super().__init__(num_classes, lr=lr, weight_decay=weight_decay, **kwargs)
        expect_sizes(in_channels=in_channels)
        expect_positive(hidden_channels=hidden_channels, num_layers=num_layers)
        expect_share(dropout=dropout)
        expect(pool in get_args(PoolName), "model.pool", f"one of {', '.join(get_args(PoolName))}", pool)
        self.in_channels, self.hidden_channels = in_channels, hidden_channels
        self.num_layers, self.pool = num_layers, pool
        self.dropout = Dropout(dropout)

    def add_head(self) -> None:
        """Adds what follows the encoder: ``post`` and ``readout``. Subclasses call it last."""
        self.post = torch.nn.Linear(self.hidden_channels, self.hidden_channels)
        self.readout = torch.nn.Linear(self.hidden_channels, self.num_classes)

    # ---------------------------------------------------------------------------------------------------- forward
    @abstractmethod
    def encode_graphs(self, batch: Data) -> Tensor:
        """What ``post`` gets: one row per graph ``[B, hidden_channels]``; what a subclass must say."""

    def encode(self, batch: Data) -> Tensor:
        """What ``readout`` gets: one row per graph ``[B, hidden_channels]``."""
        self.check_sizes()
        return self.dropout(self.post(self.encode_graphs(batch)), rectify=True)

    def head(self, encoded: Tensor, batch: Data) -> Tensor:
        """Logits ``[B, num_classes]``."""
        logits: Tensor = self.readout(encoded)
        return logits

    def node_input(self, batch: Data, name: str, columns: int) -> Tensor:
        """See :func:`~flgraph.models.graphs.inputs.node_input`; in the precision of the products."""
        return inputs.node_input(batch, name, columns, product_type(self.readout.weight))

    def features(self, batch: Data) -> Tensor | OneHot:
        """The input ``x``, see :func:`~flgraph.models.graphs.inputs.features`."""
        return inputs.features(batch, self.in_channels, product_type(self.readout.weight))

    def neighbours(self, batch: Data) -> Adjacency:
        """The adjacency that the batch brings along, or a new one of its edges."""
        return inputs.neighbours(batch)

    def pool_nodes(self, batch: Data, *rows: Tensor) -> list[Tensor]:
        """Each of ``rows [N, C]`` pooled to ``[B, C]``. Data without a batch vector counts as one graph."""
        graph, count = inputs.graph_of_nodes(batch, rows[0].device)
        return [graph_pool(row, graph, count, self.pool) for row in rows]
