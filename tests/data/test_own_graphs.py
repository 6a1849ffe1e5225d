"""Clients that bring several graphs of their own, and what of both kinds nobody has labelled."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import pytorch_lightning as pl
import torch
from own_files import library, made, paths, ring, write
from torch_geometric.data import Data

from flgraph import callbacks, models
from flgraph.data import Diffusion, GraphClients, HeteroClients, NodeClients
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer


def test_tables_of_graphs(tmp_path: Path) -> None:
    paths(tmp_path)
    data = made(GraphClients({"north": tmp_path}, structure="none"))
    graphs = data.client("north").graphs
    assert repr(graphs) == "FlatGraphs(north: 20 graphs, 70 nodes, 100 edges, 2 features, 2 classes)"
    assert graphs.y.tolist() == [1, 0] * 10
    assert graphs[1].edge_index.tolist() == [[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]]
    assert graphs[0].x.tolist() == [[1, 0], [0, 1], [1, 0]]
    assert made(GraphClients({"north": tmp_path})).client("north").model_args["structure_channels"] == 32


def test_own_graphs_have_a_second_view(tmp_path: Path) -> None:
    paths(tmp_path)
    how = Diffusion(alpha=0.3, sparsify="none")
    data = made(GraphClients({"north": tmp_path}, structure="none", diffusion=how, batch_size=4))
    client = data.client("north")
    assert client.settings["diffusion"]["alpha"] == 0.3
    batch = next(iter(client.val_dataloader()))
    nodes = batch.num_nodes
    adj = torch.zeros(nodes, nodes, dtype=torch.float64)
    adj[tuple(batch.edge_index)] = 1
    adj += torch.eye(nodes, dtype=torch.float64)
    root = adj.sum(0).rsqrt().diag()
    walk = 0.3 * torch.linalg.inv(torch.eye(nodes, dtype=torch.float64) - 0.7 * root @ adj @ root)
    x = torch.rand(nodes, 2, dtype=torch.float64)
    assert torch.allclose(batch.diffused.sum(x), (walk / walk.sum(0)).mT @ x, atol=1e-6)
    where = {"default_root_dir": tmp_path / "runs", "accelerator": "cpu"}
    trainer = FederatedTrainer(callbacks.FCLG(), rounds=2, local_epochs=2, **where)
    found = trainer.fit(models.FCLG(hidden_channels=4), data)["final"]["clients"]["north"]
    assert {"val/loss", "test/accuracy", "test/nmi"} <= found.keys()
    with pytest.raises(InputError, match=r"`data.wl_scores` to be false beside `data.diffusion`"):
        GraphClients({"north": tmp_path}, wl_scores=True, diffusion=how)


def test_the_same_graphs_in_every_form(tmp_path: Path) -> None:
    split = [("train", "val", "test", "train")[number % 4] for number in range(20)]
    labelled = [("id", "label", "split"), *((f"M{n}", n % 2, split[n]) for n in range(20))]
    paths(tmp_path / "tables", graphs=labelled)
    sizes = [3 + number % 2 for number in range(20)]
    nets = [nx.path_graph(size) for size in sizes]
    for number, net in enumerate(nets):
        net.graph["label"] = number % 2
        for node in net:
            net.nodes[node]["element"] = "CN"[node % 2]
    (tmp_path / "nets").mkdir()
    for number, net in enumerate(nets):
        nx.write_graphml(net, tmp_path / "nets" / f"{number:02d}.graphml")
    pyg = [
        Data(
            x=torch.eye(2)[torch.arange(size) % 2],
            edge_index=torch.stack([torch.arange(size - 1), torch.arange(1, size)]),
            y=torch.tensor([number % 2]),
        )
        for number, size in enumerate(sizes)
    ]
    torch.save(pyg, tmp_path / "pyg.pt")
    flat = {
        "x": torch.cat([graph.x for graph in pyg]).numpy(),
        "edge_index": torch.cat([graph.edge_index for graph in pyg], dim=1).numpy(),
        "y": np.arange(20) % 2,
        "node_ptr": np.cumsum([0, *sizes]),
        "edge_ptr": np.cumsum([0, *(size - 1 for size in sizes)]),
    }
    np.savez(tmp_path / "flat.npz", **flat)
    forms = {"tables": "tables", "nets": "nets", "pyg": "pyg.pt", "flat": "flat.npz"}
    given = {**{name: tmp_path / place for name, place in forms.items()}, "list": pyg, "nx": nets}
    data = made(GraphClients(given, structure="none"))
    first = data.client("tables").graphs
    for name in data.clients:
        graphs = data.client(name).graphs
        for field in ("x", "edge_index", "y", "node_ptr", "edge_ptr"):
            assert torch.equal(getattr(graphs, field), getattr(first, field)), (name, field)
    assert data.client("tables").val.tolist() == [1, 5, 9, 13, 17]


def test_masks_of_many_graphs_in_arrays(tmp_path: Path) -> None:
    part = np.arange(12) % 3
    flat = {
        "x": np.ones((24, 1)),
        "edge_index": np.array([[0] * 12, [1] * 12]),
        "y": np.array(["long", "short"] * 6),
        "node_ptr": np.arange(0, 25, 2),
        "edge_ptr": np.arange(13),
    }
    masks = {"train_mask": part == 0, "val_mask": part == 1, "test_mask": part == 2}
    np.savez(tmp_path / "a.npz", **flat, **masks)
    own = made(GraphClients({"a": tmp_path / "a.npz"}, structure="none")).client("a")
    for number, split in enumerate((own.train, own.val, own.test)):
        assert split.tolist() == np.flatnonzero(part == number).tolist()
    np.savez(tmp_path / "a.npz", **flat, **{**masks, "val_mask": part >= 1})
    with pytest.raises(InputError, match=r"masks of .*a.npz` to be without common rows but got row 2 in two"):
        GraphClients({"a": tmp_path / "a.npz"}).setup()
    np.savez(tmp_path / "a.npz", **{**flat, "y": flat["y"].astype("S")})
    with pytest.raises(InputError, match=r"y in .*a.npz` to be .* in Unicode, texts but got '?.?S5"):
        GraphClients({"a": tmp_path / "a.npz"}).setup()


def test_labels_of_graphs_are_judged_together(tmp_path: Path) -> None:
    """``NA`` is no missing number among names, and may be a name; alone it might be either."""
    nets = [nx.path_graph(3) for _ in range(24)]
    for number, net in enumerate(nets):
        net.graph["label"] = ("NA", "fast", "slow")[number % 3]
    pyg = [Data(x=torch.ones(3, 1), edge_index=torch.tensor([[0, 1], [1, 2]]), y=net.graph["label"]) for net in nets]
    for given in (nets, pyg):
        with pytest.raises(InputError, match=r"label of north` to be .*row 1"):
            GraphClients({"north": given}, structure="none").setup()
        data = made(GraphClients({"north": given}, structure="none", classes=["fast", "slow", "NA"]))
        assert data.client("north").graphs.y.tolist() == [2, 0, 1] * 8


@pytest.mark.parametrize("undirected", [True, False])
def test_undirected_edges_of_networkx_go_both_ways(undirected: bool) -> None:
    net = nx.path_graph(4)
    nx.set_node_attributes(net, {node: str(node % 2) for node in net}, "label")
    nx.set_edge_attributes(net, {edge: sum(edge) / 10 for edge in net.edges}, "amount")
    data = made(NodeClients({"a": net}, undirected=undirected, fractions=(1, 0, 0), edge_columns={"amount": "number"}))
    graph = data.client("a").graph
    assert graph.edge_index.tolist() == [[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]]
    assert torch.allclose(graph.edge_attr[:, 0], torch.tensor([0.1, 0.1, 0.3, 0.3, 0.5, 0.5]))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"graphs": [("id", "label"), ("M0", "a"), ("M1", None)]}, "graph in .*nodes.csv` to be names of graphs.csv"),
        (
            {"edges": [("graph", "source", "target"), ("M0", 0, 3)]},
            "target in .*edges.csv` to be names of nodes.csv but",
        ),
        (
            {"edges": [("graph", "source", "target"), ("M0", 0, 1), ("M9999", 0, 1)]},
            "graph in .*edges.csv` to be graphs with nodes in nodes.csv but got 1 .* first in row 2",
        ),
        ({"nodes": [("graph", "id"), ("M0", 0), ("M0", 0)]}, "id in .*nodes.csv` to be different names but got 1 that"),
    ],
)
def test_refused_tables_of_graphs(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    paths(tmp_path, **changes)
    with pytest.raises(InputError, match=sentence):
        GraphClients({"north": tmp_path}).setup()


def test_graphs_without_a_label_are_predicted_only(tmp_path: Path) -> None:
    paths(tmp_path)
    whole = made(GraphClients({"north": tmp_path}, structure="none"))
    named = pd.read_csv(tmp_path / "graphs.csv", dtype=str)
    named.loc[[0, 3], "label"] = ""
    named.to_csv(tmp_path / "graphs.csv", index=False)
    data = GraphClients({"north": tmp_path}, structure="none")
    with pytest.warns(UserWarning, match="Not used of the data of `north`: 2 graphs without a label, but for predict"):
        data.setup()
    own = data.client("north")
    rows = own.prediction_rows
    assert rows["id"] == named["id"].tolist() == whole.client("north").prediction_rows["id"]
    assert [rows["split"][0], rows["split"][3]] == ["", ""]
    assert rows["split"].count("") == 2
    assert sum(len(batch.y) for batch in own.predict_dataloader()) == len(named)
    assert data.class_names == whole.class_names


def test_graphs_of_networkx_bring_their_splits(tmp_path: Path) -> None:
    nets = [nx.path_graph(3 + number % 2) for number in range(20)]
    split = [("train", "test", "val", "train", None)[number % 5] for number in range(20)]
    for number, net in enumerate(nets):
        net.graph |= {"label": number % 2, "city": "Bern"} | ({"split": split[number]} if split[number] else {})
        nx.write_graphml(net, tmp_path / f"{number:02d}.graphml")
    for given in (nets, tmp_path):
        data = GraphClients({"north": given}, structure="none")
        with pytest.warns(UserWarning, match="^Not used of the data of `north`: city of north.$"):
            data.setup()
        assert data.client("north").prediction_rows["split"] == [own or "" for own in split]
    nets[3].graph["split"] = "tets"
    with pytest.raises(InputError, match="split of north, graph 3` to be train, val, test or empty"):
        GraphClients({"north": nets}).setup()


def test_a_value_is_the_same_feature_in_all_graphs() -> None:
    """Though where it stands alone it might be taken for another kind."""
    nets = [nx.path_graph(3) for _ in range(20)]
    for number, net in enumerate(nets):
        net.graph["label"] = number % 2
        for node in net:
            net.nodes[node]["aromatic"] = ("true", "false", "unknown" if number % 2 else "true")[node]
    graphs = made(GraphClients({"north": nets}, structure="none")).client("north").graphs
    assert graphs[0].x.tolist() == [[0, 1, 0], [1, 0, 0], [0, 1, 0]]
    assert graphs[1].x.tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 1]]


def test_a_partition_file_takes_labels_and_ids_along(tmp_path: Path) -> None:
    """What has no label is never of a class; what is predicted is called as its owner calls it."""
    paths(tmp_path)
    named = pd.read_csv(tmp_path / "graphs.csv", dtype=str)
    named.loc[14:, "label"] = ""
    named.to_csv(tmp_path / "graphs.csv", index=False)
    file = tmp_path / "some.json"
    parts = {"graphs_0": [*range(4, 20)], "train_0": [*range(4, 12), 14, 15], "val_0": [12, 16], "test_0": [13, 17]}
    file.write_text(json.dumps({"names": ["north"], **parts}))
    data = GraphClients({"north": tmp_path}, structure="none", partition=str(file))
    with pytest.warns(UserWarning, match="6 graphs without a label"):
        data.setup()
    own = data.client("north")
    rows = pd.DataFrame(own.prediction_rows)
    assert rows["graph"].tolist() == [*range(4, 20)]
    assert rows["id"].tolist() == named["id"].tolist()[4:]
    assert (rows["split"] == "").tolist() == [number >= 14 for number in range(4, 20)]


@pytest.mark.parametrize("kind", ["graphs", "nodes"])
def test_what_nobody_has_labelled(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Embeddings are learned of all of it; what learns from labels says that there are none."""
    Clients = {"graphs": GraphClients, "nodes": NodeClients}[kind]
    (paths if kind == "graphs" else ring)(tmp_path)
    table = tmp_path / f"{kind}.csv"
    named = pd.read_csv(table, dtype=str)
    named.drop(columns="label").to_csv(table, index=False)
    how = {"structure": "none", "diffusion": Diffusion("ppr")} if kind == "graphs" else {}
    data = made(Clients({"north": tmp_path}, **how))
    rows = data.client("north").prediction_rows
    assert "" not in rows["split"]
    model = models.FCLG(hidden_channels=4) if kind == "graphs" else models.DGI(hidden_channels=4)
    trainer = FederatedTrainer(callbacks.FedAvg(), rounds=1, default_root_dir=str(tmp_path / "runs"), accelerator="cpu")
    results = trainer.fit(model, data)
    assert {"train/loss", "val/loss"} <= results["final"]["mean"].keys()
    assert not any(name.startswith("test/") for name in results["final"]["mean"])
    assert len(torch.cat(trainer.predict(model, data)["north"])) == len(named)
    learner = models.GNN() if kind == "graphs" else models.NodeSAGE()
    with pytest.raises(InputError, match=f"`data` to be one with labels, from which {type(learner).__name__} learns"):
        trainer.fit(learner, data)
    # Who has none while others have is told so.
    both = Clients({"north": tmp_path, "east": (paths if kind == "graphs" else ring)(tmp_path / "east")}, **how)
    with pytest.raises(InputError, match=r"label of .*` to be there for some but got none"):
        both.setup()


