"""Prototypes, against loops and numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from flgraph.nn.prototypes import class_means, first_neighbour_clusters, nearest_vote


def at(*degrees: float) -> torch.Tensor:
    """Directions in a plane."""
    angle = torch.tensor(degrees).deg2rad()
    return torch.stack([angle.cos(), angle.sin()], dim=1)


def test_means_of_classes() -> None:
    generator = torch.Generator().manual_seed(0)
    rows, weights = torch.rand(9, 4, generator=generator), torch.rand(9, generator=generator)
    classes = torch.tensor([0, 2, 2, 0, 1, 1, 1, 0, 2])
    found = class_means(rows, classes, weights, 4)
    for number in range(3):
        own = classes == number
        expected = (rows[own] * weights[own, None]).sum(0) / weights[own].sum()
        assert torch.allclose(found[number], expected, atol=1e-6)
    assert not found[3].any()


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (at(0), [0]),
        (at(0, 90), [0, 0]),  # each is the other's nearest
        (at(0, 5, 90, 95), [0, 0, 1, 1]),
        (at(0, 5, 9, 90), [0, 0, 0, 0]),  # 90's nearest is 9
        (at(0, 5, 20, 25, 90, 95, 110, 115), [0, 0, 0, 0, 1, 1, 1, 1]),  # first four pairs, then two
        (at(0, 4, 7, 90, 94, 97) * torch.tensor([[1.0], [9], [2], [0.1], [4], [1]]), [0, 0, 0, 1, 1, 1]),
    ],
)
def test_clusters_of_first_neighbours(rows: torch.Tensor, expected: list[int]) -> None:
    assert first_neighbour_clusters(rows).tolist() == expected


def test_rows_of_zeros_join_something() -> None:
    assert first_neighbour_clusters(torch.zeros(3, 2)).tolist() == [0, 0, 0]


def test_votes_by_hand() -> None:
    """Of prototypes at 0, 60 and 180 degrees the two nearest count: cosines 1 and 1/2."""
    found = nearest_vote(3 * at(0), at(0, 60, 180), torch.tensor([2, 0, 1]), 3, k=2, temperature=0.5)
    first = math.exp(2) / (math.exp(2) + math.exp(1))
    assert found.tolist() == [pytest.approx([1 - first, 0, first])]
    every = nearest_vote(at(0), at(0, 60, 180), torch.tensor([2, 0, 2]), 3, k=30, temperature=1.0)
    weights = [math.exp(1), math.exp(0.5), math.exp(-1)]
    assert every.tolist() == [pytest.approx([weights[1] / sum(weights), 0, (weights[0] + weights[2]) / sum(weights)])]
