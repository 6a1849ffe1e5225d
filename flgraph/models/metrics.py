"""Metrics of a task by name, as torchmetrics has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics.functional import classification, regression

from flgraph.errors import expect


def _share(predicted: Tensor, target: Tensor, **kwargs: Any) -> Tensor:
    """The bits of ``multiclass_accuracy(average="micro")`` in a fifth of its time, which is a small model's layer."""
    return (predicted == target).sum().float() / max(target.numel(), 1)


def _macro_f1(predicted: Tensor, target: Tensor, num_classes: int, **kwargs: Any) -> Tensor:
    """The bits of ``multiclass_f1_score(average="macro")``, for the same reason."""
    right = torch.bincount(target[predicted == target], minlength=num_classes)
    there = torch.bincount(predicted, minlength=num_classes) + torch.bincount(target, minlength=num_classes)
    return (2 * right / there.clamp(min=1) / (there > 0).sum().clamp(min=1)).sum()


_OF_CLASSES: dict[str, tuple[Callable[..., Tensor], dict[str, Any]]] = {
    "accuracy": (_share, {}),
    "balanced_accuracy": (classification.multiclass_recall, {"average": "none"}),
    "f1": (_macro_f1, {}),
    "precision": (classification.multiclass_precision, {"average": "macro"}),
    "recall": (classification.multiclass_recall, {"average": "macro"}),
    "specificity": (classification.multiclass_specificity, {"average": "macro"}),
    "cohen_kappa": (classification.multiclass_cohen_kappa, {}),
    "matthews_corrcoef": (classification.multiclass_matthews_corrcoef, {}),
}
"""Of predicted classes."""

_OF_SCORES: dict[str, Callable[..., Tensor]] = {
    "auroc": classification.binary_auroc,
    "average_precision": classification.binary_average_precision,
}
"""Of one class against all others, or of a label's presence."""

_OF_SEVERAL = ("specificity", "cohen_kappa", "matthews_corrcoef", *_OF_SCORES)
"""What has no meaning where all is of one class: right or wrong, it would be the same number, or 0 / 0."""

_OF_LABELS: dict[str, Callable[..., Tensor]] = {
    "f1": classification.binary_f1_score,
    "precision": classification.binary_precision,
    "recall": classification.binary_recall,
    "specificity": classification.binary_specificity,
}
"""Of one label, predicted or not."""

_OF_NUMBERS: dict[str, Callable[..., Tensor]] = {
    "rmse": lambda guess, truth: regression.mean_squared_error(guess, truth, squared=False),
    "mae": regression.mean_absolute_error,
    "mse": regression.mean_squared_error,
    "r2": regression.r2_score,
}
"""Of one column."""

METRICS = {
    "multiclass": (*_OF_CLASSES, *_OF_SCORES),
    "multilabel": ("accuracy", "exact_match", *_OF_LABELS, *_OF_SCORES),
    "regression": tuple(_OF_NUMBERS),
}
"""Names that ``--model.metrics`` takes, for each task."""

DEFAULT_METRICS = {"multiclass": ("accuracy", "f1"), "multilabel": ("accuracy", "f1"), "regression": ("rmse", "mae")}
"""What is logged where nothing else is asked for."""


def ranked(metric: Callable[..., Tensor], scores: Tensor, truth: Tensor) -> Tensor:
    """A metric of :data:`_OF_SCORES`, which looks at the order of scores only; NaN where one of them is not finite.

    Args:
        metric: takes scores from 0 to 1.
        scores: of any size ``[n]``: as probabilities, large ones would be equal.
        truth: 0 or 1 ``[n]``.
    """
    levels, rank = scores.unique(return_inverse=True)
    value = metric(rank.double() / max(1, levels.numel() - 1), truth.long(), validate_args=False).float()
    return value.where(scores.isfinite().all(), torch.nan)


def check_metrics(names: Sequence[str], task: str | None) -> None:
    """Raises :class:`~flgraph.errors.InputError` for names that a task (``None``: every one) has not, or twice."""
    known = METRICS[task] if task else tuple(dict.fromkeys(name for own in METRICS.values() for name in own))
    for name in names:
        expect(name in known, "model.metrics", f"names among {', '.join(known)}{f' for {task}' if task else ''}", name)
    expect(len(set(names)) == len(names), "model.metrics", "names that differ", list(names))


def task_metrics(task: str, names: Sequence[str], outputs: Tensor, target: Tensor) -> dict[str, Tensor]:
    """Metrics of an epoch, see :func:`class_metrics`, :func:`label_metrics` and :func:`number_metrics`."""
    measure = {"multiclass": class_metrics, "multilabel": label_metrics, "regression": number_metrics}[task]
    return measure(names, outputs, target)


