from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from flgraph.callbacks import FedAvg, FedThin
from flgraph.data import NodeFederation, NodeGraph, WholeGraphFederation
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer
from flgraph.models import NodeGCN
from flgraph.nn import Adjacency
from flgraph.nn.thinning import drop_edges, drop_features

Federate = Callable[..., FederatedTrainer]


def toy() -> NodeGraph:
    generator = torch.Generator().manual_seed(0)
    ends = torch.randint(60, (2, 150), generator=generator)
    edges = torch.cat([ends, ends.flip(0)], dim=1)
    edges = edges[:, edges[0] != edges[1]].unique(dim=1)
    return NodeGraph(torch.randn(60, 5, generator=generator), edges, torch.arange(60) % 3, 3, "toy")


def whole(**further: Any) -> WholeGraphFederation:
    settings = {"num_clients": 2, "partition": "dirichlet", "alpha": 9.0, "cross_edges": False, "epoch_fraction": 0.3}
    return WholeGraphFederation(toy(), **{**settings, **further})


@pytest.mark.parametrize("local_epochs", [1, 3])
def test_without_all_four_it_is_fedavg(local_epochs: int, assert_equal_runs: Callable[..., None]) -> None:
    nothing = FedThin(edges=0.0, features=0.0, mu=0.0, tau=0.0)
    model, kept = lambda: NodeGCN(hidden_channels=4), ("state_dict", "optimizer_states")
    assert_equal_runs(FedAvg(), nothing, model, whole, kept, rounds=2, local_epochs=local_epochs)


def test_a_step_equals_autograd_s(federate: Federate, recorder: Any) -> None:
    """Of every client and round from what was sent: all edges gone, the teacher sees them."""
    mu, tau, lr = 2.0, 0.7, 0.3
    template = NodeGCN(hidden_channels=4, dropout=0.0, optimizer="sgd", lr=lr)
    method = FedThin(edges=1.0, features=0.0, mu=mu, tau=tau)
    trainer: Any = federate(method, rounds=3, engine=recorder)
    trainer.fit(template, whole(epoch_fraction=1.0))
    sent = {(name, turn.round): download.group() for name, turn, download in recorder.downloads()}
    uploads = dict[tuple[str, int], Any]()
    for name, upload in recorder.uploads():
        uploads[name, 1 + sum(key[0] == name for key in uploads)] = upload.group()
    for client, held in trainer.engine.clients.items():
        graph, train = held.data.graph, held.data.train
        degree = torch.zeros(graph.num_nodes).index_add_(0, graph.edge_index[0], torch.ones(graph.edge_index.size(1)))
        scale = (1 + degree).rsqrt()
        dense = torch.eye(graph.num_nodes).index_put((graph.edge_index[0], graph.edge_index[1]), torch.tensor(1.0))
        dense = scale[:, None] * dense * scale
        for round in (1, 2, 3):
            w = {name: t.clone().requires_grad_() for name, t in sent[client, round - 1].items()}

            def logits(matrix: Any, w: Any = w, x: Any = graph.x) -> Any:
                hidden = (matrix @ x @ w["convs.0.weight"] + w["convs.0.bias"]).relu()
                return matrix @ hidden @ w["convs.1.weight"] + w["convs.1.bias"]

            alone = logits(torch.eye(graph.num_nodes))
            with torch.no_grad():
                taught = logits(dense).softmax(dim=1)
            distance = -(taught * alone.log_softmax(dim=1)).sum(dim=1).mean()
            own = torch.tensor([max(1, int((graph.y[train] == label).sum())) for label in range(3)]) / len(train)
            loss = F.cross_entropy((alone + tau * own.log())[train], graph.y[train]) + mu * distance
            gradients = torch.autograd.grad(loss, list(w.values()))
            for (name, before), gradient in zip(w.items(), gradients, strict=True):
                torch.testing.assert_close(uploads[client, round][name], before - lr * gradient, rtol=1e-4, atol=1e-6)


