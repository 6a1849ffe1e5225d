"""Parts of NeighGen against loops and hand-worked graphs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flgraph.errors import InputError
from flgraph.nn import Adjacency, FeatureGenerator, ImpairedGraph, NeighGen
from flgraph.nn import neighgen as module
from flgraph.nn.neighgen import feature_loss, mend, nearest_of_all, nearest_of_pairs

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
    adj, owner, which = mend(Adjacency.from_edges(RING, 6), torch.tensor([2, 0, 0, 1, 0, 3]))
    assert owner.tolist() == [0, 0, 3, 5, 5, 5]
    assert which.tolist() == [0, 1, 0, 0, 1, 2]
    new = {(6, 0), (7, 0), (8, 3), (9, 5), (10, 5), (11, 5)}
    assert edges(adj) == set(zip(*RING.tolist(), strict=True)) | new | {(b, a) for a, b in new}
    adj, owner, _ = mend(Adjacency.from_edges(RING, 6), torch.zeros(6, dtype=torch.long))
    assert edges(adj) == set(zip(*RING.tolist(), strict=True))
    assert owner.numel() == 0


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("rows", [3, 4096])
def test_nearest_and_loss_equal_loops(sparse: bool, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ROWS", rows)
    random = torch.Generator().manual_seed(0)
    x = torch.rand(9, 5, generator=random) * (torch.rand(9, 5, generator=random) < 0.5)
    generated = torch.rand(4, 3, 5, generator=random, requires_grad=True)
    candidates = [[3], [0, 8, 2], [5, 5], [1, 4, 6, 7]]
    pairs = torch.tensor([(v, u) for v, some in enumerate(candidates) for u in some]).t()
    counts = torch.tensor([1, 3, 0, 7])  # 0 counts not at all; of 7 there are 3
    given = x.to_sparse_csr() if sparse else x

    def loop(allowed: list[list[int]]) -> tuple[list[list[int]], Tensor]:
        found, total = [], torch.zeros(())
        for v, some in enumerate(allowed):
            found.append([])
            for p in range(3):
                distances = torch.stack([(generated[v, p] - x[u]).square().sum() for u in some])
                found[-1].append(some[int(distances.argmin())])
                total = total + (distances.min() if p < counts[v] else 0.0)
        return found, total

    of_pairs = nearest_of_pairs(generated.detach(), given, pairs)
    of_all = nearest_of_all(generated.detach().flatten(0, 1), given).view(4, 3)
    for nearest, allowed in ((of_pairs, candidates), (of_all, [list(range(9))] * 4)):
        expected, total = loop(allowed)
        assert nearest.tolist() == expected
        loss = feature_loss(generated, given, nearest, counts)
        torch.testing.assert_close(loss, total)
        (gradient,) = torch.autograd.grad(loss, generated)
        torch.testing.assert_close(gradient, torch.autograd.grad(total, generated)[0])
    with pytest.raises(InputError, match="nearest"):
        feature_loss(generated, given, of_all[:2], counts)


def test_nothing_to_compare() -> None:
    none = torch.zeros(0, 2, 5, requires_grad=True)
    nearest = nearest_of_pairs(none.detach(), torch.rand(3, 5), torch.zeros(2, 0, dtype=torch.long))
    assert nearest.shape == (0, 2)
    assert feature_loss(none, torch.rand(3, 5), nearest, torch.zeros(0, dtype=torch.long)) == 0
    assert nearest_of_all(none.detach().flatten(0, 1), torch.rand(3, 5)).shape == (0,)


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
    assert generator.round(torch.tensor([0.4, 0.6, 2.5, 9.0])).tolist() == [0, 1, 2, 3]
    assert [layer.out_features for layer in FeatureGenerator(4, [], 5, 2, 0.0).layers] == [10]
