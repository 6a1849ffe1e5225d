"""Features of edges: from PyG's graphs and own files through batches into PyG's layers."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GATConv, GINEConv, PNAConv

from flgraph.callbacks import FedAvg, FedPer, FedTAD
from flgraph.data import FlatGraphs, GraphClients, GraphFederation, NodeClients, NodeGraph, WholeGraphFederation
from flgraph.errors import InputError
from flgraph.federation import Aggregator, FederatedTrainer
from flgraph.models import GNN, NodeGNN, NodeSAGE
from flgraph.nn.conv.edges import make_edge_conv
from flgraph.testing import check_algorithm


def molecules(count: int = 20, seed: int = 0) -> list[Data]:
    """Rings whose bonds, in any order, have two numbers; the class is what most of their bonds are."""
    generator, found = torch.Generator().manual_seed(seed), []
    for number in range(count):
        size = 3 + number % 4
        ring = torch.arange(size)
        edges = torch.stack([ring, (ring + 1) % size])
        bonds = torch.rand(size, 2, generator=generator)
        order = torch.randperm(2 * size, generator=generator)
        both = torch.cat([edges, edges.flip(0)], dim=1)[:, order]
        y = int(bonds[:, 0].mean() > 0.5)
        x = torch.rand(size, 3, generator=generator)
        found.append(Data(x=x, edge_index=both, edge_attr=torch.cat([bonds, bonds])[order], y=torch.tensor([y])))
    return found


def graphs() -> GraphFederation:
    given = {name: molecules(seed=seed) for seed, name in enumerate("AB")}
    return GraphFederation(given, num_classes=2, batch_size=8, structure="none")


def network() -> NodeGraph:
    """Ten rings of six, joined; edges are given once, in one direction, some of them twice."""
    n, generator = 60, torch.Generator().manual_seed(1)
    ring = torch.arange(n)
    edges = torch.cat([torch.stack([ring, (ring + step) % n]) for step in (1, 6, 1)], dim=1)
    x, attr = torch.rand(n, 3, generator=generator), torch.rand(edges.size(1), 2, generator=generator)
    data = Data(x=x, edge_index=edges, edge_attr=attr, y=(x[:, 0] > 0.5).long())
    return NodeGraph.from_pyg(data, "ring", num_classes=2)


def whole(graph: NodeGraph | None = None) -> WholeGraphFederation:
    return WholeGraphFederation(graph or network(), num_clients=2, partition="louvain", epoch_fraction=1.0)


def as_dict(edge_index: torch.Tensor, edge_attr: torch.Tensor) -> dict[Any, Any]:
    return {tuple(ends): row for ends, row in zip(edge_index.t().tolist(), edge_attr.tolist(), strict=True)}


def test_a_batch_is_that_of_pyg() -> None:
    given = molecules()
    flat = FlatGraphs.from_pyg(given)
    index = torch.tensor([7, 2, 11])
    batch, expected = flat.batch(index), Batch.from_data_list([given[n] for n in index])
    assert as_dict(batch.edge_index, batch.edge_attr) == as_dict(expected.edge_index, expected.edge_attr)
    one, again = flat[2], batch.to_data_list()[1]
    assert as_dict(one.edge_index, one.edge_attr) == as_dict(again.edge_index, again.edge_attr)
    part, same = flat.select([2, 7]).batch(), flat.batch(torch.tensor([2, 7]))
    assert as_dict(part.edge_index, part.edge_attr) == as_dict(same.edge_index, same.edge_attr)
    assert flat.nbytes > FlatGraphs.from_pyg([Data(x=g.x, edge_index=g.edge_index, y=g.y) for g in given]).nbytes


def test_repeated_edges_have_their_mean() -> None:
    graph = network()
    found = as_dict(graph.edge_index, graph.edge_attr)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(1)
    torch.rand(60, 3, generator=generator)
    attr = torch.rand(180, 2, generator=generator)  # as it was given
    assert found[0, 1] == found[1, 0] == pytest.approx(((attr[0] + attr[120]) / 2).tolist())
    assert found[0, 6] == found[6, 0] == pytest.approx(attr[60].tolist())
    part = graph.subgraph(torch.tensor([7, 1, 0]))
    assert as_dict(part.edge_index, part.edge_attr)[1, 2] == pytest.approx(found[1, 0])  # type: ignore[arg-type]


@pytest.mark.parametrize("conv", ["gine", "gat", "pna"])
def test_models_compute_what_pyg_computes(conv: str) -> None:
    """GINE by its formula, GAT and PNA by PyG's layers with the same weights, on edges in another order."""
    torch.manual_seed(0)
    graph = network()
    model = NodeGNN(3, 2, hidden_channels=8, conv=conv, num_layers=1, edge_channels=2, dropout=0.0)  # type: ignore[arg-type]
    batch = graph.batch(torch.arange(60))
    order = torch.randperm(batch.edge_index.size(1))  # type: ignore[union-attr]
    ends, attr = batch.edge_index[:, order], batch.edge_attr[order]  # type: ignore[index]
    x, (layer,) = model.pre(graph.x), model.convs
    if conv == "gine":
        assert isinstance(layer, GINEConv)
        messages = torch.relu(x[ends[0]] + layer.lin(attr))
        expected = layer.nn(x + torch.zeros_like(x).index_add(0, ends[1], messages))
    elif conv == "pna":
        # A ring's nodes have the degree that the scalers of all clients are made for.
        scalers = ["identity", "amplification", "attenuation"]
        given = PNAConv(8, 8, ["mean", "min", "max", "std"], scalers, torch.tensor([0, 0, 60]), edge_dim=2)
        missing, unknown = given.load_state_dict(layer.state_dict(), strict=False)
        assert missing == ["aggr_module.avg_deg_lin", "aggr_module.avg_deg_log"]
        assert not unknown
        expected = given(x, ends, attr)
    else:
        assert isinstance(layer, GATConv)
        expected = layer(x, ends, attr)
    torch.testing.assert_close(model(batch), model.readout(torch.relu(expected)))


