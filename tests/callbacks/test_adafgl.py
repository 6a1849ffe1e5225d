from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Data

from flgraph.callbacks import AdaFGL, FedAvg
from flgraph.data import NodeGraph, WholeGraphDataModule, WholeGraphFederation
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer, Payload
from flgraph.models import AdaFGL as Model
from flgraph.models import Knowledge, NodeGCN
from flgraph.models.nodes.adafgl import spread_features
from flgraph.runs.history import read_records

Federate = Callable[..., FederatedTrainer]
FEATURES, CLASSES = 5, 3


def graph() -> NodeGraph:
    generator = torch.Generator().manual_seed(0)
    x, edges = torch.rand(60, FEATURES, generator=generator), torch.randint(60, (2, 150), generator=generator)
    return NodeGraph.from_pyg(Data(x=x, edge_index=edges, y=torch.arange(60) % CLASSES))


@pytest.fixture
def clients() -> WholeGraphFederation:
    cut: dict[str, Any] = {"num_clients": 3, "partition": "dirichlet", "alpha": 5.0, "global_fraction": 0.1}
    return WholeGraphFederation(graph(), epoch_fraction=1.0, **cut)


def dense_of(own: NodeGraph) -> Tensor:
    dense = torch.zeros(own.num_nodes, own.num_nodes)
    dense[own.edge_index[0], own.edge_index[1]] = 1
    return dense


# ------------------------------------------------------------------------------------------------------------- model
def scale(emb: Tensor) -> Tensor:
    """``getre_scale`` of the published code."""
    soft = emb.softmax(dim=1)
    re = soft @ soft.t()
    own = re.diag().unsqueeze(1)
    re = re / torch.sqrt(own @ own.t())
    return re - re.diag().diag()


def known_model(seed: int = 0, weights: list[float] | None = None) -> tuple[Model, NodeGraph, Knowledge]:
    torch.manual_seed(seed)
    own = graph()
    model = Model(FEATURES, CLASSES, hidden_channels=4, steps=2, dropout=0.0, class_weights=weights)
    soft = (5 * torch.rand(60, CLASSES)).softmax(dim=1)
    soft[:20] = soft[0]  # some that are alike
    knowledge = Knowledge(own.nodes, soft, 0.3)
    model.use_knowledge(knowledge)
    return model, own, knowledge


def test_features_are_spread_as_published() -> None:
    _, own, knowledge = known_model()
    found = spread_features(own.x, own.adj, knowledge.soft, 2)
    adj = 0.5 * dense_of(own) + 0.5 * (scale(knowledge.soft) > 0.999).float() + torch.eye(60)
    hat = adj.sum(1).rsqrt().unsqueeze(1) * adj * adj.sum(1).rsqrt()
    assert int((scale(knowledge.soft) > 0.999).sum()) >= 20 * 19
    assert torch.allclose(found, torch.cat([own.x, hat @ own.x, hat @ hat @ own.x], dim=1), atol=1e-5)


def by_hand(model: Model, own: NodeGraph, knowledge: Knowledge) -> tuple[list[Tensor], Tensor]:
    """Logits of all parts and the prediction, as the published code makes them."""
    spread = spread_features(own.x, own.adj, knowledge.soft, 2)

    def net(part: Any, x: Tensor) -> Tensor:
        for layer in part.layers[:-1]:
            x = F.prelu(F.linear(x, layer.weight, layer.bias), part.prelu.weight)
        return F.linear(x, part.layers[-1].weight, part.layers[-1].bias)

    smooth, ori = net(model.smooth, spread), net(model.unlike_own, own.x)
    hete, emb = net(model.unlike_smooth, spread), net(model.messages.net, spread)
    re = scale(emb)
    mean, most = re.mean(), re.max()
    shifted = re - mean
    shifted = torch.where(shifted > 0, shifted / (most - mean), -((shifted + mean) / (0 + mean)))
    shifted = shifted - shifted.diag().diag() + torch.eye(60)
    weight = model.messages.net.prelu.weight
    toward = (F.prelu(shifted, weight) @ emb).softmax(dim=1)
    message = ((toward - (F.prelu(-shifted, weight) @ emb).softmax(dim=1)) + emb) / 2
    homo = (smooth.softmax(1) + knowledge.soft.softmax(1)) / 2
    others = (ori.softmax(1) + hete.softmax(1) + message.softmax(1)) / 3
    return [smooth, ori, hete, message], 0.3 * homo + 0.7 * others


@pytest.mark.parametrize("weights", [None, [1.0, 2.0, 5.0]])
def test_predictions_and_loss_are_those_of_the_published_code(weights: list[float] | None) -> None:
    model, own, knowledge = known_model(weights=weights)
    batch = own.batch(torch.tensor([3, 7, 50, 1]))
    parts, expected = by_hand(model, own, knowledge)
    assert torch.allclose(model(batch).exp(), expected[batch.index], atol=1e-5)
    assert torch.equal(copy.deepcopy(model)(batch), model(batch))
    assert torch.allclose(model.predict_step(batch), expected[batch.index], atol=1e-5)
    counts = None if weights is None else torch.tensor(weights)
    entropies = [F.cross_entropy(part[batch.index], batch.y, counts) for part in parts]
    loss = sum(entropies) + F.mse_loss(parts[0], knowledge.soft)
    assert torch.allclose(model.training_step(batch), torch.as_tensor(loss), atol=1e-5)
    model.training_step(batch).backward()
    assert all(layer.weight.grad is None for layer in model.extractor)
    assert all(p.grad is not None for name, p in model.named_parameters() if not name.startswith("extractor"))


