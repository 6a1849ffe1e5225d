"""Noise that hides a client."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from flgraph.errors import expect
from flgraph.federation.halves import AlgorithmHalf
from flgraph.federation.transforms.base import Draw, Transform, Update
from flgraph.federation.transforms.norms import ROUNDING, clipped


class GaussianNoise(Transform):
    r"""Clips updates to a length of ``norm`` and adds Gaussian noise: client-level differential privacy.

    At the client every number of :math:`u \cdot \min(1, c / \lVert u \rVert_2)` gets noise of the standard deviation
    :math:`z c`, with :math:`c` the ``norm`` and :math:`z` the ``multiplier``, before anything leaves it. At the server
    each of the :math:`n` uploads of an exchange gets noise of :math:`z c / \sqrt n`, so that their sum has
    :math:`z c` (DP-FedAvg, McMahan et al., ICLR 2018). :class:`~flgraph.federation.privacy.Account` counts what that
    is worth.

    Whole numbers, such as counts of batches, stay as they were sent down.

    Args:
        norm: the longest that an update may be, above 0.
        multiplier: standard deviation of the noise in units of ``norm``, above 0.
        at: ``"client"``, where nobody has to be trusted; or ``"server"``, which sees uploads without noise.
        kwargs: see :class:`Transform`.

    Raises:
        InputError: an argument is out of range.
    """

    stage: ClassVar[int] = 2
    protects: ClassVar[bool] = True
    unit: ClassVar[Literal["client"]] = "client"

    def __init__(
        self, norm: float, multiplier: float, at: Literal["client", "server"] = "client", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        expect(0 < norm < math.inf, "GaussianNoise.norm", "a finite number above 0", norm)
        expect(0 < multiplier < math.inf, "GaussianNoise.multiplier", "a finite number above 0", multiplier)
        expect(at in ("client", "server"), "GaussianNoise.at", "client or server", at)
        self.norm, self.multiplier, self.at = norm, multiplier, at

    @property
    def local(self) -> bool:
        """Whether it is there before anything leaves the client."""
        return self.at == "client"

    def uncovered(self, half: AlgorithmHalf, leave: Sequence[str]) -> list[str]:
        """What of uploads leaves without noise: what some transform leaves, none changes.

        Names of weights that are no part of the model are of a client's data, such as relations of its schema.
        """
        named = [f"names of {pattern}" for pattern, kind in half.extra_tensors.items() if kind == "weights"]
        return [*leave, *half.upload_scalars, *named]

    def encode(self, update: Update, draw: Draw) -> Update:
        known = clipped(_withheld(update), self.norm)
        return _noisy(known, self.norm * self.multiplier, draw) if self.at == "client" else known

    def receive(self, update: Update, draw: Draw, count: int) -> Update:
        if self.at == "client":
            return update
        known = clipped(_withheld(update), self.norm, ROUNDING)
        return _noisy(known, self.norm * self.multiplier / math.sqrt(count), draw)

    def receive_mean(self, update: Update, draw: Draw, weight: float) -> Update:
        # As the sum was divided: a client that masked another weight than one would make noise smaller than the others.
        deviation = self.norm * _ROUNDED * self.multiplier / weight
        return update if self.at == "client" else _noisy(update, deviation, draw)

    def expect_fine(self, numbers: int, fraction_bits: int) -> None:
        """Refuses uploads that are rounded for secure sums by more than noise at the server allows for.

        Raises:
            InputError: names the setting.
        """
        longer = math.sqrt(numbers) * 2.0 ** -(fraction_bits + 1)
        wanted = f"so many that rounding makes an update no longer than {_ROUNDED} times `GaussianNoise.norm`"
        fine = self.at == "client" or longer <= (_ROUNDED - 1) * self.norm
        expect(fine, "trainer.secure_sums.fraction_bits", wanted, fraction_bits)


_ROUNDED = 1.001
"""How many times its bound an update may be long that was rounded after it was clipped, and that nobody can clip again:
to single precision, and to the multiples in which it is added up."""


def _withheld(update: Update) -> dict[str, Tensor]:
    """Nothing new of whole numbers, and none that are not finite: a length would bound neither."""
    return {n: t.nan_to_num(0, 0, 0) if t.is_floating_point() else torch.zeros_like(t) for n, t in update.items()}


def _noisy(update: Mapping[str, Tensor], deviation: float, draw: Draw) -> dict[str, Tensor]:
    floats = {name: tensor for name, tensor in update.items() if tensor.is_floating_point()}
    noise = draw.normal(sum(tensor.numel() for tensor in floats.values())) * deviation
    parts = torch.split(noise, [tensor.numel() for tensor in floats.values()])
    added = {n: t + part.view(t.shape) for (n, t), part in zip(floats.items(), parts, strict=True)}
    return {**update, **added}
