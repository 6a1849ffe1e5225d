"""Robust means against numbers by hand, and against slow searches that know nothing of their formulas."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from flgraph.errors import InputError
from flgraph.federation import GeometricMedian, Krum, Median, TrimmedMean, weighted_mean

MEANS: dict[str, Any] = {
    "Median": Median(),
    "TrimmedMean": TrimmedMean(0.2),
    "Krum": Krum(0.2, selected=1),
    "MultiKrum": Krum(0.2),
    "GeometricMedian": GeometricMedian(),
}


def of(mean: Any, *rows: list[float], weights: list[float] | None = None) -> list[float]:
    """What a mean makes of one tensor of clients ``A``, ``B``, ..."""
    tensors = {chr(65 + number): {"w": torch.tensor(row)} for number, row in enumerate(rows)}
    counts = dict(zip(tensors, weights or [1.0] * len(rows), strict=True))
    found: list[float] = mean(tensors, counts)["w"].tolist()
    return found


def crowd(clients: int = 10, bad: int = 3, numbers: int = 6) -> tuple[dict[str, dict[str, Tensor]], Tensor]:
    """Clients near a point, some of them far away together; and the point."""
    generator = torch.Generator().manual_seed(0)
    center = torch.randn(numbers, generator=generator)
    rows = center + 0.1 * torch.randn(clients, numbers, generator=generator)
    rows[:bad] = -50.0
    return {f"client-{n}": {"w": row[:4].view(2, 2), "b": row[4:]} for n, row in enumerate(rows)}, center


def test_numbers_by_hand() -> None:
    assert of(Median(), [1.0, 9.0], [2.0, 7.0], [100.0, 8.0]) == [2.0, 8.0]
    assert of(Median(), [1.0], [2.0], [4.0], [100.0]) == [3.0]
    assert of(TrimmedMean(0.2), [1.0], [2.0], [3.0], [4.0], [1000.0]) == [3.0]
    assert of(TrimmedMean(0.1), [1.0], [2.0], [1000.0]) == [2.0]  # at least one at either end
    assert of(TrimmedMean(0.4), [1.0], [3.0]) == [2.0]  # of two none can be left out
    # Five clients, one may be bad: scores are sums of the 2 least squares, 5, 2, 5 (of 2 at 0, 1, 2), 200.., 18..
    assert of(Krum(0.2, selected=1), [0.0], [1.0], [2.0], [100.0], [3.5]) == [1.0]
    assert of(Krum(0.2, selected=3), [0.0], [1.0], [2.0], [100.0], [3.5], weights=[1.0, 2.0, 1.0, 9.0, 9.0]) == [1.0]


@pytest.mark.parametrize("mean", [GeometricMedian(), Krum()])
def test_of_two_neither_is_left_out(mean: Any) -> None:
    assert of(mean, [1.0], [5.0], weights=[1.0, 3.0]) == [4.0]


def test_krum_against_its_definition() -> None:
    rows = np.random.default_rng(3).normal(size=(8, 5))
    bad = 2
    scores = [
        min(sum(chosen) for chosen in itertools.combinations([((a - b) ** 2).sum() for b in np.delete(rows, i, 0)], 4))
        for i, a in enumerate(rows)
    ]
    expected = rows[np.argsort(scores)[: 8 - bad]].mean(0)
    found = of(Krum(0.25), *rows.tolist())
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("weights", [[1.0] * 7, [1.0, 5.0, 2.0, 1.0, 3.0, 1.0, 1.0]])
def test_geometric_median_is_where_the_sum_of_distances_is_least(weights: list[float]) -> None:
    rows = np.random.default_rng(1).normal(size=(7, 3))
    rows[0] = 30.0

    def total(point: Any) -> float:
        return float((np.array(weights) * np.linalg.norm(rows - point, axis=1)).sum())

    least = minimize(total, rows.mean(0), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12})
    found = of(GeometricMedian(steps=200), *rows.tolist(), weights=weights)
    np.testing.assert_allclose(found, least.x, atol=1e-4)


@pytest.mark.parametrize("name", MEANS)
def test_a_third_of_bad_clients_moves_it_little(name: str) -> None:
    tensors, center = crowd()
    weights = dict.fromkeys(tensors, 1.0)
    mean = {"TrimmedMean": TrimmedMean(0.3), "Krum": Krum(0.3, 1), "MultiKrum": Krum(0.3)}.get(name, MEANS[name])
    found = torch.cat([mean(tensors, weights)[key].flatten() for key in ("w", "b")])
    assert float((found - center).abs().max()) < 0.5
    moved = torch.cat([weighted_mean(tensors, weights)[key].flatten() for key in ("w", "b")])
    assert float((moved - center).abs().min()) > 10


@pytest.mark.parametrize("name", MEANS)
def test_order_does_not_matter(name: str) -> None:
    tensors, _ = crowd(clients=6, bad=1)
    weights = {client: 1.0 + number for number, client in enumerate(tensors)}
    first = MEANS[name](tensors, weights)
    for order in itertools.islice(itertools.permutations(tensors), 0, 720, 37):
        again = MEANS[name]({client: tensors[client] for client in order}, weights)
        assert list(again) == list(first)
        assert all(torch.equal(again[key], tensor) for key, tensor in first.items())


@pytest.mark.parametrize("name", MEANS)
def test_equal_clients_keep_their_bits_and_types(name: str) -> None:
    one = {
        "w": torch.randn(7, generator=torch.Generator().manual_seed(2)),
        "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        "steps": torch.tensor(7),
        "none": torch.empty(0, 3),
    }
    for count in (1, 2, 3, 5):
        found = MEANS[name]({f"client-{n}": one for n in range(count)}, {f"client-{n}": 1.0 for n in range(count)})
        assert all(torch.equal(found[key], tensor) and found[key].dtype == tensor.dtype for key, tensor in one.items())


@pytest.mark.parametrize("name", MEANS)
def test_tensors_that_only_some_have_and_clients_that_do_not_count(name: str) -> None:
    tensors, center = crowd(clients=8, bad=0)
    for client in list(tensors)[:4]:
        tensors[client]["own"] = torch.full((2,), 3.0)
    tensors["client-7"] = {"w": torch.full((2, 2), 1e6), "b": torch.full((2,), 1e6)}
    found = MEANS[name](tensors, {**dict.fromkeys(tensors, 1.0), "client-7": 0.0})
    assert found["own"].tolist() == [3.0, 3.0]
    assert float((found["w"].flatten() - center[:4]).abs().max()) < 0.5


@pytest.mark.parametrize("name", MEANS)
def test_what_cannot_be_combined(name: str) -> None:
    rows = {"A": {"w": torch.zeros(2)}, "B": {"w": torch.zeros(2)}}
    with pytest.raises(InputError, match=r"`weight` of client `A` to be a finite number"):
        MEANS[name](rows, {"A": float("nan"), "B": 1.0})
    with pytest.raises(InputError, match="of a sum above 0"):
        MEANS[name](rows, {"A": 0.0, "B": 0.0})
    with pytest.raises(InputError, match=r"`w` of client `B` to be of shape \[2\]"):
        MEANS[name]({"A": {"w": torch.zeros(2)}, "B": {"w": torch.zeros(3)}}, {"A": 1.0, "B": 1.0})


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: TrimmedMean(0.5), "Expected `combine.share` to be above 0 and below 0.5 but got 0.5"),
        (lambda: TrimmedMean(0.0), "combine.share"),
        (lambda: Krum(0.5), "Expected `combine.bad` to be 0 or more and below 0.5 but got 0.5"),
        (lambda: Krum(selected=0), "combine.selected"),
        (lambda: GeometricMedian(0), "combine.steps"),
        (lambda: GeometricMedian(smoothing=0.0), "combine.smoothing"),
    ],
)
def test_arguments_out_of_range(make: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        make()


def test_krum_by_hand_at_its_edges() -> None:
    """Of n clients n - 3 may be bad at most; of three all are taken; those chosen count with their own weights."""
    assert of(Krum(0.49, selected=1), [100.0], [0.0], [1.0], [1.5]) == [1.0]
    assert of(Krum(selected=1), [1.0], [2.0], [9.0]) == [4.0]
    rows = [0.0], [1.0], [2.0], [100.0], [3.5]
    assert of(Krum(0.2, selected=3), *rows, weights=[1.0, 1.0, 2.0, 9.0, 9.0]) == [1.25]


def test_ties_of_krum_do_not_depend_on_who_came_first() -> None:
    rows = {name: {"w": torch.tensor([value])} for name, value in zip("ABCD", (0.0, 1.0, 2.0, 3.0), strict=True)}
    mean, weights = Krum(0.2, selected=1), dict.fromkeys("ABCD", 1.0)
    assert mean(rows, weights)["w"] == mean(dict(reversed(rows.items())), weights)["w"]


def test_a_share_that_is_a_whole_number_of_clients_is_that_number() -> None:
    """0.28 of 25 are seven, whatever floats make of it."""
    rows = [[float(2**number)] for number in range(25)]
    assert of(TrimmedMean(0.28), *rows)[0] == pytest.approx(np.mean([2.0**number for number in range(7, 18)]))


def test_complex_numbers_have_no_median() -> None:
    with pytest.raises(InputError, match="real numbers"):
        Median()({"A": {"w": torch.ones(1, dtype=torch.complex64)}}, {"A": 1.0})
