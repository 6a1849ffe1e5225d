"""Parts of NeighGen against loops and hand-worked graphs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flgraph.nn import Adjacency, FeatureGenerator, ImpairedGraph, NeighGen
from flgraph.nn import neighgen as module
from flgraph.nn.neighgen import feature_loss, first_ones, mend, nearest_of_all, nearest_of_own

# 0 - 1 - 2 - 3 - 0 is a ring; 4 hangs on 0, 5 is alone.
RING = torch.tensor([[0, 1, 1, 2, 2, 3, 3, 0, 0, 4], [1, 0, 2, 1, 3, 2, 0, 3, 4, 0]])


def edges(adj: Adjacency) -> set[tuple[int, int]]:
    """Pairs of sender and receiver."""
    receiver = torch.repeat_interleave(adj.rowptr.diff())
    return set(zip(adj.col.tolist(), receiver.tolist(), strict=True))


def test_an_impaired_graph() -> None:
    hidden = torch.tensor([False, True, False, True, False, False])
    graph = ImpairedGraph.of(Adjacency.from_edges(RING, 6), hidden)
    assert graph.visible.tolist() == [0, 2, 4, 5]
    assert edges(graph.adj) == {(0, 2), (2, 0)}  # 0 - 4
    assert graph.adj.num_nodes == 4
    assert graph.missing.tolist() == [2, 2, 0, 0]
    assert sorted(zip(*graph.pairs.tolist(), strict=True)) == [(0, 1), (0, 3), (1, 1), (1, 3)]
    assert graph.pairs[0].tolist() == [0, 0, 1, 1]


def test_a_mended_graph() -> None:
    adj = mend(Adjacency.from_edges(RING, 6), torch.tensor([2, 0, 0, 1, 0, 3]))
    new = {(6, 0), (7, 0), (8, 3), (9, 5), (10, 5), (11, 5)}
    assert edges(adj) == set(zip(*RING.tolist(), strict=True)) | new | {(b, a) for a, b in new}
    adj = mend(Adjacency.from_edges(RING, 6), torch.zeros(6, dtype=torch.long))
    assert edges(adj) == set(zip(*RING.tolist(), strict=True))


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("cells", [7, 2**24])
def test_nearest_and_loss_equal_loops(sparse: bool, cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CELLS", cells)
    random = torch.Generator().manual_seed(0)
    x = torch.rand(9, 5, generator=random) * (torch.rand(9, 5, generator=random) < 0.5)
    rows = torch.rand(6, 5, generator=random, requires_grad=True)
    own = [[3], [0, 8, 2], [5, 5], [1, 4, 6, 7], [1, 4, 6, 7], [2]]
    pairs = torch.tensor([(row, u) for row, some in enumerate(own) for u in some]).t()
    given = x.to_sparse_csr() if sparse else x

    def loop(candidates: list[list[int]]) -> tuple[list[int], Tensor]:
        distances = [torch.stack([(rows[r] - x[u]).square().sum() for u in some]) for r, some in enumerate(candidates)]
        total = torch.stack([some.min() for some in distances]).sum()
        return [candidates[r][int(some.argmin())] for r, some in enumerate(distances)], total

    of_own, of_all = nearest_of_own(rows.detach(), given, pairs), nearest_of_all(rows.detach(), given)
    for nearest, candidates in ((of_own, own), (of_all, [list(range(9))] * 6)):
        expected, total = loop(candidates)
        assert nearest.tolist() == expected
        loss = feature_loss(rows, given, nearest)
        torch.testing.assert_close(loss, total)
        (gradient,) = torch.autograd.grad(loss, rows)
        torch.testing.assert_close(gradient, torch.autograd.grad(total, rows)[0])


def test_candidates() -> None:
    """As many neighbours as are hidden, at most two here, each of which may be like any hidden one of its node."""
    hidden = torch.tensor([True, True, False, True, False, False])
    star = torch.tensor([[0, 2, 1, 2, 3, 2, 0, 4], [2, 0, 2, 1, 2, 3, 4, 0]])
    graph = ImpairedGraph.of(Adjacency.from_edges(star, 6), hidden)
    assert graph.missing.tolist() == [3, 1, 0]  # of 2, 4, 5
    found = graph.candidates(2).t().tolist()
    assert found == [[0, 0], [0, 1], [0, 3], [1, 0], [1, 1], [1, 3], [2, 0]]
    assert first_ones(graph.missing, 2).tolist() == [[True, True], [True, False], [False, False]]


def test_nothing_to_compare() -> None:
    none, x = torch.zeros(0, 5, requires_grad=True), torch.rand(3, 5)
    nearest = nearest_of_own(none.detach(), x, torch.zeros(2, 0, dtype=torch.long))
    assert nearest.shape == (0,)
    assert feature_loss(none, x, nearest) == 0
    assert nearest_of_all(none.detach(), x).shape == (0,)


def test_what_is_no_number_stays_so() -> None:
    """A diverged generator gives a loss that is no number, and no error about indices."""
    rows, x = torch.full((2, 5), torch.nan), torch.rand(3, 5)
    for nearest in (nearest_of_own(rows, x, torch.tensor([[0, 1, 1], [0, 1, 2]])), nearest_of_all(rows, x)):
        assert feature_loss(rows, x, nearest).isnan()


def test_the_generator() -> None:
    torch.manual_seed(0)
    generator = NeighGen(5, 4, [6, 7], 3, dropout=0.5).eval()
    z, missing = generator(torch.rand(6, 5), Adjacency.from_edges(RING, 6))
    assert z.shape == (6, 4)
    assert missing.shape == (6,)
    assert bool((missing >= 0).all())
    features = generator.fgen(z[:2])
    assert features.shape == (2, 3, 5)
    first, second, last = generator.fgen.layers
    expected = torch.tanh(last(torch.relu(second(torch.relu(first(z[:2]))))))
    torch.testing.assert_close(features.flatten(1), expected)
    some = generator.features(z, torch.tensor([0, 2, 1, 0, 0, 3]))
    every = generator.fgen(z)
    torch.testing.assert_close(some, torch.cat([every[1, :2], every[2, :1], every[5]]))
    assert generator.round(torch.tensor([0.4, 0.6, 2.5, 9.0])).tolist() == [0, 1, 2, 3]
    assert [layer.out_features for layer in FeatureGenerator(4, [], 5, 2, 0.0).layers] == [10]
