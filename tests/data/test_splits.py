"""Splits and shards: what every client gets, and that it is the published split."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.model_selection import train_test_split

from flgraph.data import GraphDataModule, TUFederation, dirichlet_shards, shards
from flgraph.data.graphs.readers import read_tu
from flgraph.data.graphs.synthetic import SyntheticFederation
from flgraph.data.splits import stratified_split
from flgraph.errors import InputError


def labels(counts: list[int], seed: int = 0) -> torch.Tensor:
    y = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    return y[torch.randperm(y.numel(), generator=torch.Generator().manual_seed(seed))]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(10, 150), min_size=2, max_size=4), st.integers(0, 2**32 - 1))
def test_split_is_scikit_learns(counts: list[int], seed: int) -> None:
    y = labels(counts)
    index = np.arange(y.numel())
    train, rest = train_test_split(index, train_size=0.8, test_size=0.2, stratify=y, shuffle=True, random_state=seed)
    val, test = train_test_split(rest, train_size=0.5, test_size=0.5, stratify=y[rest], random_state=seed)
    for ours, theirs in zip(stratified_split(y, seed=seed), (train, val, test), strict=True):
        assert ours.dtype == torch.int64
        assert ours.tolist() == theirs.tolist()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=5),
    st.sampled_from(
        [(0.8, 0.1, 0.1), (0.7, 0.1, 0.2), (0.6, 0.4, 0.0), (0.5, 0.0, 0.5), (1.0, 0.0, 0.0), (0.34, 0.33, 0.33)]
    ),
    st.integers(0, 1000),
)
def test_split_covers_and_repeats(counts: list[int], fractions: tuple[float, ...], seed: int) -> None:
    y = labels([count + 9 for count in counts])
    parts = stratified_split(y, fractions, seed)
    assert sorted(torch.cat(parts).tolist()) == list(range(y.numel()))
    assert all(abs(part.numel() - f * y.numel()) <= 2 for part, f in zip(parts, fractions, strict=True))
    assert all(part.numel() == 0 for part, f in zip(parts, fractions, strict=True) if f == 0)
    for one, two in zip(parts, stratified_split(y, fractions, seed), strict=True):
        assert torch.equal(one, two)


def test_split_keeps_class_shares() -> None:
    y = labels([600, 300, 100])
    for part in stratified_split(y):
        assert torch.bincount(y[part]).tolist() == [part.numel() * share // 10 for share in (6, 3, 1)]


def test_split_without_stratifying() -> None:
    y = labels([30, 1])
    train, rest = train_test_split(np.arange(31), train_size=0.8, test_size=0.2, random_state=5)
    ours = stratified_split(y, seed=5)
    assert ours[0].tolist() == train.tolist()
    assert sorted(torch.cat(ours[1:]).tolist()) == sorted(rest.tolist())


@pytest.mark.parametrize(
    "fractions", [(0.8, 0.2), (0.0, 0.5, 0.5), (0.8, 0.3, -0.1), (0.8, 0.1, 0.2), (float("nan"), 0, 1)]
)
def test_split_bad_fractions(fractions: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match="Expected `fractions` to be three numbers of 0 or more that sum to 1"):
        stratified_split(labels([10, 10]), fractions)


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_split_bad_seed(seed: int) -> None:
    with pytest.raises(InputError, match=rf"Expected `seed` to be between 0 and 2\^32 - 1 but got {seed}\."):
        stratified_split(labels([10, 10]), seed=seed)
    with pytest.raises(
        InputError, match=rf"Expected `data\.split_seed` to be between 0 and 2\^32 - 1 but got {seed}\."
    ):
        SyntheticFederation(domains=["trees"], split_seed=seed)
    for deal in (lambda: shards(20, 2, seed), lambda: dirichlet_shards(labels([10, 10]), 2, 1.0, seed)):
        with pytest.raises(InputError, match=rf"Expected `seed` to be between 0 and 2\^32 - 1 but got {seed}\."):
            deal()


@pytest.mark.parametrize(("n", "name"), [(0, "training"), (1, "training"), (4, "validation")])
def test_split_of_too_few(n: int, name: str) -> None:
    with pytest.raises(InputError, match=f"to leave samples for the {name} set but got .* of {n} samples"):
        stratified_split(torch.zeros(n, dtype=torch.long))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 200), st.data(), st.integers(0, 1000))
def test_shards(num_graphs: int, data: st.DataObject, seed: int) -> None:
    n = data.draw(st.integers(1, num_graphs))
    parts = shards(num_graphs, n, seed)
    sizes = [part.numel() for part in parts]
    assert len(parts) == n
    assert max(sizes) - min(sizes) <= 1
    assert sorted(torch.cat(parts).tolist()) == list(range(num_graphs))
    assert all(torch.equal(one, two) for one, two in zip(parts, shards(num_graphs, n, seed), strict=True))


def test_shards_are_random() -> None:
    assert not torch.equal(shards(100, 4, 0)[0], shards(100, 4, 1)[0])


@pytest.mark.parametrize("n", [0, -1, 11])
def test_shards_bad_n(n: int) -> None:
    with pytest.raises(InputError, match=f"Expected `n` to be between 1 and the number of graphs, 10, but got {n}"):
        shards(10, n, 0)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(20, 60), min_size=1, max_size=4), st.integers(1, 5), st.floats(0.3, 50), st.integers(0, 99))
def test_dirichlet_shards(counts: list[int], n: int, alpha: float, seed: int) -> None:
    y = labels(counts)
    parts = dirichlet_shards(y, n, alpha, seed, min_size=2)
    assert len(parts) == n
    assert min(part.numel() for part in parts) >= 2
    assert sorted(torch.cat(parts).tolist()) == list(range(y.numel()))
    again = dirichlet_shards(y, n, alpha, seed, min_size=2)
    assert all(torch.equal(one, two) for one, two in zip(parts, again, strict=True))


def test_dirichlet_skew_follows_alpha() -> None:
    y = labels([1000, 1000])

    def spread(alpha: float) -> float:
        shares = [float((y[part] == 0).float().mean()) for part in dirichlet_shards(y, 5, alpha, 0)]
        return float(np.std(shares))

    assert spread(0.1) > 0.2 > 0.05 > spread(1000.0)


def test_dirichlet_errors() -> None:
    y = labels([10, 10])
    with pytest.raises(InputError, match="Expected `n` to be between 1 and the number of samples, 20, but got 21"):
        dirichlet_shards(y, 21, 1.0, 0)
    for alpha in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="Expected `alpha` to be a positive number"):
            dirichlet_shards(y, 2, alpha, 0)
    with pytest.raises(InputError, match=r"Expected `min_size` to be between 0 and 5 \(20 samples / 4\) but got 6"):
        dirichlet_shards(y, 4, 1.0, 0, min_size=6)
    with pytest.raises(InputError, match="Expected `alpha` to be large enough for 4 clients of at least 5 samples"):
        dirichlet_shards(y, 4, 0.01, 0, min_size=5)


@pytest.mark.parametrize(
    ("name", "size"),
    [("MUTAG", 150), ("BZR", 324), ("COX2", 373), ("DHFR", 604), ("PTC_MR", 275), ("AIDS", 1600), ("NCI1", 3288)],
)
def test_training_sizes(name: str, size: int) -> None:
    root = os.environ.get("FLGRAPH_DATA")
    if not root or not any(Path(root, folder, f"{name}.zip").is_file() for folder in ("", "tu")):
        pytest.skip(f"needs {name}.zip in the folder that FLGRAPH_DATA names")
    y = read_tu(name).y
    assert stratified_split(y)[0].numel() == size


@pytest.mark.parametrize(
    ("train", "sentence"),
    [
        (torch.ones(20, dtype=torch.bool), "`train` to be graph numbers, int64 but got torch.bool"),
        ([0, 1], "`train` to be graph numbers, int64 but got 'list'"),
        (torch.tensor([[0, 1]]), r"`train` to be of shape \[n\] but got \[1, 2\]"),
        (torch.tensor([0, 30, -1]), r"`train` to be graphs 0 to 19 of `toy` but got \[30, -1\]"),
        (torch.tensor([3, 3, 1]), r"`train` to be different graphs of `toy` but got \[3\]"),
    ],
)
def test_splits_of_the_users_own(train: Any, sentence: str) -> None:
    graphs = SyntheticFederation(domains=["trees"], num_graphs=20)
    graphs.setup()
    toy = graphs.client("trees").graphs
    toy.name = "toy"
    with pytest.raises(InputError, match=sentence):
        GraphDataModule(toy, (train, torch.arange(2), torch.arange(2)))


def test_one_name_is_no_list() -> None:
    """Or else its letters would be looked for."""
    with pytest.raises(InputError, match=r"`data\.datasets` to be a list of data sets but got 'MUTAG'"):
        TUFederation("MUTAG")  # type: ignore[arg-type]


def test_small_clients_do_not_all_lack_the_same_class() -> None:
    """Two graphs are left for validation and test, one of each class: which goes where differs by the client."""
    y = torch.arange(10) % 2
    tested = {int(y[stratified_split(y, client=f"client-{number}")[2]]) for number in range(9)}
    assert tested == {0, 1}
    federation = SyntheticFederation(num_graphs=10)
    federation.setup()
    kept = {int(federation.client(name).graphs.y[federation.client(name).test]) for name in federation.clients}
    assert kept == {0, 1}
    large, targets = torch.arange(40) % 2, torch.rand(10, 1)
    for labels in (large, targets):  # what can be stratified, or has no classes, is as published
        for one, other in zip(stratified_split(labels, client="A"), stratified_split(labels), strict=True):
            assert one.tolist() == other.tolist()