@pytest.mark.parametrize("kind", ["graphs", "nodes"])
def test_a_model_tells_of_new_data_without_labels(kind: str, tmp_path: Path) -> None:
    """As docs/results.md has it: columns are declared, classes are not, as nobody has any."""
    clients, make = {"graphs": (GraphClients, paths), "nodes": (NodeClients, ring)}[kind]
    columns: Any = {"element": ["C", "N"]} if kind == "graphs" else {"branch": ["city", "online"], "years": "number"}
    old = made(clients({"north": make(tmp_path / "old")}, columns=columns))
    model: Any = models.GNN() if kind == "graphs" else models.NodeSAGE()
    settings: Any = {"default_root_dir": str(tmp_path / "runs"), "accelerator": "cpu"}
    trainer = FederatedTrainer(callbacks.FedAvg(), rounds=1, **settings)
    trainer.fit(model, old)
    assert trainer.run_dir is not None
    kept = trainer.run_dir / "checkpoints" / "last" / "clients" / "north.ckpt"
    table = make(tmp_path / "new", 30) / f"{kind}.csv"
    pd.read_csv(table, dtype=str).drop(columns="label").to_csv(table, index=False)
    new = made(clients({"new": tmp_path / "new"}, columns=columns)).client("new")
    plain = pl.Trainer(logger=False, enable_progress_bar=False, accelerator="cpu")
    told = torch.cat(plain.predict(type(model).load_from_checkpoint(kept), new))
    assert told.shape == (30, 2)
    assert list(new.prediction_rows["id"])[:2] == (["M0", "M1"] if kind == "graphs" else ["000", "001"])


