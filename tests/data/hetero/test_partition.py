from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from federations import typed_graph

from flgraph.data import (
    HeteroPartition,
    hetero_statistics,
    random_edge_types,
    random_edges,
    read_hetero,
)
from flgraph.data.hetero.schema import reverses, with_reverse, without_reverse
from flgraph.errors import InputError


def dealt(partition: HeteroPartition, count: int) -> torch.Tensor:
    """Number of clients that have each edge."""
    return torch.bincount(torch.cat(partition.clients), minlength=count)


@pytest.mark.parametrize(("clients", "edges"), [(3, 20), (4, 20), (7, 21)])
def test_random_edges(clients: int, edges: int) -> None:
    """K + 2 segments: K of one client each, one of 2 to K - 1 clients, and the rest of all clients."""
    whole = typed_graph(edges=edges)
    partition = random_edges(whole, clients, seed=5)
    size = whole.num_edges // (clients + 2)
    holders = dealt(partition, whole.num_edges)
    assert int((holders == 1).sum()) == clients * size
    assert int(((holders >= 2) & (holders < clients)).sum()) == size
    assert int((holders == clients).sum()) == whole.num_edges - (clients + 1) * size
    if clients > 3:
        assert {int(k) for k in holders.unique()} == set(range(1, clients + 1))
    own = [int((holders[part] == 1).sum()) for part in partition.clients]
    assert own == [size] * clients
    assert all(bool((part.diff() > 0).all()) for part in partition.clients)


def test_random_edge_types() -> None:
    whole = typed_graph(relations=13)
    partition = random_edge_types(whole, 3, seed=2)
    holders = dealt(partition, whole.num_edges).view(13, 20)
    assert bool((holders == holders[:, :1]).all())  # a relation goes with all of its edges
    assert sorted(holders[:, 0].tolist()) == [1] * 6 + [2] * 2 + [3] * 5
    parts = partition.cut(whole)
    assert all(len(part.edge_types) == 2 * len(reverses(part)) for part in parts)
    assert [len(part.edge_types) for part in partition.cut(whole, reverse=False)] == [
        len(part.edge_types) // 2 for part in parts
    ]


def test_k_is_uniform() -> None:
    """Of the edges that go to some clients, as many go to 2 as to 3 and 4, and all clients get as many."""
    whole = typed_graph(relations=45, edges=700)
    partition = random_edges(whole, 5, seed=0)
    holders = dealt(partition, whole.num_edges)
    counts = torch.tensor([int((holders == k).sum()) for k in (2, 3, 4)])
    assert torch.allclose(counts / counts.sum(), torch.full((3,), 1 / 3), atol=0.03)
    sizes = torch.tensor([part.numel() for part in partition.clients]).float()
    assert float(sizes.std() / sizes.mean()) < 0.02


@pytest.mark.parametrize("deal", [random_edges, random_edge_types])
def test_the_seed_decides(deal: Callable[..., HeteroPartition]) -> None:
    whole = typed_graph()
    one, same, other = deal(whole, 3, seed=1), deal(whole, 3, seed=1), deal(whole, 3, seed=2)
    assert one.digest == same.digest != other.digest
    assert [part.content for part in one.cut(whole)] == [part.content for part in same.cut(whole)]


def test_parts_of_a_partition() -> None:
    whole = typed_graph()
    partition = random_edges(whole, 3)
    for part, edges in zip(partition.cut(whole), partition.clients, strict=True):
        part._validate()
        assert part.num_edges == 2 * edges.numel()
        assert bool((torch.bincount(part.edge_index.flatten(), minlength=part.num_nodes) > 0).all())
    parts = partition.cut(whole)
    table = hetero_statistics({part.name: part for part in parts})
    assert table["clients"]["toy, client-2"]["edges"] == parts[1].num_edges
    assert table["mean"]["train"] == pytest.approx(sum(part.train.numel() for part in parts) / 3)
    assert hetero_statistics({}) == {"clients": {}, "mean": {}}


def test_manifests(tmp_path: Path) -> None:
    whole = typed_graph()
    partition, path = random_edge_types(whole, 4), tmp_path / "partition.npz"
    partition.save(path)
    loaded = HeteroPartition.load(path)
    assert loaded.digest == partition.digest
    assert loaded.settings == {"partition": "random_edge_types", "num_clients": 4, "seed": 123}
    assert [a.tolist() for a in loaded.clients] == [b.tolist() for b in partition.clients]
    with pytest.raises(InputError, match="`graph` to be the one with digest"):
        loaded.cut(typed_graph(edges=19))
    with np.load(path) as file:
        stored = dict(file)
    stored["edges"][3] += 1
    np.savez(path, **stored)
    with pytest.raises(InputError, match="a partition with the digest"):
        HeteroPartition.load(path)
    with pytest.raises(InputError, match=r"none\.npz` to be a partition"):
        HeteroPartition.load(tmp_path / "none.npz")


def test_errors() -> None:
    whole = typed_graph()
    with pytest.raises(InputError, match=r"`data\.num_clients` to be 3 or more"):
        random_edges(whole, 2)
    with pytest.raises(InputError, match=r"at most 10, two less than there are relations, but got 11"):
        random_edge_types(whole, 11)
    with pytest.raises(InputError, match="`graph` to be without reverse relations"):
        random_edges(with_reverse(whole), 3)
    with pytest.raises(InputError, match=r"`data\.partition_seed`"):
        random_edges(whole, 3, -1)


# --------------------------------------------------------------------------------------------------------- real files
def test_own_partitions_have_the_published_sizes(data_root: Path) -> None:
    """Mean edges per client of Random Edges, and mean relations of Random Edge Types, as in Table 5."""
    if not (data_root / "entities" / "mutag.npz").is_file():
        pytest.skip("needs entities/mutag.npz")
    whole = without_reverse(read_hetero("MUTAG"))
    for clients, edges in ((3, 78986.7), (5, 54976.8), (10, 31489.8)):
        sizes = [2 * part.numel() for part in random_edges(whole, clients).clients]
        assert sum(sizes) / clients == pytest.approx(edges, rel=0.005)
    for clients, relations in ((3, 26.7), (5, 23.6), (10, 13.0)):
        seeds = [random_edge_types(whole, clients, seed) for seed in range(5)]
        counts = [whole.relation[part].unique().numel() for partition in seeds for part in partition.clients]
        assert 2 * sum(counts) / len(counts) == pytest.approx(relations, abs=1.3)
