"""Clients that bring a graph of their own: what is read, kept, left out and refused."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch
from own_files import MARKER, library, made, ring, write
from torch_geometric.data import Data

from flgraph.data import GraphClients, GraphFederation, HeteroClients, NodeClients
from flgraph.data.checks import Doubt
from flgraph.data.sources import read_source
from flgraph.errors import InputError


@pytest.mark.parametrize("name", ["None", "NA", "null", "nan"])
def test_names_that_other_programs_take_for_nothing(name: str, tmp_path: Path) -> None:
    """Pandas drops them: a third of the labels was gone, and nobody was told."""
    rows = [(name if n == 0 else n, (name, "card")[n % 2], n / 10) for n in range(12)]
    edges = [("source", "target"), (name, 1), *((n, n + 1) for n in range(1, 11))]
    ring(tmp_path / "north", nodes=[("id", "label", "amount"), *rows], edges=edges)
    with pytest.raises(InputError, match=r"`label of .*north` to be names, .* in row 1; .* in `data\.classes`\."):
        NodeClients({"north": "north"}, root=str(tmp_path)).setup()
    data = made(NodeClients({"north": "north"}, root=str(tmp_path), classes=["card", name]))
    assert data.client("north").graph.y.tolist() == [1, 0] * 6
    assert sum(len(getattr(data.client("north"), part)) for part in ("train", "val", "test")) == 12


def test_whole_numbers_are_one_class_however_a_partner_writes_them(tmp_path: Path) -> None:
    for client, digits, gap in (("north", "{}", "1"), ("east", "{}.0", "")):
        rows = [(n, gap if n == 3 else digits.format(n % 2), n / 10) for n in range(12)]
        edges = [("source", "target"), *((n, n + 1) for n in range(11))]
        ring(tmp_path / client, nodes=[("id", "label", "amount"), *rows], edges=edges)
    data = made(NodeClients({name: name for name in ("north", "east")}, root=str(tmp_path)))
    assert data.class_names == ("0", "1")
    assert [data.client(name).graph.y[5].item() for name in ("north", "east")] == [1, 1]


def test_labels_are_the_same_in_every_form(tmp_path: Path) -> None:
    """Truth values, and texts that are numbers, too."""
    for values, written in (((True, False), ("true", "false")), (("01", "02"), ("01", "02"))):
        graph = nx.cycle_graph(12)
        nx.set_node_attributes(graph, {n: {"label": values[n % 2], "amount": n / 10} for n in graph})
        nx.write_graphml(graph, tmp_path / "graph.graphml")
        rows = [(n, written[n % 2], n / 10) for n in range(12)]
        ring(tmp_path / "csv", nodes=[("id", "label ", "amount"), *rows], edges=[("source", "target"), (0, 1)])
        pd.DataFrame({"id": range(12), "label": [values[n % 2] for n in range(12)], "amount": 0.5}).to_parquet(
            tmp_path / "nodes.parquet"
        )
        files = tmp_path / "parquet"
        files.mkdir(exist_ok=True)
        (tmp_path / "nodes.parquet").rename(files / "nodes.parquet")
        pd.DataFrame({"source": [0], "target": [1]}).to_parquet(files / "edges.parquet")
        data = made(NodeClients({"a": nx.read_graphml(tmp_path / "graph.graphml"), "b": tmp_path / "csv", "c": files}))
        assert data.class_names == tuple(sorted(written))
        assert len({tuple(data.client(name).graph.y.tolist()) for name in "abc"}) == 1


def test_other_spellings_are_other_classes_and_a_warning_says_so(tmp_path: Path) -> None:
    def labelled(folder: str, *labels: str) -> Path:
        return ring(tmp_path / folder, nodes=[("id", "label"), *((f"{n:03d}", labels[n % 2]) for n in range(12))])

    graphs = {"a": labelled("a", "ok", "fraud"), "b": labelled("b", "OK", "fraud"), "c": labelled("c", "1", "0")}
    data = NodeClients(graphs)
    with pytest.warns(Doubt) as told:
        data.setup()
    texts = " ".join(str(warning.message) for warning in told)
    assert "`data.classes`: 1 of 5 names differ from another in capital letters only" in texts
    assert "`c`: no class in common with other clients" in texts
    made(NodeClients({"a": graphs["a"]}))  # nobody to have one in common with
    made(NodeClients(graphs, classes=["OK", "ok", "fraud", "0", "1"]))


def test_clients_of_types_are_compared_by_their_labels_too(tmp_path: Path) -> None:
    authors = [("id", "label"), *((f"a{n}", "XY"[n % 2]) for n in range(12))]
    graphs = {"a": library(tmp_path / "a"), "b": library(tmp_path / "b", author=authors)}
    with pytest.warns(Doubt, match="`a`, `b`: no class in common with other clients"):
        HeteroClients(graphs).setup()


def test_clients_with_the_same_data_are_doubted(tmp_path: Path) -> None:
    with pytest.warns(Doubt, match=r"`data\.graphs`: 2 clients have the same data, .*north\."):
        NodeClients({"north": ring(tmp_path / "north"), "east": f"{tmp_path}/north", "west": ring(tmp_path / "west")})


def test_a_file_that_was_cut_off_is_doubted(tmp_path: Path) -> None:
    """What the last node had lost counted as a gap that the data brings."""
    folder = ring(tmp_path / "north", nodes=[("id", "label", "years"), *((f"{n:03d}", n % 2, 0.5) for n in range(12))])
    nodes = folder / "nodes.csv"
    nodes.write_text(nodes.read_text().removesuffix(",0.5\n") + "\n\n")
    wanted = r"nodes\.csv: rows with fewer cells than the header: 1, the first in line 13\. What they lack"
    with pytest.warns(Doubt, match=wanted):
        NodeClients({"north": folder}, missing="zero").setup()
    nodes.write_text("id,label,years\n" + "".join(f"{n:03d},{n % 2},{'' if n % 4 else 0.5}\n" for n in range(12)))
    made(NodeClients({"north": folder}, missing="mean"))  # gaps are none


@pytest.mark.parametrize(("name", "meant"), [("Label", "label"), ("SPLIT", "split"), ("label_name", "label")])
def test_what_is_learned_is_no_feature_by_another_name(name: str, meant: str, tmp_path: Path) -> None:
    rows = [(f"{n:03d}", "ab"[n % 2], n % 2) for n in range(12)]
    folder = ring(tmp_path / "north", nodes=[("id", "label", name), *rows])
    wanted = f"`{name} in .*nodes.csv` to be called `{meant}`, or declared in `data.columns`"
    with pytest.raises(InputError, match=wanted):
        NodeClients({"north": folder}).setup()
    made(NodeClients({"north": folder}, columns={name: "number"}))


def test_one_new_node_needs_no_split(tmp_path: Path) -> None:
    ring(tmp_path / "new", 1, nodes=[("id", "years"), ("000", 1.0)], edges=[("source", "target")])
    data = NodeClients({"new": tmp_path / "new"}, columns={"years": "number"})
    with pytest.warns(UserWarning, match=r"`new` has too few rows for `data\.fractions`: all are for training"):
        data.setup()
    assert data.client("new").train.tolist() == [0]
    ring(tmp_path / "north", nodes=[("id", "label", "years"), *((f"{n:03d}", n % 2, 1.0) for n in range(12))])
    for classes in (None, [1, 0]):  # nobody trains on what is not labelled where others are
        with pytest.raises(InputError, match=r"`label of .*new` to be there for some but got none"):
            NodeClients({"north": tmp_path / "north", "new": tmp_path / "new"}, classes=classes).setup()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"id": [1e17, 2e17, None]},
            "whole numbers, or texts but got a decimal number in row 1",
        ),
        ({"amount": [[1.0, 2.0], [3.0], []]}, "one number, text, truth value or point in time in each row but got"),
        ({"id": np.array([1, 2, 2**24], np.float32)}, "whole numbers, or texts but got a decimal number in row 3"),
        ({"amount": [b"1", b"2", b"3"]}, "one number, text, truth value or point in time in each row but got"),
        ({"label": pd.to_timedelta([1, 2, 3], unit="d")}, "one number, text, truth value or point in time in each row"),
    ],
)
def test_parquet_of_what_is_no_single_value(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    columns = {"id": [1, 2, 3], "label": ["a", "b", "a"], "amount": [0.5, 1.5, 2.5]}
    pd.DataFrame({**columns, **changes}).to_parquet(tmp_path / "nodes.parquet")
    pd.DataFrame({"source": [1], "target": [2]}).to_parquet(tmp_path / "edges.parquet")
    with pytest.raises(InputError, match=sentence):
        NodeClients({"north": tmp_path}).setup()


def test_tables_of_nodes(tmp_path: Path) -> None:
    ring(tmp_path / "north")
    ring(tmp_path / "east", count=9)
    data = made(NodeClients({"north": "north", "east": tmp_path / "east"}, root=str(tmp_path)))
    north = data.client("north")
    assert data.clients == ["north", "east"]
    assert repr(north.graph) == "NodeGraph(north: 12 nodes, 24 edges, 3 features, 2 classes)"
    assert north.graph.y.tolist() == [1, 0, 0] * 4  # fine comes before fraud
    torch.testing.assert_close(north.graph.x[:2], torch.tensor([[1, 0, 0], [0, 1, 0.1]]))
    assert sorted(torch.cat([north.train, north.val, north.test]).tolist()) == list(range(12))
    assert next(iter(north.train_dataloader())).x.shape == (12, 3)


def test_parquet_is_as_csv(tmp_path: Path) -> None:
    ring(tmp_path / "csv")
    (tmp_path / "parquet").mkdir()
    nodes = pd.read_csv(tmp_path / "csv/nodes.csv", dtype={"id": str})
    nodes.to_parquet(tmp_path / "parquet/nodes.parquet")
    pd.read_csv(tmp_path / "csv/edges.csv", dtype=str).to_parquet(tmp_path / "parquet/edges.parquet")
    data = made(NodeClients({name: tmp_path / name for name in ("csv", "parquet")}))
    assert data.client("csv").graph.content == data.client("parquet").graph.content


def test_the_same_graph_in_every_form(tmp_path: Path) -> None:
    x, y = torch.rand(12, 3), torch.arange(12) % 2
    edges = torch.stack([torch.arange(12), (torch.arange(12) + 1) % 12])
    masks = {f"{split}_mask": torch.arange(12) % 3 == number for number, split in enumerate(("train", "val", "test"))}
    data = Data(x=x, edge_index=edges, y=y, **masks)
    torch.save(data, tmp_path / "pyg.pt")
    torch.save(data.to_dict(), tmp_path / "dict.pt")
    np.savez(tmp_path / "arrays.npz", **{key: value.numpy() for key, value in data.to_dict().items()})
    split = ["train", "val", "test"] * 4
    nodes = [("id", "label", "split", "a", "b", "c"), *((n, n % 2, split[n], *x[n].tolist()) for n in range(12))]
    write(tmp_path / "tables", nodes=nodes, edges=[("source", "target"), *edges.t().tolist()])
    graph = nx.Graph(edges.t().tolist())
    for n in range(12):
        values = dict(zip("abc", x[n].tolist(), strict=True))
        graph.add_node(n, id=f"n{n}", label=int(y[n]), split=split[n], **values)
    nx.write_graphml(graph, tmp_path / "net.graphml")
    forms = {"pyg": "pyg.pt", "dict": "dict.pt", "arrays": "arrays.npz", "tables": "tables", "net": "net.graphml"}
    clients = made(NodeClients({**{k: str(tmp_path / v) for k, v in forms.items()}, "nx": graph, "data": data}))
    assert len({clients.client(name).graph.content for name in clients.clients}) == 1
    for name in clients.clients:
        own = clients.client(name)
        assert (own.train % 3 == 0).all()
        assert (own.val % 3 == 1).all()
        assert own.test.numel() == 4


def test_a_column_says_whose_a_node_is(tmp_path: Path) -> None:
    owners = ["north", "east"]
    rows = [(f"{n:03d}", "ab"[n % 3 == 0], n, owners[n // 6]) for n in range(12)]
    ring(tmp_path / "both", nodes=[("id", "label", "years", "branch"), *rows])
    data = NodeClients({"both": tmp_path / "both"}, partition_key="branch")
    with pytest.warns(match="2 edges of `both` are between clients, and are left out"):
        data.setup()
    assert data.clients == ["east", "north"]
    north = data.client("north")
    assert repr(north.graph) == "NodeGraph(north: 6 nodes, 10 edges, 1 features, 2 classes)"
    assert north.graph.x[:, 0].tolist() == list(range(6))
    assert data.client("east").graph.nodes.tolist() == list(range(6, 12))
    rows_of = data.client("east").prediction_rows
    assert list(rows_of) == ["node", "id", "split"]
    assert rows_of["id"] == [f"{n:03d}" for n in range(6, 12)]
    assert sum(len(part) for part in (north.train, north.val, north.test)) == 6
    numbers = [(n, "ab"[n % 3 == 0], n, ("0123", "123")[n // 6]) for n in range(12)]
    ring(tmp_path / "n", nodes=[("id", "label", "years", "branch"), *numbers], edges=[("source", "target"), (0, 1)])
    assert made(NodeClients({"n": tmp_path / "n"}, partition_key="branch")).clients == ["0123", "123"]
    with pytest.raises(InputError, match=r"`data.partition_key` to be a column of the nodes of .* but got 'ward'"):
        made(NodeClients({"both": tmp_path / "both"}, partition_key="ward"))
    with pytest.raises(InputError, match=r"`data.partition_key` to be null where there are graphs of several"):
        NodeClients({"a": tmp_path, "b": tmp_path}, partition_key="branch")
    ring(tmp_path / "gap", nodes=[("id", "label", "years", "branch"), *rows[:11], ("011", "a", 1, None)])
    with pytest.raises(InputError, match=r"`branch of .*gap` to be there for each node but got none in row 12"):
        made(NodeClients({"gap": tmp_path / "gap"}, partition_key="branch"))


def test_what_is_not_used_is_said(tmp_path: Path) -> None:
    edges = [("source", "target", "weight"), ("000", "001", 2), ("001", "000", 2), ("002", "002", 1), ("003", "004", 1)]
    ring(tmp_path, edges=[*edges, ("003", "004", 1)])
    data = NodeClients({"north": str(tmp_path)}, columns={"years": "number"})
    said = (
        r"`north`: 1 edges from a node to itself, 2 repeated edges, weight of edges \(see `data.edge_columns`\), column"
    )
    with pytest.warns(UserWarning, match=said):
        data.setup()
    assert data.client("north").graph.edge_index.size(1) == 4
    pyg = Data(x=torch.rand(4, 1), edge_index=torch.tensor([[0], [1]]), y=torch.tensor([0, 1, 0, 1]))
    pyg.edge_attr = torch.rand(1, 2)
    with pytest.warns(UserWarning, match="Not used of the data of `a`: 0 of edges, 1 of edges"):
        NodeClients({"a": pyg}, fractions=[0.5, 0.25, 0.25]).setup()


def test_nodes_without_labels_are_neighbours_only(tmp_path: Path) -> None:
    rows = [(n, None if n < 4 else "ab"[n % 2], n) for n in range(12)]
    edges = [(n, n + 1) for n in range(11)]
    write(tmp_path, nodes=[("id", "label", "age"), *rows], edges=[("source", "target"), *edges])
    own = made(NodeClients({"north": tmp_path})).client("north")
    assert own.graph.num_nodes == 12
    assert sorted(torch.cat([own.train, own.val, own.test]).tolist()) == list(range(4, 12))


def test_one_class_is_nothing_to_learn(tmp_path: Path) -> None:
    """Of all partners, that is; one of them may have one class alone."""
    rows = [("id", "label", "years", "branch"), *((f"{n:03d}", "fine", 1, "city") for n in range(12))]
    east = ring(tmp_path / "east", nodes=rows)
    made(NodeClients({"north": ring(tmp_path / "north"), "east": east}))
    with pytest.warns(UserWarning, match="All labels of `data` are of one class"):
        NodeClients({"east": east}).setup()


def test_directed(tmp_path: Path) -> None:
    ring(tmp_path)
    assert made(NodeClients({"a": tmp_path}, undirected=False)).client("a").graph.edge_index.size(1) == 12


def test_ego_graphs(tmp_path: Path) -> None:
    ring(tmp_path)
    own = made(NodeClients({"a": tmp_path}, ego_graphs=True, fanouts=[2])).client("a")
    assert next(iter(own.train_dataloader())).index.size(1) == 3


def test_no_columns_make_one_constant_feature(tmp_path: Path) -> None:
    ring(tmp_path, nodes=[("id", "label"), *((f"{n:03d}", n % 2) for n in range(12))])
    assert made(NodeClients({"a": tmp_path})).client("a").graph.x.to_dense().tolist() == [[1]] * 12


def test_partners_apart_must_declare(tmp_path: Path) -> None:
    """Each codes its file alone, and comes to what all files together would have given; nobody tells its values."""
    ring(tmp_path / "north")
    ring(
        tmp_path / "east",
        nodes=[("id", "label", "years", "branch"), *((f"{n:03d}", "fine", 1, "city") for n in range(12))],
    )
    together = made(NodeClients({"north": tmp_path / "north", "east": tmp_path / "east"}))
    declared = {"classes": ["fine", "fraud"], "columns": {"years": "number", "branch": ["city", "online"]}}
    for name in ("north", "east"):
        alone = NodeClients({name: tmp_path / name}, **declared)
        alone.declared.apart = True
        alone.setup()
        assert alone.client(name).graph.content == together.client(name).graph.content
        for missing in declared:
            alone = NodeClients({name: tmp_path / name}, **{k: v for k, v in declared.items() if k != missing})
            alone.declared.apart = True
            with pytest.raises(InputError, match=f"`data.{missing}` to be given where partners keep their files apart"):
                alone.setup()


X, EDGES = torch.rand(4, 2), torch.tensor([[0, 1], [1, 2]])


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            Data(x=X, edge_index=EDGES, y=torch.tensor([0, -2, 1, -1])),
            "y of a` to be classes of 0 or more, and -1 where there is none, but got -2",
        ),
        (Data(x=X, edge_index=EDGES, y=torch.rand(4)), "y of a` to be classes but got numbers with fractions"),
        (
            Data(x=X, edge_index=EDGES, y=torch.tensor([0.0, 1, 1, torch.inf])),
            "y of a` to be finite but got NaN or infinity",
        ),
        (
            Data(x=X, edge_index=EDGES, y=torch.ones(4, 3)),
            r"one for each but got of shape \[4, 3\]: several labels for",
        ),
        (Data(x=X, edge_index=EDGES + 2, y=torch.ones(4)), r"edge_index of a` to be edges between nodes 0 to 3"),
        (
            Data(x=X / 0, edge_index=EDGES, y=torch.ones(4)),
            r"x of a` to be finite \(`data.missing` is for tables\) but got NaN or infinity",
        ),
        (Data(x=X, edge_index=EDGES, y=torch.ones(4), train_mask=torch.ones(4, 2).bool()), r"mask of shape \[4\]"),
        (Data(x=X, edge_index=EDGES, y=torch.ones(4), train_mask=X[:, 0] >= 0, val_mask=X[:, 0] >= 0), "common rows"),
        ("nowhere", "`data.graphs.a` to be a folder with nodes.csv and edges.csv, or a file .npz, .pt or .graphml,"),
        (3, "`data.graphs.a` to be a path, or a PyG or networkx graph, but got 'int'"),
    ],
)
def test_refused_graphs(given: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        NodeClients({"a": given}).setup()


def test_classes_of_minus_one_and_one_are_doubted() -> None:
    graph = Data(x=X, edge_index=EDGES, y=torch.tensor([1, -1, 1, 1]))
    with pytest.warns(UserWarning, match="y of a: -1 is no label, and so all have class 1"):
        NodeClients({"a": graph}).setup()


GOOD, EMPTY = nx.complete_graph(3), nx.Graph(label="b")
GOOD.graph["label"] = "a"
nx.set_node_attributes(GOOD, 1.0, "weight")


@pytest.mark.parametrize(
    ("graphs", "sentence"),
    [
        ([EMPTY, GOOD], "`a` to be graphs with one node or more but got 1 without"),
        ([GOOD, EMPTY], "`a` to be graphs with one node or more but got 1 without"),
        ([GOOD, Data()], "a path, or all PyG or all networkx graphs, but got 'Data'"),
    ],
)
def test_the_graph_at_fault_is_the_one_named(graphs: list[Any], sentence: str) -> None:
    """An empty graph lacks the fields of nodes, too; that says nothing of the others."""
    with pytest.raises(InputError, match=sentence):
        GraphClients({"a": graphs}).setup()


@pytest.mark.parametrize("made", [NodeClients, GraphClients, HeteroClients, GraphFederation])
@pytest.mark.parametrize(
    ("graphs", "sentence"),
    [
        ([Data()], "`data.graphs` to be a mapping from clients to their data but got 'list'"),
        ({}, "`data.graphs` to be the data of at least one client but got none"),
        ({0: Data()}, "`data.graphs` to be a mapping with texts for clients' names but got 'the name 0'"),
    ],
)
def test_clients_have_names(made: Any, graphs: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        made(graphs).setup()


def test_links_are_of_no_class(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = NodeClients({"a": Data(x=X, edge_index=EDGES)}, task="links", fractions=(1.0, 0.0, 0.0))
        data.setup()
    with pytest.raises(InputError, match="multilabel, regression, links but got 'lnks'"):
        NodeClients({"a": Data()}, task="lnks")  # type: ignore[arg-type]


SPLIT = ("id", "label", "split")
KINDS = {"years": "number", "branch": ["city"]}


def row(*values: Any) -> list[tuple[Any, ...]]:
    """Six good rows and one more."""
    return [("id", "label", "years", "branch"), *((f"{n:03d}", "ab"[n % 2], n, "city") for n in range(6)), values]


@pytest.mark.parametrize(
    ("changes", "options", "sentence"),
    [
        ({"nodes": row("000", MARKER, 1, "city")}, {}, "id in .* different names but got 1 that occur"),
        ({"nodes": row("", MARKER, 1, "city")}, {}, "id in .* in all rows but got none in row 7"),
        ({"nodes": row("006", "a", 1, "city", MARKER)}, {}, "got 5 cells in line 8, where the header has 4;"),
        ({"nodes": [("id", "label"), ("0", "a", MARKER)]}, {}, "got 3 cells in line 2, where the header has 2;"),
        ({"nodes": []}, {}, "nodes.csv` to be a table in CSV but got an empty file"),
        ({"nodes": row("006", "a", MARKER, "city")}, {"columns": KINDS}, "years in .* to be numbers, as"),
        ({"nodes": row("006", "a", None, "city")}, {}, "years in .* without gaps.* but got 1 that are"),
        ({"nodes": row("006", MARKER, 1, "city")}, {"classes": ["a", "b"]}, "label of .* another in row 7"),
        ({"nodes": row("006", "a", 1, MARKER)}, {"columns": KINDS}, "branch in .* got another in row 7"),
        ({"edges": [("source", "target"), ("000", "001"), ("000", MARKER)]}, {}, "target in .* to be names of nodes"),
        ({"edges": [("from", "to"), (MARKER, MARKER)]}, {}, "a table with a column `source` but"),
        ({"nodes": [(MARKER, "x"), ("000", MARKER)]}, {}, "nodes.csv` to be a table with a column `id` but got one"),
        ({"nodes": [("id", "label", "age", "age"), ("000", "a", 1, 2)]}, {}, "but got two of one name"),
        ({"nodes": [("", "id", "label"), (0, "000", "a")]}, {}, "a name for each column .* but got one without"),
        ({"nodes": [("id", "label", " "), ("000", "a", 1)]}, {}, "a name for each column .* but got one without"),
        ({"nodes": [("id\tlabel",), ("000\ta",)]}, {}, r"columns are separated by '.t' and not by commas"),
        ({"nodes": [SPLIT, ("000", "a", MARKER), ("001", "", "")]}, {}, "split in .* to be train, val"),
        ({"nodes": [SPLIT, ("000", "", "train"), ("001", "a", ""), ("002", "b", "")]}, {}, "for `train`"),
    ],
)  # fmt: skip
def test_refused_tables(tmp_path: Path, changes: dict[str, Any], options: dict[str, Any], sentence: str) -> None:
    ring(tmp_path, **{"edges": [("source", "target"), ("000", "001")], **changes})
    with pytest.raises(InputError, match=sentence) as caught:
        made(NodeClients({"north": tmp_path}, **options))
    assert MARKER not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None  # a traceback would repeat values


def test_a_table_with_a_header_only_is_named(tmp_path: Path) -> None:
    ring(tmp_path, nodes=[("id", "label")])
    with pytest.raises(InputError, match=r"nodes\.csv` to be a table with rows but got a header only"):
        read_source(tmp_path, "north")


def test_tables_with_semicolons(tmp_path: Path) -> None:
    ring(tmp_path)
    (tmp_path / "nodes.csv").write_text(f"id;label;age\n1;{MARKER};3\n")
    with pytest.raises(InputError, match="a table with commas between its columns but got one with semicolons"):
        read_source(tmp_path, "north")


def test_a_graph_without_edges(tmp_path: Path) -> None:
    ring(tmp_path, edges=[("source", "target")])
    assert made(NodeClients({"a": tmp_path})).client("a").graph.edge_index.shape == (2, 0)


def test_files_that_are_no_data(tmp_path: Path) -> None:
    for name in ("a.npz", "a.pt", "a.graphml"):
        (tmp_path / name).write_text(f"{MARKER},{MARKER}\n")
        with pytest.raises(InputError, match="but got one that cannot be read") as caught:
            read_source(name, "north", tmp_path)
        assert MARKER not in str(caught.value)
    torch.save({"x": Path(MARKER)}, tmp_path / "code.pt")
    with pytest.raises(InputError, match="cannot be read: it holds more than tensors and PyG's graphs"):
        read_source("code.pt", "north", tmp_path)


def test_a_sentence_where_pandas_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring(tmp_path)
    monkeypatch.setattr("flgraph.data.tables.find_spec", lambda name: None)
    with pytest.raises(
        InputError, match=r"`pandas` to be installed to read nodes.csv \(`pip install 'flgraph\[data\]'`\)"
    ):
        read_source(tmp_path, "north")


GRAPHML = """<?xml version="1.0"?><!DOCTYPE g [{declared}]>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><key id="k" for="node" attr.name="label" attr.type="string"/>
<graph edgedefault="undirected"><node id="a"><data key="k">{label}</data></node><node id="b"/></graph></graphml>"""


@pytest.mark.parametrize("kind", ["bomb", "outside"])
def test_graphml_neither_grows_nor_reads_other_files(kind: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hidden")
    grows = [f'<!ENTITY e{n} "{10 * (f"&e{n - 1};" if n else "a")}">' for n in range(10)]  # to 10 GB
    outside = f'<!ENTITY e9 SYSTEM "file://{tmp_path}/secret">'
    declared = "".join(grows) if kind == "bomb" else outside
    file = tmp_path / "net.graphml"
    file.write_text(GRAPHML.format(declared=declared, label="&e9;"))
    with pytest.raises(InputError, match="a file in GraphML but got one that cannot"):
        read_source(str(file), "a")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: vars(data).pop("_store"), "a PyG graph but got"),
        (lambda data: data.update({"num_classes": "many"}), "`num_classes of .*` to be a whole number from 0"),
    ],
)
def test_damaged_graphs_in_files(change: Any, said: str, tmp_path: Path) -> None:
    data = Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0, 1], [1, 0]]), y=torch.tensor([0, 1]))
    change(data)
    torch.save(data, tmp_path / "a.pt")
    with pytest.raises(InputError, match=said):
        read_source(str(tmp_path / "a.pt"), "a")