def test_links_of_own_tables_have_ids(tmp_path: Path) -> None:
    authors = [("id",), *((f"a{n}",) for n in range(12))]
    library(tmp_path / "north", author=authors)
    data = made(HeteroClients({"north": "north"}, root=str(tmp_path), task="links", links={"test_fraction": 0.3}))
    rows = data.client("north").prediction_rows
    assert len(rows["source"]) > 0
    for kind, end in (("source_type", "source"), ("target_type", "target")):
        assert rows[f"{end}_id"] == [f"{t[0]}{number}" for t, number in zip(rows[kind], rows[end], strict=True)]


def test_edges_without_graphs(tmp_path: Path) -> None:
    """Then nodes are known by their ids alone, and an edge between two graphs is refused."""
    graphs = [("id", "label"), *((f"M{n}", n % 2) for n in range(20))]
    nodes = [("graph", "id"), *((f"M{n}", f"M{n}-{k}") for n in range(20) for k in range(2))]
    edges = [("source", "target"), *((f"M{n}-0", f"M{n}-1") for n in range(20))]
    write(tmp_path, graphs=graphs, nodes=nodes, edges=edges)
    assert made(GraphClients({"a": tmp_path}, structure="none")).client("a").graphs.edge_index.size(1) == 40
    write(tmp_path, edges=[*edges, ("M0-0", "M1-0")])
    with pytest.raises(InputError, match=r"to be a node of the graph of its source but got one of another in row 21\."):
        GraphClients({"a": tmp_path}).setup()


@pytest.mark.parametrize("amounts", [(1.0, 3.0), (2.0, 2.0)])
def test_an_edge_and_its_reverse_with_other_features(amounts: tuple[float, float]) -> None:
    """They become their mean, and that is said."""
    net = nx.DiGraph()
    net.add_edge(0, 1, amount=amounts[0])
    net.add_edge(1, 0, amount=amounts[1])
    net.add_edge(1, 2, amount=7.0)
    nx.set_node_attributes(net, {node: str(node % 2) for node in net}, "label")
    data = NodeClients({"a": net}, fractions=(1, 0, 0), edge_columns={"amount": "number"})
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        data.setup()
    assert data.client("a").graph.edge_attr[:, 0].tolist() == [2, 2, 7, 7]
    wanted = "2 edges of a have other features than their reverse"
    assert any(wanted in str(own.message) for own in said) == (amounts[0] != amounts[1])
