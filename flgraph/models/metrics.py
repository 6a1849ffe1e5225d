"""Metrics of classes by name, as torchmetrics has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics.functional import classification

from flgraph.errors import expect


def _share(predicted: Tensor, target: Tensor, **kwargs: Any) -> Tensor:
    """The bits of ``multiclass_accuracy(average="micro")`` in a fifth of its time, which is a small model's layer."""
    return (predicted == target).sum().float() / max(target.numel(), 1)


_OF_CLASSES: dict[str, tuple[Callable[..., Tensor], dict[str, Any]]] = {
    "accuracy": (_share, {}),
    "balanced_accuracy": (classification.multiclass_recall, {"average": "none"}),
    "f1": (classification.multiclass_f1_score, {"average": "macro"}),
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
"""Of one class against all others."""

METRICS = (*_OF_CLASSES, *_OF_SCORES)
"""Names that ``--model.metrics`` takes."""


def check_metrics(names: Sequence[str]) -> None:
    """Raises :class:`~flgraph.errors.InputError` for names that are none of :data:`METRICS`, or come twice."""
    for name in names:
        expect(name in METRICS, "model.metrics", f"names among {', '.join(METRICS)}", name)
    expect(len(set(names)) == len(names), "model.metrics", "names that differ", list(names))


def class_metrics(names: Sequence[str], logits: Tensor, target: Tensor) -> dict[str, Tensor]:
    """Metrics of an epoch.

    ``balanced_accuracy``, ``auroc`` and ``average_precision`` are means over the classes that are there: a client may
    have none of some class. Where ``auroc`` and ``average_precision`` have no meaning, since all is of one class, they
    are left out. With two classes they are those of the second, as it is used for binary tasks.

    Args:
        names: among :data:`METRICS`.
        logits: ``[n, C]``, float32 at least.
        target: classes ``[n]``.

    >>> logits = torch.tensor([[2.0, 1.0], [0.0, 1.0], [1.0, 3.0]])
    >>> class_metrics(["accuracy", "auroc"], logits, torch.tensor([0, 1, 1]))
    {'accuracy': tensor(1.), 'auroc': tensor(1.)}
    """
    count, found = logits.size(1), dict[str, Tensor]()
    shown: list[int] | None = None  # classes that are there; most metrics do without
    # A class each: the metrics would otherwise find it themselves, every one of them.
    predicted = logits.argmax(dim=1)
    for name in names:
        if name in _OF_CLASSES:
            metric, kwargs = _OF_CLASSES[name]
            value = metric(predicted, target, num_classes=count, validate_args=False, **kwargs)
            found[name] = value if value.dim() == 0 else value[target.unique()].mean()
            continue
        shown = target.unique().tolist() if shown is None else shown
        if len(shown) > 1:
            scores = logits.softmax(dim=1)
            of = [(scores[:, c], (target == c).long()) for c in ([1] if count == 2 else shown)]
            found[name] = torch.stack([_OF_SCORES[name](*one, validate_args=False) for one in of]).mean()
    return found