def test_at_first_it_is_a_gcn() -> None:
    model, own, _ = known_model()
    plain = NodeGCN(FEATURES, CLASSES, hidden_channels=4, dropout=0.0)
    plain.convs.load_state_dict(model.extractor.state_dict())
    batch, other = own.batch(torch.arange(9)), own.subgraph(torch.arange(30)).batch(torch.arange(9))
    assert torch.equal(model(other), plain(other))  # another graph, of which it knows nothing
    assert not torch.equal(model(batch), plain(batch))
    model.use_knowledge(None)
    assert torch.equal(model(batch), plain(batch))
    assert torch.equal(model.training_step(batch), plain.training_step(batch))


def test_other_edges_and_features_of_the_same_nodes() -> None:
    model, own, knowledge = known_model()
    batch = own.batch(torch.arange(60))
    model(batch)
    edges, y = torch.stack([torch.arange(60), torch.arange(60).roll(1)]), torch.arange(60) % CLASSES
    other = NodeGraph.from_pyg(Data(x=own.x, edge_index=edges, y=y))
    assert torch.allclose(model(other.batch(torch.arange(60))).exp(), by_hand(model, other, knowledge)[1], atol=1e-5)
    assert torch.allclose(model(batch).exp(), by_hand(model, own, knowledge)[1], atol=1e-5)
    scaled = NodeGraph.from_pyg(Data(x=2 * own.x, edge_index=own.edge_index, y=y))
    batch.x = scaled.x
    assert torch.allclose(model(batch).exp(), by_hand(model, scaled, knowledge)[1], atol=1e-5)


def test_a_single_node() -> None:
    model = Model(FEATURES, CLASSES, hidden_channels=4)
    own = graph().subgraph(torch.tensor([4]))
    model.use_knowledge(Knowledge(own.nodes, torch.full((1, CLASSES), 1 / 3), 0.0))
    assert bool(model(own.batch(torch.tensor([0]))).isfinite().all())


# --------------------------------------------------------------------------------------------------------- algorithm
def test_homophily_is_what_spread_labels_get_right() -> None:
    """Two cliques of one class each, and then each node joined with the other class only."""
    index = torch.arange(8)
    same = torch.combinations(index[:4]).t(), torch.combinations(index[4:]).t()
    across = torch.cartesian_prod(index[:4], index[4:]).t()
    for edges, expected in ((torch.cat(same, dim=1), 1.0), (across, 0.0)):
        y = (index >= 4).long()
        own = NodeGraph.from_pyg(Data(x=torch.ones(8, 1), edge_index=edges, y=y))
        data = WholeGraphDataModule(own, torch.tensor([0, 1, 2, 4, 5, 6]), index, index)
        torch.manual_seed(2)  # some of both classes are known
        assert AdaFGL().homophily(data) == expected


def test_first_together_then_alone(clients: WholeGraphFederation, federate: Federate) -> None:
    trainer: Any = federate(AdaFGL(federated_rounds=2), rounds=4, local_epochs=2)
    trainer.fit(Model(hidden_channels=4, lr=0.05), clients)
    every = list(trainer.engine.clients.values())
    assert set(every[0].shared_tensors()) == {f"extractor.{i}.{name}" for i in (0, 1) for name in ("weight", "bias")}
    states = [client.module.state_dict() for client in every]
    for name, tensor in states[0].items():
        assert torch.equal(tensor, states[1][name]) == name.startswith("extractor")
    records = read_records(trainer.run_dir / "history.jsonl")
    up, down = ([record[name] for record in records] for name in ("bytes_up", "bytes_down"))
    assert up[0] == up[1] > 0 == up[2] == up[3]
    assert down[2:] == [0, 0]
    reported = trainer.history.last["clients"]
    assert all(0 <= metrics["train/homophily"] <= 1 for metrics in reported.values())

    plain: Any = federate(FedAvg(), rounds=2, local_epochs=2, name="plain")
    plain.fit(Model(hidden_channels=4, lr=0.05), clients)
    common = plain.engine.clients["client-1"].module
    assert torch.equal(common.extractor[0].weight, every[0].module.extractor[0].weight)
    expected = torch.cat(plain.engine.clients["client-1"].predict().batches)
    assert torch.equal(every[0].module.knowledge.soft, expected)


def test_rounds_alone_that_never_come_are_told(clients: WholeGraphFederation, federate: Federate) -> None:
    with pytest.warns(UserWarning, match="after round 2; a run of 2 has none, and is FedAvg"):
        federate(AdaFGL(federated_rounds=2), rounds=2).fit(Model(hidden_channels=4), clients)


def test_who_is_alone_is_sent_nothing() -> None:
    server = AdaFGL(federated_rounds=1)
    server.owners = dict.fromkeys("AB", ("w",))
    server.start({"w": torch.zeros(1)}, list("AB"))
    server.accept(server.aggregate({"A": Payload({"w": torch.ones(1)}, {"num_samples": 1})}, 1, "train"))
    server.accept(server.aggregate({"A": Payload()}, 2, "personal"))
    assert server.download("A", 3, "personal") is None
    assert server.download("B", 3, "personal") is not None
    assert server.summary() == {"alone": ["A"]}


@pytest.mark.parametrize("changes", [{"federated_rounds": 0}, {"steps": -1}, {"alpha": 1.5}])
def test_bad_arguments(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"`aggregator.{next(iter(changes))}`"):
        AdaFGL(**changes)
    with pytest.raises(InputError, match=r"`model\.steps`"):
        Model(steps=0)
