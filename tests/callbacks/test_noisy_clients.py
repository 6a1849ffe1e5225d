"""What noise does to a client's data, told by counts; and that it is the same wherever and whenever it is drawn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from flgraph.callbacks import FedAvg, NoisyClients
from flgraph.data import (
    GraphFederation,
    NodeFederation,
    SyntheticFederation,
    WholeGraphFederation,
    generate_nodes,
)
from flgraph.errors import InputError
from flgraph.models import GNN, NodeGCN
from flgraph.nn.structure import structure_embedding


def nodes() -> NodeFederation:
    data = WholeGraphFederation("homophily-0.7", partition_key="community", global_fraction=0)
    data.setup()
    return data


def graphs() -> GraphFederation:
    data = SyntheticFederation(domains=["trees", "rings"], num_graphs=40)
    data.setup()
    return data


@pytest.mark.parametrize("sparse", [False, True])
def test_features_of_nodes(sparse: bool) -> None:
    clean = nodes().client("c1")
    if sparse:
        clean.graph = clean.graph._like(x=clean.graph.x.to_sparse_csr())
    x = clean.graph.x.to_dense() if sparse else clean.graph.x
    missing = NoisyClients(feature_missing=0.25).client_data("c1", clean).graph.x
    assert (missing.layout == torch.sparse_csr) == sparse
    missing = missing.to_dense() if sparse else missing
    assert 0.22 < float((missing == 0).float().mean()) < 0.28  # 7,680 draws: a standard error of 0.005
    assert torch.equal(missing[missing != 0], x[missing != 0])
    noisy = NoisyClients(feature_noise=0.5).client_data("c1", clean).graph.x
    assert float((noisy - x).std()) == pytest.approx(0.5, abs=0.02)
    assert torch.equal(clean.graph.x.to_dense() if sparse else clean.graph.x, x)


def test_labels_of_training_nodes() -> None:
    clean = nodes().client("c1")
    noisy = NoisyClients(label_flips=0.25, label_missing=0.5).client_data("c1", clean)
    changed = (noisy.graph.y != clean.graph.y).nonzero()[:, 0]
    assert len(changed) == noisy.settings["noise"]["flipped"] == round(0.25 * clean.train.numel())
    assert torch.isin(changed, clean.train).all()
    assert int(noisy.graph.y.max()) < 4
    assert noisy.num_train_samples == 72
    assert noisy.settings["noise"]["unlabelled"] == 72
    assert torch.equal(noisy.test, clean.test)


def test_edges_of_nodes() -> None:
    clean = nodes().client("c1")
    before = {tuple(edge) for edge in clean.graph.edge_index.t().tolist()}
    noisy = NoisyClients(edges_dropped=0.2, edges_added=0.1).client_data("c1", clean)
    noisy.graph._validate()
    after = {tuple(edge) for edge in noisy.graph.edge_index.t().tolist()}
    counts = noisy.settings["noise"]
    assert 0.14 < counts["edges_dropped"] / (len(before) / 2) < 0.26
    assert 0.06 < counts["edges_added"] / (len(before) / 2) < 0.14
    assert len(after) / 2 == len(before) / 2 - counts["edges_dropped"] + counts["edges_added"]
    assert 2 * counts["edges_added"] >= len(after - before) > 0


def test_edges_to_nodes_of_others() -> None:
    clean = nodes().client("c1")
    known = {tuple(edge) for edge in clean.cross_edges.t().tolist()}
    noisy = NoisyClients(edges_dropped=0.2).client_data("c1", clean)
    kept = {tuple(edge) for edge in noisy.cross_edges.t().tolist()}
    assert kept < known
    assert noisy.settings["noise"]["cross_edges_dropped"] == len(known) - len(kept)
    assert 0.1 < 1 - len(kept) / len(known) < 0.3
    assert NoisyClients(feature_noise=1.0).client_data("c1", clean).cross_edges is clean.cross_edges


def test_graphs() -> None:
    clean = graphs().client("trees")
    noise = NoisyClients(label_flips=0.5, edges_dropped=0.3, edges_added=0.3, feature_missing=0.5)
    noisy = noise.client_data("trees", clean)
    noisy.graphs._validate()
    assert noisy.graphs.undirected
    fields = noisy.graphs.edge_index, noisy.graphs.node_ptr, noisy.graphs.edge_ptr
    expected = structure_embedding(*fields, clean.settings["structure"])
    assert torch.equal(noisy.graphs.node_tensors["s"], expected)
    assert not torch.equal(clean.graphs.node_tensors["s"], expected)
    assert int((noisy.graphs.y != clean.graphs.y).sum()) == noisy.settings["noise"]["flipped"]
    assert not torch.equal(noisy.graphs.x, clean.graphs.x)


def test_self_loops_stay() -> None:
    looped = [
        Data(torch.rand(4, 2), torch.tensor([[0, 1, 2, 3, 0], [1, 0, 2, 3, 0]]), y=torch.tensor([k % 2]))
        for k in range(30)
    ]
    federation = GraphFederation({"north": looped})
    federation.setup("fit")
    clean = federation.client("north")
    noisy = NoisyClients(edges_dropped=0.5).client_data("north", clean)
    noisy.graphs._validate()
    loops = [graphs._global_edges() for graphs in (clean.graphs, noisy.graphs)]
    before, after = (edges[:, edges[0] == edges[1]] for edges in loops)
    assert torch.equal(before.sort().values, after.sort().values)
    assert (
        noisy.graphs.edge_index.size(1)
        == clean.graphs.edge_index.size(1) - 2 * noisy.settings["noise"]["edges_dropped"]
    )
    assert noisy.settings["noise"]["edges_dropped"] > 0


def test_draws_depend_on_client_and_use_alone() -> None:
    data = nodes()
    once, again = (NoisyClients(label_flips=0.2).client_data("c1", data.client("c1")).graph.y for _ in range(2))
    assert torch.equal(once, again)
    both = NoisyClients(label_flips=0.2, edges_dropped=0.5, feature_noise=1.0).client_data("c1", data.client("c1"))
    assert torch.equal(both.graph.y, once)
    other = NoisyClients(label_flips=0.2, seed=1).client_data("c1", data.client("c1")).graph.y
    assert not torch.equal(other, once)


def test_only_those_that_are_named(federate: Callable[..., Any]) -> None:
    noise = NoisyClients(label_flips=0.5, clients=["c2"])
    trainer = federate(FedAvg(), rounds=1, callbacks=[noise])
    results = trainer.fit(NodeGCN(hidden_channels=4), nodes())
    assert "noise" not in results["data"]["c1"]
    assert results["data"]["c2"]["noise"]["flipped"] == 72
    with pytest.raises(InputError, match=r"`NoisyClients.clients` to be among c1, c2, c3, c4, c5 but got 'Z'"):
        federate(FedAvg(), rounds=1, callbacks=[NoisyClients(0.1, clients=["Z"])]).fit(NodeGCN(), nodes())


def test_a_run_goes_on_with_the_same_noise_only(federate: Callable[..., Any], tmp_path: Path) -> None:
    def run(rounds: int, noise: float, **kwargs: Any) -> Any:
        callbacks = [NoisyClients(label_flips=noise, edges_dropped=0.2)]
        trainer = federate(FedAvg(), rounds=rounds, callbacks=callbacks)
        trainer.fit(GNN(hidden_channels=4, num_layers=2), graphs(), **kwargs)
        return trainer

    whole, half = run(2, 0.5), run(1, 0.5)
    again = run(2, 0.5, ckpt_path=str(half.run_dir / "checkpoints"))
    for name, client in whole.engine.clients.items():
        weights = again.engine.clients[name].module.state_dict()
        assert all(torch.equal(tensor, weights[key]) for key, tensor in client.module.state_dict().items())
    with pytest.raises(InputError, match="label_flips"):
        run(3, 0.4, ckpt_path=str(half.run_dir / "checkpoints"))


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({}, "`NoisyClients` to be given one number above 0 or more but got none"),
        ({"feature_noise": -1}, "NoisyClients.feature_noise"),
        ({"label_missing": 1.0}, "NoisyClients.label_missing"),
        ({"edges_added": 1.5}, "NoisyClients.edges_added"),
        ({"label_flips": 0.1, "clients": "north"}, "NoisyClients.clients"),
    ],
)
def test_refusals(arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError, match=field):
        NoisyClients(**arguments)


def test_refuses_data_that_it_cannot_change() -> None:
    links = WholeGraphFederation("homophily-0.7", partition_key="community", task="links", global_fraction=0)
    links.setup()
    for data, kind in ((generate_nodes(0.5), "NodeGraph"), (links.client("c1"), "LinkDataModule")):
        wanted = f"`data` to be graphs, or nodes of one kind, not links, for NoisyClients, but got '{kind}'"
        with pytest.raises(InputError, match=wanted):
            NoisyClients(0.1).client_data("c1", data)
