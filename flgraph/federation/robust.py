"""Means that a few bad clients cannot move at will: give one to ``trainer.aggregator.combine``."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from flgraph.errors import expect
from flgraph.federation.aggregation import Combine, Tensors, as_mean_dtype, weighted_mean


class Median(Combine):
    """The median of every number, half of the clients above and half below (Yin et al., ICML 2018, Definition 1).

    Of an even number of clients it is the mean of the two in the middle. Weights do not count.
    """

    def __call__(self, tensors: Mapping[str, Tensors], weights: Mapping[str, float]) -> dict[str, Tensor]:
        return _by_number(tensors, weights, _median)


class TrimmedMean(Combine):
    """The mean of every number without the largest and the smallest (Yin et al., ICML 2018, Definition 2).

    Weights do not count.

    Args:
        share: of the clients that is left out at either end, above 0 and below one half. Of three clients or more at
            least one is left out at either end, and at least one stays.

    Raises:
        InputError: ``share`` is out of range.
    """

    def __init__(self, share: float = 0.2) -> None:
        expect(0 < share < 0.5, "combine.share", "above 0 and below 0.5", share)
        self.share = share

    def __call__(self, tensors: Mapping[str, Tensors], weights: Mapping[str, float]) -> dict[str, Tensor]:
        return _by_number(tensors, weights, self._trimmed)

    def _trimmed(self, rows: Tensor) -> Tensor:
        count = len(rows)
        cut = min(math.ceil(self.share * count - 1e-9), (count - 1) // 2)
        return rows.sort(dim=0).values[cut : count - cut].mean(dim=0)


class Reweighting(Combine):
    """A weighted mean whose weights depend on how far clients are from each other.

    Distances are taken over all tensors that the same clients have, in float64.
    """

    def __call__(self, tensors: Mapping[str, Tensors], weights: Mapping[str, float]) -> dict[str, Tensor]:
        means: dict[str, Tensor] = {}
        for names, clients in _groups(tensors, weights):
            rows = torch.stack([_vector(tensors[client], names) for client in clients])
            given = torch.tensor([weights[client] for client in clients], dtype=torch.float64)
            counts = dict(zip(clients, self.reweighted(rows, given / given.sum()).tolist(), strict=True))
            means |= weighted_mean(
                {client: {name: tensors[client][name] for name in names} for client in clients}, counts
            )
        return means

    @abstractmethod
    def reweighted(self, rows: Tensor, weights: Tensor) -> Tensor:
        """What each client counts.

        Args:
            rows: clients' tensors, each as one vector ``[n, d]``, float64.
            weights: what each was to count ``[n]``, of the sum 1.

        Returns:
            ``[n]``, not negative, of a sum above 0.
        """


class Krum(Reweighting):
    """The mean of the clients that are nearest to their neighbours (Blanchard et al., NeurIPS 2017).

    A client's score is the sum of its squared distances to its ``n - f - 2`` nearest neighbours, where ``f`` of the
    ``n`` clients may be bad. Those with the lowest scores are averaged by their weights: one of them is Krum, several
    are multi-Krum.

    Args:
        bad: share of the clients that may be bad, 0 or more and below one half; ``f`` is rounded up, to ``n - 3`` at
            most.
        selected: how many are averaged; ``n - f`` when ``None``.

    Raises:
        InputError: an argument is out of range.
    """

    def __init__(self, bad: float = 0.3, selected: int | None = None) -> None:
        expect(0 <= bad < 0.5, "combine.bad", "0 or more and below 0.5", bad)
        whole = selected is None or (type(selected) is int and selected >= 1)
        expect(whole, "combine.selected", "a whole number of 1 or more, or null", selected)
        self.bad, self.selected = bad, selected

    def reweighted(self, rows: Tensor, weights: Tensor) -> Tensor:
        count = len(rows)
        if count < 4:  # nobody can tell which of them is bad by its neighbours
            return weights
        bad = min(math.ceil(self.bad * count - 1e-9), count - 3)
        # Not by products of rows: of models that are alike the difference would be lost.
        squares = torch.stack([_squared_lengths(rows - row) for row in rows])
        nearest = squares.sort(dim=1).values[:, 1 : count - bad - 1]  # the first is the client itself
        chosen = nearest.sum(dim=1).argsort(stable=True)[: min(self.selected or count - bad, count)]
        return torch.zeros_like(weights).index_copy(0, chosen, weights[chosen])


class GeometricMedian(Reweighting):
    r"""The point with the smallest sum of distances to the clients (RFA, Pillutla et al., IEEE TSP 2022).

    The smoothed Weiszfeld algorithm: from the weighted mean on, ``steps`` times, client :math:`i` counts
    :math:`\alpha_i / \max(\nu, \lVert v - w_i \rVert)`. Of two clients it is the weighted mean.

    Args:
        steps: iterations; the paper finds three enough.
        smoothing: :math:`\nu`, as a share of the median client's distance from the first mean, above 0.

    Raises:
        InputError: an argument is out of range.
    """

    def __init__(self, steps: int = 10, smoothing: float = 1e-6) -> None:
        expect(type(steps) is int and steps >= 1, "combine.steps", "a whole number of 1 or more", steps)
        expect(0 < smoothing < math.inf, "combine.smoothing", "a finite number above 0", smoothing)
        self.steps, self.smoothing = steps, smoothing

    def reweighted(self, rows: Tensor, weights: Tensor) -> Tensor:
        if len(rows) < 3:  # of two points the heavier one is the median
            return weights
        counts, least = weights, 0.0
        for _ in range(self.steps):
            center = (rows * (counts / counts.sum()).unsqueeze(1)).sum(dim=0)
            distances = _squared_lengths(rows - center).sqrt()
            least = least or self.smoothing * float(_median(distances))
            if least == 0:  # most of them are the same point
                return weights * (distances == 0) if bool((distances == 0).any()) else counts
            counts = weights / distances.clamp(min=least)
        return counts


def _groups(
    tensors: Mapping[str, Tensors], weights: Mapping[str, float]
) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Names of tensors that the same clients have, and those clients, both sorted; who counts nothing is left out."""
    for client in tensors:
        counts = 0 <= weights[client] < math.inf
        expect(counts, f"weight` of client `{client}", "a finite number, 0 or more", weights[client])
    counting = sorted(client for client in tensors if weights[client] > 0)
    owners: dict[str, list[str]] = {}
    for client in counting:
        for name in tensors[client]:
            owners.setdefault(name, []).append(client)
    missing = sorted({name for own in tensors.values() for name in own} - owners.keys())
    expect(not missing, f"weights of `{next(iter(missing), '')}`", "of a sum above 0", 0.0)
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, clients in owners.items():
        groups.setdefault(tuple(clients), []).append(name)
    for clients_of, names in groups.items():
        for name in names:
            shape = tensors[clients_of[0]][name].shape
            for client in clients_of:
                own = tensors[client][name].shape
                expect(own == shape, f"{name}` of client `{client}", f"of shape {list(shape)}", list(own))
        yield tuple(sorted(names)), clients_of