def test_edges_go_in_pairs_and_as_often_as_asked() -> None:
    adj = toy().adj
    torch.manual_seed(0)
    kept = [drop_edges(adj, 0.25).matrix(torch.float32).to_dense() for _ in range(200)]
    before = adj.matrix(torch.float32).to_dense()
    for matrix in kept:
        assert torch.equal(matrix, matrix.t())
        assert bool((matrix <= before).all())
    share = torch.stack(kept).mean(dim=0)[before > 0]
    assert float(share.mean()) == pytest.approx(0.75, abs=0.01)
    assert float((share - 0.75).abs().max()) < 0.15  # 200 draws: five standard deviations
    assert drop_edges(adj, 0.0) is adj
    assert drop_edges(adj, 1.0).col.numel() == 0


def test_directed_edges_go_one_by_one() -> None:
    edges = torch.tensor([[0, 1, 2, 0], [1, 0, 1, 2]])
    adj = Adjacency.from_edges(edges, num_nodes=3)
    torch.manual_seed(0)
    kept = torch.stack([drop_edges(adj, 0.5).matrix(torch.float32).to_dense() for _ in range(400)])
    before = adj.matrix(torch.float32).to_dense()
    torch.testing.assert_close(kept.mean(dim=0), before * 0.5, rtol=0, atol=0.13)
    assert bool((kept[:, 0, 1] != kept[:, 1, 0]).any())


@pytest.mark.parametrize("sparse", [False, True])
def test_features_keep_their_mean(sparse: bool) -> None:
    x = torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 0.0], [4.0, 0.0, 1.0]])
    torch.manual_seed(0)
    drawn = [drop_features(x.to_sparse_csr() if sparse else x, 0.2) for _ in range(2000)]
    dense = torch.stack([own.to_dense() for own in drawn])
    torch.testing.assert_close(dense.mean(dim=0), x, rtol=0.05, atol=0.0)
    assert bool(((dense == 0) | torch.isclose(dense, x / 0.8)).all())
    assert drop_features(x, 0.0) is x
    if sparse:
        assert min(own.values().numel() for own in drawn) < 3


def test_the_client_s_graph_is_left_as_it_is(federate: Federate) -> None:
    data = whole()
    trainer: Any = federate(FedThin(), rounds=2)
    trainer.fit(NodeGCN(hidden_channels=4), data)
    fresh = whole()
    fresh.setup()
    for name, held in trainer.engine.clients.items():
        assert held.data.graph.content == fresh.client(name).graph.content
        assert held.module.further_loss is None
        assert held.module.log_prior is None
        assert held.aggregator._taught is None
        assert held.aggregator._model is None


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"edges": -0.1}, "`aggregator.edges` to be from 0 to 1"),
        ({"edges": 1.1}, "`aggregator.edges` to be from 0 to 1"),
        ({"features": 1.0}, "`aggregator.features` to be 0 or more and less than 1"),
        ({"features": -0.1}, "`aggregator.features` to be 0 or more and less than 1"),
        ({"mu": -1.0}, "`aggregator.mu` to be a finite number, 0 or more"),
        ({"tau": -1.0}, "`aggregator.tau` to be a finite number, 0 or more"),
        ({"mu": float("inf")}, "`aggregator.mu` to be a finite number, 0 or more"),
    ],
)
def test_bad_settings(settings: dict[str, float], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        FedThin(**settings)


@pytest.mark.parametrize("mu", [0.0, 1.0])
def test_data_of_other_kinds_are_refused(mu: float, federate: Federate) -> None:
    for data in (whole(sampled=True), NodeFederation(toy(), num_clients=2, partition="dirichlet", alpha=9.0)):
        with pytest.raises(InputError, match="whole graph"):
            federate(FedThin(mu=mu), rounds=1).fit(NodeGCN(hidden_channels=4), data)


def test_probabilities_are_asked_for() -> None:
    adj = toy().adj
    with pytest.raises(InputError, match="`p` to be a number from 0 to 1"):
        drop_edges(adj, 1.5)
    with pytest.raises(InputError, match="`p` to be a number from 0 to less than 1"):
        drop_features(torch.ones(2, 2), 1.0)
