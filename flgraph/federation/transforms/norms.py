"""Transforms that bound what a client can add."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor

from flgraph.errors import expect
from flgraph.federation.transforms.base import Draw, Transform, Update

ROUNDING = 1 + 1e-6
"""A clipped update is a little longer than its bound once its weights are float32 again."""


class Clip(Transform):
    r"""Scales updates down to a length of ``norm``: :math:`u \cdot \min(1, c / \lVert u \rVert_2)`.

    Done at the client, and once more at the server, so that no client weighs more than that (norm bounding, Sun et al.,
    "Can You Really Backdoor Federated Learning?", 2019). Whole numbers are scaled by the same and rounded; they do not
    count in the length.

    Args:
        norm: the longest that an update may be, 0 or more.
        per: ``"client"`` takes the length of all that a client shares, ``"tensor"`` of each tensor.
        kwargs: see :class:`Transform`.

    Raises:
        InputError: an argument is out of range.
    """

    stage: ClassVar[int] = 1

    def __init__(self, norm: float, per: Literal["client", "tensor"] = "client", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        expect(0 <= norm < math.inf, "Clip.norm", "a finite number, 0 or more", norm)
        expect(per in ("client", "tensor"), "Clip.per", "client or tensor", per)
        self.norm, self.per = norm, per

    def encode(self, update: Update, draw: Draw) -> Update:
        return self._clipped(update)

    def receive(self, update: Update, draw: Draw, count: int) -> Update:
        return self._clipped(update, ROUNDING)

    def _clipped(self, update: Update, slack: float = 1.0) -> Update:
        if self.per == "client":
            return clipped(update, self.norm, slack)
        parts = [clipped({name: tensor}, self.norm, slack) for name, tensor in update.items()]
        return {name: tensor for part in parts for name, tensor in part.items()}


def clipped(update: Update, norm: float, slack: float = 1.0) -> Update:
    """An update of at most the length ``norm``; the same tensors where it is shorter than ``slack`` times that."""
    length = norm_of(list(update.values()))
    if length <= norm * slack:
        return update
    factor = norm / length if length < math.inf else 0.0  # NaN goes on: the server's door is to see it
    return {name: _scaled(tensor, factor) for name, tensor in update.items()}


def norm_of(tensors: Sequence[Tensor]) -> float:
    """The length of all floating-point numbers together, each of them float64."""
    # Not by torch, whose sums differ in their last bits with the number of threads.
    with np.errstate(over="ignore"):
        squares = [float(np.square(tensor.numpy()).sum()) for tensor in tensors if tensor.is_floating_point()]
    return math.sqrt(sum(squares))


def _scaled(tensor: Tensor, factor: float) -> Tensor:
    return tensor * factor if tensor.is_floating_point() else (tensor * factor).round().long()
