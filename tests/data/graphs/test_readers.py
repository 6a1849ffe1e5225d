"""The TU reader against PyG's, on small files written here and on real data where there is some."""

from __future__ import annotations

import http.client
import os
import shutil
import urllib.error
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.datasets import TUDataset
from torch_geometric.utils import degree, one_hot

from flgraph.data import cache
from flgraph.data.graphs import tu_files
from flgraph.data.graphs.readers import read_tu
from flgraph.errors import InputError

pytestmark = pytest.mark.usefixtures("own_cache")

# Three graphs of 3, 2 and 4 nodes: with a self-loop, edges listed twice and out of order, and isolated nodes.
TINY = {
    "A": "1, 2\n2, 1\n3, 2\n2, 3\n2, 2\n2, 1\n5, 4\n4, 5\n6, 9\n9, 6\n7, 6\n6, 7\n",
    "graph_indicator": "1\n1\n1\n2\n2\n3\n3\n3\n3\n",
    "graph_labels": "-1\n1\n-1\n",
    "node_labels": "3\n5\n3\n3\n6\n5\n5\n3\n3\n",
    "node_attributes": "\n".join(f"{i}.5, -{i}e-1" for i in range(9)) + "\n",
}
Texts = dict[str, Any]  # a file's text, or None where it is left out


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(url: str, folder: str) -> str:
        raise urllib.error.URLError("no route to host")

    monkeypatch.setattr(tu_files, "download_url", refuse)


def write_folder(folder: Path, name: str = "T", **changes: Any) -> Path:
    """Writes the tiny data set, with some files changed or (``None``) left out."""
    folder.mkdir(parents=True, exist_ok=True)
    texts: Texts = {**TINY, **changes}
    for key, text in texts.items():
        if text is not None:
            (folder / f"{name}_{key}.txt").write_text(text)
    return folder


def write_zip(path: Path, name: str = "T", method: int = zipfile.ZIP_DEFLATED, **changes: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    texts: Texts = {**TINY, **changes}
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr(f"{name}//README.txt", "nothing")
        for key, text in texts.items():
            if text is not None:
                archive.writestr(f"{name}//{name}_{key}.txt", text)
    return path


def assert_as_pyg(root: Path, name: str, features: str = "all", **options: Path) -> None:
    """``root/name/raw`` holds the text files."""
    theirs = TUDataset(str(root), name, use_node_attr=features == "all")
    ours = read_tu(name, root, features, **options)  # type: ignore[arg-type]
    assert len(ours) == len(theirs)
    if features == "degree":
        degrees = torch.cat([degree(data.edge_index[0], data.num_nodes) for data in theirs])
        assert torch.equal(ours.x.float(), one_hot(degrees.long()))
    elif theirs._data.x is not None:
        assert torch.equal(ours.x.float(), theirs._data.x)
    assert torch.equal(ours.node_ptr.diff(), torch.tensor([data.num_nodes for data in theirs]))
    assert torch.equal(ours.edge_index.long(), theirs._data.edge_index)
    assert torch.equal(ours.edge_ptr, theirs.slices["edge_index"])
    assert torch.equal(ours.y, theirs._data.y)
    assert ours.edge_index.dtype == torch.int32
    assert ours.undirected == all(data.is_undirected() for data in theirs)
    ours._validate()


def test_as_pyg(tmp_path: Path) -> None:
    write_folder(tmp_path / "T" / "raw")
    assert_as_pyg(tmp_path, "T")
    assert_as_pyg(tmp_path, "T", "labels")
    graphs = read_tu("T", tmp_path)
    assert str(graphs) == "FlatGraphs(T: 3 graphs, 9 nodes, 10 edges, 4 features, 2 classes)"
    assert graphs.undirected
    assert graphs.x.dtype == torch.uint8


@pytest.mark.parametrize(
    "changes",
    [
        {"node_labels": None},
        {"node_attributes": None},
        {"node_labels": "1, 4\n0, 5\n1, 6\n" * 3},
        {"A": "2, 1\n1, 3\n7, 9\n"},
        {"graph_indicator": "1\n" * 3 + "3\n" * 6, "graph_labels": "7\n5\n6\n", "A": "1, 2\n9, 4\n"},
        {"A": TINY["A"].replace("\n", " \r\n")},
    ],
    ids=["attributes only", "labels only", "two label columns", "directed", "graph without nodes", "carriage returns"],
)
def test_variants_as_pyg(tmp_path: Path, changes: Texts) -> None:
    write_folder(tmp_path / "T" / "raw", **changes)
    assert_as_pyg(tmp_path, "T")


def test_random_files_in_small_blocks_as_pyg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tu_files, "_CHUNK", 7)
    rng = np.random.default_rng(0)
    indicator = np.sort(rng.integers(1, 21, size=200))
    indicator[-1] = 20
    edges = [(i, j) for i, j in rng.integers(0, 200, size=(5000, 2)) if indicator[i] == indicator[j]]
    write_folder(
        tmp_path / "T" / "raw",
        A="".join(f"{i + 1}, {j + 1}\n" for i, j in edges),
        graph_indicator="".join(f"{i}\n" for i in indicator),
        graph_labels="".join(f"{i}\n" for i in rng.integers(-2, 9, size=20)),
        node_labels="".join(f"{i}\n" for i in rng.integers(2, 9, size=200)),
        node_attributes="".join(f"{a:.17g},{b:.3e}\n" for a, b in rng.normal(size=(200, 2))),
    )
    assert_as_pyg(tmp_path, "T")


