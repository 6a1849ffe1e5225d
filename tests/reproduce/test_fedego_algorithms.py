"""FedEgo and what it is compared with, as the published code runs them: how each differs from the method itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Data

from flgraph.callbacks import DFedGNN, FedAvg, FedEgo, FedGCN
from flgraph.data import NodeFederation, NodeGraph, WholeGraphFederation
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer
from flgraph.federation.server_model import ServerModel
from flgraph.models import FedEgo as FedEgoNet
from flgraph.models import NodeGCN
from flgraph.reproduce.fedego.published import (
    GraphFLFromMean,
    PublishedDFedGNN,
    PublishedFedAvg,
    PublishedFedEgo,
    PublishedFedGCN,
    PublishedFedProx,
    PublishedGraphFL,
)

FANOUTS = (2, 2)
Federate = Callable[..., FederatedTrainer]
Make = Callable[..., Any]


def net(**kwargs: Any) -> FedEgoNet:
    return FedEgoNet(**{"hidden_channels": 4, "dropout": 0.0, "lr": 0.05, **kwargs})


# ----------------------------------------------------------------------------------------- beginnings and evaluations
FROM_MEAN = [PublishedFedAvg(), PublishedFedProx(), GraphFLFromMean(), PublishedGraphFL(), PublishedFedEgo()]


@pytest.mark.parametrize("aggregator", FROM_MEAN, ids=lambda a: a.name)
def test_clients_begin_with_the_mean_of_their_own_weights(
    aggregator: Any, federate: Federate, ego_federation: Make, recorder: Any
) -> None:
    federate(aggregator, rounds=1, engine=recorder).fit(net(), ego_federation())
    own = [answer.tensors for _, answer in recorder.uploads("agree")]
    assert len(own) == 3
    _, _, sent = recorder.downloads()[0]
    assert sent.tensors.keys() == own[0].keys()
    for name, tensor in sent.tensors.items():
        torch.testing.assert_close(tensor.double(), sum(one[name].double() for one in own) / 3, rtol=0, atol=1e-7)


@pytest.mark.parametrize("aggregator", [PublishedFedAvg(), PublishedFedProx()], ids=lambda a: a.name)
def test_clients_are_evaluated_before_they_get_the_average(
    aggregator: Any, federate: Federate, ego_federation: Make, recorder: Any
) -> None:
    trainer: Any = federate(aggregator, rounds=2, engine=recorder)
    trainer.fit(net(), ego_federation())
    assert [turn.download for _, turn, _ in recorder.crossed if turn.splits] == [None] * 6
    sent = dict(recorder.uploads()[-3:])
    for name, client in trainer.engine.clients.items():
        held = client.module.state_dict()
        assert all(torch.equal(tensor, held[key]) for key, tensor in sent[name].tensors.items())


def test_fedavg_may_begin_with_one_client_s_weights(
    federate: Federate, ego_federation: Make, assert_same: Callable[..., None]
) -> None:
    """What is learnt differs by the beginning alone."""

    class FromFirst(PublishedFedAvg):
        initial_weights = "first"

    states = []
    for aggregator in (FromFirst(), FedAvg(), PublishedFedAvg()):
        trainer: Any = federate(aggregator, rounds=2)
        trainer.fit(net(), ego_federation())
        states.append(trainer.server.aggregator.shared)
    assert_same(states[0], states[1])
    assert not all(torch.equal(tensor, states[2][name]) for name, tensor in states[0].items())


# ------------------------------------------------------------------------------------------------ weights of one's own
def whole_graph() -> WholeGraphFederation:
    random = torch.Generator().manual_seed(0)
    x, edges = torch.rand(30, 6, generator=random), torch.randint(0, 30, (2, 60), generator=random)
    graph = NodeGraph.from_pyg(Data(x=x, edge_index=edges, y=torch.arange(30) % 3))
    return WholeGraphFederation(graph, num_clients=3, partition="dirichlet")


def test_dfedgnn_begins_with_weights_of_one_s_own(federate: Federate, recorder: Any) -> None:
    """The server asks for none, and sends none before round 1 was aggregated."""
    starts = []
    for aggregator in (PublishedDFedGNN(), DFedGNN()):
        trainer: Any = federate(aggregator, rounds=1, engine=type(recorder)())
        trainer.fit(NodeGCN(hidden_channels=4, lr=0.0), whole_graph())
        starts.append([upload.tensors["convs.0.weight"] for _, upload in trainer.engine.uploads()])
        rounds = {turn.round for _, turn, _ in trainer.engine.downloads()}
        assert rounds == ({1} if aggregator.name == "publisheddfedgnn" else {0, 1})
    assert not torch.equal(starts[0][0], starts[0][1])
    assert torch.equal(starts[1][0], starts[1][1])


def test_fedgcn_s_average_is_computed_and_never_installed(
    federate: Federate, assert_same: Callable[..., None], recorder: Any
) -> None:
    """After the setup clients go on alone, each from weights of its own."""
    states = []
    for aggregator in (PublishedFedGCN(), FedGCN()):
        trainer: Any = federate(aggregator, rounds=3, engine=type(recorder)(), enable_checkpointing=False)
        trainer.fit(NodeGCN(hidden_channels=4, dropout=0.0), whole_graph())
        states.append([client.module.state_dict() for client in trainer.engine.clients.values()])
        assert len(trainer.engine.uploads()) == 9
        assert all(client.module.sums is not None for client in trainer.engine.clients.values())
        assert trainer.server.aggregator.shared.keys() == set(trainer.engine.clients["client-1"].routing.shared)
        rounds = {turn.round for _, turn, _ in trainer.engine.downloads()}
        assert rounds == ({0} if isinstance(aggregator, PublishedFedGCN) else {0, 1, 2, 3})
    assert not torch.equal(states[0][0]["convs.0.weight"], states[0][1]["convs.0.weight"])
    assert_same(states[1][0], states[1][1])


# ------------------------------------------------------------------------------------------------------------ GraphFL
def test_graphfl_adapts_by_training(toy_federation: Make, toy_module: Any, federate: Federate, recorder: Any) -> None:
    """The gradient is that of the query loss at the weights that FedAvg would send; the optimizer stays in use."""
    data, settings = toy_federation(8), {"rounds": 1, "local_epochs": 3, "enable_checkpointing": False}
    plain: Any = federate(FedAvg(), engine=type(recorder)(), **settings)
    plain.fit(toy_module(optimizer="adam"), data)
    ((_, trained),) = plain.engine.uploads("train")
    trainer: Any = federate(PublishedGraphFL(meta_lr=0.5), engine=recorder, **settings)
    trainer.fit(toy_module(optimizer="adam"), data)
    ((_, upload),) = recorder.uploads("meta")
    x, y = data.client("A").x, data.client("A").y

    def loss(weights: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(toy_module(in_features=4), weights, x), y)

    gradient = torch.func.grad(loss)(dict(trained.tensors))
    torch.testing.assert_close(upload.group("gradient"), gradient)
    start, stepped, _ = (payload for _, _, payload in recorder.downloads())
    for name, weight in stepped.tensors.items():
        torch.testing.assert_close(weight, start.tensors[name] - 0.5 * gradient[name])
    (optimizer,) = trainer.engine.clients["A"]._optimizers.optimizers
    assert {int(state["step"]) for state in optimizer["state"].values()} == {6}


@pytest.mark.parametrize("precision", ["64-true", "bf16-true"])
def test_it_adapts_in_any_precision(precision: str, federate: Federate) -> None:
    random = torch.Generator().manual_seed(0)
    x, edges = torch.randn(60, 4, generator=random), torch.randint(0, 60, (2, 400), generator=random)
    graph = NodeGraph.from_pyg(Data(x=x, edge_index=edges, y=torch.arange(60) % 2))
    data = NodeFederation(graph, num_clients=2, partition="dirichlet", fanouts=(2, 2), batch_size=4)
    trainer: Any = federate(PublishedGraphFL(), rounds=2, precision=precision)
    trainer.fit(FedEgoNet(hidden_channels=4), data)
    for client in trainer.engine.clients.values():
        wanted = torch.float64 if precision == "64-true" else torch.bfloat16
        assert {parameter.dtype for parameter in client.module.parameters()} == {wanted}


# ------------------------------------------------------------------------------------------------------------- FedEgo
WHEN: tuple[Literal["end"], Literal["start"]] = ("end", "start")


def test_reduction_layers_may_be_taken_over_late(federate: Federate, ego_federation: Make, recorder: Any) -> None:
    """What is learnt stays the same; evaluated are a client's own reduction layers with mixed personalization."""
    sent, held = [], []
    for when in WHEN:
        trainer: Any = federate(PublishedFedEgo(install_at=when), rounds=2, engine=recorder)
        trainer.fit(net(), ego_federation())
        sent.append(dict(recorder.uploads()[-3:]))
        held.append({client: trainer.engine.clients[client].module.state_dict() for client in "ABC"})
        recorder.crossed.clear()
    for client in "ABC":
        for name, tensor in sent[0][client].tensors.items():
            assert torch.equal(tensor, sent[1][client].tensors[name])
        for name, tensor in held[1][client].items():
            late = name.startswith("reduction.")
            assert torch.equal(tensor, sent[1][client].tensors[name] if late else held[0][client][name])
            assert not late or not torch.equal(tensor, held[0][client][name])


