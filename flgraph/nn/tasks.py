"""What is learned of a graph or node: a class, several labels, or numbers."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from flgraph.errors import InputError, expect

Task = Literal["multiclass", "multilabel", "regression"]
"""One class of several, numbered from 0; labels that are there (1) or not (0), of which none excludes another; or
numbers. Targets of the first are ``[n]`` int64, of the others ``[n, T]`` floats, NaN where one is not known."""

NodeTask = Literal[Task, "links"]
"""The same of nodes, or which of them are linked."""

PREDICTED = {"multiclass": "probabilities", "multilabel": "label_probabilities", "regression": "values"}
"""What a model of a task predicts."""


def check_task(task: str, field: str, tasks: Any = Task) -> None:
    """Raises :class:`~flgraph.errors.InputError` unless this is a task of these."""
    expect(task in get_args(tasks), field, f"one of {', '.join(get_args(tasks))}", task)


def check_targets(y: Tensor, task: str, field: str) -> None:
    """Raises :class:`~flgraph.errors.InputError` for targets ``[n, T]`` that are none of several labels, or infinite.

    Args:
        y: see :data:`Task`.
        task: ``multilabel`` or ``regression``.
        field: what an error message calls them.
    """
    unknown = y.isnan()
    labels = task == "multilabel"
    fits = (unknown | (y == 0) | (y == 1) if labels else ~y.isinf()).all()
    wanted = "0 or 1 for each label, or NaN," if labels else "finite numbers, or NaN,"
    if not bool(fits):
        raise InputError(field, wanted, "other numbers" if labels else "infinity")


def task_loss(task: str, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    r"""The mean loss of a batch: cross-entropy, binary cross-entropy of each label, or the squared error.

    Unknown targets (NaN) do not count; where none is known, the loss is 0.

    Args:
        task: see :data:`Task`.
        outputs: logits, or numbers ``[n, C]``.
        targets: classes ``[n]``, or ``[n, C]``.
        weights: how much each class counts, or the presence of each label beside its absence, ``[C]``.

    Example:
        >>> outputs, nan = torch.tensor([[1.0, 2.0], [0.0, 0.0]]), float("nan")
        >>> task_loss("regression", outputs, torch.tensor([[1.0, nan], [nan, 3.0]]))
        tensor(4.5000)
    """
    if task == "multiclass":
        return F.cross_entropy(outputs, targets, weights)
    known = ~targets.isnan()
    filled = torch.where(known, targets, 0).to(outputs)
    if task == "multilabel":
        losses = F.binary_cross_entropy_with_logits(outputs, filled, pos_weight=weights, reduction="none")
    else:
        losses = F.mse_loss(outputs, filled, reduction="none")
    return torch.where(known, losses, 0).sum() / known.sum().clamp(min=1)


def task_predictions(task: str, outputs: Tensor) -> Tensor:
    """Probabilities of classes, of each label, or the numbers, ``[n, C]``."""
    if task == "multiclass":
        return outputs.softmax(dim=-1)
    return outputs.sigmoid() if task == "multilabel" else outputs