def test_features(tmp_path: Path) -> None:
    write_zip(tmp_path / "T.zip")
    auto, labels, attributes, both, degrees = (
        read_tu("T", tmp_path, features) for features in ("auto", "labels", "attributes", "all", "degree")
    )
    assert torch.equal(auto.x, labels.x)
    assert torch.equal(both.x, torch.cat([attributes.x, labels.x.float()], dim=1))
    assert attributes.x.dtype == torch.float32
    assert labels.x.dtype == torch.uint8 == degrees.x.dtype
    assert torch.equal(degrees.x.argmax(dim=1), degrees.degrees())
    assert degrees.num_features == int(degrees.degrees().max()) + 1 == 3
    write_zip(tmp_path / "U.zip", "U", node_labels=None)
    assert torch.equal(read_tu("U", tmp_path).x, attributes.x)
    assert torch.equal(read_tu("U", tmp_path, "all").x, attributes.x)
    write_zip(tmp_path / "V.zip", "V", node_labels=None, node_attributes=None)
    assert torch.equal(read_tu("V", tmp_path).x, degrees.x)


def test_features_as_mvgrl_takes_them(tmp_path: Path) -> None:
    write_zip(tmp_path / "T.zip")
    write_zip(tmp_path / "U.zip", "U", node_attributes=None)
    write_zip(tmp_path / "V.zip", "V", node_labels=None, node_attributes=None)
    labels, attributes, degrees = (read_tu("T", tmp_path, kind).x for kind in ("labels", "attributes", "degree"))
    assert torch.equal(read_tu("T", tmp_path, "mvgrl").x, attributes)
    both = read_tu("U", tmp_path, "mvgrl").x
    assert both.dtype == torch.uint8
    assert torch.equal(both, torch.cat([labels, degrees], dim=1))
    assert torch.equal(read_tu("V", tmp_path, "mvgrl").x, degrees)


def test_no_edges(tmp_path: Path) -> None:
    write_zip(tmp_path / "T.zip", A="")
    graphs = read_tu("T", tmp_path, "degree")
    assert graphs.edge_index.shape == (2, 0)
    assert torch.equal(graphs.x, torch.ones(9, 1, dtype=torch.uint8))


@pytest.mark.parametrize("prefix", ["", "tu"])
@pytest.mark.parametrize("place", ["T.zip", "T/raw", "T"])
@pytest.mark.parametrize("by", ["argument", "environment", "cache"])
def test_places(
    tmp_path: Path, own_cache: Path, prefix: str, place: str, by: str, monkeypatch: pytest.MonkeyPatch, no_network: None
) -> None:
    root = own_cache if by == "cache" else tmp_path / "data"
    monkeypatch.delenv("FLGRAPH_DATA", raising=False)
    if by == "environment":
        monkeypatch.setenv("FLGRAPH_DATA", str(root))
    target = root / prefix / place
    write_zip(target) if place.endswith("zip") else write_folder(target)
    before = sorted(target.parent.rglob("*"))
    if by != "cache":
        monkeypatch.setenv("FLGRAPH_CACHE", str(tmp_path / "c"))
    assert len(read_tu("T", root if by == "argument" else None)) == 3
    assert by == "cache" or sorted(target.parent.rglob("*")) == before, "nothing is unpacked next to the data"


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_compression_methods(tmp_path: Path, method: int) -> None:
    write_zip(tmp_path / "T.zip", method=method)
    assert len(read_tu("T", tmp_path)) == 3


