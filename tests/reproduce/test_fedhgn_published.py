from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from federations import typed_graph

from flgraph.data import HeteroGraph, HeteroPartition, hetero_statistics, random_edges, read_hetero
from flgraph.data.hetero.readers import locate_hetero, read_npz
from flgraph.data.hetero.schema import without_reverse
from flgraph.errors import InputError
from flgraph.reproduce.fedhgn.published import PublishedHeteroFederation, _edge_columns, authors_partition


def read_hetero_clients(name: str, split: str, num_clients: int) -> list[HeteroGraph]:
    """The clients of a partition by FedHGN's authors, from their files."""
    theirs = {"random_edges": "random-edges", "random_edge_types": "random-etypes"}[split]
    path = locate_hetero(name, f"{name.lower()}_{theirs}_{num_clients}.npz", None)
    clients = []
    with np.load(path, allow_pickle=False) as file, TemporaryDirectory() as folder:
        common = {key: file[key] for key in ("num_classes", "name")}
        for number in range(num_clients):
            prefix = f"client{number}/"
            own = {key.removeprefix(prefix): file[key] for key in file.files if key.startswith(prefix)}
            np.savez(f"{folder}/own.npz", **own, **common)
            graph = read_npz(f"{folder}/own.npz", f"{name}, client-{number + 1}")
            clients.append(graph.replace(nodes=torch.from_numpy(own["node_id"]).long()))
    return clients


def partition_of(graph: HeteroGraph, clients: Sequence[HeteroGraph]) -> HeteroPartition:
    """The partition of a graph that ready-made clients are."""
    chosen = []
    for client in clients:
        part = without_reverse(client)
        # From numbers among the client's nodes to numbers within the node types of the whole graph.
        ends = part.nodes[part.edge_index]
        chosen.append(_edge_columns(graph, part.edge_types, part.relation, ends, client.name).sort().values)
    return HeteroPartition(chosen, graph.content)


def test_ready_made_clients_are_a_partition() -> None:
    whole = typed_graph()
    partition = random_edges(whole, 3)
    assert partition_of(whole, partition.cut(whole)).digest == partition.digest
    with pytest.raises(InputError, match="to be edges of `toy` but got"):
        partition_of(whole, [typed_graph(edges=25)])
    with pytest.raises(InputError, match="to be relations of `toy` but got 'r12'"):
        partition_of(whole, [typed_graph(relations=13)])


def test_a_graph_of_ones_own_has_no_published_partition() -> None:
    with pytest.raises(InputError, match=r"`data\.dataset` to be the name of a data set, .*, but got 'HeteroGraph'"):
        PublishedHeteroFederation(typed_graph()).setup("fit")


def test_the_files_of_the_authors(data_root: Path) -> None:
    if not (data_root / "entities" / "aifb_random-edges_3.npz").is_file():
        pytest.skip("needs entities/aifb_random-edges_3.npz")
    clients = read_hetero_clients("AIFB", "random_edges", 3)
    assert [client.num_edges for client in clients] == [26082, 25938, 26076]
    with pytest.raises(InputError, match=r"aifb_random-edges_4\.npz"):
        read_hetero_clients("AIFB", "random_edges", 4)


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
    whole = without_reverse(read_hetero("AIFB"))
    given = read_hetero_clients("AIFB", split, clients)
    partition = partition_of(whole, given)
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
    assert torch.cat(partition.clients).unique().numel() == whole.num_edges


@pytest.mark.parametrize("split", ["random_edges", "random_edge_types"])
@pytest.mark.parametrize("clients", [3, 10])
def test_the_authors_partitions_made_again(data_root: Path, split: str, clients: int) -> None:
    """Drawn again they are, edge by edge, those of the authors' files."""
    if not (data_root / "entities" / "aifb.npz").is_file():
        pytest.skip("needs entities/aifb.npz")
    whole = without_reverse(read_hetero("AIFB"))
    given = partition_of(whole, read_hetero_clients("AIFB", split, clients))
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
    whole = without_reverse(read_hetero(name))
    parts = authors_partition(name, whole, split, clients).cut(whole)
    found = hetero_statistics({part.name: part for part in parts})["mean"]
    assert tuple(round(value, 1) for value in found.values()) == mean


def test_another_graph_is_not_taken_for_the_authors(data_root: Path) -> None:
    if not (data_root / "entities" / "aifb.npz").is_file():
        pytest.skip("needs entities/aifb.npz")
    whole = without_reverse(read_hetero("AIFB"))
    with pytest.raises(InputError, match="one of 3, 5 and 10, which FedHGN's authors chose, but got 4"):
        authors_partition("AIFB", whole, "random_edges", 4)
    other = without_reverse(read_hetero("AIFB"))
    other.train, other.val = torch.cat([other.train, other.val]).sort().values.tensor_split([112])
    with pytest.raises(InputError, match="`AIFB` to be the graph that FedHGN's authors had"):
        authors_partition("AIFB", other, "random_edges", 3)
    other = without_reverse(read_hetero("AIFB"))
    other = other.cut(torch.arange(1, other.num_edges), "less")
    with pytest.raises(InputError, match="to be edges of `less` but got 1 others"):
        authors_partition("AIFB", other, "random_edges", 3)


def test_the_authors_clients(data_root: Path) -> None:
    if not (data_root / "entities" / "aifb.npz").is_file():
        pytest.skip("needs entities/aifb.npz")
    data = PublishedHeteroFederation("AIFB", num_clients=3, partition="random_edge_types")
    data.setup("fit")
    assert data.client("client-1").settings["partition"] == "authors"
    args = data.client("client-1").model_args
    assert args["num_classes"] == 4
    assert args["num_features"] == [0] * 7
    assert sum(args["num_nodes"]) == data.statistics["clients"]["client-1"]["nodes"]
