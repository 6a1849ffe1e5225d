"""Transforms that make uploads smaller."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from flgraph.errors import InputError, expect
from flgraph.federation.transforms.base import GROUP, Draw, Transform, Update

_INDEX, _SCALE = f"{GROUP}/index", f"{GROUP}/scale"


class TopK(Transform):
    """Sends the numbers of every tensor that change most, and keeps the rest for the next time.

    What is not sent is added to the client's next update (error feedback, Stich et al., NeurIPS 2018). Beside the
    numbers travel their places, four bytes each.

    Args:
        share: of a tensor's numbers that is sent, above 0 and at most 1; at least one.
        kwargs: see :class:`Transform`.

    Raises:
        InputError: ``share`` is out of range.
    """

    stage: ClassVar[int] = 3
    codes: ClassVar[bool] = True

    def __init__(self, share: float = 0.1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        expect(0 < share <= 1, "TopK.share", "above 0 and at most 1", share)
        self.share = share
        self._rest: dict[str, Tensor] = {}

    def encode(self, update: Update, draw: Draw) -> Update:
        found, places = dict(update), []
        for name, own in update.items():
            if not own.is_floating_point():
                continue
            values = own.flatten() + self._rest.get(name, 0)
            place = values.abs().topk(self.left(values.numel()), sorted=False).indices.sort().values
            found[name] = values[place]
            self._rest[name] = values.index_fill(0, place, 0).nan_to_num(0, 0, 0)  # one bad turn is to spoil no later
            places.append(place)
        return {**found, _INDEX: torch.cat([torch.empty(0, dtype=torch.long), *places]).int()}

    def left(self, count: int) -> int:
        return min(count, max(1, math.ceil(self.share * count - 1e-9)))

    def decode(self, update: Update, counts: Mapping[str, int], field: str) -> Update:
        found = dict(update)
        index = _vector(found.pop(_INDEX, None), sum(map(self.left, counts.values())), torch.int32, _INDEX, field)
        start = 0
        for name in sorted(counts):
            count, size = self.left(counts[name]), counts[name]
            place, start = index[start : start + count].long(), start + count
            ascend = not count or (place[0] >= 0 and place[-1] < size and bool((place.diff() > 0).all()))
            expect(bool(ascend), field, f"with ascending places of `{name[:60]}`", "others")
            values = found[name]
            fits = values.is_floating_point() and values.shape == (count,)
            expect(fits, field, f"with {count} numbers of `{name[:60]}`", list(values.shape))
            found[name] = torch.zeros(size, dtype=torch.float64).index_copy(0, place, values.double())
        return found

    def state_dict(self) -> dict[str, Any]:
        return dict(self._rest)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._rest = dict(state)


class Quantise(Transform):
    r"""Sends every number as one of :math:`2 L + 1` steps, :math:`L = 2^{\mathrm{bits} - 1} - 1`.

    With :math:`s` the tensor's largest magnitude, :math:`x` is sent as
    :math:`s / L \cdot \lfloor L x / s + r \rfloor`, where :math:`r` is uniform between 0 and 1: on average it is
    :math:`x` (QSGD, Alistarh et al., NeurIPS 2017). Two numbers of four bits share a byte.

    Args:
        bits: 8 or 4.
        kwargs: see :class:`Transform`.

    Raises:
        InputError: ``bits`` is something else.
    """

    stage: ClassVar[int] = 4
    codes: ClassVar[bool] = True

    def __init__(self, bits: Literal[8, 4] = 8, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        expect(bits in (8, 4), "Quantise.bits", "8 or 4", bits)
        self.bits = bits

    @property
    def _levels(self) -> int:
        return int(2 ** (self.bits - 1) - 1)

    def encode(self, update: Update, draw: Draw) -> Update:
        found, scales = dict(update), []
        for name, own in update.items():
            if not own.is_floating_point():
                continue
            values = own.flatten()
            scale = values.abs().max().float() if values.numel() else torch.zeros(())
            scales.append(scale)
            steps = values * (self._levels / max(float(scale), 1e-300))
            steps = (steps + draw.uniform(values.numel())).floor().clamp(-self._levels, self._levels)
            codes = (steps.nan_to_num() + self._levels).to(torch.uint8)
            found[name] = codes if self.bits == 8 else _packed(codes)
        return {**found, _SCALE: torch.stack(scales) if scales else torch.zeros(0)}

    def decode(self, update: Update, counts: Mapping[str, int], field: str) -> Update:
        found = dict(update)
        own = {name: counts[name] for name in sorted(counts)}
        scales = _vector(found.pop(_SCALE, None), len(own), torch.float32, _SCALE, field).double()
        expect(bool(((scales >= 0) & (scales < 1e18)).all()), field, "with finite scales, 0 or more", "others")
        for scale, (name, count) in zip(scales, own.items(), strict=True):
            codes = _vector(found[name], math.ceil(count * self.bits / 8), torch.uint8, name, field)
            steps = codes if self.bits == 8 else _unpacked(codes)[:count]
            expect(bool((steps <= 2 * self._levels).all()), field, f"with codes of `{name[:60]}`", "others")
            found[name] = (steps.double() - self._levels) * (scale / self._levels)
        return found


class HalfPrecision(Transform):
    """Sends every number of an update in the 16 bits of bfloat16, which has the range of float32."""

    stage: ClassVar[int] = 4
    codes: ClassVar[bool] = True

    def encode(self, update: Update, draw: Draw) -> Update:
        return {name: own.bfloat16() if own.is_floating_point() else own for name, own in update.items()}


def _vector(tensor: Tensor | None, count: int, dtype: torch.dtype, name: str, field: str) -> Tensor:
    if tensor is None or tensor.shape != (count,) or tensor.dtype != dtype:
        found = "none" if tensor is None else f"{tensor.dtype} of {list(tensor.shape)[:8]}"
        raise InputError(field, f"with `{name[:60]}` of {count} {dtype}", found)
    return tensor


def _packed(codes: Tensor) -> Tensor:
    """Two codes of four bits in a byte."""
    even = torch.nn.functional.pad(codes, (0, codes.numel() % 2)).view(-1, 2)
    return even[:, 0] + 16 * even[:, 1]


def _unpacked(codes: Tensor) -> Tensor:
    return torch.stack([codes % 16, codes // 16], dim=1).flatten()
