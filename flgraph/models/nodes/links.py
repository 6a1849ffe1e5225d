"""Link prediction on a graph of one kind of nodes."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from flgraph.errors import expect
from flgraph.models.base import expect_positive, expect_share, expect_sizes
from flgraph.models.links import (
    LinkModule,
    area_under_roc,
    average_precision,
    binary_link_loss,
    hits,
    mean_reciprocal_rank,
    pair_scores,
)
from flgraph.nn import Dropout, SparseGCNConv, SparseSAGEConv, gcn_matrix
from flgraph.nn.batches import GraphLinks


class NodeLinks(LinkModule):
    r"""Tells a graph's links from pairs that are none, as graph autoencoders do.

    `"Variational Graph Auto-Encoders" <https://arxiv.org/abs/1611.07308>`_, without the variational part. Two layers
    of GCN or GraphSAGE give representations :math:`\mathbf{h}`. A pair has the score :math:`\mathbf{h}_i^\top
    \mathbf{h}_j`, or that of a perceptron of one hidden layer on :math:`\mathbf{h}_i \odot \mathbf{h}_j`. Training
    minimises the binary cross-entropy of links and random pairs.

    Logs ``auroc``, ``average_precision``, ``mrr`` and ``hits_at_10`` beside the loss, see
    :class:`~flgraph.models.links.LinkModule`. Monitor ``val/auroc``.

    Args:
        in_channels: columns of the features; -1: given by the data.
        hidden_channels: columns of both layers.
        encoder: ``gcn`` or ``sage``.
        decoder: ``dot`` or ``mlp``.
        dropout: probability of a zero after the first layer.
        num_negatives: random nodes per link and step.
        kwargs: see :class:`~flgraph.models.base.SizedModule`.

    Shapes:
        - **input:** a :class:`~flgraph.nn.batches.GraphLinks` of ``P`` links
        - **output:** scores of the links, ``[P]``
    """

    data_sizes: ClassVar[tuple[str, ...]] = ("in_channels",)

    def __init__(
        self,
        in_channels: int = -1,
        hidden_channels: int = 64,
        encoder: Literal["gcn", "sage"] = "gcn",
        decoder: Literal["dot", "mlp"] = "dot",
        dropout: float = 0.0,
        num_negatives: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        expect_sizes(in_channels=in_channels)
        expect_positive(hidden_channels=hidden_channels, num_negatives=num_negatives)
        expect_share(dropout=dropout)
        expect(encoder in ("gcn", "sage"), "model.encoder", "gcn or sage", encoder)
        expect(decoder in ("dot", "mlp"), "model.decoder", "dot or mlp", decoder)
        self.in_channels, self.hidden_channels, self.encoder = in_channels, hidden_channels, encoder
        self.num_negatives, self.dropout = num_negatives, Dropout(dropout)
        if self.is_template:
            return
        make = SparseGCNConv if encoder == "gcn" else SparseSAGEConv
        self.convs = torch.nn.ModuleList(make(size, hidden_channels) for size in (in_channels, hidden_channels))
        self.decoder = None
        if decoder == "mlp":
            layers = torch.nn.Linear(hidden_channels, hidden_channels), torch.nn.ReLU()
            self.decoder = torch.nn.Sequential(*layers, torch.nn.Linear(hidden_channels, 1))

    def encode(self, batch: GraphLinks) -> Tensor:
        """Representations of all nodes ``[N, hidden_channels]``."""
        self.check_sizes()
        wanted = "one whose batches are links, such as flgraph.data.WholeGraphFederation with `task: links`,"
        expect(isinstance(batch, GraphLinks), "data", wanted, f"batches of type {type(batch).__name__}")
        h: Tensor = batch.x
        for number, conv in enumerate(self.convs):
            h = conv(h, gcn_matrix(batch.adj)) if self.encoder == "gcn" else conv([h], batch.adj)
            h = self.dropout(h, rectify=True) if number == 0 else h
        return h

    def scores(self, h: Tensor, batch: GraphLinks, targets: Tensor) -> Tensor:
        """Scores of the links' sources with ``targets [P, k]``, ``[P, k]``."""
        source = h.index_select(0, batch.source)
        if self.decoder is None:
            return pair_scores(h, source, targets)
        other = h.index_select(0, targets.flatten()).view(*targets.shape, h.size(1))
        found: Tensor = self.decoder(source.unsqueeze(1) * other).squeeze(2)
        return found

    def link_loss(self, links: Tensor, negatives: Tensor) -> Tensor:
        """Binary cross-entropy."""
        return binary_link_loss(links, negatives)

    def metrics(self, links: Tensor, negatives: Tensor) -> dict[str, Tensor]:
        """Of scores of links and of what they compete with."""
        return {
            "auroc": area_under_roc(links, negatives),
            "average_precision": average_precision(links, negatives),
            "mrr": mean_reciprocal_rank(links, negatives),
            "hits_at_10": hits(links, negatives, 10),
        }
