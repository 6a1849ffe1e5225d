"""Labels spread over a graph, against dense products, and numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from flgraph.nn import Adjacency, gcn_matrix, propagation
from flgraph.nn.propagation import column_moments, leave_one_out_spreading, smoothing_confidence, spread_labels


def test_labels_spread_as_dense_products_say() -> None:
    generator = torch.Generator().manual_seed(0)
    dense = (torch.rand(9, 9, generator=generator) < 0.3).double().triu(1)
    dense = dense + dense.t()
    adj = Adjacency.from_sorted(dense.nonzero().t().contiguous(), 9, symmetric=True)
    soft = torch.rand(9, 4, generator=generator).double().softmax(dim=1)
    looped = dense + torch.eye(9, dtype=torch.float64)
    scale = looped.sum(1).rsqrt()
    hat = scale.unsqueeze(1) * looped * scale
    expected = soft
    for _ in range(3):  # the loop of the published code
        expected = 0.3 * hat @ expected + 0.7 * soft
        expected[[1, 5]] += soft[[1, 5]]
    found = spread_labels(gcn_matrix(adj), soft, torch.tensor([1, 5]), 3, 0.3)
    assert torch.allclose(found, expected, atol=1e-6)  # the matrix is float32
    assert torch.equal(spread_labels(gcn_matrix(adj), soft, torch.tensor([1, 5]), 0, 0.3), soft)


def test_two_nodes_by_hand() -> None:
    """A-hat is 1/2 everywhere, so a step of alpha 1/2 is (1/4, 1/4) and half of Y; known nodes get Y again."""
    adj = Adjacency.from_sorted(torch.tensor([[0, 1], [1, 0]]), 2, symmetric=True)
    soft = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    found = spread_labels(gcn_matrix(adj), soft, torch.tensor([0]), 1, 0.5)
    assert found.tolist() == [[pytest.approx(1.75), pytest.approx(0.25)], [pytest.approx(0.25), pytest.approx(0.75)]]


def test_moments() -> None:
    x = torch.tensor([[0.0, 1.0], [1.0, 1.0], [0.5, 1.0]], dtype=torch.float64)
    raw, central = [[0.5, 1.0], [1.25 / 3, 1.0]], [[0.0, 0.0], [0.5 / 3, 0.0]]
    assert torch.allclose(column_moments(x, 2, "raw"), torch.tensor(raw).double())
    assert torch.allclose(column_moments(x, 2, "central"), torch.tensor(central).double())
    assert torch.allclose(column_moments(x, 2), torch.tensor(raw + central).double())


def test_confidence() -> None:
    """A node that is sure of one of two classes counts 2/e per neighbour; one that is torn 2/e - log 2."""
    soft = torch.tensor([[1.0, 0.0], [0.5, 0.5]], dtype=torch.float64)
    expected = 3 * 2 / math.e + 2 * (2 / math.e - math.log(2))
    assert smoothing_confidence(soft, torch.tensor([3, 2])) == pytest.approx(expected)
    assert smoothing_confidence(soft, torch.tensor([0, 0])) == 0.0


def test_nobody_hears_of_its_own_label(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dense sum, edges in one direction, some of them twice, and a node without any; all voters at once or not."""
    generator = torch.Generator().manual_seed(1)
    edges = torch.randint(8, (2, 14), generator=generator)
    edges = torch.cat([edges, edges[:, :3], edges[:, 4:6].flip(0)], dim=1)
    known = torch.tensor([0, -1, 2, 2, -1, 1, 0, -1, 1])
    dense = torch.zeros(9, 9, dtype=torch.float64)
    dense[edges[0], edges[1]] = dense[edges[1], edges[0]] = 1.0
    scale = dense.sum(1).clamp(min=1).rsqrt()
    s = scale.unsqueeze(1) * dense * scale
    m = 0.4 * sum(torch.matrix_power(0.6 * s, k) for k in range(4)) + torch.matrix_power(0.6 * s, 4)
    m.fill_diagonal_(0.0)
    labels = torch.zeros(9, 3, dtype=torch.float64)
    labels[known >= 0, known[known >= 0]] = 1.0
    expected = (m @ labels).float()
    torch.testing.assert_close(leave_one_out_spreading(edges, known, 3, alpha=0.6, steps=4), expected)
    monkeypatch.setattr(propagation, "_AT_A_TIME", 2)
    torch.testing.assert_close(leave_one_out_spreading(edges, known, 3, alpha=0.6, steps=4), expected)
    assert not leave_one_out_spreading(edges, torch.full((9,), -1), 3).any()