@pytest.mark.parametrize("conv", ["gine", "gat", "pna"])
def test_federations_of_graphs(conv: Any, federate: Callable[..., FederatedTrainer]) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Edges have")
        results = federate(FedPer(), rounds=1).fit(GNN(conv=conv, hidden_channels=8, norm="batch"), graphs())
    assert 0 <= results["final"]["mean"]["test/accuracy"] <= 1


@pytest.mark.parametrize("edge_channels", [0, 2])
def test_pna_by_its_formula(edge_channels: int) -> None:
    """Equation 5 of the paper, node by node; node 3 has no neighbours."""
    torch.manual_seed(0)
    layer: Any = make_edge_conv("pna", 4, edge_channels).double()
    ends = torch.tensor([[1, 2, 0, 0, 2, 1], [0, 0, 1, 2, 1, 2]])[:, :5]
    x, attr = torch.rand(4, 4).double(), torch.rand(5, 2).double() if edge_channels else None
    (before,), (after,), rows = layer.pre_nns, layer.post_nns, []
    for node in range(4):
        own = (ends[1] == node).nonzero()[:, 0]
        parts = [x[node].expand(own.numel(), -1), x[ends[0, own]]]
        messages = before(torch.cat([*parts, *([] if attr is None else [layer.edge_encoder(attr[own])])], dim=1))
        degree, found = own.numel(), torch.zeros(4, 4).double()
        if degree:
            spread = messages.var(dim=0, unbiased=False).clamp(min=1e-5).sqrt()
            spread = torch.where(spread > 1e-5**0.5, spread, 0)
            found = torch.stack([messages.mean(dim=0), messages.amin(dim=0), messages.amax(dim=0), spread])
        scale = math.log(degree + 1) / math.log(3)
        inverse = math.log(3) / math.log(max(degree, 1) + 1)
        rows.append(torch.cat([x[node], *(found.flatten() * by for by in (1, scale, inverse))]))
    torch.testing.assert_close(layer(x, ends, attr), layer.lin(after(torch.stack(rows))), rtol=1e-7, atol=1e-7)


def test_nothing_of_the_degrees_is_state() -> None:
    for model in (GNN(3, 2, hidden_channels=8, conv="pna"), NodeGNN(3, 2, hidden_channels=8, conv="pna")):
        assert "deg" not in " ".join(model.state_dict())


def _principal() -> tuple[Aggregator, Any, Any]:
    return FedAvg(), GNN(hidden_channels=4, num_layers=1, conv="pna"), graphs()


def test_pna_resumes_and_moves() -> None:
    check_algorithm(_principal, rounds=2)


def _setup() -> tuple[Aggregator, Any, Any]:
    return FedPer(), NodeGNN(hidden_channels=8, conv="gine"), whole()


def test_whole_graphs_resume() -> None:
    check_algorithm(_setup, rounds=2)


def test_models_without_them_say_so(federate: Callable[..., FederatedTrainer]) -> None:
    with pytest.warns(UserWarning, match="Edges have features, which GNN makes no use of; `--model.conv gine`"):
        federate(FedPer(), rounds=1).fit(GNN(hidden_channels=8), graphs())
    with pytest.warns(UserWarning, match="Edges have features, which NodeSAGE makes no use of"):
        federate(FedPer(), rounds=1).fit(NodeSAGE(hidden_channels=8), whole())


def test_attention_does_without() -> None:
    graph = network()._like(edge_attr=None)
    model = NodeGNN(3, 2, hidden_channels=8, edge_channels=0, dropout=0.0, num_layers=1)
    x = torch.relu(model.convs[0](model.pre(graph.x), graph.edge_index))
    torch.testing.assert_close(model(graph.batch(torch.arange(60))), model.readout(x))