def test_second_read_comes_from_cache(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_zip(tmp_path / "T.zip")
    first = read_tu("T", tmp_path)
    assert len(list(own_cache.iterdir())) == 1
    with monkeypatch.context() as patch:
        patch.setattr("flgraph.data.graphs.readers._parse", None)
        second, degrees = read_tu("T", tmp_path), read_tu("T", tmp_path, "degree")
    assert torch.equal(first.x, second.x)
    assert torch.equal(first.edge_index, second.edge_index)
    assert second.undirected
    assert degrees.num_features == 3
    write_zip(tmp_path / "T.zip", graph_labels="0\n1\n2\n")
    assert read_tu("T", tmp_path).num_classes == 3


# ------------------------------------------------------------------------------------------------------------ errors
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"graph_labels": None}, r"Expected `T_graph_labels\.txt` to be a file but got none in .*T\.zip\."),
        ({"A": None}, r"Expected `T_A\.txt` to be a file but got none in .*T\.zip\."),
        (
            {"A": "1, 2\n2, 10\n"},
            r"Expected `T_A\.txt` to be edges between nodes 1 to 9 but got \[2, 10\] in .*T",
        ),
        ({"A": "0, 1\n"}, r"nodes 1 to 9 but got \[0, 1\] in"),
        ({"A": f"1, {10**30}\n"}, r"nodes 1 to 9 but got \[1, 9223372036854775807\] in"),
        ({"A": "1, 2\n3, 4\n"}, r"nodes of one graph but got \[3, 4\], of two graphs, in"),
        ({"A": "1, 2\n2, x\n"}, r"to be 2 whole numbers per line, .* but got something else on line 2 in"),
        ({"A": "1, 2\n1.5, 2\n"}, r"to be 2 whole numbers per line, .* but got something else on line 2 in"),
        ({"A": "1, 2, 3\n"}, r"to be 2 whole numbers per line, .* but got something else on line 1 in"),
        ({"A": "1, 2\n\n1, 3\n"}, r"to be 2 whole numbers per line, .* but got something else on line 2 in"),
        ({"A": "1, 2\n1 2, 3\n"}, r"to be 2 whole numbers per line, .* but got something else on line 2 in"),
        ({"A": "1, 2\n1, "}, r"to be 2 whole numbers per line, .* but got something else on line 2 in"),
        ({"graph_indicator": ""}, r"Expected `T_graph_indicator\.txt` to be the graph of each node but got no line in"),
        (
            {"graph_indicator": "1\n2\n1\n" * 3},
            r"T_graph_indicator\.txt` to be rising from 1 but got numbers that",
        ),
        ({"graph_indicator": "0\n" + "1\n" * 8}, "numbers that fall or start lower in"),
        ({"graph_labels": "1\n2\n"}, r"T_graph_labels\.txt` to be one line for each of 3 graphs but got 2 in"),
        ({"graph_labels": "1\n2\nNaN\n"}, r"to be 1 whole number per line, .* but got something else on line 3 in"),
        ({"node_labels": "1\n2\n"}, r"T_node_labels\.txt` to be one line for each of 9 nodes but got 2 in"),
        ({"node_labels": "0\n" * 8 + f"{2**62}\n"}, r"to be of fewer than 65536 classes but got more"),
        ({"node_attributes": "1.0\n" * 8}, r"T_node_attributes\.txt` to be one line for each of 9 nodes but got 8 in"),
        ({"node_attributes": "1.0\n" * 8 + "nan\n"}, r"to be finite but got NaN or infinity on line 9 in"),
        ({"node_attributes": "1.0\n" * 8 + "1e99\n"}, r"to be finite but got NaN or infinity on line 9 in"),
        (
            {"node_attributes": "1.0, 2\n" * 8 + "one, 2\n"},
            r"to be 2 numbers per line, .* got something else on line 9 in",
        ),
    ],
)
@pytest.mark.filterwarnings("error", "ignore::ResourceWarning")  # of files that earlier tests left to the collector
def test_malformed(tmp_path: Path, changes: Texts, sentence: str, own_cache: Path) -> None:
    write_zip(tmp_path / "T.zip", **changes)
    with pytest.raises(InputError, match=sentence) as caught:
        read_tu("T", tmp_path)
    assert str(caught.value).count("\n") == 0
    assert not own_cache.exists(), "nothing broken is cached"


def test_fault_is_on_the_right_line_of_a_later_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tu_files, "_CHUNK", 16)
    write_folder(tmp_path / "T", A="1, 2\n" * 50 + "1, b\n" + "1, 2\n" * 50)
    with pytest.raises(InputError, match="but got something else on line 51"):
        read_tu("T", tmp_path)


def test_broken_zip(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "T.zip", A=TINY["A"] * 500, method=zipfile.ZIP_STORED)
    whole = path.read_bytes()
    middle = len(whole) // 2
    for damaged in (b"", b"no zip", whole[:middle], whole[:middle] + b"?" + whole[middle + 1 :]):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"Expected `.*T\.zip` to be readable and intact but got an error: .*\."):
            read_tu("T", tmp_path)


