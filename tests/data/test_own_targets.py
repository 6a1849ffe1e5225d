"""Own files whose labels are several, or numbers: what is read, predicted and refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from flgraph.callbacks import FedAvg
from flgraph.cli.main import main
from flgraph.data import GraphClients, NodeClients
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer
from flgraph.models import GNN

NAN = float("nan")


def table(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def accounts(folder: Path, label: str = "label", values: Any = "{n}.5", count: int = 20) -> Path:
    """A ring of accounts with numbers to estimate; of every fifth nothing is known."""
    rows = [f"a{n},{'' if n % 5 == 4 else values.format(n=n)},{n / 10}" for n in range(count)]
    table(folder / "nodes.csv", "\n".join([f"id,{label},years", *rows, ""]))
    edges = [f"a{n},a{(n + 1) % count}" for n in range(count)]
    table(folder / "edges.csv", "\n".join(["source,target", *edges, ""]))
    return folder


def molecules(folder: Path, header: str = "label_toxic,label_soluble") -> Path:
    graphs = [f"M{n},{n % 2},{'' if n == 3 else 'true' if n % 3 else 'false'}" for n in range(20)]
    table(folder / "graphs.csv", "\n".join([f"id,{header}", *graphs, ""]))
    table(folder / "nodes.csv", "\n".join(["graph,id,mass", *(f"M{n},{k},{n + k}" for n in range(20) for k in (0, 1))]))
    table(folder / "edges.csv", "\n".join(["graph,source,target", *(f"M{n},0,1" for n in range(20))]))
    return folder


def test_numbers_of_nodes(tmp_path: Path) -> None:
    """As a table, as arrays, as a graph of networkx and as one of PyG."""
    accounts(tmp_path / "north")
    y = torch.tensor([NAN if n % 5 == 4 else n + 0.5 for n in range(20)])
    edges = torch.stack([torch.arange(20), (torch.arange(20) + 1) % 20])
    years = torch.arange(20).unsqueeze(1) / 10
    np.savez(tmp_path / "east.npz", x=years, edge_index=edges, y=y)
    graph = nx.cycle_graph(20)
    nx.set_node_attributes(graph, {n: {"label": None if n % 5 == 4 else n + 0.5, "years": n / 10} for n in graph})
    given = {"north": "north", "east": "east.npz", "south": graph, "west": Data(x=years, edge_index=edges, y=y)}
    data = NodeClients(given, root=str(tmp_path), task="regression")
    data.setup()
    for name in given:
        client = data.client(name)
        torch.testing.assert_close(client.graph.y, y.unsqueeze(1), equal_nan=True)
        torch.testing.assert_close(client.graph.x, years)
        assert client.model_args == {"in_channels": 1, "num_classes": 1, "task": "regression"}
        used = torch.cat([client.train, client.val, client.test])
        assert sorted(used.tolist()) == [n for n in range(20) if n % 5 != 4]


def test_several_labels_of_graphs(tmp_path: Path, federate: Callable[..., FederatedTrainer]) -> None:
    molecules(tmp_path / "north")
    ring = torch.tensor([[0, 1], [1, 0]])
    rows = [[float(n % 2), NAN if n == 3 else float(n % 3 > 0)] for n in range(20)]
    x = torch.ones(2, 1)
    pyg = [Data(x=x, edge_index=ring, y=torch.tensor([[toxic, soluble]])) for toxic, soluble in rows]
    data = GraphClients({"north": "north"}, root=str(tmp_path), task="multilabel", structure="none", batch_size=8)
    data.setup()
    graphs = data.client("north").graphs
    assert repr(graphs) == "FlatGraphs(north: 20 graphs, 40 nodes, 40 edges, 1 features, 2 classes)"
    truth = torch.tensor(rows)[:, [1, 0]]  # in the order of their names
    torch.testing.assert_close(graphs.y, truth, equal_nan=True)
    results = federate(FedAvg(), rounds=1).fit(GNN(hidden_channels=4), data)
    assert 0 <= results["final"]["mean"]["test/f1"] <= 1
    unlike = GraphClients({"north": "north", "east": pyg}, root=str(tmp_path), task="multilabel", structure="none")
    with pytest.raises(InputError, match=r"`data\.graphs\.east` to be data with the same labels as `north`"):
        unlike.setup()


def test_numbers_are_predicted(tmp_path: Path) -> None:
    accounts(tmp_path / "north", ["label_2030", "label_2040"][0])
    args = ["--data=NodeClients", f"--data.graphs={{north: {tmp_path / 'north'}}}", "--data.task=regression"]
    args += ["--model=NodeSAGE", "--model.hidden_channels=4", "--trainer.aggregator=FedAvg", "--trainer.rounds=1"]
    args += ["--trainer.monitor=val/rmse", "--trainer.logger=false", "--trainer.enable_progress_bar=false"]
    args += [f"--trainer.default_root_dir={tmp_path / 'runs'}", "--trainer.accelerator=cpu", "--data.classes=['2030']"]
    main(["fit", *args])
    main(["predict", *args, "--ckpt_path=last"])
    (file,) = (tmp_path / "runs").rglob("north.csv")
    header, first, *_ = file.read_text().splitlines()
    assert header == "node,id,split,value"
    float(first.split(",")[3])


def test_what_is_refused(tmp_path: Path) -> None:
    accounts(tmp_path / "measured", "label", "{n}.5")
    with pytest.raises(InputError, match=r"`label of .*measured` to be classes but got numbers with fractions, which"):
        NodeClients({"measured": "measured"}, root=str(tmp_path)).setup()
    for folder, (label, values), sentence in (
        ("texts", ("label", "much"), r"`label in .*nodes\.csv` to be numbers, or empty, but got something else"),
        ("none", ("price", "{n}"), r"`data\.graphs\.none` to be data with `label`, or several `label_\.\.\.` but got"),
    ):
        accounts(tmp_path / folder, label, values)
        with pytest.raises(InputError, match=sentence) as caught:
            NodeClients({folder: folder}, root=str(tmp_path), task="regression").setup()
        assert "much" not in str(caught.value)
    with pytest.raises(InputError, match=r"to be 0 or 1, true or false, or empty, but got another in row 1"):
        NodeClients({"a": accounts(tmp_path / "a")}, task="multilabel").setup()
    with pytest.raises(InputError, match=r"to be one with `2050`, as `data\.classes` says \(the names of"):
        NodeClients({"a": "a"}, root=str(tmp_path), task="regression", classes=["2050"]).setup()
    with pytest.raises(InputError, match=r"numbers with fractions, which need `data\.task` regression"):
        NodeClients({"a": Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]]), y=torch.rand(2))}).setup()
    with pytest.raises(InputError, match=r"several labels for one need `data\.task` multilabel or regression"):
        NodeClients({"a": Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]]), y=torch.ones(2, 2))}).setup()
    folded = Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]]), y=torch.rand(4))
    with pytest.raises(InputError, match=r"y of a` to be numbers of shape \[2, T\] but got \[4\]"):
        NodeClients({"a": folded}, task="regression").setup()