def _by_number(
    tensors: Mapping[str, Tensors], weights: Mapping[str, float], combine: Callable[[Tensor], Tensor]
) -> dict[str, Tensor]:
    """Applies a function of ``[n, ...]`` that leaves ``[...]`` to every tensor."""
    means: dict[str, Tensor] = {}
    for names, clients in _groups(tensors, weights):
        for name in names:
            column = [tensors[client][name] for client in clients]
            expect(not column[0].is_complex(), name, "of real numbers for this mean", str(column[0].dtype))
            means[name] = as_mean_dtype(combine(torch.stack([tensor.double() for tensor in column])), column)
    return means


def _squared_lengths(rows: Tensor) -> Tensor:
    """Of every row. Not by torch, whose sums differ in their last bits with the number of threads."""
    return torch.from_numpy(np.square(rows.numpy()).sum(axis=1))


def _median(rows: Tensor) -> Tensor:
    ordered, count = rows.sort(dim=0).values, len(rows)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2


def _vector(tensors: Tensors, names: tuple[str, ...]) -> Tensor:
    """All floating-point numbers of a client, ``[d]``; of complex ones both parts."""
    parts = [torch.view_as_real(t) if t.is_complex() else t for t in (tensors[name].detach() for name in names)]
    floats = [part.flatten().double() for part in parts if part.is_floating_point()]
    return torch.cat(floats) if floats else torch.zeros(0, dtype=torch.float64)
