"""Partitions in files: what a run writes another can read, and files of other programs, too."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

from flgraph.callbacks import FedAvg
from flgraph.data import (
    FlatGraphs,
    GraphFederation,
    NodeFederation,
    NodeGraph,
    PartitionedGraphFederation,
    SyntheticFederation,
    TUFederation,
    WholeGraphFederation,
)
from flgraph.data.partition_file import read_partition
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer
from flgraph.models import GNN

PARTS: dict[str, Any] = {
    "nodes_0": [9, 3, 4, 0],
    "train_0": [4, 9],
    "val_0": [0],
    "test_0": [3],
    "nodes_1": [5, 7],
    "train_1": [7],
}


def path_graph() -> NodeGraph:
    """Ten nodes in a row, with their numbers as features."""
    edges = torch.stack([torch.arange(9), torch.arange(1, 10)])
    return NodeGraph.from_pyg(Data(x=torch.arange(10.0), edge_index=edges, y=torch.arange(10) % 2), "Row")


def written(folder: Path, suffix: str = ".json", **changes: Any) -> str:
    content = {name: value for name, value in {**PARTS, **changes}.items() if value is not None}
    file = folder / f"clients{suffix}"
    if suffix == ".json":
        file.write_text(json.dumps(content))
    else:
        np.savez(file, **{name: np.asarray(value, dtype=np.int32) for name, value in content.items()})
    return str(file)


@pytest.mark.parametrize("suffix", [".json", ".npz"])
def test_clients_are_those_of_the_file(suffix: str, tmp_path: Path) -> None:
    data = WholeGraphFederation(path_graph(), partition=written(tmp_path, suffix, global_test=[1, 2]))
    data.setup()
    assert data.clients == ["client-1", "client-2"]
    first, second = (data.client(name) for name in data.clients)
    assert first.graph.x.flatten().tolist() == [0.0, 3.0, 4.0, 9.0]
    assert first.graph.edge_index.tolist() == [[1, 2], [2, 1]]  # 3 and 4; the others' neighbours are elsewhere
    assert [part.tolist() for part in (first.train, first.val, first.test)] == [[2, 3], [0], [1]]
    assert second.train.tolist() == [1]
    assert second.test.numel() == 0
    assert second.global_graph is not None
    assert second.global_graph.x.flatten().tolist() == [1.0, 2.0]


def test_clients_are_called_as_in_the_file(tmp_path: Path) -> None:
    data = WholeGraphFederation(path_graph(), partition=written(tmp_path, names=["bank", "shop"]))
    data.setup()
    assert data.clients == list(data.statistics["clients"]) == ["bank", "shop"]


def test_what_was_written_gives_the_same_clients(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    edges, y = torch.randint(400, (2, 1200), generator=generator), torch.randint(5, (400,), generator=generator)
    graph = NodeGraph.from_pyg(Data(x=torch.rand(400, 3, generator=generator), edge_index=edges, y=y), "Toy")
    drawn = NodeFederation(graph, num_clients=3, num_test=20, num_train=10, num_query=5)
    drawn.setup()
    file = tmp_path / "partition.npz"
    file.write_bytes(drawn.partition_file())
    again = NodeFederation(graph, partition=str(file))
    again.setup()
    assert again.clients == drawn.clients
    for name in again.clients:
        one, other = drawn.client(name), again.client(name)
        assert one.settings["content"] == other.settings["content"]
        assert other.settings["partition"] == f"file {read_partition(str(file), 'nodes').digest}"
    assert again.partition_file() == file.read_bytes()
    assert again.hparams["partition"].startswith("file ")


def test_a_run_writes_one(tmp_path: Path) -> None:
    data = SyntheticFederation(num_graphs=12)
    trainer = FederatedTrainer(FedAvg(), rounds=1, default_root_dir=tmp_path, logger=False, enable_progress_bar=False)
    trainer.fit(GNN(hidden_channels=4, num_layers=1), data)
    assert trainer.run_dir is not None
    again = SyntheticFederation(num_graphs=12, partition=str(trainer.run_dir / "partition.npz"), split_seed=7)
    again.setup()
    for name in data.clients:
        assert_same(data.client(name), again.client(name))


def toy_graphs() -> list[Data]:
    """Twelve graphs of two or three nodes, which have their graph's number as a feature."""
    sizes = [2 + number % 2 for number in range(12)]
    edges = torch.tensor([[0, 1], [1, 0]])
    return [
        Data(x=torch.full((n, 1), float(i)), edge_index=edges, y=torch.tensor([i % 2])) for i, n in enumerate(sizes)
    ]


