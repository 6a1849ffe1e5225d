"""Links of one graph: what is held out, scores and metrics against scikit-learn, and a federation."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn import metrics as reference
from torch_geometric.data import Data

from flgraph.callbacks import FedAvg
from flgraph.data import LinkDataModule, NodeClients, NodeGraph, WholeGraphFederation
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer
from flgraph.models import NodeLinks, NodeSAGE
from flgraph.testing import check_algorithm


def network(size: int = 15) -> NodeGraph:
    """Four groups of nodes that are nearly all joined within, and whose features tell the group."""
    generator = torch.Generator().manual_seed(0)
    group = torch.arange(4).repeat_interleave(size)
    joined = (group[:, None] == group) & (torch.rand(4 * size, 4 * size, generator=generator) < 0.6)
    x = torch.eye(4)[group] + 0.3 * torch.rand(4 * size, 4, generator=generator)
    return NodeGraph.from_pyg(Data(x=x, edge_index=joined.nonzero().t(), y=group), "groups")


def federation() -> WholeGraphFederation:
    links = {"num_negatives": 20}
    return WholeGraphFederation(network(), num_clients=2, partition="louvain", task="links", links=links)


def test_what_is_held_out() -> None:
    graph = network()
    data = LinkDataModule(graph, torch.arange(60), torch.arange(0), torch.arange(0), num_negatives=20)
    train, val, test = (next(iter(getattr(data, f"{split}_dataloader")())) for split in ("train", "val", "test"))
    edges = {tuple(ends) for ends in graph.edge_index.t().tolist()}
    parts = [{tuple(ends) for ends in torch.stack([b.source, b.target], 1).tolist()} for b in (train, val, test)]
    held = round(len(edges) / 20)
    assert [len(part) for part in parts] == [len(edges) // 2 - 2 * held, held, held]
    both = [part | {ends[::-1] for ends in part} for part in parts]
    assert both[0] | both[1] | both[2] == edges
    assert sum(map(len, both)) == len(edges)
    kept = {tuple(ends) for ends in data.graph.edge_index.t().tolist()}
    assert kept == both[0]  # messages take no other
    for batch in (val, test):
        pairs = {(s, t) for s, row in zip(batch.source.tolist(), batch.negatives.tolist(), strict=True) for t in row}
        assert not pairs & edges
        assert all(s != t for s, t in pairs)
    again = LinkDataModule(graph, torch.arange(60), torch.arange(0), torch.arange(0), num_negatives=20)
    assert torch.equal(next(iter(again.test_dataloader())).negatives, test.negatives)
    assert data.num_train_samples == len(parts[0])
    assert data.prediction_rows["source"] == test.source.tolist()


def test_neither_direction_of_a_held_out_link_is_trained_on() -> None:
    whole = network()
    edges = whole.edge_index[:, torch.rand(whole.edge_index.size(1), generator=torch.Generator().manual_seed(1)) < 0.8]
    graph = NodeGraph.from_pyg(Data(x=whole.x, edge_index=edges, y=whole.y), undirected=False)
    data = LinkDataModule(graph, torch.arange(60), torch.arange(0), torch.arange(0), test_fraction=0.3)
    train, test = (next(iter(getattr(data, f"{split}_dataloader")())) for split in ("train", "test"))
    pairs = [{frozenset(ends) for ends in torch.stack([b.source, b.target], 1).tolist()} for b in (train, test)]
    assert not pairs[0] & pairs[1]
    assert not {frozenset(ends) for ends in data.graph.edge_index.t().tolist()} & pairs[1]
    assert {frozenset(ends) for ends in data.graph.edge_index.t().tolist()} == pairs[0]


def test_clients_with_nodes_in_common_are_warned_of() -> None:
    for partition, expected in (("label_skew", True), ("louvain", False)):
        data = WholeGraphFederation(network(), num_clients=2, partition=partition, task="links", global_fraction=0)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            data.setup()
            data.client(data.clients[0])
        assert any("held out for tests" in str(warning.message) for warning in told) == expected


@pytest.mark.parametrize("decoder", ["dot", "mlp"])
@pytest.mark.parametrize("encoder", ["gcn", "sage"])
def test_scores_and_metrics(encoder: Any, decoder: Any) -> None:
    torch.manual_seed(0)
    data = LinkDataModule(network(), torch.arange(60), torch.arange(0), torch.arange(0), num_negatives=30)
    model = NodeLinks(4, hidden_channels=8, encoder=encoder, decoder=decoder).eval()
    batch = next(iter(data.test_dataloader()))
    with torch.no_grad():
        h, links = model.encode(batch), model(batch)
        negatives = model.scores(h, batch, batch.negatives)
        found = model.metrics(links.unsqueeze(1), negatives)
    if encoder == "gcn":
        dense = torch.eye(60).index_put(tuple(data.graph.edge_index), torch.tensor(1.0))
        root = dense.sum(1).rsqrt().diag()
        step, (one, two) = root @ dense @ root, model.convs
        expected = step @ torch.relu(step @ data.graph.x @ one.weight + one.bias) @ two.weight + two.bias
        torch.testing.assert_close(h, expected)
    product = h[batch.source] * h[batch.target]
    torch.testing.assert_close(links, product.sum(1) if decoder == "dot" else model.decoder(product)[:, 0])  # type: ignore[misc]
    truth = torch.cat([torch.ones(len(links)), torch.zeros(negatives.numel())]).numpy()
    scores = torch.cat([links, negatives.flatten()]).numpy()
    assert float(found["auroc"]) == pytest.approx(reference.roc_auc_score(truth, scores), rel=1e-5)
    precision = reference.average_precision_score(truth, scores)
    assert float(found["average_precision"]) == pytest.approx(precision, rel=1e-5)
    ranks = [1 + sum(n > own for n in row) for own, row in zip(links.tolist(), negatives.tolist(), strict=True)]
    assert float(found["hits_at_10"]) == pytest.approx(sum(rank <= 10 for rank in ranks) / len(ranks))
    assert float(found["mrr"]) == pytest.approx(sum(1 / rank for rank in ranks) / len(ranks))


def test_a_federation_learns_them(federate: Callable[..., FederatedTrainer]) -> None:
    results = federate(FedAvg(), rounds=5, local_epochs=5).fit(NodeLinks(hidden_channels=16), federation())
    mean = results["final"]["mean"]
    assert mean["test/auroc"] > 0.8
    assert {"test/average_precision", "test/mrr", "test/hits_at_10"} <= mean.keys()


def test_it_goes_on_with_the_same_bits() -> None:
    check_algorithm(lambda: (FedAvg(), NodeLinks(hidden_channels=4), federation()), rounds=2, monitor="val/auroc")


def test_own_files_need_no_labels(tmp_path: Path, federate: Callable[..., FederatedTrainer]) -> None:
    (tmp_path / "nodes.csv").write_text("id,age\n" + "".join(f"n{k},{k / 20}\n" for k in range(20)))
    rows = "".join(f"n{k},n{(k + step) % 20}\n" for k in range(20) for step in (1, 2))
    (tmp_path / "edges.csv").write_text("source,target\n" + rows)
    data = NodeClients({"north": tmp_path}, task="links", links={"num_negatives": 5})
    results = federate(FedAvg(), rounds=1, monitor="val/auroc").fit(NodeLinks(hidden_channels=4, encoder="sage"), data)
    assert 0 <= results["final"]["mean"]["val/auroc"] <= 1


def test_features_of_edges_play_no_part() -> None:
    graph = network()._like(edge_attr=torch.rand(network().edge_index.size(1), 2))
    with pytest.warns(UserWarning, match=f"Not used of the data of `{graph.name}`: features of edges"):
        assert LinkDataModule(graph, torch.arange(60), *2 * [torch.arange(0)]).graph.edge_attr is None


def test_what_is_refused(federate: Callable[..., FederatedTrainer]) -> None:
    for call, sentence in (
        (lambda: NodeLinks(encoder="gin"), r"`model\.encoder` to be gcn or sage"),  # type: ignore[arg-type]
        (lambda: NodeLinks(decoder="distmult"), r"`model\.decoder` to be dot or mlp"),  # type: ignore[arg-type]
        (lambda: NodeLinks(dropout=1.0), r"`model\.dropout` to be at least 0 and less than 1"),
        (lambda: WholeGraphFederation(network(), links={"seed": 1}), r"`data\.links` to be null for multiclass"),
        (
            lambda: NodeClients({"a": "a"}, task="links", ego_graphs=True),
            r"`data\.ego_graphs` to be false for links but got True",
        ),
        (
            lambda: WholeGraphFederation(network(), task="links", links={"k": 1}),
            r"`data\.links` to be names among val_fraction, test_fraction, num_negatives, seed but got 'k'",
        ),
        (
            lambda: LinkDataModule(network(), torch.arange(60), torch.arange(0), torch.arange(0), val_fraction=1.0),
            r"`data\.links\.val_fraction` to be a number, 0 or more and below 1",
        ),
    ):
        with pytest.raises(InputError, match=sentence):
            call()
    data = WholeGraphFederation(network(), num_clients=2, partition="louvain")
    with pytest.raises(InputError, match=r"`data` to be one whose batches are links"):
        federate(FedAvg(), monitor="val/auroc").fit(NodeLinks(hidden_channels=4), data)
    with pytest.raises(InputError, match=r"`data` to be one whose batches are whole graphs"):
        federate(FedAvg()).fit(NodeSAGE(num_classes=2, hidden_channels=4), federation())


def test_sources_that_are_joined_to_all_are_told_of() -> None:
    whole = Data(x=torch.rand(12, 4), edge_index=torch.ones(12, 12).nonzero().t(), y=torch.arange(12) % 2)
    nodes = torch.arange(12)
    with pytest.warns(UserWarning, match=r"of \d+ negatives of held-out links are links, or the source itself: their"):
        LinkDataModule(NodeGraph.from_pyg(whole), nodes, nodes[:0], nodes[:0], num_negatives=5)
