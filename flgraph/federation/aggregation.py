"""Sums over clients whose result depends neither on who answered first nor on who was added up with whom."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import reduce

import torch
from torch import Tensor

from flgraph.errors import InputError, expect
from flgraph.federation.exact import ExactSum
from flgraph.federation.payload import Payload, parsed
from flgraph.federation.routes import form_of, parsed_form

Tensors = Mapping[str, Tensor]


class Combine(ABC):
    """Makes one tensor of what several clients sent: the replaceable part of every algorithm that averages.

    ``trainer.aggregator.combine`` takes another one than the mean, such as a median. Its result must not depend on the
    order of the clients. Whatever it draws at random is seeded for the round.
    """

    @abstractmethod
    def __call__(self, tensors: Mapping[str, Tensors], weights: Mapping[str, float]) -> dict[str, Tensor]:
        """Combines tensors of the same name.

        Args:
            tensors: client to tensors by name; not every client need have every one.
            weights: client to weight, not negative.

        Returns:
            Tensors of the same shapes by name.
        """


class WeightedMean(Combine):
    """The weighted mean, see :func:`weighted_mean`."""

    def __call__(self, tensors: Mapping[str, Tensors], weights: Mapping[str, float]) -> dict[str, Tensor]:
        return weighted_mean(tensors, weights)


def weighted_mean(tensors: Mapping[str, Tensors], weights: Mapping[str, float]) -> dict[str, Tensor]:
    r"""The mean over clients of every tensor, ``sum_m n_m w_m / sum_m n_m`` (FedAvg, Eq. 4 of FedStar).

    The sums are exact, see :class:`Sums`, so the result is the same bits in whatever order the uploads arrived.

    Args:
        tensors: client to tensors by name.
        weights: client to weight, finite and not negative.

    Returns:
        Name to mean, in the order of first appearance over sorted clients.

    Raises:
        InputError: a tensor's shape differs between clients, its weights sum to zero, one is negative or not finite, or
            a value is not finite.
    """
    sums = Sums()
    for client in sorted(tensors):
        sums.add(tensors[client], weights[client], client)
    return sums.mean()


class Sums:
    """Weighted sums of tensors by name, and of the weights, over the clients that have them.

    Each product of a weight and a number is rounded to float64, which changes nothing where float32 meets a whole
    weight below :math:`2^{29}`. Products are added up exactly (:class:`~flgraph.federation.exact.ExactSum`), and the
    sum is rounded once. Hence any order, and any partial sums that are merged, give the same bits.
    """

    def __init__(self) -> None:
        self._sums: dict[str, list[ExactSum]] = {}  # real and, if there is one, imaginary parts, the weight behind each
        self._zeros: dict[str, Tensor] = {}  # of the shape, and of the type that holds all clients' values

    def add(self, tensors: Tensors, weight: float, client: str = "") -> None:
        """Adds a client's tensors.

        Args:
            tensors: by name.
            weight: how much they count, finite and not negative.
            client: for messages.

        Raises:
            InputError: the weight is out of range, a tensor has another shape than before, or a value is not finite.
        """
        fits = isinstance(weight, int | float) and 0 <= weight < float("inf")
        expect(fits, f"weight` of client `{client}", "a finite number, 0 or more", weight)
        for name, tensor in tensors.items():
            self._take_form(name, tensor, client)
            parts = [tensor.real, tensor.imag] if tensor.is_complex() else [tensor]
            row = torch.empty(tensor.numel() + 1, dtype=torch.float64)
            for number, part in enumerate(parts):
                row[:-1] = part.detach().reshape(-1)
                row[-1] = 1.0  # the weights are added up beside the numbers
                row *= weight
                finite = self._part(name, number).add(row.numpy())
                expect(finite, f"{name}` of client `{client}", "of finite numbers", "others")

    def merge(self, other: Sums) -> None:
        """Adds what another one has added up.

        Raises:
            InputError: a tensor has another shape there.
        """
        for name, parts in other._sums.items():
            self._take_form(name, other._zeros[name], "")
            for number, part in enumerate(parts):
                self._part(name, number).merge(part)

    def to_payload(self) -> Payload:
        """What travels: a group of limbs per part and unit, with names and forms of the tensors."""
        tensors = {
            f"{number}/{level}/{name}": torch.from_numpy(limb)
            for name, parts in self._sums.items()
            for number, part in enumerate(parts)
            for level, limb in part.carried().items()
        }
        return Payload(tensors, {"forms": json.dumps(self.forms)})

    @classmethod
    def from_payload(cls, payload: Payload, forms: Mapping[str, str] | None = None) -> Sums:
        """What :meth:`to_payload` wrote, whoever may have written it.

        Args:
            payload: that arrived.
            forms: that its tensors must have, by name; whatever it says itself when ``None``.

        Raises:
            InputError: it is of other forms, or no sums.
        """
        sums = cls()
        try:
            told = parsed(str(payload.scalars["forms"]))
            expect(forms is None or told == forms, "sums", "of the tensors that were asked for", "others")
            for name, form in told.items():
                sizes, dtype = parsed_form(form)
                sums._zeros[name] = torch.zeros((), dtype=dtype).expand(sizes)
                sums._part(name, 0)
            for key, limb in payload.tensors.items():
                number, level, name = key.split("/", 2)
                typed = name in told and number in ("0", "1") and limb.dtype == torch.float64
                if not typed or not sums._part(name, int(number)).take(int(level), limb.numpy()):
                    raise ValueError("no limb")
        except InputError:
            raise
        except (LookupError, ValueError, TypeError, AttributeError, RuntimeError) as error:
            raise InputError("sums", "limbs of sums by name", "something else") from error
        return sums

    @property
    def forms(self) -> dict[str, str]:
        """Name to shape and type, in words."""
        return {name: form_of(zeros) for name, zeros in self._zeros.items()}

    @property
    def weights(self) -> set[float]:
        """What the weights of a tensor add up to, rounded; of all tensors."""
        return {float(parts[0].rounded()[-1]) for parts in self._sums.values()}

    @property
    def vanishes(self) -> bool:
        """Whether all sums are 0."""
        return not any(part.rounded().any() for parts in self._sums.values() for part in parts)

    def mean(self) -> dict[str, Tensor]:
        """Name to mean, in the order of first appearance; in the dtype of the tensors, integers rounded.

        Where clients differ in it, as bfloat16 and float32, it is the dtype that holds both
        (:func:`torch.promote_types`).

        Raises:
            InputError: the weights of a tensor sum to zero.
        """
        means = {}
        for name, zeros in self._zeros.items():
            rows = [torch.from_numpy(part.rounded()) for part in self._sums[name]]
            total = rows[0][-1]
            expect(bool(total > 0), f"weights of `{name}`", "of a sum above 0", float(total))
            parts = [(row[:-1] / total).view(zeros.shape) for row in rows]
            means[name] = _cast(torch.complex(*parts) if len(parts) > 1 else parts[0], zeros.dtype)
        return means

    def _take_form(self, name: str, tensor: Tensor, client: str) -> None:
        zeros = self._zeros.get(name)
        dtype = tensor.dtype if zeros is None else torch.promote_types(zeros.dtype, tensor.dtype)
        if zeros is not None:
            expect(
                tensor.shape == zeros.shape,
                f"{name}` of client `{client}",
                f"of shape {list(zeros.shape)}",
                list(tensor.shape),
            )
        if zeros is None or zeros.dtype != dtype:
            self._zeros[name] = torch.zeros((), dtype=dtype).expand(tensor.shape)

    def _part(self, name: str, number: int) -> ExactSum:
        parts = self._sums.setdefault(name, [])
        while len(parts) <= number:
            parts.append(ExactSum(self._zeros[name].numel() + 1))
        return parts[number]


def as_mean_dtype(mean: Tensor, column: Sequence[Tensor]) -> Tensor:
    """A mean in the type that holds all tensors of which it is one, integers rounded."""
    return _cast(mean, reduce(torch.promote_types, (tensor.dtype for tensor in column)))


def _cast(mean: Tensor, dtype: torch.dtype) -> Tensor:
    exact = dtype.is_floating_point or dtype.is_complex
    return (mean if exact else mean.round()).to(dtype)
