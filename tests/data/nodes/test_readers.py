"""Node classification sets: published counts, PyG's own tensors, and where files are looked for."""

from __future__ import annotations

import gzip
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from torch_geometric.datasets import CitationFull, Planetoid
from torch_geometric.utils import coalesce

from flgraph.data import read_nodes
from flgraph.data.nodes import readers
from flgraph.errors import InputError

pytestmark = pytest.mark.usefixtures("own_cache")

COUNTS = {"Cora": (2708, 10556, 1433, 7), "CiteSeer": (3327, 9104, 3703, 6), "DBLP": (17716, 105734, 1639, 4)}


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test waits for a network."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError("no network here")

    monkeypatch.setattr("torch_geometric.datasets.planetoid.fs.cp", refuse)
    monkeypatch.setattr("torch_geometric.datasets.citation_full.download_url", refuse)
    for module in ("wikics", "webkb", "wikipedia_network", "actor", "heterophilous_graph_dataset"):
        monkeypatch.setattr(f"torch_geometric.datasets.{module}.download_url", refuse)


@pytest.mark.parametrize("name", list(COUNTS))
def test_counts_are_the_published_ones(name: str, data_root: Path) -> None:
    graph = read_nodes(name, data_root)
    sizes = (graph.num_nodes, graph.edge_index.size(1), graph.num_features, graph.num_classes)
    assert sizes == COUNTS[name]
    assert graph.undirected
    assert graph.name == name
    graph._validate()


def test_dblp_labels_and_words(data_root: Path) -> None:
    graph = read_nodes("dblp", data_root)
    assert torch.bincount(graph.y).tolist() == [7920, 5645, 1982, 2169]
    assert graph.x._nnz() == 92192
    assert graph.x.values().unique().tolist() == [1]
    assert int((graph.x.crow_indices().diff() == 0).sum()) == 64


@pytest.mark.parametrize("name", ["Cora", "CiteSeer", "DBLP"])
def test_tensors_are_pygs(name: str, data_root: Path, tmp_path: Path) -> None:
    folder = tmp_path / ("dblp" if name == "DBLP" else name) / "raw"
    found = data_root / ("citation_full" if name == "DBLP" else "planetoid")
    shutil.copytree(found, folder)
    theirs = (CitationFull(str(tmp_path), "DBLP") if name == "DBLP" else Planetoid(str(tmp_path), name))[0]
    ours = read_nodes(name, tmp_path)  # finds the files where PyG has them
    assert torch.equal(ours.edge_index, coalesce(theirs.edge_index))
    assert torch.equal(ours.y, theirs.y)
    assert ours.is_sparse
    assert torch.equal(ours.x.to_dense(), theirs.x)


