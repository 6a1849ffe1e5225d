"""What all classifiers have in common: loss, metrics, and the checks of what users give."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

from flgraph.errors import InputError, expect
from flgraph.models.base import OptimizerName, SizedModule


class Classifier(SizedModule, ABC):
    """One class per graph or node: a base for modules that turn a batch into logits (:meth:`forward`).

    Sizes of -1 are given by the data, see :class:`~flgraph.models.base.SizedModule`.

    Logs ``loss``, ``accuracy`` (which is micro F1) and ``f1`` (macro) of each epoch under ``train/``, ``val/`` and
    ``test/``; of a second test loader, or of one that says so (:meth:`test_stage`), under ``global_test/``. Evaluations
    have ``samples``, too, the number of graphs or nodes that they are of.

    Args:
        in_channels: columns of the features.
        num_classes: number of classes.
        lr: learning rate.
        weight_decay: weight decay (an L2 penalty, except with ``adamw``).
        optimizer: ``adam``, ``adamw`` or ``sgd``.

    Raises:
        InputError: a hyper-parameter or a batch cannot be used.
    """

    def __init__(
        self, in_channels: int, num_classes: int, lr: float, weight_decay: float, optimizer: OptimizerName
    ) -> None:
        super().__init__(in_channels, num_classes, lr, weight_decay, optimizer)
        self._seen: dict[str, list[tuple[Tensor, Tensor, Tensor]]] = defaultdict(list)

    @abstractmethod
    def forward(self, batch: Any) -> Tensor:
        """Logits ``[B, num_classes]``; what a subclass must say."""

    # ------------------------------------------------------------------------------------------------------ steps
    def training_step(self, batch: Any, batch_idx: int = 0) -> Tensor:
        """Cross-entropy of a training batch."""
        return self._step(batch, "train")

    def validation_step(self, batch: Any, batch_idx: int = 0) -> Tensor:
        """Cross-entropy of a validation batch."""
        return self._step(batch, "val")

    def test_step(self, batch: Any, batch_idx: int = 0, dataloader_idx: int = 0) -> Tensor:
        """Cross-entropy of a test batch."""
        return self._step(batch, self.test_stage(dataloader_idx))

    def predict_step(self, batch: Any, batch_idx: int = 0) -> Tensor:
        """Class probabilities ``[B, num_classes]``."""
        return at_least_float32(self(batch)).softmax(dim=-1)

    def _step(self, batch: Any, stage: str) -> Tensor:
        logits = at_least_float32(self(batch))
        return self._score(logits, self._labels(batch, logits.size(0)), stage)

    def _score(self, logits: Tensor, labels: Tensor, stage: str) -> Tensor:
        """The mean cross-entropy, and what the epoch's metrics need of it."""
        loss = F.cross_entropy(logits, labels)
        # An update of the metrics costs as much as a layer of a small model, so there is one per epoch, not per step.
        self._seen[stage].append((loss.detach(), logits.detach(), labels))
        return loss

    def _labels(self, batch: Any, count: int) -> Tensor:
        labels: Tensor | None = getattr(batch, "y", None)
        if labels is None:
            raise InputError("Expected `batch.y` to be one class per graph or node but the batch has none.")
        expect(labels.numel() == count, "batch.y", f"{count} classes, one per graph or node", list(labels.shape))
        expect(not labels.is_floating_point(), "batch.y", "of an integer type", labels.dtype)
        # Elsewhere a look at the values would make the host wait for the device at every step; there the loss itself
        # stops the run at a class out of range.
        if labels.device.type == "cpu" and count:
            low, high = (int(bound) for bound in labels.aminmax())
            fits = low >= 0 and high < self.num_classes
            expect(fits, "batch.y", f"classes from 0 to {self.num_classes - 1}", high if low >= 0 else low)
        return labels.view(-1).long()

    # ---------------------------------------------------------------------------------------------------- metrics
    def on_train_epoch_start(self) -> None:
        """Forgets what an interrupted epoch left."""
        self._seen.clear()

    def on_validation_epoch_start(self) -> None:
        """Forgets what an interrupted epoch left (but not the training epoch that this may be a part of)."""
        self._seen["val"].clear()

    def on_test_epoch_start(self) -> None:
        """Forgets what an interrupted epoch left."""
        self._seen.clear()

    def on_train_epoch_end(self) -> None:
        """Logs ``train/loss``, ``train/accuracy`` and ``train/f1``."""
        self._log_epoch("train")

    def on_validation_epoch_end(self) -> None:
        """Logs ``val/loss``, ``val/accuracy`` and ``val/f1``."""
        self._log_epoch("val")

    def on_test_epoch_end(self) -> None:
        """Logs ``test/loss``, ``test/accuracy`` and ``test/f1``, and the same of a second loader."""
        for stage in self.test_stages:
            self._log_epoch(stage)

    def _log_epoch(self, stage: str) -> None:
        seen = self._seen.pop(stage, [])
        if not seen:
            return
        losses, logits, labels = zip(*seen, strict=True)
        metrics = epoch_metrics(self.num_classes, losses[0].device)
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
        values = metrics.compute()
        if stage != "train":
            values["samples"] = counts.sum().float()
        self.log_dict({f"{stage}/{name}": value for name, value in values.items()}, batch_size=1)


@lru_cache(maxsize=64)
def epoch_metrics(num_classes: int, device: torch.device) -> MetricCollection:
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


def at_least_float32(tensor: Tensor) -> Tensor:
    """Half-precision tensors as float32, others as they are."""
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