@pytest.mark.parametrize("ego", [True, False])
def test_as_many_trees_as_the_largest_client_sends_keep_their_edges(
    federate: Federate, ego_federation: Make, ego: bool
) -> None:
    told = []

    class Spy(PublishedFedEgo):
        def _make_model(self) -> ServerModel:
            model = super()._make_model()
            fit = model.fit

            def told_and_fit(loader: Any, *rest: Any) -> Any:
                told.append(loader.ego_graphs.childless)
                return fit(loader, *rest)

            model.fit = told_and_fit  # type: ignore[method-assign]
            return model

    data = ego_federation(nodes=12)
    data.given["B"].train = torch.arange(8)  # two mashed ego-graphs, the others have three
    federate(Spy(), rounds=1).fit(net(ego=ego), data)
    (childless,) = told
    assert childless.tolist() == [[False] * (3 if ego else 0)] * 3 + [[True] * (3 if ego else 0)] * 5


def test_with_the_paper_s_choices_it_is_fedego(ego_federation: Make, assert_equal_runs: Callable[..., None]) -> None:
    paper: Any = {"edges": "all", "soft_labels": "training", "install_at": "end", "initial_weights": "first"}
    assert_equal_runs(FedEgo(), PublishedFedEgo(**paper), net, ego_federation, ("state_dict",), rounds=3)


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (PublishedFedEgo, {"edges": "some"}, "`aggregator.edges` to be largest or all but got 'some'"),
        (PublishedFedEgo, {"soft_labels": "some"}, "`aggregator.soft_labels` to be training or all but got 'some'"),
        (PublishedFedEgo, {"install_at": "never"}, "`aggregator.install_at` to be start or end but got 'never'"),
        (PublishedGraphFL, {"first_order": False}, "`aggregator.first_order` to be true for an adaptation by training"),
    ],
)
def test_settings_are_checked(make: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make(**settings)
