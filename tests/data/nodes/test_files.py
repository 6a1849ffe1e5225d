"""Graphs of one's own, and data sets of PyG that are no names of ours."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch_geometric.datasets
from torch_geometric.data import Data, InMemoryDataset

from flgraph.data import NodeClients, NodeFederation, read_nodes
from flgraph.errors import InputError

pytestmark = pytest.mark.usefixtures("own_cache")

X = torch.tensor([[0.5, 1.0], [2.0, 3.0], [1.0, 1.0]], dtype=torch.float64)
EDGES = torch.tensor([[0, 0, 2], [1, 1, 2]])
Y = torch.tensor([0, 1, 1])


def written(path: Path, form: str, **more: Any) -> str:
    content = {"x": X, "edge_index": EDGES, "y": Y, **more}
    if form == "npz":
        np.savez(path / "accounts.npz", **{key: np.asarray(value) for key, value in content.items()})
        return str(path / "accounts.npz")
    torch.save(Data(**content).to_dict(), path / "accounts.pt")
    return str(path / "accounts.pt")


@pytest.mark.parametrize("count", [-1, 2.5, 10**9, [1, 2], float("nan")])
@pytest.mark.parametrize("form", ["npz", "pt"])
def test_refuses_numbers_of_classes(form: str, count: Any, tmp_path: Path) -> None:
    """A name for each of 10^9 classes would take all memory."""
    file = written(tmp_path, form, num_classes=torch.tensor(count))
    for read in (read_nodes, lambda file: NodeClients({"north": file}).setup()):
        with pytest.raises(InputError, match=r"num_classes .* a whole number from 0 to 100000 but got"):
            read(file)


@pytest.mark.parametrize("kind", ["uint16", "uint32", "uint64", ">i4", ">f4", "float16"])
def test_reads_arrays_of_any_type(kind: str, tmp_path: Path) -> None:
    whole = np.arange(3).astype(kind)
    edges = whole[[[0, 1], [1, 2]]] if np.dtype(kind).kind != "f" else np.array([[0, 1], [1, 2]])
    np.savez(tmp_path / "own.npz", x=whole[:, None], edge_index=edges, y=whole)
    data = NodeClients({"north": tmp_path / "own.npz"}, fractions=(1, 0, 0))
    data.setup()
    for own in (data.client("north").graph, read_nodes(str(tmp_path / "own.npz"))):
        assert own.x.flatten().tolist() == own.y.tolist() == [0, 1, 2]
        assert own.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]


@pytest.mark.parametrize("form", ["npz", "pt"])
def test_reads_files(form: str, tmp_path: Path) -> None:
    graph = read_nodes(written(tmp_path, form))
    assert (graph.name, graph.num_classes) == ("accounts", 2)
    assert graph.edge_index.t().tolist() == [[0, 1], [1, 0]]  # no loops, no repeats, both directions
    assert torch.equal(graph.x, X.float())
    assert graph.y.tolist() == [0, 1, 1]
    assert read_nodes(written(tmp_path, form, num_classes=5)).num_classes == 5
    sums = read_nodes(written(tmp_path, form), normalize=True).x.sum(1)
    torch.testing.assert_close(sums, torch.ones(3))


def test_refuses_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a file of `x`, `edge_index` and `y` but got .*none\.npz, which is not"):
        read_nodes(str(tmp_path / "none.npz"))
    (tmp_path / "torn.pt").write_bytes(b"PK")
    with pytest.raises(InputError, match=r"torn.pt` to be a file that torch.save wrote but got one that cannot"):
        read_nodes(str(tmp_path / "torn.pt"))
    torch.save([X], tmp_path / "list.pt")
    with pytest.raises(InputError, match=r"list\.pt of a list"):
        read_nodes(str(tmp_path / "list.pt"))
    np.savez(tmp_path / "half.npz", x=X.numpy(), y=Y.numpy())
    with pytest.raises(InputError, match=r"Expected `half.edge_index` to be a tensor but got None"):
        read_nodes(str(tmp_path / "half.npz"))


class Harmful:
    def __reduce__(self) -> Any:
        return Path.write_text, (Path("harm.txt"), "done")


def test_executes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"x": Harmful()}, "bad.pt")
    np.savez("bad.npz", x=np.array([Harmful()], dtype=object))
    for name in ("bad.pt", "bad.npz"):
        with pytest.raises(InputError, match="cannot be read"):
            read_nodes(name)
    assert not Path("harm.txt").exists()


# ------------------------------------------------------------------------------------------------------------------ PyG
class Toy(InMemoryDataset):
    """A data set as PyG has them: raw files in ``raw``, what is made of them in ``processed``."""

    def __init__(self, root: str, name: str) -> None:
        self.name = name
        super().__init__(root)
        self.load(self.processed_paths[0])

    @property
    def raw_file_names(self) -> list[str]:
        return [f"{self.name}.json"]

    @property
    def processed_file_names(self) -> list[str]:
        return ["data.pt"]

    def download(self) -> None:
        if self.name == "three":
            raise AssertionError
        (Path(self.raw_dir) / "torn").write_text("half")
        raise OSError("no network here")

    def process(self) -> None:
        graphs = json.loads(Path(self.raw_paths[0]).read_text())
        self.save([Data(x=X, edge_index=torch.tensor(g), y=Y) for g in graphs], self.processed_paths[0])


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for its raw files."""
    monkeypatch.setattr(torch_geometric.datasets, "Toy", Toy, raising=False)
    raw = tmp_path / "data" / "Toy" / "raw"
    raw.mkdir(parents=True)
    return raw