def test_own_files(tmp_path: Path) -> None:
    folder = tmp_path / "north"
    folder.mkdir()
    (folder / "nodes.csv").write_text("id,label,age\n" + "".join(f"n{k},{k % 2},{k}\n" for k in range(10)))
    rows = "".join(f"n{k},n{(k + 1) % 10},{k}.5,{'wire' if k % 2 else 'card'},2024-01-01\n" for k in range(10))
    (folder / "edges.csv").write_text("source,target,amount,kind,day\n" + rows)
    declared: dict[str, Any] = {"kind": ["card", "wire"], "amount": "number"}
    data = NodeClients({"north": folder}, edge_columns=declared)
    with pytest.warns(UserWarning, match=r"Not used of the data of `north`: day of edges"):
        data.setup()
    client = data.client("north")
    found = as_dict(client.graph.edge_index, client.graph.edge_attr)  # type: ignore[arg-type]
    assert found[0, 1] == found[1, 0] == [0.5, 1.0, 0.0]  # amount, card, wire
    assert client.model_args["edge_channels"] == 3
    batch = next(iter(client.train_dataloader()))
    assert batch.edge_attr.shape == (20, 3)
    for columns, sentence in (
        ({"price": "number"}, r"`edges of .*` to be a table with the column `price`, as `data\.edge_columns` says"),
        ({"kind": ["card"]}, r"to be one of its 1 declared categories but got another in row 2"),
        ({"kind": "number"}, r"to be numbers, as `data\.edge_columns` says"),
        ({}, r"`data\.edge_columns` to be null, or one column or more"),
    ):
        with pytest.raises(InputError, match=sentence):
            NodeClients({"north": folder}, edge_columns=columns).setup()
    pyg = GraphClients({"lab": molecules()}, edge_columns={"0": "number", "1": "number"}, structure="none")
    pyg.setup()
    attr = pyg.client("lab").graphs.edge_attr
    assert attr is not None
    torch.testing.assert_close(attr, FlatGraphs.from_pyg(molecules()).edge_attr)


def test_own_tables_of_graphs(tmp_path: Path, federate: Callable[..., FederatedTrainer]) -> None:
    """From columns of files into layers, for graphs; what bonds are tells the classes."""
    rows = [(f"m{g}", k, g % 2) for g in range(20) for k in range(4)]
    tables = {
        "graphs": ["id,label", *(f"m{g},{'ab'[g % 2]}" for g in range(20))],
        "nodes": ["graph,id,charge", *(f"{name},{k},0" for name, k, _ in rows)],
        "edges": ["graph,source,target,bond,length", *(f"{n},{k},{(k + 1) % 4},{'=-'[c]},1.5" for n, k, c in rows)],
    }
    for name, lines in tables.items():
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    declared: dict[str, Any] = {"bond": ["-", "="], "length": "number"}
    data = GraphClients({"lab": tmp_path}, edge_columns=declared, structure="none", batch_size=8)
    model = GNN(hidden_channels=8, conv="pna", num_layers=2, lr=0.02, dropout=0.0)
    results = federate(FedAvg(), rounds=8, local_epochs=3).fit(model, data)
    assert data.client("lab").model_args["edge_channels"] == 3
    assert results["final"]["mean"]["test/accuracy"] == 1


def test_where_no_edge_has_any(federate: Callable[..., FederatedTrainer]) -> None:
    bare = network()._like(edge_attr=None)
    federate(FedAvg(), rounds=1).fit(NodeGNN(hidden_channels=4, conv="pna"), whole(bare))
    with pytest.raises(InputError, match=r"`model\.edge_channels` to be 1 or more for gine"):
        federate(FedAvg(), rounds=1).fit(NodeGNN(hidden_channels=4, conv="gine"), whole(bare))
    with pytest.raises(InputError, match=r"to be one without features of edges whose every tensor all clients share"):
        federate(FedTAD(), rounds=1).fit(NodeGNN(hidden_channels=4), whole())


def test_what_is_refused() -> None:
    graph = molecules(1)[0]
    for attr, sentence in (
        (torch.rand(1, 2), r"`g\.edge_attr` to be of shape \[6, D\], a row for each edge, but got \[1, 2\]"),
        (torch.full((6, 1), torch.nan), r"`g\.edge_attr` to be finite"),
    ):
        bad = Data(x=graph.x, edge_index=graph.edge_index, y=graph.y, edge_attr=attr)
        with pytest.raises(InputError, match=sentence):
            FlatGraphs.from_pyg([bad], "g")
        bad.y = torch.zeros(3)
        with pytest.raises(InputError, match=sentence):
            NodeGraph.from_pyg(bad, "g")
    with pytest.raises(InputError, match=r"`model\.edge_channels` to be 1 or more for gine"):
        make_edge_conv("gine", 8, 0)
    with pytest.raises(InputError, match=r"`model\.hidden_channels` to be divisible by 4, the heads of gat, but got 6"):
        make_edge_conv("gat", 6, 2)
    with pytest.raises(InputError, match=r"`model\.conv` to be one of gine, gat, pna but got 'gin'"):
        NodeGNN(conv="gin")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"`batch\.edge_attr` to be of shape \[edges, 3\] but got \[240, 2\]"):
        NodeGNN(3, 2, hidden_channels=8, edge_channels=3)(network().batch(torch.arange(3)))
