"""What models of links have in common: scores against negatives, losses and metrics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F
from torchmetrics.functional.classification import binary_auroc, binary_average_precision

from flgraph.models.base import SizedModule
from flgraph.models.metrics import ranked


class LinkModule(SizedModule, ABC):
    """Tells links from pairs that are none, by scores of pairs of node representations.

    Logs ``loss`` and the metrics of :meth:`metrics` under ``val/`` and ``test/``, with the number of links as
    ``samples``; ``train/loss`` in training. Batches have ``source [P]``, ``target [P]``, ``negatives [P, k]`` and
    ``draw_negatives``, see :class:`~flgraph.nn.batches.LinkBatch`.
    """

    test_stages: ClassVar[tuple[str, ...]] = ("test",)
    fused: ClassVar[bool] = False
    predicted: ClassVar[str] = "scores"
    """What ``predict`` gives; no probabilities."""

    num_negatives: int
    """Random nodes per link and step."""

    # ---------------------------------------------------------------------------------------- what a subclass must say
    @abstractmethod
    def encode(self, batch: Any) -> Tensor:
        """Representations of all nodes ``[N, C]``."""

    @abstractmethod
    def scores(self, h: Tensor, batch: Any, targets: Tensor) -> Tensor:
        """Scores of the links' sources with ``targets [P, k]``, ``[P, k]``."""

    @abstractmethod
    def link_loss(self, links: Tensor, negatives: Tensor) -> Tensor:
        """The loss of scores of links ``[P, 1]`` and of what they compete with ``[P, k]``."""

    def metrics(self, links: Tensor, negatives: Tensor) -> dict[str, Tensor]:
        """Metrics of the same scores."""
        return {"mrr": mean_reciprocal_rank(links, negatives), "auc": area_under_roc(links, negatives)}

    @property
    def validation_names(self) -> tuple[str, ...] | None:
        """The loss and :meth:`metrics`, unless a subclass has steps of its own."""
        own = type(self).validation_step is LinkModule.validation_step
        return (*self.metrics(torch.zeros(1, 1), torch.zeros(1, 1)), "loss") if own else None

    # ------------------------------------------------------------------------------------------------------ steps
    def forward(self, batch: Any) -> Tensor:
        """Scores of the links ``[P]``."""
        return self.scores(self.encode(batch), batch, batch.target.unsqueeze(1))[:, 0]

    def training_step(self, batch: Any, batch_idx: int = 0) -> Tensor:
        """The loss with newly drawn nodes."""
        h = self.encode(batch)
        loss = self.link_loss(*self._against(h, batch, batch.draw_negatives(self.num_negatives)))
        self.log("train/loss", loss, on_step=False, on_epoch=True, batch_size=batch.target.numel())
        return loss

    def validation_step(self, batch: Any, batch_idx: int = 0) -> None:
        """Metrics of held-out links."""
        self._report(batch, "val")

    def test_step(self, batch: Any, batch_idx: int = 0, dataloader_idx: int = 0) -> None:
        """Metrics of held-out links."""
        self._report(batch, self.test_stage(dataloader_idx))

    def predict_step(self, batch: Any, batch_idx: int = 0) -> Tensor:
        """Scores of the links ``[P, 1]``."""
        return self(batch).unsqueeze(1)

    def _against(self, h: Tensor, batch: Any, negatives: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of the links ``[P, 1]`` and of what they compete with ``[P, k]``."""
        every = self.scores(h, batch, torch.cat([batch.target.unsqueeze(1), negatives], dim=1))
        return every[:, :1], every[:, 1:]

    def _report(self, batch: Any, stage: str) -> None:
        assert batch.negatives is not None, "evaluations have fixed negatives"
        links, negatives = self._against(self.encode(batch), batch, batch.negatives)
        values = {"loss": self.link_loss(links, negatives), **self.metrics(links, negatives)}
        count = batch.target.numel()
        self.log_dict({f"{stage}/{name}": value for name, value in values.items()}, batch_size=count)
        self.log(f"{stage}/samples", float(count), reduce_fx="sum", batch_size=count)


def pair_scores(h: Tensor, source: Tensor, targets: Tensor) -> Tensor:
    """Dot products of rows ``source [P, C]`` with rows ``targets [P, k]`` of ``h [N, C]``, ``[P, k]``."""
    other = h.index_select(0, targets.flatten()).view(*targets.shape, h.size(1))
    return torch.einsum("pc,pkc->pk", source, other)


def binary_link_loss(links: Tensor, negatives: Tensor) -> Tensor:
    """Binary cross-entropy of scores as logits, links and negatives counting half each."""
    return (F.softplus(-links).mean() + F.softplus(negatives).mean()) / 2


def _ranks(links: Tensor, negatives: Tensor) -> Tensor:
    """The rank of each link among what it competes with ``[P]``; an equal score counts half a rank."""
    return 1 + (negatives > links).sum(1) + 0.5 * (negatives == links).sum(1)


def mean_reciprocal_rank(links: Tensor, negatives: Tensor) -> Tensor:
    """The mean over links of 1 / rank among what they compete with; an equal score counts half a rank.

    Args:
        links: scores ``[P, 1]``; NaN among these or the negatives makes the result NaN.
        negatives: scores ``[P, k]``.
    """
    return _if_finite(_ranks(links, negatives).reciprocal().mean(), links, negatives)


def hits(links: Tensor, negatives: Tensor, k: int) -> Tensor:
    """The share of links with a rank of ``k`` or better, see :func:`mean_reciprocal_rank`."""
    return _if_finite((_ranks(links, negatives) <= k).float().mean(), links, negatives)


def area_under_roc(links: Tensor, negatives: Tensor) -> Tensor:
    """The share of pairs of a link and another in which the link has the higher score; an equal one counts half.

    Args:
        links: scores ``[P, 1]``; NaN among these or the negatives makes the result NaN.
        negatives: scores ``[P, k]``.
    """
    return ranked(binary_auroc, *_pairs(links, negatives))


def average_precision(links: Tensor, negatives: Tensor) -> Tensor:
    """The area under precision and recall of the links among all pairs."""
    return ranked(binary_average_precision, *_pairs(links, negatives))


def _pairs(links: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor]:
    """All scores, and which are links'."""
    truth = torch.cat([torch.ones_like(links), torch.zeros_like(negatives)], dim=1)
    return torch.cat([links, negatives], dim=1).flatten(), truth.flatten()


def _if_finite(value: Tensor, *scores: Tensor) -> Tensor:
    """NaN where some scores are none: every comparison with them is false, which would be the best rank."""
    finite = torch.stack([part.isfinite().all() for part in scores]).all()
    return torch.where(finite, value, torch.full_like(value, float("nan")))
