"""What all classifiers have in common: loss, metrics, and the checks of what users give."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Data
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

from flgraph.errors import InputError, expect
from flgraph.models.base import FurtherLoss, SizedModule, expect_sizes
from flgraph.nn import at_least_float32
from flgraph.nn.batches import EgoBatch, HeteroBatch, WholeGraph

BatchT = TypeVar("BatchT", Data, EgoBatch, WholeGraph, HeteroBatch)
"""What a classifier may get: PyG's batch of graphs, or a batch of nodes."""


class Classifier(SizedModule, ABC, Generic[BatchT]):
    """One class per graph or node: a base for modules that represent a batch (:meth:`encode`), and classify it.

    :meth:`head` makes logits of representations, :meth:`forward` does one after the other. An algorithm may add a loss
    on representations (:attr:`further_loss`).

    Sizes of -1 are given by the data, see :class:`~flgraph.models.base.SizedModule`.

    Logs ``loss``, ``accuracy`` (which is micro F1) and ``f1`` (macro) of each epoch under ``train/``, ``val/`` and
    ``test/``; of a second test loader, or of one that says so (:meth:`test_stage`), under ``global_test/``. Evaluations
    have ``samples``, too, the number of graphs or nodes that they are of.

    Args:
        num_classes: number of classes; -1: given by the data.
        kwargs: see :class:`~flgraph.models.base.SizedModule`.

    Raises:
        InputError: a hyper-parameter or a batch cannot be used.
    """

    further_loss: FurtherLoss | None = None
    """Added to the loss in training, where somebody sets it; no part of the model's state, nor of what is logged. It
    gets the batch and its :meth:`rows`, of float32 at least."""

    def __init__(self, num_classes: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        expect_sizes(num_classes=num_classes)
        self.num_classes = num_classes

    # -------------------------------------------------------------------------------------- what a subclass must say
    @abstractmethod
    def encode(self, batch: BatchT) -> Tensor:
        """Representations before the last layer, ``[M, D]``: of graphs, or of nodes, the labelled ones among them."""

    @abstractmethod
    def head(self, encoded: Tensor, batch: BatchT) -> Tensor:
        """Logits ``[B, num_classes]`` from what :meth:`encode` made of the batch."""

    def rows(self, encoded: Tensor, batch: BatchT) -> Tensor:
        """The representation of every graph or node that a label is of, ``[B, D]``; all of them by default."""
        return encoded

    def forward(self, batch: BatchT) -> Tensor:
        """Logits ``[B, num_classes]``."""
        return self.head(self.encode(batch), batch)

    def represent(self, batch: BatchT) -> Tensor:
        """What :attr:`further_loss` gets of a batch, ``[B, D]``."""
        return at_least_float32(self.rows(self.encode(batch), batch))

    # ------------------------------------------------------------------------------------------------------ steps
    def training_step(self, batch: BatchT, batch_idx: int = 0) -> Tensor:
        """Cross-entropy of a training batch, and :attr:`further_loss` if there is one."""
        if self.further_loss is None:
            return self._step(batch, "train")
        encoded = self.encode(batch)
        logits = at_least_float32(self.head(encoded, batch))
        loss = self._score(logits, self._labels(batch, logits.size(0)), "train")
        return loss + self.further_loss(batch, at_least_float32(self.rows(encoded, batch)))

    def validation_step(self, batch: BatchT, batch_idx: int = 0) -> Tensor:
        """Cross-entropy of a validation batch."""
        return self._step(batch, "val")

    def test_step(self, batch: BatchT, batch_idx: int = 0, dataloader_idx: int = 0) -> Tensor:
        """Cross-entropy of a test batch."""
        return self._step(batch, self.test_stage(dataloader_idx))

    def predict_step(self, batch: BatchT, batch_idx: int = 0) -> Tensor:
        """Class probabilities ``[B, num_classes]``."""
        return at_least_float32(self(batch)).softmax(dim=-1)

    def _step(self, batch: BatchT, stage: str) -> Tensor:
        logits = at_least_float32(self(batch))
        return self._score(logits, self._labels(batch, logits.size(0)), stage)

    def _score(self, logits: Tensor, labels: Tensor, stage: str) -> Tensor:
        """The mean cross-entropy, and what the epoch's metrics need of it."""
        loss = F.cross_entropy(logits, labels)
        # An update of the metrics costs as much as a layer of a small model, so there is one per epoch, not per step.
        self.collect(stage, (loss.detach(), logits.detach(), labels))
        return loss

    def _labels(self, batch: BatchT, count: int) -> Tensor:
        labels = labels_of(batch)
        expect(labels.numel() == count, "batch.y", f"{count} classes, one per graph or node", list(labels.shape))
        expect(not labels.is_floating_point(), "batch.y", "of an integer type", labels.dtype)
        # Elsewhere a look at the values would make the host wait for the device at every step; there the loss itself
        # stops the run at a class out of range.
        if labels.device.type == "cpu" and count:
            low, high = (int(bound) for bound in labels.aminmax())
            fits = low >= 0 and high < self.num_classes
            expect(fits, "batch.y", f"classes from 0 to {self.num_classes - 1}", high if low >= 0 else low)
        return labels.view(-1).long()

    def epoch_metrics(self, stage: str, parts: list[tuple[Tensor, Tensor, Tensor]]) -> dict[str, Tensor]:
        """``loss``, ``accuracy`` and ``f1``, and the ``samples`` of an evaluation."""
        losses, logits, labels = zip(*parts, strict=True)
        metrics = shared_metrics(self.num_classes, losses[0].device)
        for metric in metrics.values():
            # Metrics would otherwise wait for all processes of a torch.distributed group, even where each of them
            # trains a module of its own.
            metric.distributed_available_fn = lambda: self.trainer.world_size > 1
        counts = torch.tensor([part.numel() for part in labels], device=losses[0].device)
        metrics.reset()  # here, since Lightning may have been in another inference mode the last time
        metrics.update(
            # Once per graph, because MeanMetric ignores weights where it does not look for NaN.
            value=torch.stack(losses).repeat_interleave(counts),
            preds=torch.cat(logits).float(),
            target=torch.cat(labels),
        )
        values: dict[str, Tensor] = metrics.compute()
        return values if stage == "train" else {**values, "samples": counts.sum().float()}


@lru_cache(maxsize=64)
def shared_metrics(num_classes: int, device: torch.device) -> MetricCollection:
    """Loss, accuracy and macro F1 of one epoch; reset them, update them once, and compute.

    All modules of a process share them: metric objects would take more time and memory than a small model itself, and
    each is used for a moment at the end of an epoch only.
    """
    return MetricCollection(
        {
            "loss": MeanMetric(nan_strategy="disable"),
            "accuracy": MulticlassAccuracy(num_classes, average="micro", validate_args=False),
            "f1": MulticlassF1Score(num_classes, average="macro", validate_args=False),
        },
        compute_groups=False,
    ).to(device)


def labels_of(batch: Data | EgoBatch | WholeGraph | HeteroBatch) -> Tensor:
    """The classes of a batch.

    Raises:
        InputError: it has none.
    """
    labels: Tensor | None = batch.get("y") if isinstance(batch, Data) else batch.y
    if labels is None:
        raise InputError("batch.y", "one class per graph or node", "none")
    return labels
