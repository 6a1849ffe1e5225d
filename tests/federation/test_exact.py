from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from flgraph.callbacks import SCAFFOLD, AdaFGL, FedAvg, FedGCN, FedOpt, GraphFL
from flgraph.errors import InputError
from flgraph.federation import Aggregator, Median
from flgraph.federation.aggregation import Sums, weighted_mean
from flgraph.federation.aggregator import needs_only_sums
from flgraph.federation.exact import ExactSum

COLUMNS = 40


def rows_of(seed: int) -> list[np.ndarray]:
    """Rows whose sums are hard: of very different sizes, halfway between two floats, or of terms that cancel."""
    rng = np.random.default_rng(seed)
    spread = [1, 10, 60, 250][seed % 4]
    rows = [np.ldexp(rng.standard_normal(COLUMNS), rng.integers(-spread, spread + 1, COLUMNS)) for _ in range(20)]
    if seed % 3:
        rows += [-row * (1 + 2.0**-50 * rng.integers(0, 2)) for row in rows[:-1]]
    if seed % 2:
        rows += [rng.integers(-2, 3, COLUMNS) * 2.0 ** rng.integers(-120, 60) for _ in range(6)]
    return rows


def added(rows: list[np.ndarray]) -> ExactSum:
    total = ExactSum(COLUMNS)
    for row in rows:
        assert total.add(row.copy())
    return total


@pytest.mark.parametrize("seed", range(24))
def test_any_order_and_grouping_gives_the_rounded_exact_sum(seed: int) -> None:
    rows, rng = rows_of(seed), np.random.default_rng(seed)
    expected = [math.fsum(column) for column in zip(*rows, strict=True)]
    assert added(rows).rounded().tolist() == expected
    for _ in range(3):
        order = rng.permutation(len(rows))
        total = ExactSum(COLUMNS)
        for part in np.split(order, np.sort(rng.integers(0, len(rows) + 1, 3))):
            total.merge(added([rows[number] for number in part]))
        assert total.rounded().tolist() == expected


def test_limbs_are_carried_before_they_are_full() -> None:
    row, total = np.array([1.0, -1.0, 2.0**-30 * (2 - 2.0**-52), 2.0**39]), ExactSum(4)
    for _ in range(20_000):
        total.add(row.copy())
    assert total.rounded().tolist() == [math.fsum([value] * 20_000) for value in row]
    other = ExactSum(4)
    for _ in range(3):
        other.merge(total)
    assert other.rounded().tolist() == [float(60_000 * Fraction(value)) for value in row]


def test_the_smallest_and_largest_numbers() -> None:
    values = [5e-324, -3e-310, 1e-300, 2.5e-16, 7.0, 2.0**899]
    assert added([np.full(COLUMNS, value) for value in values]).rounded()[0] == math.fsum(values)
    assert ExactSum(2).rounded().tolist() == [0, 0]
    assert ExactSum(0).add(np.zeros(0))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e271])
def test_what_is_not_finite_is_refused_and_leaves_nothing(value: float) -> None:
    total = added([np.ones(COLUMNS)])
    assert not total.add(np.array([1.0] * (COLUMNS - 1) + [value]))
    assert total.rounded().tolist() == [1.0] * COLUMNS
    with pytest.raises(InputError, match=r"`w` of client `A` to be of finite numbers"):
        weighted_mean({"A": {"w": torch.tensor([value], dtype=torch.float64)}}, {"A": 1.0})


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.complex64, torch.int64])
def test_partial_sums_of_clients_give_the_same_bits(dtype: torch.dtype) -> None:
    """Clients that have some of the tensors, in any groups; against fractions."""
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(9, generator=generator, dtype=torch.complex128) * 10.0**power for power in range(-3, 4)]
    own = [{"w": (t if dtype.is_complex else t.real).to(dtype)} for t in drawn]
    clients = [{**tensors, "some": tensors["w"][:2]} if number % 2 else tensors for number, tensors in enumerate(own)]
    weights = [0.1, 3.0, 1 / 3, 12.0, 1e-9, 7.0, 2.0**30]

    def sums(numbers: range) -> Sums:
        found = Sums()
        for number in numbers:
            found.add(clients[number], weights[number])
        return found

    expected = sums(range(7)).mean()
    for cut in range(8):
        total = sums(range(cut, 7))
        total.merge(sums(range(cut)))
        assert all(torch.equal(total.mean()[name], tensor) for name, tensor in expected.items())
    terms = [float(client["w"][0].real) * weight for client, weight in zip(clients, weights, strict=True)]
    mean = float(sum(map(Fraction, terms))) / float(sum(map(Fraction, weights)))
    whole = torch.tensor(mean, dtype=torch.float64)
    assert expected["w"][0].real.item() == (whole.round() if dtype == torch.int64 else whole).to(dtype).real.item()


def test_a_mean_finds_what_is_left_of_numbers_that_cancel() -> None:
    clients = {
        name: {"w": torch.tensor([v], dtype=torch.float64)} for name, v in (("A", 1e20), ("B", 1.0), ("C", -1e20))
    }
    alike = dict.fromkeys(clients, 1.0)
    assert weighted_mean(clients, alike)["w"].item() == 1 / 3


class Doubled(FedAvg):
    """An ``aggregate`` of its own."""

    def aggregate(self, uploads: Any, round: int, exchange: str) -> Any:
        return {name: 2 * mean for name, mean in super().aggregate(uploads, round, exchange).items()}


class Relative(FedAvg):
    """Weights that depend on the others'."""

    def client_weights(self, uploads: Any) -> dict[str, float]:
        return {name: 1 / len(uploads) for name in uploads}


class FedGCNOfItsOwn(FedGCN):
    """What FedGCN says of its sums does not hold for what is made of it."""

    def aggregate(self, uploads: Any, round: int, exchange: str) -> Any:
        return {}


@pytest.mark.parametrize(
    ("aggregator", "suffice"),
    [
        (FedAvg(), ["1 train", "2 train"]),
        (FedOpt(), ["1 train", "2 train"]),
        (FedAvg(combine=Median()), []),
        (Doubled(), []),
        (Relative(), []),
        (SCAFFOLD(), []),
        (GraphFL(), ["1 train", "2 train"]),
        (FedGCN(), ["1 train", "2 train"]),
        (FedGCNOfItsOwn(), []),
        (AdaFGL(federated_rounds=1), ["1 train"]),
    ],
)
def test_which_algorithms_need_only_sums(aggregator: Aggregator, suffice: list[str]) -> None:
    told = [f"{r} {e}" for r in range(3) for e in aggregator.exchanges(r) if needs_only_sums(aggregator, r, e)]
    assert told == suffice


def test_many_large_sums_are_merged_exactly() -> None:
    one = 2.0**15 - 2.0**-24
    total = ExactSum(1)
    for _ in range(9):
        part = ExactSum(1)
        for _ in range(4001):
            part.add(np.array([one]))
        total.merge(part)
    assert total.rounded()[0] == 9 * 4001 * 2**15 - 9 * 4001 * 2.0**-24
