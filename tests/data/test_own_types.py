"""Clients that bring nodes and edges of several types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from own_files import library, made, write
from torch_geometric.data import HeteroData

from flgraph.data import HeteroClients, HeteroDataModule, HeteroGraph, reordered
from flgraph.errors import InputError
from flgraph.models import RGCN, HeteroGAT


def test_tables_of_types(tmp_path: Path) -> None:
    library(tmp_path / "north")
    library(tmp_path / "east", paper=[("id", "pages"), *((f"p{n}", n) for n in range(20))])
    data = made(HeteroClients({"north": "north", "east": "east"}, root=str(tmp_path)))
    graph = data.client("north").graph
    assert repr(graph) == "HeteroGraph(north: 24 nodes of 2 types, 24 edges of 2 types, 2 classes)"
    assert graph.target == "author"
    assert {kind[1] for kind in graph.edge_types} == {"writes", "rev_writes"}
    assert graph.x["paper"][:, 0].tolist() == list(range(12))
    assert "author" not in graph.x
    assert data.statistics["clients"]["east"]["nodes"] == 32
    links = HeteroClients({"north": tmp_path / "north"}, task="links", links={"num_negatives": 2})
    with pytest.warns(UserWarning, match="Not used of the data of `north`: label of author"):
        links.setup()
    assert links.client("north").num_train_samples > 0
    alone = HeteroClients({"north": tmp_path / "north"}, task="links", reverse=False)
    with pytest.warns(UserWarning, match="label of author"):
        alone.setup()
    assert [kind[1] for kind in alone.client("north").graph.edge_types] == ["writes"]
    assert str(alone.client("north")).startswith("HeteroLinkDataModule(HeteroGraph(north: ")
    given: dict[str, Any]
    for given, sentence in (
        ({"task": "nodes", "links": {"seed": 1}}, r"`data\.links` to be null for nodes"),
        ({"links": {"nonsense": 1}}, r"`data\.links` to be names among .* seed, predicted but got 'nonsense'"),
        ({"links": {"seed": -1}}, r"`data\.links\.seed` to be a whole number, 0 or more and below 9"),
        ({"links": {"num_negatives": "many"}}, r"`data\.links\.num_negatives` to be a whole number, 1 or more"),
        (
            {"links": {"test_fraction": 0.95}},
            r"`data\.links\.test_fraction` to be below 0\.9, what `val_fraction` leav",
        ),
    ):
        with pytest.raises(InputError, match=sentence):
            HeteroClients({"north": tmp_path / "north"}, **{"task": "links", **given}).setup()


def test_hidden_files_are_no_tables_and_folders_are_refused(tmp_path: Path) -> None:
    """macOS leaves ``._paper.csv`` on disks of others; Spark writes folders named like files."""
    library(tmp_path)
    (tmp_path / "._paper.csv").write_bytes(b"\0\5\x16\7")
    assert len(made(HeteroClients({"north": tmp_path})).client("north").graph.node_types) == 2
    (tmp_path / "journal.parquet").mkdir()
    with pytest.raises(InputError, match=r"journal\.parquet` to be a file but got something else"):
        made(HeteroClients({"north": tmp_path}))


def test_pyg_of_types(tmp_path: Path) -> None:
    data = HeteroData()
    data["author"].y, data["author"].x = torch.arange(12) % 2, torch.rand(12, 3)
    data["paper"].num_nodes = 12
    data["author", "writes", "paper"].edge_index = torch.arange(12).repeat(2, 1)
    torch.save(data, tmp_path / "a.pt")
    library(tmp_path / "b", author=[("id", "label"), *((f"a{n}", n % 2) for n in range(12))])
    clients = made(HeteroClients({"file": tmp_path / "a.pt", "object": data, "tables": tmp_path / "b"}))
    assert clients.client("file").graph.content == clients.client("object").graph.content
    assert clients.client("file").num_train_samples == 7
    data["author", "writes", "paper"].edge_weight = torch.rand(12)
    with pytest.warns(UserWarning, match="`object`: edge_weight of author-writes-paper"):
        HeteroClients({"object": data}).setup()
    library(tmp_path / "c")
    with pytest.warns(UserWarning, match="`file`, `tables`: no class in common with other clients"):
        HeteroClients({"file": tmp_path / "a.pt", "tables": tmp_path / "c"}).setup()


def test_no_split_is_drawn_over_a_given_one() -> None:
    """As nodes for testing would be trained on."""
    data = HeteroData()
    data["author"].y, data["author"].x = torch.arange(12) % 2, torch.rand(12, 3)
    data["author"].test_mask = torch.arange(12) > 7
    data["author", "cites", "author"].edge_index = torch.arange(12).repeat(2, 1)
    with pytest.raises(InputError, match="`data` to be at least one training node"):
        HeteroClients({"north": data}).setup()


@pytest.mark.parametrize(
    ("changes", "options", "sentence"),
    [
        ({"paper__cites": [("source", "target")]}, {}, "to be called like a node type .* but got another name"),
        ({"paper__in__journal": [("source", "target")]}, {}, "between node types that have tables"),
        ({"paper": [("id", "label"), *((f"p{n}", 1) for n in range(12))]}, {}, "`data.target` to be given, unless one"),
        ({}, {"target": "paper"}, "`data.target` to be a node type of .* with labels but got 'paper'"),
        (
            {},
            {"columns": {"paper": {"pages": ["1", "2"]}}},
            "one of its 2 declared categories but got another in row 1",
        ),
    ],
)
def test_refused_tables_of_types(tmp_path: Path, changes: Any, options: Any, sentence: str) -> None:
    library(tmp_path, **changes)
    with pytest.raises(InputError, match=sentence):
        HeteroClients({"north": tmp_path}, **options).setup()


def test_types_apart_must_be_declared(tmp_path: Path) -> None:
    library(tmp_path)
    for options, field in (({}, "classes"), ({"classes": ["x", "y"]}, "columns.paper")):
        data = HeteroClients({"north": tmp_path}, **options)
        data.declared.apart = True
        with pytest.raises(InputError, match=f"`data.{field}` to be given where partners keep their files apart"):
            data.setup()
    data = HeteroClients({"north": tmp_path}, classes=["x", "y"], columns={"paper": {"pages": "number"}})
    data.declared.apart = True
    data.setup()
    assert isinstance(data.client("north").graph, HeteroGraph)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"edge_ptr": [0, 15, 20]}, r"edge_ptr in .*own.npz` to be rising from 0 to 30 but got \[0, 20\]"),
        ({"edge_types": [["a", "r", "b"]] * 2}, "edge_types in .*` to be different names but got one of them twice"),
        ({"node_types": ["a", "a"]}, "node_types in .*` to be different names but got one of them twice"),
        ({"edge_index": np.full((2, 30), 0.5)}, "edge_index in .*` to be node numbers of an integer type"),
        ({"labels": np.arange(10) / 4}, "labels in .*` to be whole numbers, one class each"),
        ({"num_classes": 10**9}, "num_classes in .*` to be a whole number from 0 to 100000"),
    ],
)
def test_arrays_of_typed_graphs(changed: dict[str, Any], said: str, tmp_path: Path) -> None:
    numbers = np.arange(10)
    arrays: dict[str, Any] = {
        **{"node_types": ["a", "b"], "num_nodes": [10, 10], "target_node_type": "a", "num_classes": 2, "name": "g"},
        **{"edge_types": [["a", "r", "b"], ["b", "s", "a"]], "edge_ptr": [0, 15, 30]},
        **{"edge_index": np.arange(60).reshape(2, 30) % 10, "labels": numbers % 2},
        **{"train_mask": numbers < 6, "val_mask": numbers > 7, "test_mask": (numbers > 5) & (numbers < 8)},
    }
    np.savez(tmp_path / "own.npz", **arrays)
    made(HeteroClients({"north": tmp_path / "own.npz"}))
    with pytest.raises(InputError, match=r"`data\.target` to be a, as the graph of north has it, or null, but got 'b'"):
        HeteroClients({"north": tmp_path / "own.npz"}, target="b").setup()
    np.savez(tmp_path / "own.npz", **arrays, x_a=np.ones((10, 3)))
    with pytest.warns(UserWarning, match="Not used of the data of `north`: x_a"):
        HeteroClients({"north": tmp_path / "own.npz"}).setup()
    np.savez(tmp_path / "own.npz", **{**arrays, **changed})
    with pytest.raises(InputError, match=said):
        HeteroClients({"north": tmp_path / "own.npz"}).setup()


def test_a_model_answers_for_the_tables_of_later(tmp_path: Path) -> None:
    """Other numbers of nodes, no labels: the nodes of before have the answers of before."""

    def rows(count: int, labels: bool) -> dict[str, Any]:
        authors = [("id", "age", *(["label"] if labels else []))]
        authors += [(f"a{n}", n / 10, *(["xy"[n % 2]] if labels else [])) for n in range(count)]
        papers = [("id", "pages"), *((f"p{n}", n) for n in range(count + 3))]
        writes = [("source", "target"), *((f"a{n}", f"p{n}") for n in range(count))]
        return {"author": authors, "paper": papers, "author__writes__paper": writes}

    columns = {"author": {"age": "number"}, "paper": {"pages": "number"}}
    write(tmp_path / "old", **rows(12, True))
    write(tmp_path / "new", **rows(30, False))
    old = made(HeteroClients({"north": tmp_path / "old"}, columns=columns)).client("north")
    later = HeteroClients({"new": tmp_path / "new"}, columns=columns, target="author")
    later.setup()
    new = later.client("new").graph
    kinds = [new.node_types.index(kind) for kind in old.graph.node_types]
    edges = [new.edge_types.index(kind) for kind in old.graph.edge_types]
    moved = HeteroDataModule(reordered(new, kinds, edges))
    for model in (RGCN(**old.model_args, hidden_channels=4), HeteroGAT(**old.model_args, hidden_channels=4)):
        (before,), (after,) = (list(map(model.eval(), data.predict_dataloader())) for data in (old, moved))
        assert after.shape == (30, 2)
        assert torch.allclose(after[:12], before, atol=1e-6)
    with pytest.raises(InputError, match=r"`data\.target` to be given, unless one node type of .* but got none"):
        HeteroClients({"new": tmp_path / "new"}, columns=columns).setup()
