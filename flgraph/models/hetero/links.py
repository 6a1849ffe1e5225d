"""Link prediction on a heterogeneous graph, with weights that do not tell the graph's schema."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, get_args

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.nn import functional as F
from torchmetrics.functional.classification import binary_auroc

from flgraph.errors import InputError, expect
from flgraph.models.base import OPTIMIZERS, OptimizerName
from flgraph.models.hetero.gat import check_attention
from flgraph.models.hetero.inputs import HeteroInputs
from flgraph.nn import BasisRGCNConv, BasisWeights, RelationMean, TypedAttentionConv

EncoderName = Literal["rgcn", "gat"]
DecoderName = Literal["distmult", "dot"]


class LinkPredictor(pl.LightningModule, HeteroInputs):
    r"""Tells a heterogeneous graph's links from pairs that are none (FedHGN, Fu and King, IJCAI 2023, Section 4.3).

    Node representations come from the layers of :class:`RGCN` or of :class:`HeteroGAT`; a link from :math:`i` to
    :math:`j` of relation :math:`r` has the score :math:`\sum_c h_{ic} d_{rc} h_{jc}` (DistMult, whose vectors
    :math:`\mathbf{d}_r` are combinations of bases, too), or the dot product of the two. Training minimises the ranking
    loss :math:`\max(0, m - s_{\mathrm{link}} + s_{\mathrm{other}})` over links and random nodes of the targets' types.

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
        num_bases: bases of each kind in each layer, and of the decoder.
        heads: attention heads of ``gat``; must divide ``hidden_channels``.
        edge_channels: columns of a head's vectors of edge types of ``gat``.
        margin: :math:`m`.
        num_negatives: random nodes per link and step.
        lr: learning rate.
        weight_decay: weight decay (an L2 penalty, except with ``adamw``).
        optimizer: ``adam``, ``adamw`` or ``sgd``.

    Shapes:
        - **input:** a :class:`~flgraph.data.LinkBatch` of ``P`` links
        - **output:** scores of the links, ``[P]``
    """

    predicted: ClassVar[str] = "scores"
    """What ``predict`` gives; no probabilities."""

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
        lr: float = 0.01,
        weight_decay: float = 0.0,
        optimizer: OptimizerName = "adam",
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        for field, size in (("hidden_channels", hidden_channels), ("num_layers", num_layers), ("num_bases", num_bases)):
            expect(size >= 1, f"model.{field}", "a positive integer", size)
        expect(num_negatives >= 1, "model.num_negatives", "a positive integer", num_negatives)
        expect(encoder in get_args(EncoderName), "model.encoder", "rgcn or gat", encoder)
        expect(decoder in get_args(DecoderName), "model.decoder", "distmult or dot", decoder)
        for name, value in (("margin", margin), ("lr", lr), ("weight_decay", weight_decay)):
            expect(0 <= value < float("inf"), f"model.{name}", "a finite number, 0 or more", value)
        expect(optimizer in OPTIMIZERS, "model.optimizer", f"one of {', '.join(OPTIMIZERS)}", optimizer)
        check_attention(hidden_channels, num_bases, heads, edge_channels)
        self.num_nodes, self.num_relations, self.num_features = num_nodes, num_relations, num_features
        self.margin, self.num_negatives, self.lr, self.weight_decay = margin, num_negatives, lr, weight_decay
        self.optimizer_name = optimizer
        self._check_types()
        if self.is_template:
            return
        expect(num_relations >= 1, "model.num_relations", "a positive integer", num_relations)
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

    @property
    def is_template(self) -> bool:
        """Whether a size is still to be given by the data."""
        return -1 in (self.num_nodes, self.num_relations, self.num_features)

    def encode(self, batch: Any) -> Tensor:
        """Representations of all nodes ``[N, hidden_channels]``."""
        if self.is_template:
            raise InputError(
                "Expected the model's sizes to be given before it is called but got -1, given by the data."
            )
        h, kinds = self._embed(batch.x), self._kinds()
        self._check_relations(batch.relations)
        for number, conv in enumerate(self.convs):
            typed = isinstance(conv, TypedAttentionConv)
            h = conv(h, kinds, batch.relations) if typed else conv(h, batch.relations)
            if number < len(self.convs) - 1:
                h = torch.relu(h)
        return h

    def scores(self, h: Tensor, batch: Any, targets: Tensor) -> Tensor:
        """Scores of the links' sources with ``targets [P, k]``, ``[P, k]``."""
        source = h.index_select(0, batch.source)
        if self.decoder is not None:
            source = source * self.decoder()[:, 0].index_select(0, batch.row)
        other = h.index_select(0, targets.flatten()).view(*targets.shape, h.size(1))
        return torch.einsum("pc,pkc->pk", source, other)

    def forward(self, batch: Any) -> Tensor:
        """Scores of the links."""
        return self.scores(self.encode(batch), batch, batch.target.unsqueeze(1))[:, 0]

    # ------------------------------------------------------------------------------------------------------ steps
    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Leaves a batch as it is that was made on its device."""
        return batch if batch.target.device == device else batch.to(device)

    def training_step(self, batch: Any, batch_idx: int = 0) -> Tensor:
        """The ranking loss with newly drawn nodes."""
        h = self.encode(batch)
        loss = self._loss(*self._against(h, batch, batch.draw_negatives(self.num_negatives)))
        self.log("train/loss", loss, on_step=False, on_epoch=True, batch_size=batch.target.numel())
        return loss

    def validation_step(self, batch: Any, batch_idx: int = 0) -> None:
        """Metrics of held-back links."""
        self._report(batch, "val")

    def test_step(self, batch: Any, batch_idx: int = 0) -> None:
        """Metrics of held-back links."""
        self._report(batch, "test")

    def predict_step(self, batch: Any, batch_idx: int = 0) -> Tensor:
        """Scores of the links ``[P, 1]``."""
        return self(batch).unsqueeze(1)

    def _against(self, h: Tensor, batch: Any, others: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of the links ``[P, 1]`` and of what they compete with ``[P, k]``."""
        every = self.scores(h, batch, torch.cat([batch.target.unsqueeze(1), others], dim=1))
        return every[:, :1], every[:, 1:]

    def _loss(self, links: Tensor, others: Tensor) -> Tensor:
        return F.relu(self.margin - links + others).mean()

    def _report(self, batch: Any, stage: str) -> None:
        links, others = self._against(self.encode(batch), batch, batch.negatives)
        values = {"loss": self._loss(links, others), "mrr": mean_reciprocal_rank(links, others)}
        values["auc"] = area_under_roc(links, others)
        count = batch.target.numel()
        self.log_dict({f"{stage}/{name}": value for name, value in values.items()}, batch_size=count)
        self.log(f"{stage}/samples", float(count), reduce_fx="sum", batch_size=count)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimizer that the hyper-parameters name, over all parameters."""
        optimizer: torch.optim.Optimizer = OPTIMIZERS[self.optimizer_name](
            self.parameters(), lr=self.lr, weight_decay=self.weight_decay
        )
        return optimizer


def mean_reciprocal_rank(links: Tensor, others: Tensor) -> Tensor:
    """The mean over links of 1 / rank among what they compete with; an equal score counts half a place.

    Args:
        links: scores ``[P, 1]``; NaN among these or the others makes the result NaN.
        others: scores ``[P, k]``.
    """
    ranks = 1 + (others > links).sum(1) + 0.5 * (others == links).sum(1)
    return _if_finite(ranks.reciprocal().mean(), links, others)


def area_under_roc(links: Tensor, others: Tensor) -> Tensor:
    """The share of pairs of a link and another in which the link has the higher score; an equal one counts half.

    Args:
        links: scores ``[P, 1]``; NaN among these or the others makes the result NaN.
        others: scores ``[P, k]``.
    """
    scores = torch.cat([links, others], dim=1).flatten()
    truth = torch.cat([torch.ones_like(links), torch.zeros_like(others)], dim=1).flatten().long()
    # Places, as torchmetrics would take a sigmoid of scores, which makes large ones equal.
    levels, place = scores.unique(return_inverse=True)
    area = binary_auroc(place.double() / max(1, levels.numel() - 1), truth)
    return _if_finite(area.to(torch.float32), links, others)


def _if_finite(value: Tensor, *scores: Tensor) -> Tensor:
    """NaN where some scores are none: every comparison with them is false, which would be the best rank."""
    sound = torch.stack([part.isfinite().all() for part in scores]).all()
    return torch.where(sound, value, torch.full_like(value, float("nan")))
