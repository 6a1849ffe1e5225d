from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from flgraph.data import TUFederation, emd_shards, label_emd, read_tu, sorted_shards, weighted_emd
from flgraph.errors import InputError


def labels(*counts: int) -> Tensor:
    """So many graphs of each class, mixed."""
    y = torch.repeat_interleave(torch.tensor(counts))
    return y[torch.randperm(y.numel(), generator=torch.Generator().manual_seed(0))]


def counts_of(y: Tensor, dealt: list[Tensor]) -> Tensor:
    return torch.stack([torch.bincount(y[index], minlength=int(y.max()) + 1) for index in dealt])


def literal(y: Tensor, dealt: list[Tensor]) -> float:
    """FCLG's formula, client by client and class by class."""
    total = 0.0
    for index in dealt:
        own = y[index].tolist()
        distance = sum(abs(own.count(c) / len(own) - y.tolist().count(c) / y.numel()) for c in range(int(y.max()) + 1))
        total += len(own) / y.numel() * distance
    return total


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("sizes", "clients", "emd"),
    [
        ((663, 450), 6, 0.5774),
        ((100,) * 6, 6, 1.2667),
        ((295, 461), 6, 0.5694),
        ((50, 30, 20), 4, 0.9),
        ((9, 7), 2, 0.5),
    ],
)
def test_reaches_the_wanted_distance(sizes: tuple[int, ...], clients: int, emd: float, seed: int) -> None:
    y = labels(*sizes)
    tolerance = 0.005 if sum(sizes) > 100 else 2 / sum(sizes)  # an exchange changes it by up to 4 / S
    dealt = emd_shards(y, clients, emd, seed, tolerance)
    assert torch.cat(dealt).sort().values.tolist() == list(range(y.numel()))
    held = [index.numel() for index in dealt]
    assert max(held) - min(held) <= 1
    assert all(torch.equal(index, index.sort().values) for index in dealt)
    assert abs(literal(y, dealt) - emd) <= tolerance
    assert weighted_emd(counts_of(y, dealt)) == pytest.approx(literal(y, dealt), abs=1e-12)
    again = emd_shards(y, clients, emd, seed, tolerance)
    assert all(torch.equal(one, other) for one, other in zip(dealt, again, strict=True))


def test_seeds_deal_differently() -> None:
    y = labels(60, 40)
    one, other = (emd_shards(y, 4, 0.4, seed) for seed in (0, 1))
    assert any(not torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    ("sizes", "printed"), [((663, 450), 0.0022), ((100,) * 6, 0.0267)], ids=["PROTEINS", "ENZYMES"]
)
def test_equal_shares_are_those_of_the_paper(sizes: tuple[int, ...], printed: float) -> None:
    """FCLG, Table III: six clients of equal size, as alike as whole graphs can be."""
    y = labels(*sizes)
    for seed in range(3):
        assert round(literal(y, emd_shards(y, 6, None, seed)), 4) == printed


def test_enzymes_as_in_the_paper() -> None:
    """Its distance, 1.2667, is that of 80 graphs of one class and 4 of each other: |.8 - 1/6| + 5 |.04 - 1/6|."""
    y = labels(*(100,) * 6)
    counts = counts_of(y, emd_shards(y, 6, 1.2667, 0))
    assert counts.sort(dim=1).values.tolist() == [[4, 4, 4, 4, 4, 80]] * 6


def test_more_skew_is_more_distance() -> None:
    y = labels(70, 50, 30)
    reached = [literal(y, emd_shards(y, 5, emd, 0, 0.02)) for emd in (0.0, 0.2, 0.4, 0.6, 0.8)]
    assert reached == sorted(reached)


def test_distances() -> None:
    assert label_emd(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])) == 2
    assert label_emd(torch.tensor([0.5, 0.5]), torch.tensor([0.5, 0.5])) == 0
    assert weighted_emd(torch.tensor([[3, 1], [0, 0], [1, 3]])) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ((7, 0.5), "Expected `num_clients` to be between 1 and 5"),
        ((2, 2.5), "Expected `emd` to be from 0 to 2"),
        ((2, 1.2), "Expected `emd` to be at most 1.0000, which 2 clients of 10 graphs in 2 classes can reach"),
        ((2, 0.33), "the nearest found is 0.2000"),
    ],
)
def test_refusals(args: tuple[int, float], told: str) -> None:
    with pytest.raises(InputError, match="Expected") as error:
        emd_shards(labels(5, 5), *args, seed=0, min_size=2)
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [({"tolerance": float("inf")}, "`tolerance` to be a positive, finite"), ({"seed": -1}, "`partition_seed` to be")],
)
def test_refusals_of_settings(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        emd_shards(labels(5, 5), 2, 0.2, **{"seed": 0, **wrong})


@pytest.mark.parametrize(
    ("name", "emd"), [("PROTEINS", 0.5774), ("ENZYMES", 1.2667), ("DHFR", 0.5694), ("NCI1", 0.5995)]
)
def test_data_sets_of_the_paper(data_root: Path, name: str, emd: float) -> None:
    y = read_tu(name, data_root).y
    assert abs(weighted_emd(counts_of(y, emd_shards(y, 6, emd, 123))) - emd) <= 0.005


def test_sorted_shards_keep_like_values_together() -> None:
    values = torch.tensor([5.0, 1.0, 5.0, 3.0, 5.0, 0.0, 4.0])
    shards = sorted_shards(values, 3, seed=0)
    assert torch.cat(shards).sort().values.tolist() == list(range(7))
    assert [len(shard) for shard in shards] == [3, 2, 2]
    assert shards[0].tolist() == [1, 3, 5]
    with pytest.raises(InputError, match="`n` to be between 1 and the number of graphs, 7"):
        sorted_shards(values, 8, seed=0)


@pytest.mark.parametrize("cut", ["dirichlet", "feature_skew", "topology_skew"])
def test_data_sets_are_cut_with_skew(data_root: Path, cut: str) -> None:
    data = TUFederation(["PROTEINS"], shards=4, partition=cut, features="attributes", structure="none", alpha=0.5)
    data.setup()
    own = [data.client(name) for name in data.clients]
    assert sum(len(client.graphs) for client in own) == 1113
    assert {"partition": cut, "alpha": 0.5}.items() <= own[0].settings.items()
    assert data.name == f"proteins-4-{cut}".lower()
    if cut == "dirichlet":
        counts = torch.stack([torch.bincount(client.graphs.y, minlength=2) for client in own])
        assert weighted_emd(counts) > 0.1
        return
    ranges = []
    for client in own:
        graphs = [client.graphs[number] for number in range(len(client.graphs))]
        feature = cut == "feature_skew"
        values = [float(g.x.double().mean()) if feature else g.edge_index.size(1) / g.num_nodes for g in graphs]
        ranges.append((min(values), max(values)))
    assert all(one[1] <= other[0] + 1e-9 for one, other in pairwise(ranges))


def test_refusals_of_cuts() -> None:
    with pytest.raises(InputError, match=r"`data.partition` to be one of dirichlet, feature_skew, topology_skew, or a"):
        TUFederation(["MUTAG"], shards=2, partition="louvain")
    with pytest.raises(InputError, match=r"`data.shards` to be 2 or more, for `data.partition: dirichlet`, but got 1"):
        TUFederation(["MUTAG"], partition="dirichlet")
    with pytest.warns(UserWarning, match="`data.alpha` has no effect"):
        TUFederation(["MUTAG"], alpha=0.1)