def class_metrics(names: Sequence[str], logits: Tensor, target: Tensor) -> dict[str, Tensor]:
    """Metrics of classes.

    ``balanced_accuracy``, ``auroc`` and ``average_precision`` are means over the classes that are there: a client may
    have none of some class. Where all is of one class, the last two, ``specificity``, ``cohen_kappa`` and
    ``matthews_corrcoef`` have no meaning and are left out. With two classes the last two are those of the second, as it
    is used for binary tasks; they are NaN where logits are not finite.

    Args:
        names: among :data:`METRICS`.
        logits: ``[n, C]``, float32 at least.
        target: classes ``[n]``.

    >>> logits = torch.tensor([[2.0, 1.0], [0.0, 1.0], [1.0, 3.0]])
    >>> class_metrics(["accuracy", "auroc"], logits, torch.tensor([0, 1, 1]))
    {'accuracy': tensor(1.), 'auroc': tensor(1.)}
    """
    count, found = logits.size(1), dict[str, Tensor]()
    shown = [] if set(names).isdisjoint(_OF_SEVERAL) else target.unique().tolist()  # classes that are there
    # A class each: the metrics would otherwise find it themselves, every one of them.
    predicted = logits.argmax(dim=1)
    for name in names:
        if name in _OF_SEVERAL and len(shown) < 2:
            continue
        if name in _OF_CLASSES:
            metric, kwargs = _OF_CLASSES[name]
            value = metric(predicted, target, num_classes=count, validate_args=False, **kwargs)
            found[name] = value if value.dim() == 0 else value[target.unique()].mean()
        else:
            of = [(_log_odds(logits, c), target == c) for c in ([1] if count == 2 else shown)]
            found[name] = torch.stack([ranked(_OF_SCORES[name], *one) for one in of]).mean()
    return found


def label_metrics(names: Sequence[str], logits: Tensor, target: Tensor) -> dict[str, Tensor]:
    """Metrics of several labels; what is not known (NaN) does not count.

    ``accuracy`` is the share of all known entries that are predicted right, ``exact_match`` that of the rows all of
    whose known entries are. The others are means over the labels: ``auroc`` and ``average_precision`` over those that
    are present in some rows and absent in some, the rest over those that are known of some row. What has no meaning is
    left out.

    Args:
        names: among :data:`METRICS`.
        logits: ``[n, T]``, float32 at least.
        target: 0, 1 or NaN ``[n, T]``.

    >>> nan = float("nan")
    >>> logits, target = torch.tensor([[2.0, -1.0], [-3.0, 1.0]]), torch.tensor([[1.0, 1.0], [0.0, nan]])
    >>> {name: round(float(value), 3) for name, value in label_metrics(["accuracy", "auroc"], logits, target).items()}
    {'accuracy': 0.667, 'auroc': 1.0}
    """
    known = ~target.isnan()
    right = (logits > 0) == (target > 0.5)
    columns = _columns(logits, target)
    mixed = [(scores, truth) for scores, truth in columns if 0 < int(truth.sum()) < truth.numel()]
    found = dict[str, Tensor]()
    for name in names:
        if name == "accuracy":
            values = right[known].float()
        elif name == "exact_match":
            values = (right | ~known).all(dim=1)[known.any(dim=1)].float()
        else:
            if name in _OF_SCORES:
                each = [ranked(_OF_SCORES[name], *pair) for pair in mixed]
            else:
                of = [((scores > 0).long(), truth.long()) for scores, truth in columns]
                each = [_OF_LABELS[name](*one, validate_args=False) for one in of]
            values = torch.stack(each) if each else logits.new_zeros(0)
        if values.numel():
            found[name] = values.mean()
    return found


def number_metrics(names: Sequence[str], outputs: Tensor, target: Tensor) -> dict[str, Tensor]:
    """Metrics of numbers, means over the columns; what is not known (NaN) does not count.

    ``r2`` has no meaning for a column of equal numbers, which is left out.

    Args:
        names: among :data:`METRICS`.
        outputs: ``[n, T]``.
        target: ``[n, T]``.

    >>> number_metrics(["rmse", "mae"], torch.tensor([[1.0], [5.0]]), torch.tensor([[1.0], [2.0]]))
    {'rmse': tensor(2.1213), 'mae': tensor(1.5000)}
    """
    # In float64: sums of squares of large numbers would lose what differs.
    columns = _columns(outputs.double(), target.double())
    spread = [(guess, truth) for guess, truth in columns if bool((truth != truth[0]).any())]
    found = dict[str, Tensor]()
    for name in names:
        each = [_OF_NUMBERS[name](*pair) for pair in (spread if name == "r2" else columns)]
        if each:
            found[name] = torch.stack(each).mean().float()
    return found


def _log_odds(logits: Tensor, c: int) -> Tensor:
    """Of a class against all others: in the order of its probabilities, and as far apart as logits are."""
    own = logits.double()
    return own[:, c] - torch.cat([own[:, :c], own[:, c + 1 :]], dim=1).logsumexp(dim=1)


def _columns(outputs: Tensor, target: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Known entries of each column that has some, and what is said of them."""
    known = ~target.isnan()
    pairs = [(outputs[own, c], target[own, c]) for c, own in enumerate(known.t())]
    return [(guess, truth) for guess, truth in pairs if truth.numel()]