def test_second_reading_is_from_the_cache(data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = read_nodes("Cora", data_root)
    monkeypatch.setattr(readers, "_parse", None)
    second = read_nodes("cora", data_root)
    assert first.content == second.content
    assert second.x.crow_indices().dtype == torch.int32
    assert len(list((tmp_path / "cache").iterdir())) == 1  # PyG's own copies are gone


def test_normalised(data_root: Path) -> None:
    graph = read_nodes("Cora", data_root, normalize=True)
    sums = torch.mv(graph.x, torch.ones(graph.num_features))
    torch.testing.assert_close(sums, torch.ones(graph.num_nodes))


def test_finds_the_folder_by_the_environment(data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in (tmp_path, tmp_path / "planetoid"):
        shutil.copytree(data_root / "planetoid", place, dirs_exist_ok=True)
        monkeypatch.setenv("FLGRAPH_DATA", str(tmp_path))
        assert read_nodes("Cora").num_nodes == 2708
        for file in tmp_path.glob("ind.*"):
            file.unlink()


def test_a_damaged_file_is_named(data_root: Path, tmp_path: Path) -> None:
    shutil.copytree(data_root / "planetoid", tmp_path / "planetoid")
    (tmp_path / "planetoid" / "ind.cora.graph").write_bytes(b"\x80\x04nothing")
    with pytest.raises(InputError, match=r"`.*planetoid` to be a folder with intact files of Cora but got") as caught:
        read_nodes("Cora", tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("Cora", "ind.cora.x"),
        ("DBLP", "dblp.npz"),
        ("WikiCS", "data.json"),
        ("Texas", "out1_node_feature_label.txt"),
        ("actor", "out1_node_feature_label.txt"),
        ("Squirrel", "out1_node_feature_label.txt"),
        ("Squirrel-filtered", "squirrel_filtered.npz"),
        ("Roman-empire", "roman_empire.npz"),
    ],
)
def test_neither_found_nor_downloaded(name: str, file: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_nodes(name, tmp_path)
    message = str(caught.value)
    assert message.startswith(f"Expected `data.root` or `FLGRAPH_DATA` to be a folder with {file}")
    assert message.endswith(f"but got {tmp_path}, which has none, and the download failed (no network here).")
    assert list((tmp_path / "cache").iterdir()) == []


def test_downloads_once(data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def fetch(url: str, folder: str) -> None:
        calls.append(url)
        shutil.copy(data_root / "planetoid" / url.rpartition("/")[2], folder)

    monkeypatch.setattr("torch_geometric.datasets.planetoid.fs.cp", fetch)
    for _ in range(2):
        assert read_nodes("Cora", tmp_path / "empty").num_nodes == 2708
        assert len(calls) == 8
    assert (tmp_path / "cache" / "Cora" / "raw" / "ind.cora.graph").is_file()


def test_unknown_name() -> None:
    with pytest.raises(InputError) as caught:
        read_nodes("Nowhere")
    message = str(caught.value)
    assert message.startswith("Expected `data.dataset` to be one of Cora, CiteSeer, PubMed, DBLP, CoraFull, WikiCS, ")
    wanted = "a data set of PyG such as Amazon:Photo, homophily-H, or a file NAME.npz or NAME.pt,"
    assert message.endswith(f" {wanted} but got 'Nowhere'.")


# ------------------------------------------------------------------------------ raw files of those that are not at hand
def test_reads_wikics(tmp_path: Path) -> None:
    content = {
        "features": [[0.5, 1.0], [0.0, 2.0], [3.0, 0.0]],
        "labels": [1, 0, 1],
        "links": [[1], [], [0]],
        **{f"{split}_masks": [[True, False, False]] * 2 for split in ("train", "val", "stopping")},
        "test_mask": [False, False, True],
    }
    (tmp_path / "wikics").mkdir()
    (tmp_path / "wikics" / "data.json").write_text(json.dumps(content))
    graph = read_nodes("WikiCS", tmp_path)
    assert graph.edge_index.t().tolist() == [[0, 1], [0, 2], [1, 0], [2, 0]]
    assert graph.y.tolist() == [1, 0, 1]
    assert graph.x.tolist() == content["features"]


def test_reads_corafull(tmp_path: Path) -> None:
    (tmp_path / "citation_full").mkdir()
    np.savez(
        tmp_path / "citation_full" / "cora.npz",
        attr_data=np.array([1.0, 1.0]),
        attr_indices=np.array([5, 2]),
        attr_indptr=np.array([0, 1, 1, 2]),
        attr_shape=np.array([3, 6]),
        adj_data=np.ones(2),
        adj_indices=np.array([1, 2]),
        adj_indptr=np.array([0, 2, 2, 2]),
        adj_shape=np.array([3, 3]),
        labels=np.array([0, 2, 1]),
    )
    graph = read_nodes("CoraFull", tmp_path)
    assert graph.edge_index.t().tolist() == [[0, 1], [0, 2], [1, 0], [2, 0]]
    assert (graph.num_classes, graph.num_features, graph.is_sparse) == (3, 6, True)
    assert graph.x.to_dense().nonzero().tolist() == [[0, 5], [2, 2]]


def test_reads_pubmed(tmp_path: Path) -> None:
    """Files in Planetoid's form: ``allx`` and ``tx`` hold the features of nodes 0 to 599, and 600 and 601."""
    matrix, one_hot = scipy.sparse.csr_matrix, np.eye(3, dtype=int)
    first = np.arange(600) % 3
    parts = {
        "x": matrix(np.eye(2, 4)),
        "allx": matrix(np.eye(600, 4)),
        "tx": matrix(np.array([[2.0, 0, 0, 0], [0, 3.0, 0, 0]])),
        "y": one_hot[first[:2]],
        "ally": one_hot[first],
        "ty": one_hot[[2, 1]],
        "graph": {node: [] for node in range(602)} | {0: [1, 601], 1: [0], 601: [0]},
    }
    (tmp_path / "planetoid").mkdir()
    for part, content in parts.items():
        (tmp_path / "planetoid" / f"ind.pubmed.{part}").write_bytes(pickle.dumps(content))
    (tmp_path / "planetoid" / "ind.pubmed.test.index").write_text("601\n600\n")
    graph = read_nodes("pubmed", tmp_path)
    assert graph.edge_index.t().tolist() == [[0, 1], [0, 601], [1, 0], [601, 0]]
    assert graph.y.tolist() == [*first.tolist(), 1, 2]  # the last two in the order of the test file
    assert graph.is_sparse
    assert graph.x.to_dense()[[0, 5, 600, 601]].tolist() == [[1, 0, 0, 0], [0] * 4, [0, 3, 0, 0], [2, 0, 0, 0]]


GEOM_GCN = {"Cornell": "cornell", "Texas": "texas", "Wisconsin": "wisconsin", "Chameleon": "chameleon"}
GEOM_GCN |= {"Squirrel": "squirrel", "Actor": "film"}
MASKS = {f"{split}_mask": np.array([True, False, False]) for split in ("train", "val", "test")}


@pytest.mark.parametrize("name", list(GEOM_GCN))
def test_reads_files_of_geom_gcn(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "heterophily" / name.lower()
    folder.mkdir(parents=True)
    words = ["0,2", "1", "2"] if name == "Actor" else ["1,0,1", "0,1,0", "0,0,1"]  # positions of ones, or all numbers
    rows = "".join(f"{node}\t{text}\t{node % 2}\n" for node, text in enumerate(words))
    (folder / "out1_node_feature_label.txt").write_text(f"node_id\tfeature\tlabel\n{rows}")
    (folder / "out1_graph_edges.txt").write_text("node_id\tnode_id\n0\t1\n2\t1\n1\t1\n")
    for number in range(10):
        np.savez(folder / f"{GEOM_GCN[name]}_split_0.6_0.2_{number}.npz", **MASKS)
    graph = read_nodes(name, tmp_path)
    assert graph.x.to_dense().tolist() == [[1, 0, 1], [0, 1, 0], [0, 0, 1]]
    assert graph.edge_index.t().tolist() == [[0, 1], [1, 0], [1, 2], [2, 1]]
    assert graph.y.tolist() == [0, 1, 0]
    assert graph.name == name


@pytest.mark.parametrize(
    "name",
    [
        "Roman-empire",
        "Amazon-ratings",
        "Minesweeper",
        "Tolokers",
        "Questions",
        "Chameleon-filtered",
        "Squirrel-filtered",
    ],
)
def test_reads_files_of_heterophilous_graphs(name: str, tmp_path: Path) -> None:
    content = {
        "node_features": np.float32([[0.5, 1.0], [0.0, 2.0], [3.0, 0.0]]),
        "node_labels": np.array([1, 0, 1]),
        "edges": np.array([[0, 1], [1, 2]]),
        **{f"{mask}s": values[None].repeat(10, axis=0) for mask, values in MASKS.items()},
    }
    np.savez(tmp_path / f"{name.lower().replace('-', '_')}.npz", **content)
    graph = read_nodes(name.lower(), tmp_path)
    assert graph.x.to_dense().tolist() == content["node_features"].tolist()
    assert graph.edge_index.t().tolist() == [[0, 1], [1, 0], [1, 2], [2, 1]]
    assert graph.name == name


def ogb_tables(folder: Path) -> None:
    folder.mkdir(parents=True)
    tables = {"edge": "0,1\n2,1\n1,1\n", "node-feat": "0.5,1.0\n0.25,2.0\n3.0,1.0\n", "node-label": "1\n0\n1\n"}
    for name, text in tables.items():
        (folder / f"{name}.csv.gz").write_bytes(gzip.compress(text.encode()))


@pytest.mark.parametrize("place", ["arxiv/raw", "ogbn_arxiv/raw"])
def test_reads_tables_of_ogb(place: str, tmp_path: Path) -> None:
    ogb_tables(tmp_path / place)
    graph = read_nodes("ogbn-arxiv", tmp_path)
    assert graph.x.tolist() == [[0.5, 1.0], [0.25, 2.0], [3.0, 1.0]]
    assert graph.edge_index.t().tolist() == [[0, 1], [1, 0], [1, 2], [2, 1]]
    assert graph.y.tolist() == [1, 0, 1]


def test_tables_of_ogb_are_told_by_their_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError("no network here")

    monkeypatch.setattr("flgraph.data.nodes.ogb.download_url", refuse)
    ogb_tables(tmp_path / "arxiv" / "raw")
    wanted = "a folder with edge.csv.gz and its companions for ogbn-products"
    with pytest.raises(InputError, match=rf"to be {wanted} but got .* the download failed"):
        read_nodes("ogbn-products", tmp_path / "arxiv" / "raw")


def test_reads_reddit_as_pyg_has_it(tmp_path: Path) -> None:
    (tmp_path / "Reddit" / "raw").mkdir(parents=True)
    np.savez(
        tmp_path / "Reddit" / "raw" / "reddit_data.npz",
        feature=np.float32([[0.5, 1.0], [0.25, 2.0], [3.0, 1.0]]),
        label=np.array([1, 0, 1]),
        node_types=np.array([1, 2, 3]),
    )
    edges = scipy.sparse.coo_matrix((np.ones(2), ([0, 2], [1, 1])), shape=(3, 3))
    scipy.sparse.save_npz(tmp_path / "Reddit" / "raw" / "reddit_graph.npz", edges)
    graph = read_nodes("Reddit", tmp_path)
    assert graph.edge_index.t().tolist() == [[0, 1], [1, 0], [1, 2], [2, 1]]
    assert graph.y.tolist() == [1, 0, 1]
