"""Transforms that bound what a client can add."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor

from flgraph.errors import expect
from flgraph.federation.payload import Scalar
from flgraph.federation.transforms.base import GROUP, Draw, Transform, Update

ROUNDING = 1 + 1e-6
"""A clipped update is a little longer than its bound once its weights are float32 again."""


_SHORTER = 1 - 1e-3
"""An update is one that was clipped from this share of its bound on: its length is rounded on the way."""

_NORM = f"{GROUP}/norm"


class Clip(Transform):
    r"""Scales updates down to a length of ``norm``: :math:`u \cdot \min(1, c / \lVert u \rVert_2)`.

    Done at the client, and once more at the server, so that no client weighs more than that (norm bounding, Sun et al.,
    "Can You Really Backdoor Federated Learning?", 2019). Whole numbers are scaled by the same and rounded; they do not
    count in the length.

    With a ``quantile`` :math:`\gamma` the bound follows the clients' lengths (Andrew et al., "Differentially Private
    Learning with Adaptive Clipping", NeurIPS 2021, Section 2): where a share :math:`\bar b` of an exchange's updates
    was shorter than :math:`c`, the next one has :math:`c \cdot \exp(-\eta (\bar b - \gamma))`. It travels with
    downloads. The server takes the share from the updates that it sees, without noise, so this goes with no
    :class:`GaussianNoise`.

    Args:
        norm: the longest that an update may be, 0 or more; with a ``quantile`` the first one, above 0.
        per: ``"client"`` takes the length of all that a client shares, ``"tensor"`` of each tensor.
        quantile: the share of updates that are to be shorter than the bound, above 0 and below 1; the bound stays as it
            is when ``None``.
        step: :math:`\eta`, how fast the bound follows; at most 10.
        kwargs: see :class:`Transform`.

    Raises:
        InputError: an argument is out of range.
    """

    stage: ClassVar[int] = 1

    def __init__(
        self,
        norm: float,
        per: Literal["client", "tensor"] = "client",
        quantile: float | None = None,
        step: float = 0.2,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        expect(0 <= norm < math.inf, "Clip.norm", "a finite number, 0 or more", norm)
        expect(per in ("client", "tensor"), "Clip.per", "client or tensor", per)
        expect(quantile is None or 0 < quantile < 1, "Clip.quantile", "above 0 and below 1, or null", quantile)
        expect(quantile is None or norm > 0, "Clip.norm", "above 0 with a quantile", norm)
        expect(quantile is None or per == "client", "Clip.per", "client with a quantile", per)
        expect(0 < step <= 10, "Clip.step", "above 0 and at most 10", step)
        self.norm, self.per, self.quantile, self.step = norm, per, quantile, step
        self._next = self._bound = norm  # of the next downloads; of the update that is worked on
        self._shorter: list[bool] = []

    def encode(self, update: Update, draw: Draw) -> Update:
        return self._clipped(update)

    def receive(self, update: Update, draw: Draw, count: int) -> Update:
        if self.quantile is not None:
            self._shorter.append(norm_of(list(update.values())) < self._bound * _SHORTER)
        return self._clipped(update, ROUNDING)

    def download_scalars(self) -> dict[str, float]:
        return {} if self.quantile is None else {_NORM: self._next}

    def read(self, scalars: Mapping[str, Scalar]) -> None:
        if self.quantile is not None:
            given = scalars.get(_NORM, self.norm)
            sound = isinstance(given, float) and 0 < given < math.inf
            expect(sound, _NORM, "a finite number above 0", "something else")
            self._bound = float(given)

    def end_exchange(self) -> None:
        if self.quantile is not None and self._shorter:
            share = sum(self._shorter) / len(self._shorter)
            self._next = min(max(self._next * math.exp(-self.step * (share - self.quantile)), 1e-30), 1e30)
        self._shorter = []

    def state_dict(self) -> dict[str, Any]:
        return {} if self.quantile is None else {"next": self._next}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._next = float(state.get("next", self.norm))

    def _clipped(self, update: Update, slack: float = 1.0) -> Update:
        if self.per == "client":
            return clipped(update, self._bound, slack)
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