def test_missing_features(tmp_path: Path) -> None:
    write_zip(tmp_path / "T.zip", node_labels=None)
    with pytest.raises(
        InputError, match="to be one of auto, attributes, degree, mvgrl for T but got 'labels', which it lacks"
    ):
        read_tu("T", tmp_path, "labels")
    write_zip(tmp_path / "U.zip", "U", node_labels=None, node_attributes=None)
    with pytest.raises(InputError, match="Expected `features` to be one of auto, degree, mvgrl for U but got 'all'"):
        read_tu("U", tmp_path, "all")
    with pytest.raises(InputError, match="to be one of auto, labels, attributes, all, degree, mvgrl but got 'one'"):
        read_tu("U", tmp_path, "one")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["../T", "", "a/b", ".T"])
def test_bad_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Expected `name` to be the name of a TU data set, for example MUTAG but got"):
        read_tu(name, tmp_path)


# ---------------------------------------------------------------------------------------------------------- download
def test_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def serve(url: str, folder: str) -> str:
        asked.append(url)
        return str(write_zip(Path(folder) / "T.zip"))

    monkeypatch.setattr(tu_files, "download_url", serve)
    assert len(read_tu("T", tmp_path / "new")) == 3
    assert len(read_tu("T", tmp_path / "new")) == 3
    assert asked == ["https://www.chrsmrrs.com/graphkerneldatasets/T.zip"]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["T.zip"]


@pytest.mark.parametrize("root", ["unset", "unwritable"])
def test_download_into_cache(tmp_path: Path, own_cache: Path, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLGRAPH_DATA", raising=False)
    monkeypatch.setattr(tu_files, "download_url", lambda url, folder: str(write_zip(Path(folder) / "T.zip")))
    (tmp_path / "file").touch()
    read_tu("T", None if root == "unset" else tmp_path / "file" / "data")
    assert (own_cache / "T.zip").is_file()


def test_offline(tmp_path: Path, no_network: None) -> None:
    sentence = (
        r"Expected `data.root` or `FLGRAPH_DATA` to be a folder with T\.zip \(from https://.*/T\.zip\) or "
        r"T/raw/T_A\.txt and its companions but got .*, which has neither, and the download "
        r"failed \(<urlopen error no route to host>\)\."
    )
    with pytest.raises(InputError, match=sentence):
        read_tu("T", tmp_path)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (404, "Expected `name` to be a data set of the TU collection but got 'T', which is neither in .* nor at https"),
        (503, r"the download failed \(HTTP Error 503: Down\)"),
        (None, r"the download failed \(the answer is not a zip archive\)"),
    ],
)
def test_bad_answers(tmp_path: Path, error: int | None, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(url: str, folder: str) -> str:
        path = Path(folder) / "T.zip"
        path.write_text("<html>")
        if error:
            raise urllib.error.HTTPError(url, error, "Down", http.client.HTTPMessage(), None)
        return str(path)

    monkeypatch.setattr(tu_files, "download_url", answer)
    with pytest.raises(InputError, match=sentence):
        read_tu("T", tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []


def test_nowhere_to_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_warned", True)
    (tmp_path / "file").touch()
    monkeypatch.setenv("FLGRAPH_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(InputError, match=r"the download failed .*Not a directory"):
        read_tu("T", tmp_path / "file" / "data")


# --------------------------------------------------------------------------------------------------------- real data
def real(name: str) -> Path:
    root = os.environ.get("FLGRAPH_DATA", "")
    for path in (Path(root, f"{name}.zip"), Path(root, "tu", f"{name}.zip")):
        if root and path.is_file():
            return path
    pytest.skip(f"needs {name}.zip in the folder that FLGRAPH_DATA names")


@pytest.mark.parametrize(("name", "columns"), [("MUTAG", 7), ("BZR", 56), ("Letter-low", 2), ("IMDB-BINARY", 0)])
def test_real_as_pyg(tmp_path: Path, name: str, columns: int) -> None:
    zipped = real(name)
    with zipfile.ZipFile(zipped) as archive:
        archive.extractall(tmp_path / "unpacked")
    shutil.move(tmp_path / "unpacked" / name, tmp_path / name / "raw")
    if columns:
        assert read_tu(name, zipped.parent, "all").num_features == columns
        assert_as_pyg(tmp_path, name)
    else:
        assert_as_pyg(tmp_path, name, "degree")


@pytest.mark.parametrize(
    ("name", "columns"), [("MUTAG", 7), ("BZR", 53), ("Letter-low", 2), ("IMDB-BINARY", 136), ("IMDB-MULTI", 89)]
)
def test_real_columns(name: str, columns: int) -> None:
    assert read_tu(name, real(name).parent).num_features == columns
