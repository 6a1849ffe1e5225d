"""Link prediction on a heterogeneous graph, with weights that do not tell the graph's schema."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from flgraph.errors import expect
from flgraph.models.base import expect_finite, expect_positive
from flgraph.models.hetero.gat import check_attention
from flgraph.models.hetero.inputs import HeteroInputs
from flgraph.models.links import LinkModule, pair_scores
from flgraph.nn import BasisRGCNConv, BasisWeights, RelationMean, TypedAttentionConv
from flgraph.nn.batches import LinkBatch

EncoderName = Literal["rgcn", "gat"]
DecoderName = Literal["distmult", "dot"]


class LinkPredictor(HeteroInputs, LinkModule):
    r"""Tells a heterogeneous graph's links from pairs that are none (FedHGN, Fu and King, IJCAI 2023, Section 4.3).

    Node representations come from the layers of :class:`RGCN` or of :class:`HeteroGAT`; a link from :math:`i` to
    :math:`j` of relation :math:`r` has the score :math:`\sum_c h_{ic} d_{rc} h_{jc}` (DistMult, whose vectors
    :math:`\mathbf{d}_r` are combinations of bases, too), or the dot product of the two. Training minimises the ranking
    loss :math:`\max(0, m - s_{\mathrm{link}} + s_{\mathrm{negative}})` over links and random nodes of
    the targets' types.

    Logs ``loss``, ``mrr`` (mean reciprocal rank of a link's target among those it competes with; ties count half) and
    ``auc`` under ``val/`` and ``test/``, with the number of links as ``samples``; ``train/loss`` in training. Monitor
    ``val/mrr``.

    Args:
        num_nodes: number of nodes of each type; -1: given by the data.
        num_relations: number of weights of a layer; -1: given by the data.
        num_features: columns of each node type's features, 0 where it has none; -1: given by the data.
        encoder: ``rgcn`` or ``gat``.
        decoder: ``distmult`` or ``dot``.
        hidden_channels: columns of embeddings and layers.
        num_layers: number of layers; the first of ``rgcn`` has no weight.
        num_bases: bases in each layer, and of the decoder.
        heads: attention heads of ``gat``; must divide ``hidden_channels``.
        edge_channels: columns of a head's vectors of edge types of ``gat``.
        margin: :math:`m`.
        num_negatives: random nodes per link and step.
        kwargs: see :class:`~flgraph.models.base.SizedModule`.

    Shapes:
        - **input:** a :class:`~flgraph.nn.batches.LinkBatch` of ``P`` links
        - **output:** scores of the links, ``[P]``
    """

    data_sizes: ClassVar[tuple[str, ...]] = ("num_nodes", "num_relations", "num_features")

    def __init__(
        self,
        num_nodes: list[int] | int = -1,
        num_relations: int = -1,
        num_features: list[int] | int = -1,
        encoder: EncoderName = "rgcn",
        decoder: DecoderName = "distmult",
        hidden_channels: int = 64,
        num_layers: int = 2,
        num_bases: int = 20,
        heads: int = 4,
        edge_channels: int = 16,
        margin: float = 1.0,
        num_negatives: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        expect_positive(hidden_channels=hidden_channels, num_layers=num_layers, num_negatives=num_negatives)
        expect(encoder in get_args(EncoderName), "model.encoder", "rgcn or gat", encoder)
        expect(decoder in get_args(DecoderName), "model.decoder", "distmult or dot", decoder)
        expect_finite(margin=margin)
        check_attention(hidden_channels, num_bases, heads, edge_channels)
        self.num_nodes, self.num_relations, self.num_features = num_nodes, num_relations, num_features
        self.margin, self.num_negatives = margin, num_negatives
        self._check_types()
        if self.is_template:
            return
        assert not isinstance(num_nodes, int)
        self._make_inputs(hidden_channels)
        layers: list[torch.nn.Module]
        if encoder == "gat":
            sizes = (hidden_channels, len(num_nodes), num_relations, num_bases, heads, edge_channels)
            layers = [TypedAttentionConv(*sizes) for _ in range(num_layers)]
        else:
            layers = [RelationMean(hidden_channels)]
            more = range(num_layers - 1)
            layers += [BasisRGCNConv(hidden_channels, hidden_channels, num_relations, num_bases) for _ in more]
        self.convs = torch.nn.ModuleList(layers)
        self.decoder = BasisWeights(num_relations, num_bases, 1, hidden_channels) if decoder == "distmult" else None

    def encode(self, batch: LinkBatch) -> Tensor:
        """Representations of all nodes ``[N, hidden_channels]``."""
        self.check_sizes()
        h, types = self._embed(batch.x), self._types_of_nodes(batch.x)
        self._check_relations(batch)
        for number, conv in enumerate(self.convs):
            typed = isinstance(conv, TypedAttentionConv)
            h = conv(h, types, batch.relations) if typed else conv(h, batch.relations)
            if number < len(self.convs) - 1:
                h = torch.relu(h)
        return h

    def scores(self, h: Tensor, batch: LinkBatch, targets: Tensor) -> Tensor:
        """Scores of the links' sources with ``targets [P, k]``, ``[P, k]``."""
        source = h.index_select(0, batch.source)
        if self.decoder is not None:
            source = source * self.decoder()[:, 0].index_select(0, batch.row)
        return pair_scores(h, source, targets)

    def link_loss(self, links: Tensor, negatives: Tensor) -> Tensor:
        """The ranking loss."""
        return F.relu(self.margin - links + negatives).mean()
