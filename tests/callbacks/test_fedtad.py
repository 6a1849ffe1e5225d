from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Data

from flgraph.callbacks import FedAvg, FedTAD
from flgraph.callbacks.fedtad import class_reliability
from flgraph.data import NodeGraph, WholeGraphDataModule, WholeGraphFederation
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer, Payload
from flgraph.federation.seeding import derive_seed, seed_all
from flgraph.models import NodeGCN, NodeSAGE
from flgraph.nn.batches import WholeGraph
from flgraph.nn.distillation import NodeGenerator, diversity_loss, nearest_graph

Federate = Callable[..., FederatedTrainer]
FEATURES, CLASSES = 5, 3


def graph(sparse: bool = False) -> NodeGraph:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(40, FEATURES, generator=generator)
    x = x * (torch.rand(40, FEATURES, generator=generator) < (0.2 if sparse else 1.0))
    edges = torch.randint(38, (2, 70), generator=generator)
    return NodeGraph.from_pyg(Data(x=x, edge_index=edges, y=torch.arange(40) % CLASSES))


@pytest.fixture
def clients() -> WholeGraphFederation:
    return WholeGraphFederation(graph(), num_clients=3, partition="dirichlet", alpha=5.0, global_fraction=0.0)


# ------------------------------------------------------------------------------------------------------- client half
@pytest.mark.parametrize("sparse", [True, False])
def test_reliability_is_how_alike_training_nodes_and_their_neighbours_are(sparse: bool) -> None:
    """The loop of the published code, with return probabilities."""
    own, train = graph(sparse), torch.tensor([0, 3, 4, 9, 22, 38])
    assert own.is_sparse == sparse
    every = torch.arange(40)
    found = class_reliability(WholeGraphDataModule(own, train, every, every), walk_length=3)
    dense = torch.zeros(40, 40)
    dense[own.edge_index[0], own.edge_index[1]] = 1
    step = dense / dense.sum(0).clamp(min=1)
    walks = torch.stack([torch.linalg.matrix_power(step, power).diagonal() for power in (1, 2, 3)], dim=1)
    rows = torch.cat([own.x.to_dense() if sparse else own.x, walks], dim=1)
    expected = torch.zeros(CLASSES)
    for i in train.tolist():
        near = dense[i].nonzero()[:, 0].tolist()
        alike = sum(float(torch.cosine_similarity(rows[i], rows[j], dim=0)) for j in near) + 1
        expected[own.y[i]] += alike / (len(near) + 1)
    assert torch.allclose(found, expected, atol=1e-5)
    assert found[own.y[38]] >= 1  # node 38 has no edge


# ------------------------------------------------------------------------------------------------------- server half
def test_nearest_graph() -> None:
    """Angles of 0, 10, 80 and 90 degrees: each with the nearest beside itself."""
    angles = torch.tensor([0.0, 10.0, 80.0, 90.0]).deg2rad()
    adj = nearest_graph(
        torch.stack([angles.cos(), angles.sin()], dim=1) * torch.tensor([[1.0], [5.0], [2.0], [1.0]]), 2
    )
    assert adj.rowptr.tolist() == [0, 1, 2, 3, 4]
    assert adj.col.tolist() == [1, 0, 3, 2]
    assert nearest_graph(torch.rand(4, 2), 1).col.numel() == 0
    assert nearest_graph(torch.rand(4, 2), 4).col.numel() == 12


def test_diversity() -> None:
    noise, x = torch.tensor([[0.0, 0.0], [2.0, 0.0]]), torch.tensor([[1.0], [4.0]])
    assert float(diversity_loss(noise, x)) == pytest.approx(float(torch.tensor(-(2.0 * 3.0) * 2 / 4).exp()))


def server(**kwargs: Any) -> FedTAD:
    made = FedTAD(num_nodes=8, neighbours=3, epochs=2, steps=2, **kwargs)
    made.template, made.seed = NodeGCN(hidden_channels=4, dropout=0.0), 7
    names = list(model(0).state_dict())
    made.owners = dict.fromkeys("AB", names)
    made.start(model(0).state_dict(), list("AB"))
    return made


def model(seed: int) -> NodeGCN:
    torch.manual_seed(seed)
    return NodeGCN(FEATURES, CLASSES, hidden_channels=4, dropout=0.0)


def upload(seed: int, trust: list[float], count: int) -> Payload:
    scalars = {"num_samples": count, "in_channels": FEATURES, "num_classes": CLASSES}
    return Payload({**model(seed).state_dict(), "reliability": {"classes": torch.tensor(trust)}}, scalars)


