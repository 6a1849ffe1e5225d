from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch

from flgraph.models.unsupervised.clustering import clustering_metrics, joined, match_clusters, probe_accuracy


def blobs(per: int = 20, kinds: int = 3, spread: float = 0.1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(kinds).repeat_interleave(per)
    centers = 3 * torch.eye(kinds, 4)
    return centers[y] + spread * torch.randn(per * kinds, 4, generator=generator), y


def test_separate_classes_are_found_whatever_their_names() -> None:
    x, y = blobs()
    for labels in (y, (y + 1) % 3):
        found = clustering_metrics(x, labels, 3)
        assert found["accuracy"] == found["f1"] == 1
        assert found["nmi"] == pytest.approx(1)
        assert found["ari"] == pytest.approx(1)
        assert found["silhouette"] > 0.8


def test_matching_is_the_best_of_all_permutations() -> None:
    generator = np.random.default_rng(0)
    for _ in range(20):
        clusters, labels = generator.integers(0, 4, 30), generator.integers(0, 4, 30)
        best = max((np.array(order)[clusters] == labels).mean() for order in permutations(range(4)))
        assert (match_clusters(clusters, labels) == labels).mean() == best


def test_hand_worked() -> None:
    """Clusters 0 0 0 1 1 against classes 1 1 0 0 0: cluster 0 is class 1, cluster 1 class 0; four of five agree."""
    clusters, labels = np.array([0, 0, 0, 1, 1]), np.array([1, 1, 0, 0, 0])
    assert match_clusters(clusters, labels).tolist() == [1, 1, 1, 0, 0]
    assert match_clusters(np.array([0, 1, 2, 2]), np.array([0, 1, 1, 1])).tolist() == [0, -1, 1, 1]


def test_is_deterministic() -> None:
    x, y = blobs(spread=2.0)
    assert clustering_metrics(x, y, 3) == clustering_metrics(x, y, 3)


def test_little_or_equal_data() -> None:
    """Fewer points than clusters, and points that are all the same."""
    assert clustering_metrics(torch.randn(2, 4), torch.tensor([0, 2]), 3)["accuracy"] == 1
    same = clustering_metrics(torch.ones(6, 4), torch.tensor([0, 0, 0, 0, 1, 1]), 2)
    assert same["accuracy"] == pytest.approx(4 / 6)
    assert same["silhouette"] == 0


def test_joined_by_hand() -> None:
    """Columns 1 3 and 5 5 and 2 0: deviations 1, 0, 1, so rows (-1, 0, 1) and (1, 0, -1) over their length."""
    rows = joined(torch.tensor([[1.0, 5.0, 2.0], [3.0, 5.0, 0.0]]), torch.tensor([1, 8]))
    half = 2**-0.5
    expected = torch.tensor([[-half, 0, half, 0], [half, 0, -half, 0.75 * np.log(8)]], dtype=torch.float64)
    torch.testing.assert_close(rows, expected)


def test_joined_is_blind_to_order_and_to_constant_columns() -> None:
    """Sets are stored sorted by class: whatever looked at positions would leak labels."""
    x, y = blobs(spread=2.0)
    order, nodes = torch.randperm(60, generator=torch.Generator().manual_seed(0)), torch.arange(1, 61)
    torch.testing.assert_close(joined(x[order], nodes[order]), joined(x, nodes)[order])
    constant = torch.full((60, 1), 0.1)
    torch.testing.assert_close(joined(torch.cat([x, constant], 1), nodes)[:, :4], joined(x, nodes)[:, :4])
    same = joined(constant, torch.ones(60, dtype=torch.long))
    assert not same.any()  # K-means has nothing to go by
    assert clustering_metrics(same, y, 3)["accuracy"] == pytest.approx(1 / 3)


def test_probe() -> None:
    x, y = blobs()
    assert probe_accuracy(x, y) == 1
    assert probe_accuracy(torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), y) < 0.6
    assert np.isnan(probe_accuracy(x[:3], torch.tensor([0, 0, 1])))
