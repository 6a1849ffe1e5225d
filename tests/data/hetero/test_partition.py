from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from flgraph.data import (
    HeteroGraph,
    HeteroPartition,
    authors_partition,
    hetero_statistics,
    partition_of,
    random_edge_types,
    random_edges,
    read_hetero,
    read_hetero_clients,
)
from flgraph.errors import InputError


def graph(relations: int = 12, edges: int = 20) -> HeteroGraph:
    """Two node types; every relation has as many different edges."""
    generator = torch.Generator().manual_seed(0)
    kinds, given = [("a", "b"), ("b", "a"), ("a", "a")], {}
    for number in range(relations):
        source, target = kinds[number % 3]
        chosen = torch.randperm(30 * 30, generator=generator)[:edges]
        given[source, f"r{number}", target] = torch.stack([chosen // 30, chosen % 30])
    y = torch.arange(30) % 3
    splits = torch.arange(0, 12), torch.arange(12, 18), torch.arange(18, 30)
    return HeteroGraph.from_edges({"a": 30, "b": 30}, given, "a", y, *splits, name="toy")


def dealt(partition: HeteroPartition, count: int) -> torch.Tensor:
    """Number of clients that have each edge."""
    return torch.bincount(torch.cat(partition.clients), minlength=count)


@pytest.mark.parametrize(("clients", "edges"), [(3, 20), (4, 20), (7, 21)])
def test_random_edges(clients: int, edges: int) -> None:
    """K + 2 segments: K of one client each, one of 2 to K - 1 clients, and the rest of all clients."""
    whole = graph(edges=edges)
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
    whole = graph(relations=13)
    partition = random_edge_types(whole, 3, seed=2)
    holders = dealt(partition, whole.num_edges).view(13, 20)
    assert bool((holders == holders[:, :1]).all())  # a relation goes with all of its edges
    assert sorted(holders[:, 0].tolist()) == [1] * 6 + [2] * 2 + [3] * 5
    parts = partition.cut(whole)
    assert all(len(part.edge_types) == 2 * len(part.reverses) for part in parts)
    assert [len(part.edge_types) for part in partition.cut(whole, reverse=False)] == [
        len(part.edge_types) // 2 for part in parts
    ]


def test_k_is_uniform() -> None:
    """Of the edges that go to some clients, as many go to 2 as to 3 and 4, and all clients get as many."""
    whole = graph(relations=45, edges=700)
    partition = random_edges(whole, 5, seed=0)
    holders = dealt(partition, whole.num_edges)
    counts = torch.tensor([int((holders == k).sum()) for k in (2, 3, 4)])
    assert torch.allclose(counts / counts.sum(), torch.full((3,), 1 / 3), atol=0.03)
    sizes = torch.tensor([part.numel() for part in partition.clients]).float()
    assert float(sizes.std() / sizes.mean()) < 0.02


@pytest.mark.parametrize("deal", [random_edges, random_edge_types])
def test_the_seed_decides(deal: Callable[..., HeteroPartition]) -> None:
    whole = graph()
    one, same, other = deal(whole, 3, seed=1), deal(whole, 3, seed=1), deal(whole, 3, seed=2)
    assert one.digest == same.digest != other.digest
    assert [part.content for part in one.cut(whole)] == [part.content for part in same.cut(whole)]


def test_parts_of_a_partition() -> None:
    whole = graph()
    partition = random_edges(whole, 3)
    for part, edges in zip(partition.cut(whole), partition.clients, strict=True):
        part._validate()
        assert part.num_edges == 2 * edges.numel()
        assert bool((torch.bincount(part.edge_index.flatten(), minlength=part.num_nodes) > 0).all())
    parts = partition.cut(whole)
    again = partition_of(whole, parts, {})
    assert again.digest == partition.digest
    table = hetero_statistics({part.name: part for part in parts})
    assert table["clients"]["toy, client-2"]["edges"] == parts[1].num_edges
    assert table["mean"]["train"] == pytest.approx(sum(part.train.numel() for part in parts) / 3)
    assert hetero_statistics({}) == {"clients": {}, "mean": {}}


def test_manifests(tmp_path: Path) -> None:
    whole = graph()
    partition, path = random_edge_types(whole, 4), tmp_path / "partition.npz"
    partition.save(path)
    loaded = HeteroPartition.load(path)
    assert loaded.digest == partition.digest
    assert loaded.settings == {"partition": "random_edge_types", "num_clients": 4, "seed": 123}
    assert [a.tolist() for a in loaded.clients] == [b.tolist() for b in partition.clients]
    with pytest.raises(InputError, match="`graph` to be the one with digest"):
        loaded.cut(graph(edges=19))
    with np.load(path) as file:
        stored = dict(file)
    stored["edges"][3] += 1
    np.savez(path, **stored)
    with pytest.raises(InputError, match="a partition with the digest"):
        HeteroPartition.load(path)
    with pytest.raises(InputError, match=r"none\.npz to be a partition"):
        HeteroPartition.load(tmp_path / "none.npz")


def test_errors() -> None:
    whole = graph()
    with pytest.raises(InputError, match=r"`data\.num_clients` to be 3 or more"):
        random_edges(whole, 2)
    with pytest.raises(InputError, match=r"at most 10, two less than there are relations, but got 11"):
        random_edge_types(whole, 11)
    with pytest.raises(InputError, match="`graph` to be without reverse relations"):
        random_edges(whole.with_reverse(), 3)
    with pytest.raises(InputError, match=r"`data\.partition_seed`"):
        random_edges(whole, 3, -1)
    with pytest.raises(InputError, match="to be edges of `toy` but got"):
        partition_of(whole, [graph(edges=25)], {})
    with pytest.raises(InputError, match="to be relations of `toy` but got 'r12'"):
        partition_of(whole, [graph(relations=13)], {})


# --------------------------------------------------------------------------------------------------------- real files
@pytest.mark.parametrize(
    ("split", "clients", "mean"),
    [
        ("random_edges", 3, (7.0, 104.0, 4818.7, 26032.0, 110.7, 27.7, 35.7)),
        ("random_edges", 10, (7.0, 101.6, 2941.3, 10390.6, 94.1, 25.2, 29.3)),
        ("random_edge_types", 3, (7.0, 57.3, 4600.0, 26110.0, 112.0, 28.0, 36.0)),
        ("random_edge_types", 10, (6.0, 28.8, 2632.0, 17115.6, 107.9, 26.9, 34.2)),
    ],
)
def test_the_authors_partitions(data_root: Path, split: str, clients: int, mean: tuple[float, ...]) -> None:
    """Table 5 of the paper, as edges of the whole graph; and the clients cut from it are those of the files."""
    if not (data_root / "entities" / "aifb.npz").is_file():
        pytest.skip("needs entities/aifb.npz")
    whole = read_hetero("AIFB").without_reverse()
    given = read_hetero_clients("AIFB", split, clients)
    partition = partition_of(whole, given, {})
    parts = partition.cut(whole)
    found = hetero_statistics({part.name: part for part in parts})
    assert tuple(round(value, 1) for value in found["mean"].values()) == mean
    assert found == hetero_statistics({client.name: client for client in given})
    for part, client in zip(parts, given, strict=True):
        assert set(part.edge_types) == set(client.edge_types)
        place = client.node_types.index("Personen")
        numbers = client.nodes[client.node_ptr[place] : client.node_ptr[place + 1]]
        assert torch.equal(client.y, whole.y[numbers])
        for field in ("train", "val", "test"):
            assert bool(torch.isin(numbers[getattr(client, field)], getattr(whole, field)).all())
    assert int((dealt(partition, whole.num_edges) == 0).sum()) == 0


@pytest.mark.parametrize("split", ["random_edges", "random_edge_types"])
@pytest.mark.parametrize("clients", [3, 10])
def test_the_authors_partitions_made_again(data_root: Path, split: str, clients: int) -> None:
    """Drawn again they are, edge by edge, those of the authors' files."""
    if not (data_root / "entities" / "aifb.npz").is_file():
        pytest.skip("needs entities/aifb.npz")
    whole = read_hetero("AIFB").without_reverse()
    given = partition_of(whole, read_hetero_clients("AIFB", split, clients), {})
    made = authors_partition("aifb", whole, split, clients)
    assert made.digest == given.digest
    assert made.settings == {"partition": "authors", "split": split, "num_clients": clients}


@pytest.mark.parametrize(
    ("name", "split", "clients", "mean"),
    [
        ("AIFB", "random_edges", 5, (7.0, 103.2, 3916.8, 18140.8, 105.8, 27.8, 34.0)),
        ("AIFB", "random_edge_types", 5, (6.4, 43.2, 3936.2, 22079.2, 112.0, 28.0, 36.0)),
        ("MUTAG", "random_edges", 3, (5.0, 50.0, 22969.0, 78986.7, 218.0, 54.0, 68.0)),
        ("MUTAG", "random_edges", 5, (5.0, 50.0, 19961.2, 54976.8, 217.8, 54.0, 68.0)),
        ("MUTAG", "random_edges", 10, (5.0, 49.0, 14661.6, 31489.8, 217.1, 54.0, 68.0)),
        ("MUTAG", "random_edge_types", 3, (4.3, 26.7, 20185.7, 77898.7, 218.0, 54.0, 68.0)),
        ("MUTAG", "random_edge_types", 5, (4.2, 23.6, 24098.4, 76971.2, 212.4, 53.0, 67.0)),
        ("MUTAG", "random_edge_types", 10, (3.7, 13.0, 19670.1, 49366.6, 207.1, 52.4, 66.2)),
    ],
)
def test_the_authors_partitions_without_a_file(
    data_root: Path, name: str, split: str, clients: int, mean: tuple[float, ...]
) -> None:
    """Those that no file is at hand of have all seven statistics of Table 5 of the paper, to the last digit."""
    if not (data_root / "entities" / f"{name.lower()}.npz").is_file():
        pytest.skip(f"needs entities/{name.lower()}.npz")
    whole = read_hetero(name).without_reverse()
    parts = authors_partition(name, whole, split, clients).cut(whole)
    found = hetero_statistics({part.name: part for part in parts})["mean"]
    assert tuple(round(value, 1) for value in found.values()) == mean


def test_another_graph_is_not_taken_for_the_authors(data_root: Path) -> None:
    if not (data_root / "entities" / "aifb.npz").is_file():
        pytest.skip("needs entities/aifb.npz")
    whole = read_hetero("AIFB").without_reverse()
    with pytest.raises(InputError, match="one of 3, 5 and 10, which FedHGN's authors chose, but got 4"):
        authors_partition("AIFB", whole, "random_edges", 4)
    other = read_hetero("AIFB").without_reverse()
    other.train, other.val = torch.cat([other.train, other.val]).sort().values.tensor_split([112])
    with pytest.raises(InputError, match="`AIFB` to be the graph that FedHGN's authors dealt"):
        authors_partition("AIFB", other, "random_edges", 3)
    other = read_hetero("AIFB").without_reverse()
    other = other.cut(torch.arange(1, other.num_edges), "less")
    with pytest.raises(InputError, match="to be edges of `less` but got '1 others'"):
        authors_partition("AIFB", other, "random_edges", 3)


def test_own_partitions_have_the_published_sizes(data_root: Path) -> None:
    """Mean edges per client of Random Edges, and mean relations of Random Edge Types, as in Table 5."""
    if not (data_root / "entities" / "mutag.npz").is_file():
        pytest.skip("needs entities/mutag.npz")
    whole = read_hetero("MUTAG").without_reverse()
    for clients, edges in ((3, 78986.7), (5, 54976.8), (10, 31489.8)):
        sizes = [2 * part.numel() for part in random_edges(whole, clients).clients]
        assert sum(sizes) / clients == pytest.approx(edges, rel=0.005)
    for clients, relations in ((3, 26.7), (5, 23.6), (10, 13.0)):
        seeds = [random_edge_types(whole, clients, seed) for seed in range(5)]
        counts = [whole.relation[part].unique().numel() for partition in seeds for part in partition.clients]
        assert 2 * sum(counts) / len(counts) == pytest.approx(relations, abs=1.3)