def as_published(rounds: int, uploads: list[dict[str, Payload]], made: FedTAD) -> dict[str, Tensor]:
    """The steps of the published code, loop by loop."""
    generator = optimizers = None
    for number in range(1, rounds + 1):
        sent = uploads[number - 1]
        total = sum(int(upload.scalars["num_samples"]) for upload in sent.values())
        mean = model(0)
        own = {name: model(0) for name in sent}
        for name, one in sent.items():
            own[name].load_state_dict(one.group())
            own[name].eval()
        average = {
            key: sum(one.group()[key] * (int(one.scalars["num_samples"]) / total) for one in sent.values())
            for key in mean.state_dict()
        }
        mean.load_state_dict(average)
        ckr = torch.stack([one.group("reliability")["classes"] for one in sent.values()])
        ckr = ckr / ckr.sum(0)
        seed_all(derive_seed(7, "distillation", number))
        fresh = NodeGenerator(32, CLASSES, FEATURES)
        generator = generator or fresh
        learners = [torch.optim.Adam(part.parameters(), 1e-3, weight_decay=5e-4) for part in (generator, mean)]
        if optimizers is not None:
            for learner, state in zip(learners, optimizers, strict=True):
                learner.load_state_dict(state)
        c = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2])
        for _ in range(2):
            z = torch.randn(8, 32)
            learners[0].zero_grad()
            loss: Any = 0
            for k, name in enumerate(sent):
                x = generator(z, c)
                pseudo = whole(x, c)
                local, glob = own[name](pseudo), mean(pseudo)
                for i in range(CLASSES):
                    loss = loss + ckr[k, i] * F.cross_entropy(local[c == i], c[c == i])
                    loss = loss - ckr[k, i] * (glob[c == i] - local[c == i].detach()).abs().mean(dim=1).mean()
                loss = loss + diversity_loss(z, x)
            loss.backward()
            learners[0].step()
            pseudo = whole(generator(z, c).detach(), c)
            for _ in range(2):
                learners[1].zero_grad()
                loss = 0
                for k, name in enumerate(sent):
                    for i in range(CLASSES):
                        apart = (mean(pseudo)[c == i] - own[name](pseudo)[c == i].detach()).abs()
                        loss = loss + ckr[k, i] * apart.mean(dim=1).mean()
                loss.backward()
                learners[1].step()
        optimizers = [copy.deepcopy(learner.state_dict()) for learner in learners]
    return {name: tensor.detach() for name, tensor in mean.state_dict().items()}


def whole(x: Tensor, y: Tensor) -> WholeGraph:
    nodes = torch.arange(len(x))
    return WholeGraph(x, nearest_graph(x, 3), nodes, nodes, y)


def test_two_rounds_as_published() -> None:
    """Averages, generator, distillation, and both optimizers that go on; a checkpoint between the rounds."""
    uploads = [
        {"A": upload(1, [1.0, 2.0, 0.0], 3), "B": upload(2, [3.0, 2.0, 5.0], 1)},
        {"A": upload(3, [1.0, 2.0, 0.0], 3), "B": upload(4, [3.0, 2.0, 5.0], 1)},
    ]
    made = server()
    made.accept(made.aggregate(uploads[0], 1, "train"))
    state = copy.deepcopy(made.server_state())
    made.accept(made.aggregate(uploads[1], 2, "train"))
    expected = as_published(2, uploads, made)
    averages = FedAvg.aggregate(made, uploads[1], 2, "train")
    assert all(torch.allclose(made.shared[name], expected[name], atol=1e-5) for name in expected)
    assert not any(torch.allclose(made.shared[name], averages[name], atol=1e-4) for name in ("convs.0.weight",))
    assert set(made.log_scalars()) == {"generator_loss", "distillation_loss"}
    again = server()
    again.load_server_state(state)
    result = again.aggregate(uploads[1], 2, "train")
    assert all(torch.equal(result[name], made.shared[name]) for name in expected)


@pytest.mark.parametrize("lie", [{"in_channels": FEATURES + 1}, {"num_classes": 10**6}])
def test_sizes_are_those_of_the_weights(lie: dict[str, int]) -> None:
    made, honest = server(), upload(1, [1.0] * CLASSES, 1)
    made.accept(model(0).state_dict())
    made.check_upload("A", honest, 2, "train")
    scalars = {**honest.scalars, **lie}
    told = {**honest.group(), "reliability": {"classes": torch.ones(int(scalars["num_classes"]))}}
    with pytest.raises(InputError, match="`in_channels` and `num_classes` that the shared weights have but got"):
        made.check_upload("A", Payload(told, scalars), 2, "train")


def test_what_is_not_finite_leaves_the_mean() -> None:
    made = server()
    made.accept(made.aggregate({"A": upload(1, [1.0, 1.0, 1.0], 1)}, 1, "train"))
    learned = copy.deepcopy(made.server_state()["_learned"]["weights"])
    huge = upload(2, [1.0, 1.0, 1.0], 1)
    huge = Payload(
        {name: torch.full_like(t, 3e38) if "convs" in name else t for name, t in huge.tensors.items()}, huge.scalars
    )
    uploads = {"A": upload(1, [1.0, 1.0, 1.0], 1), "B": huge}
    result = made.aggregate(uploads, 2, "train")
    averages = FedAvg.aggregate(made, uploads, 2, "train")
    assert all(torch.equal(result[name], averages[name]) for name in averages)
    assert all(
        torch.equal(tensor, learned[name]) for name, tensor in made.server_state()["_learned"]["weights"].items()
    )


def test_a_run(clients: WholeGraphFederation, federate: Federate) -> None:
    trainer: Any = federate(FedTAD(epochs=1, steps=1, num_nodes=9), rounds=2, local_epochs=1)
    trainer.fit(NodeSAGE(hidden_channels=4), clients)
    states = [client.module.state_dict() for client in trainer.engine.clients.values()]
    assert all(torch.equal(tensor, state[name]) for state in states[1:] for name, tensor in states[0].items())


def test_all_has_to_be_shared(clients: WholeGraphFederation, federate: Federate) -> None:
    with pytest.raises(
        InputError, match=r"whose every tensor all clients share, for FedTAD, but got \['convs\.1\.bias'"
    ):
        federate(FedTAD(), rounds=1, personal=["convs.1.*"]).fit(NodeGCN(hidden_channels=4), clients)


@pytest.mark.parametrize(
    "changes",
    [
        *({name: 0} for name in ("epochs", "steps", "num_nodes", "walk_length", "neighbours")),
        {"neighbours": 101},
        *({name: -1.0} for name in ("semantic", "diversity", "generator_lr", "server_lr", "weight_decay")),
    ],
)
def test_bad_arguments(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"`aggregator.{next(iter(changes))}`"):
        FedTAD(**changes)
