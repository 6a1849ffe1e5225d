"""What all models that learn from labels have in common: loss, metrics, and the checks of what users give."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, ClassVar, Generic, TypeVar

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch_geometric.data import Data

from flgraph.errors import InputError, expect
from flgraph.models.base import FurtherLoss, SizedModule, expect_sizes
from flgraph.models.metrics import DEFAULT_METRICS, check_metrics, task_metrics
from flgraph.nn import at_least_float32
from flgraph.nn.batches import EgoBatch, HeteroBatch, WholeGraph
from flgraph.nn.modes import evaluating
from flgraph.nn.tasks import PREDICTED, Task, check_targets, check_task, task_loss, task_predictions

BatchT = TypeVar("BatchT", Data, EgoBatch, WholeGraph, HeteroBatch)
"""What a classifier may get: PyG's batch of graphs, or a batch of nodes."""


class Classifier(SizedModule, ABC, Generic[BatchT]):
    """A class, labels or numbers of each graph or node: a base for modules that represent a batch (:meth:`encode`).

    :meth:`head` makes logits of representations, :meth:`forward` does one after the other. An algorithm may add a loss
    on representations (:attr:`further_loss`). They are called without a Trainer, too: what a subclass logs, it logs in
    steps.

    Sizes of -1 are given by the data, see :class:`~flgraph.models.base.SizedModule`.

    The task decides loss, targets and metrics, and nothing else (:mod:`flgraph.nn.tasks`).

    Logs ``loss`` and ``metrics``, by default ``accuracy`` (which is micro F1) and ``f1`` (macro), of numbers ``rmse``
    and ``mae``, of each epoch under ``train/``, ``val/`` and ``test/``; of a second test loader, or of one that says so
    (:meth:`test_stage`), under ``global_test/``. Evaluations have ``samples``, too, the number of graphs or nodes that
    they are of.

    Args:
        num_classes: number of classes, of labels, or of numbers; -1: given by the data.
        task: ``multiclass``, ``multilabel`` or ``regression``; the data's when ``None``, the first where it says
            nothing. Two classes are ``multiclass``.
        metrics: names of what is logged beside the loss, see :mod:`flgraph.models.metrics`; the task's when ``None``.
        class_weights: how much each class, or the presence of each label, counts in the loss, a number above 0 for
            each in the order of their numbers (own files: of ``data.classes``); all alike when ``None``.
        kwargs: see :class:`~flgraph.models.base.SizedModule`.

    Raises:
        InputError: a hyper-parameter or a batch cannot be used.
    """

    tasks: ClassVar[tuple[str, ...]] = ("multiclass", "multilabel", "regression")
    """What it can learn."""

    class_weights: Tensor | None
    further_loss: FurtherLoss | None = None
    """Added to the loss in training, where somebody sets it; no part of the model's state, nor of what is logged. It
    gets the batch and its :meth:`rows`, of float32 at least."""
    log_prior: Tensor | None = None
    """Added to the logits ``[C]`` in the loss of training, where somebody sets it (logit adjustment); no part of the
    model's state."""

    def __init__(
        self,
        num_classes: int,
        metrics: Sequence[str] | None = None,
        class_weights: Sequence[float] | None = None,
        task: Task | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        expect(num_classes != 0, "data", f"one with labels, from which {type(self).__name__} learns,", "none")
        expect_sizes(num_classes=num_classes)
        if task is not None:
            check_task(task, "model.task")
            expect(task in self.tasks, "model.task", f"{' or '.join(self.tasks)} for {type(self).__name__}", task)
        if num_classes == -1 and task is None:  # the data will say
            check_metrics(metrics or (), None)
        self.num_classes, self.task = num_classes, task or "multiclass"
        self.metrics = list(DEFAULT_METRICS[self.task] if metrics is None else metrics)
        if num_classes != -1 or task is not None:
            check_metrics(self.metrics, self.task)
        if class_weights is not None:
            wanted = "null for regression, which has no classes,"
            expect(task != "regression", "model.class_weights", wanted, list(class_weights))
            _check_weights(class_weights, num_classes)
        # No part of the model's state: it is given whenever a model is made.
        weights = None if class_weights is None else torch.tensor(class_weights, dtype=torch.float32)
        self.register_buffer("class_weights", weights, persistent=False)

    @property
    def predicted(self) -> str:
        """What :meth:`predict_step` gives, see :mod:`flgraph.runs.predictions`."""
        return PREDICTED[self.task]

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
        """The loss of a training batch, and :attr:`further_loss` if there is one."""
        if self.further_loss is None:
            return self._step(batch, "train")
        encoded = self.encode(batch)
        logits = at_least_float32(self.head(encoded, batch))
        loss = self._score(logits, self._labels(batch, logits.size(0)), "train")
        return loss + self.further_loss(batch, at_least_float32(self.rows(encoded, batch)))

    def validation_step(self, batch: BatchT, batch_idx: int = 0) -> Tensor:
        """The loss of a validation batch."""
        return self._step(batch, "val")

    def test_step(self, batch: BatchT, batch_idx: int = 0, dataloader_idx: int = 0) -> Tensor:
        """The loss of a test batch."""
        return self._step(batch, self.test_stage(dataloader_idx))

    def predict_step(self, batch: BatchT, batch_idx: int = 0) -> Tensor:
        """Probabilities of the classes or labels, or the numbers, ``[B, num_classes]``."""
        return task_predictions(self.task, at_least_float32(self(batch)))

    # ------------------------------------------------------------------------------------- evaluation without a Trainer
    @property
    def measures(self) -> bool:
        """Whether :meth:`measure` tells what a Trainer would: no subclass has steps or hooks of its own for that."""
        order: list[type] = type(self).mro()
        holders: list[Any] = [self, *order[: order.index(Classifier)]]
        return not any(name in vars(holder) for holder in holders for name in _EVALUATION)

    @property
    def validation_names(self) -> tuple[str, ...] | None:
        """The loss and :attr:`metrics`, unless a subclass has steps or metrics of its own."""
        own = self.measures and type(self).epoch_metrics is Classifier.epoch_metrics
        return (*self.metrics, "loss") if own else None

    def measure(
        self, batches: Iterable[tuple[str, BatchT]], context: Callable[[], AbstractContextManager[Any]] = nullcontext
    ) -> dict[str, float]:
        """The metrics of a Trainer's ``validate`` and ``test``, which take ten times as long for few batches.

        Validation and test nodes of one whole graph share a forward pass.

        Args:
            batches: stage (``val``, ``test``, ``global_test``) and batch, on the module's device.
            context: of each forward pass; for example a precision plugin's ``val_step_context``.
        """
        self._collected.clear()
        with evaluating(self):
            for stages, batch in _with_graphs_joined(batches):
                with context():
                    logits = at_least_float32(self(batch))
                    counts = list(stages.values()) if len(stages) > 1 else [logits.size(0)]
                    labels = self._labels(batch, logits.size(0))
                    for stage, own, y in zip(stages, logits.split(counts), labels.split(counts), strict=True):
                        self._score(own, y, stage)
            found = {stage: self.epoch_metrics(stage, parts) for stage, parts in self._collected.items()}
        self._collected.clear()
        return {f"{stage}/{name}": float(value) for stage, values in found.items() for name, value in values.items()}

    def _step(self, batch: BatchT, stage: str) -> Tensor:
        logits = at_least_float32(self(batch))
        return self._score(logits, self._labels(batch, logits.size(0)), stage)

    def _score(self, logits: Tensor, labels: Tensor, stage: str) -> Tensor:
        """The mean loss, and what the epoch's metrics need of it."""
        prior = self.log_prior if stage == "train" else None
        loss = self._weighted_loss(logits if prior is None else logits + prior.to(logits), labels)
        # An update of the metrics costs as much as a layer of a small model, so there is one per epoch, not per step.
        self.collect(stage, (loss.detach(), logits.detach(), labels))
        return loss

    def _weighted_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The task's mean loss, with ``class_weights``, of logits ``[n, num_classes]`` and their labels."""
        weights = None if self.class_weights is None else self.class_weights.to(logits)
        return task_loss(self.task, logits, labels, weights)

    def _labels(self, batch: BatchT, count: int) -> Tensor:
        labels = labels_of(batch)
        if self.task != "multiclass":
            return self._targets(labels, count)
        expect(labels.numel() == count, "batch.y", f"{count} classes, one per graph or node", list(labels.shape))
        expect(not labels.is_floating_point(), "batch.y", "of an integer type", labels.dtype)
        # Elsewhere a look at the values would make the host wait for the device at every step; there the loss itself
        # stops the run at a class out of range.
        if labels.device.type == "cpu" and count:
            low, high = (int(bound) for bound in labels.aminmax())
            fits = low >= 0 and high < self.num_classes
            expect(fits, "batch.y", f"classes from 0 to {self.num_classes - 1}", high if low >= 0 else low)
        return labels.view(-1).long()

    def _targets(self, y: Tensor, count: int) -> Tensor:
        """Labels or numbers ``[count, num_classes]``."""
        wanted = f"floats of shape [{count}, {self.num_classes}] for {self.task} (see `data.task`)"
        fits = y.numel() == count * self.num_classes and y.is_floating_point()
        expect(fits, "batch.y", wanted, f"{y.dtype} of shape {list(y.shape)}")
        if y.device.type == "cpu":
            check_targets(y, self.task, "batch.y")
        return y.view(count, self.num_classes)

    def epoch_metrics(self, stage: str, parts: list[tuple[Tensor, Tensor, Tensor]]) -> dict[str, Tensor]:
        """``loss`` and the metrics, and the ``samples`` of an evaluation."""
        losses, logits, labels = zip(*parts, strict=True)
        target = torch.cat(labels)
        counts = [len(part) for part in labels]
        values = task_metrics(self.task, self.metrics, torch.cat(logits).float(), target)
        # A batch's loss is the mean over what is known in it; with weights of classes it is divided by their sum.
        gaps = target.is_floating_point() and bool(target.isnan().any())
        known = [int((~part.isnan()).sum()) for part in labels] if gaps else counts
        each = torch.stack(losses).float()
        if any(known) and self.task == "multiclass" and self.class_weights is not None:
            share = torch.stack([self.class_weights.to(each)[part].sum() for part in labels])
            values["loss"] = each[share > 0] @ share[share > 0] / share.sum()
        elif any(known):
            # Summed once per sample: weights would be rounded otherwise.
            values["loss"] = each.repeat_interleave(torch.tensor(known, device=target.device)).sum() / sum(known)
        return values if stage == "train" else {**values, "samples": torch.tensor(float(sum(counts)))}


def _check_weights(weights: Sequence[float], num_classes: int) -> None:
    fits = num_classes in (-1, len(weights))
    expect(fits, "model.class_weights", f"{num_classes} numbers, one for each class,", list(weights))
    valid = all(0 < weight < float("inf") for weight in weights)  # of weights of 0 there is no mean
    expect(valid, "model.class_weights", "finite numbers above 0", list(weights))


_EVALUATION = [
    name
    for name in dir(pl.LightningModule)
    if name.startswith(("on_validation_", "on_test_", "on_before_batch_", "on_after_batch_", "log"))
] + ["validation_step", "test_step", "setup", "teardown", "configure_callbacks"]
"""What decides how a Trainer evaluates, except for what :class:`Classifier` has of it."""


def _with_graphs_joined(batches: Iterable[tuple[str, BatchT]]) -> Iterator[tuple[dict[str, int], BatchT]]:
    """Batches, and how many of their nodes or graphs belong to which stage, one stage after another.

    Those that follow each other and are of the same whole graph become one.
    """
    last: tuple[dict[str, int], Any] | None = None
    for stage, batch in batches:
        if last is not None:
            stages, before = last
            if (
                isinstance(batch, WholeGraph)
                and batch.x is before.x
                and batch.adj is before.adj
                and stage not in stages
            ):
                index, y = torch.cat([before.index, batch.index]), torch.cat([before.y, batch.y])
                last = {**stages, stage: len(batch.y)}, replace(before, index=index, y=y)
                continue
            yield last
        last = {stage: len(batch.y) if isinstance(batch, WholeGraph) else 0}, batch
    if last is not None:
        yield last


def labels_of(batch: Data | EgoBatch | WholeGraph | HeteroBatch) -> Tensor:
    """The classes of a batch.

    Raises:
        InputError: it has none.
    """
    labels: Tensor | None = batch.get("y") if isinstance(batch, Data) else batch.y
    if labels is None:
        raise InputError("batch.y", "one class per graph or node", "none")
    return labels