def test_reads_data_sets_of_pyg(toy: Path, tmp_path: Path) -> None:
    (toy / "one.json").write_text(json.dumps([EDGES.tolist()]))
    for _ in range(2):
        graph = read_nodes("Toy:one", tmp_path / "data")
        assert graph.name == "Toy:one"
        assert graph.edge_index.t().tolist() == [[0, 1], [1, 0]]
        (toy / "one.json").unlink(missing_ok=True)  # the second time PyG's own file is there
    assert [path.name for path in toy.parent.iterdir()] == ["raw"]  # nothing is written among the data
    (toy / "one.json").write_text(json.dumps([[[0, 1], [2, 2]]]))  # other files are read anew
    graph = read_nodes("Toy:one", tmp_path / "data")
    assert graph.edge_index.t().tolist() == [[0, 2], [1, 2], [2, 0], [2, 1]]


def test_a_failed_download_leaves_nothing(toy: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_nodes("Toy:one", tmp_path / "data")
    assert str(caught.value) == (
        f"Expected `data.dataset` to be a data set that PyG finds in {tmp_path / 'data' / 'Toy'} or downloads but got "
        "'Toy:one' (OSError: no network here)."
    )
    assert list((tmp_path / "cache" / "pyg").iterdir()) == []


def test_refuses_data_sets_of_pyg(toy: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'Toy:three' \(AssertionError: raise AssertionError\)"):
        read_nodes("Toy:three", tmp_path / "data")
    (toy / "two.json").write_text(json.dumps([EDGES.tolist(), EDGES.tolist()]))
    with pytest.raises(InputError, match=r"Expected `data.dataset` to be of a single graph but got 'Toy:two, which ha"):
        read_nodes("Toy:two", tmp_path / "data")
    with pytest.raises(InputError, match=r"but got 'Toy' \(TypeError: .*missing 1 required positional arg"):
        read_nodes("Toy", tmp_path / "data")


# --------------------------------------------------------------------------------------------------------- a federation
def test_an_organisation_brings_its_own(tmp_path: Path) -> None:
    n = 40
    ring = torch.stack([torch.arange(n), (torch.arange(n) + 1) % n])
    np.savez(tmp_path / "accounts.npz", x=np.ones((n, 2)), edge_index=ring.numpy(), y=np.arange(n) % 2)
    data = NodeFederation(
        str(tmp_path / "accounts.npz"),
        num_clients=1,
        partition="dirichlet",
        global_fraction=0.0,
    )
    data.setup()
    assert data.name == "accounts-dirichlet"
    assert data.clients == ["client-1"]
    client = data.client("client-1")
    assert [part.numel() for part in (client.train, client.val, client.test)] == [24, 8, 8]
    assert list(data.statistics["clients"]) == ["client-1"]


def test_tells_arguments_that_have_no_effect() -> None:
    with pytest.warns(UserWarning, match=r"`data.partition: louvain` makes no use of num_test, alpha\."):
        NodeFederation("Cora", partition="louvain", num_test=50, alpha=2.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        NodeFederation("Cora", partition="louvain", fractions=(0.5, 0.25, 0.25))
        NodeFederation("Cora", partition="dirichlet", fractions=[0.6, 0.2, 0.2], alpha=0.1)
        NodeFederation("Cora", partition="label_skew", num_test=50, exclusive_test=True)
