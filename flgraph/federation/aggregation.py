"""Sums over clients whose result does not depend on who answered first."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from flgraph.errors import expect

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

    Clients are summed in sorted order of their names and in float64 (complex128 for complex tensors), so the result is
    the same bits whatever order the uploads arrived in; it is returned in the dtype of the tensors, integers rounded.
    Where clients differ in it, as bfloat16 and float32, it is the dtype that holds both (:func:`torch.promote_types`).
    A tensor that only some clients have is averaged over those.

    Args:
        tensors: client to tensors by name.
        weights: client to weight, finite and not negative.

    Returns:
        Name to mean, in the order of first appearance over sorted clients.

    Raises:
        InputError: a tensor's shape differs between clients, its weights sum to zero, or one is negative or not finite.
    """
    for client in tensors:
        counts = 0 <= weights[client] < float("inf")
        expect(counts, f"weight of client `{client}", "a finite number, 0 or more", weights[client])
    sums: dict[str, Tensor] = {}
    totals: dict[str, float] = {}
    dtypes = _dtypes(tensors)
    for client in sorted(tensors):
        for name, tensor in tensors[client].items():
            weight = weights[client]
            if name not in sums:
                wide = torch.complex128 if dtypes[name].is_complex else torch.float64
                sums[name], totals[name] = torch.zeros(tensor.shape, dtype=wide), 0.0
            fits = tensor.shape == sums[name].shape
            expect(fits, f"{name}` of client `{client}", f"of shape {list(sums[name].shape)}", list(tensor.shape))
            sums[name].add_(tensor.to(sums[name].dtype), alpha=weight)
            totals[name] += weight
    for name, total in totals.items():
        expect(total > 0, f"weights of `{name}`", "of a sum above 0", total)
    means = {name: total_sum.div_(totals[name]) for name, total_sum in sums.items()}
    return {name: _cast(mean, dtypes[name]) for name, mean in means.items()}


def _dtypes(tensors: Mapping[str, Tensors]) -> dict[str, torch.dtype]:
    """Of every tensor the dtype that holds all clients' values of it."""
    dtypes: dict[str, torch.dtype] = {}
    for own in tensors.values():
        for name, tensor in own.items():
            dtypes[name] = torch.promote_types(dtypes.get(name, tensor.dtype), tensor.dtype)
    return dtypes


def as_mean_dtype(mean: Tensor, column: Sequence[Tensor]) -> Tensor:
    """A mean in the type that holds all tensors of which it is one, integers rounded."""
    return _cast(mean, _dtypes({str(number): {"": tensor} for number, tensor in enumerate(column)})[""])


def _cast(mean: Tensor, dtype: torch.dtype) -> Tensor:
    exact = dtype.is_floating_point or dtype.is_complex
    return (mean if exact else mean.round()).to(dtype)
