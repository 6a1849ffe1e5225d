from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from flgraph.errors import InputError
from flgraph.federation.aggregation import weighted_mean


def mean(weights: dict[str, float], **tensors: Tensor) -> Tensor:
    """The weighted mean of one tensor."""
    return weighted_mean({name: {"w": tensor} for name, tensor in tensors.items()}, weights)["w"]


def test_hand_numbers() -> None:
    result = mean({"A": 1, "B": 3}, A=torch.tensor([[1.0, 2.0]]), B=torch.tensor([[5.0, -2.0]]))
    torch.testing.assert_close(result, torch.tensor([[4.0, -1.0]]), rtol=0, atol=0)


def test_zero_dimensional_and_empty() -> None:
    assert mean({"A": 1, "B": 1}, A=torch.tensor(1.0), B=torch.tensor(2.0)).item() == 1.5
    assert mean({"A": 1, "B": 1}, A=torch.empty(0, 3), B=torch.empty(0, 3)).shape == (0, 3)


def test_order_does_not_matter() -> None:
    """The same bits, whoever answered first."""
    generator = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(50, generator=generator) * 10.0**power for power, name in enumerate("ABCD", start=-4)}
    uploads = {name: {"w": tensor, f"own.{name}": tensor} for name, tensor in tensors.items()}
    weights = {"A": 0.1, "B": 7.0, "C": 1 / 3, "D": 2.0}
    first = weighted_mean(uploads, weights)
    for order in itertools.permutations(uploads):
        result = weighted_mean({name: uploads[name] for name in order}, weights)
        assert list(result) == list(first)
        assert all(torch.equal(result[name], tensor) for name, tensor in first.items())


def test_sums_in_float64() -> None:
    """In float32, 1e8 + 1 is 1e8, and the two large numbers would leave nothing of the small one."""
    large, one = torch.tensor([1e8]), torch.tensor([1.0])
    assert (large + one - large).item() == 0.0
    assert mean({"A": 1, "B": 1, "C": 1}, A=large, B=one, C=-large).item() == torch.tensor(1 / 3).item()


def test_identical_clients_give_their_own_bits() -> None:
    w = torch.randn(100, generator=torch.Generator().manual_seed(1))
    assert torch.equal(mean({"A": 3, "B": 5, "C": 11}, A=w, B=w, C=w), w)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.complex64])
def test_dtype_is_restored(dtype: torch.dtype) -> None:
    result = mean({"A": 1, "B": 1}, A=torch.tensor([1.0, 3.0]).to(dtype), B=torch.tensor([2.0, 5.0]).to(dtype))
    assert result.dtype == dtype
    assert torch.equal(result, torch.tensor([1.5, 4.0]).to(dtype))


@pytest.mark.parametrize("names", ["AB", "BA"])
@pytest.mark.parametrize(
    ("narrow", "wide"),
    [(torch.bfloat16, torch.float32), (torch.float32, torch.float64), (torch.int64, torch.float32)],
)
def test_the_wider_dtype_decides(names: str, narrow: torch.dtype, wide: torch.dtype) -> None:
    """One client of low precision does not round the mean of all, whatever its name."""
    given = {names[0]: torch.tensor([1, 4]).to(narrow), names[1]: torch.tensor([2, 4.001953125], dtype=wide)}
    result = mean({"A": 1, "B": 1}, **given)
    assert result.dtype == wide
    assert result.tolist() == [1.5, 4.0009765625]


@pytest.mark.parametrize("names", ["AB", "BA"])
def test_a_real_client_takes_no_imaginary_part_away(names: str) -> None:
    assert mean({"A": 1, "B": 1}, **{names[0]: torch.tensor([2.0]), names[1]: torch.tensor([4 + 4j])}).item() == 3 + 2j


def test_complex_means_keep_their_imaginary_part() -> None:
    assert mean({"A": 1, "B": 1}, A=torch.tensor([2 + 4j]), B=torch.tensor([0j])).item() == 1 + 2j


def test_integers_are_rounded() -> None:
    """Truncation would lose up to a batch of a batch norm's count in every round."""
    result = mean({"A": 1, "B": 3}, A=torch.tensor([1, -1, 10]), B=torch.tensor([2, -2, 11]))
    assert result.dtype == torch.int64
    assert result.tolist() == [2, -2, 11]  # 1.75, -1.75, 10.75


def test_tensors_of_some_clients_are_averaged_over_those() -> None:
    uploads = {
        "A": {"all": torch.tensor([0.0]), "some": torch.tensor([1.0])},
        "B": {"all": torch.tensor([6.0])},
        "C": {"all": torch.tensor([0.0]), "some": torch.tensor([4.0])},
    }
    result = weighted_mean(uploads, {"A": 2, "B": 3, "C": 1})
    assert result["all"].item() == 3.0
    assert result["some"].item() == 2.0


def test_weightless_clients_do_not_count() -> None:
    assert mean({"A": 0, "B": 2}, A=torch.tensor([9.0]), B=torch.tensor([1.0])).item() == 1.0


def test_weights_of_zero_are_an_error() -> None:
    with pytest.raises(InputError, match=r"`weights of `w`` to be of a sum above 0 but got 0"):
        mean({"A": 0, "B": 0}, A=torch.ones(1), B=torch.ones(1))


def test_shapes_that_differ_are_an_error() -> None:
    with pytest.raises(InputError, match=r"`w` of client `B` to be of shape \[2\] but got \[1\]"):
        mean({"A": 1, "B": 1}, A=torch.ones(2), B=torch.ones(1))


def test_uploads_are_left_alone() -> None:
    given = torch.tensor([1.0, 2.0], dtype=torch.float64)  # the type of the sum: nothing is converted on the way
    mean({"A": 1, "B": 1}, A=given, B=torch.ones(2, dtype=torch.float64))
    assert given.tolist() == [1.0, 2.0]


def test_nobody_gives_nothing() -> None:
    assert weighted_mean({}, {}) == {}


@pytest.mark.parametrize("weight", [-1.0, math.inf, math.nan])
def test_weights_are_finite_and_not_negative(weight: float) -> None:
    with pytest.raises(InputError, match="finite number, 0 or more"):
        mean({"A": 3.0, "B": weight}, A=torch.ones(1), B=torch.ones(1))
