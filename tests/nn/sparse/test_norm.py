from __future__ import annotations

import torch

from flgraph.nn import Adjacency, gcn_matrix, gcn_norm, inverse_sqrt

RANDOM = torch.randint(30, (2, 80), generator=torch.Generator().manual_seed(3))


def test_inverse_sqrt() -> None:
    assert inverse_sqrt(torch.tensor([[0.0, 1.0], [4.0, 16.0]])).tolist() == [[0.0, 1.0], [0.5, 0.25]]


def test_normalisation_is_made_once_per_batch_and_forgotten_with_it() -> None:
    adj = Adjacency.from_edges(RANDOM, 30)
    first, second = gcn_norm(adj, torch.float32), gcn_norm(adj, torch.bfloat16)
    assert first[0] is second[0]
    assert gcn_norm(adj, torch.float64)[0].dtype == torch.float64
    assert set(adj.derived["gcn norm"]) == {torch.float32, torch.float64}


def test_matrix_has_the_loops_and_is_made_once() -> None:
    path = Adjacency.from_edges(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), 4)
    matrix = gcn_matrix(path)
    assert gcn_matrix(path) is matrix
    side = 6**-0.5
    expected = [[1 / 2, side, 0, 0], [side, 1 / 3, side, 0], [0, side, 1 / 2, 0], [0, 0, 0, 1]]
    torch.testing.assert_close(matrix.to_dense(), torch.tensor(expected))