def test_graphs_of_one_set(tmp_path: Path) -> None:
    drawn = PartitionedGraphFederation(FlatGraphs.from_pyg(toy_graphs()), num_clients=2, fractions=(0.5, 0.25, 0.25))
    drawn.setup()
    file = tmp_path / "partition.npz"
    file.write_bytes(drawn.partition_file())
    again = PartitionedGraphFederation(FlatGraphs.from_pyg(toy_graphs()), partition=str(file))
    again.setup()
    for name in ("client-1", "client-2"):
        assert numbers(drawn.client(name).graphs) == numbers(again.client(name).graphs)
        assert_same(drawn.client(name), again.client(name))


def test_graphs_of_another_set(tmp_path: Path) -> None:
    drawn = PartitionedGraphFederation(FlatGraphs.from_pyg(toy_graphs()), num_clients=2)
    drawn.setup()
    file = tmp_path / "partition.npz"
    file.write_bytes(drawn.partition_file())
    more = [*toy_graphs(), *toy_graphs()]
    with pytest.raises(InputError, match=rf"`data.partition` to be a partition of {len(more)} graphs, as .* has, but"):
        PartitionedGraphFederation(FlatGraphs.from_pyg(more), partition=str(file)).setup()


def test_a_data_set_by_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read once for all of the file's clients, and held against the file."""
    read: list[str] = []
    monkeypatch.setattr(
        "flgraph.data.graphs.federation.read_tu",
        lambda name, *_: FlatGraphs.from_pyg(toy_graphs(), read.append(name) or name),
    )
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": [number // 6 for number in range(12)]}))
    data = TUFederation(["TINY"], partition=str(file), structure="none", fractions=(0.5, 0.25, 0.25))
    data.setup()
    assert numbers(data.client("1").graphs) == list(range(6, 12))
    assert numbers(data.client("0").graphs) == list(range(6))
    assert read == ["TINY"]
    assert np.load(io.BytesIO(data.partition_file()))["num_graphs"] == 12
    file.write_text(json.dumps({"keys": [number // 6 for number in range(24)]}))
    other = TUFederation(["TINY"], partition=str(file), structure="none")
    other.setup()
    with pytest.raises(InputError, match=r"`data.partition` to be a partition of 12 graphs, as TINY has, but got 24"):
        other.client("0")


def test_graphs_without_any_number_are_not_trained_on() -> None:
    given = toy_graphs()
    for number, graph in enumerate(given):
        graph.y = torch.tensor([[float("nan")] if number % 2 else [1.0]])
    data = GraphFederation({"a": given}, structure="none", task="regression", fractions=(1, 0, 0))
    data.setup()
    assert sorted(data.client("a").train.tolist()) == list(range(0, 12, 2))
    assert data.client("a").num_train_samples == 6


def numbers(graphs: FlatGraphs) -> list[float]:
    return sorted(graphs.x.flatten().unique().tolist())


def assert_same(one: Any, other: Any) -> None:
    """The same graphs in every split; one client may have them in another order."""
    for split in ("train", "val", "test"):
        mine, theirs = (data.graphs.select(getattr(data, split)) for data in (one, other))
        assert torch.equal(mine.x, theirs.x)
        assert torch.equal(mine.y, theirs.y)


def test_some_of_a_clients_graphs(tmp_path: Path) -> None:
    file = tmp_path / "some.json"
    file.write_text(json.dumps({"names": ["only"], "graphs_0": [8, 2, 5], "train_0": [5, 2], "test_0": [8]}))
    data = GraphFederation({"only": toy_graphs()}, structure="none", partition=str(file))
    data.setup()
    own = data.client("only")
    chosen = [own.graphs.select(index).x.unique().tolist() for index in (own.train, own.val, own.test)]
    assert chosen == [[2.0, 5.0], [], [8.0]]


@pytest.mark.parametrize("suffix", [".json", ".npz"])
def test_a_column_says_whose_each_row_is(suffix: str, tmp_path: Path) -> None:
    keys = ["north", "east", "east", "north", "east", "north", "north", "east", "east", "north"]
    file = tmp_path / f"owners{suffix}"
    if suffix == ".json":
        file.write_text(json.dumps({"keys": keys}))
    else:
        np.savez(file, keys=np.array(keys))
    data = NodeFederation(path_graph(), partition=str(file), fractions=(0.6, 0.2, 0.2), partition_seed=3)
    data.setup()
    assert data.clients == ["east", "north"]
    for name in data.clients:
        own = data.client(name)
        assert own.graph.nodes.tolist() == [number for number, key in enumerate(keys) if key == name]
        assert [part.numel() for part in (own.train, own.val, own.test)] == [3, 1, 1]
    written_again = tmp_path / "again.npz"
    written_again.write_bytes(data.partition_file())
    again = NodeFederation(path_graph(), partition=str(written_again))
    again.setup()
    assert again.client("east").settings["content"] == data.client("east").settings["content"]


def test_numbers_as_keys_of_graphs(tmp_path: Path) -> None:
    file = tmp_path / "owners.json"
    file.write_text(json.dumps({"keys": [7] * 5 + [3] * 7}))
    graphs = FlatGraphs.from_pyg(toy_graphs())
    data = PartitionedGraphFederation(graphs, partition=str(file), fractions=(0.6, 0.2, 0.2))
    data.setup()
    assert data.clients == ["3", "7"]
    assert numbers(data.client("7").graphs) == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert data.client("3").train.numel() == 4


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"keys": []}, "`keys` as whole numbers or texts"),
        ({"keys": [0.5] * 10}, "`keys` as whole numbers or texts"),
        ({"keys": [[1], [2, 3]]}, "`keys` as a list"),
        ({"keys": [1] * 9}, "a partition of 10 nodes, as Row has"),
        ({"keys": [1] * 10, "train_0": [1]}, "nothing but `keys`"),
        ({"keys": [1] * 9 + [2]}, "client `2`"),
    ],
)
def test_keys_that_cannot_be_used(content: dict[str, Any], said: str, tmp_path: Path) -> None:
    file = tmp_path / "owners.json"
    file.write_text(json.dumps(content))
    with pytest.raises(InputError, match=said):
        NodeFederation(path_graph(), partition=str(file)).setup()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"train_1": [6]}, "`train_1` among `nodes_1`"),
        ({"train_1": []}, "`train_1` with at least one of the nodes but got"),
        ({"nodes_0": None}, "one with `nodes_0`"),
        ({"nodes_1": [5, 7, 7]}, "`nodes_1` of different numbers from 0"),
        ({"nodes_1": [5, 7, -7]}, "`nodes_1` of different numbers from 0"),
        ({"nodes_1": [5.5, 7]}, "`nodes_1` as a list of whole numbers"),
        ({"nodes_1": [[5], [7, 7]]}, "`nodes_1` as a list of whole numbers"),
        ({"nodes_1": [5, 7, 10]}, "nodes 0 to 9 of Row but got 10"),
        ({"num_nodes": 11}, "a partition of 10 nodes, as Row has, but got 11"),
        ({"global_test": [0, 1]}, "`global_test` holds no client's nodes"),
        ({"names": ["a"]}, "2 different names"),
        ({"names": 5}, "`names` as a list of texts but got 'int'"),
        ({"names": [{"a": 1}, "b"]}, "`names` as a list of texts"),
        ({"num_nodes": [10]}, "`num_nodes` as a whole number"),
        ({"num_nodes": "ten"}, "`num_nodes` as a whole number"),
        ({"nodes_3": [1]}, "fields that are known"),
    ],
)
def test_files_that_cannot_be_used(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        NodeFederation(path_graph(), partition=written(tmp_path, **changes)).setup()


def test_other_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"`data\.partition` to be a file of partitions that exists"):
        NodeFederation(path_graph(), partition="nowhere.npz")
    (tmp_path / "text.npz").write_text("no archive")
    with pytest.raises(InputError, match=r"a partition, \.npz or \.json"):
        NodeFederation(path_graph(), partition=str(tmp_path / "text.npz"))
    file = tmp_path / "others.json"
    file.write_text(json.dumps({"names": ["b"], "graphs_0": [0], "train_0": [0]}))
    with pytest.raises(InputError, match="a file with the client `a`"):
        GraphFederation({"a": toy_graphs()}, structure="none", partition=str(file)).setup()


def test_what_has_no_effect_is_told(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="makes no use of num_test"):
        NodeFederation(path_graph(), partition=written(tmp_path), num_test=5)


def test_what_is_trained_and_tested_on_is_told(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"2 nodes of `test_0` in partition .* are trained on, too\."):
        NodeFederation(path_graph(), partition=written(tmp_path, test_0=[3, 4, 9]))


def test_no_partition_twice(tmp_path: Path) -> None:
    file: Tensor = read_partition(written(tmp_path), "nodes").of("client-1")["nodes"]
    assert file.tolist() == [0, 3, 4, 9]
