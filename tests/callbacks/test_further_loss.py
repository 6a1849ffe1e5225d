from __future__ import annotations

from collections.abc import Callable
from typing import Any

import federations
import pytest
import torch
from torch import Tensor

from flgraph import models
from flgraph.callbacks import FedAvg
from flgraph.callbacks.further_loss import AddsLoss
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer
from flgraph.models.classifier import labels_of

Federate = Callable[..., FederatedTrainer]

CLASSIFIERS: dict[str, tuple[Callable[[], Any], str]] = {
    "GNN": (lambda: models.GNN(hidden_channels=4, num_layers=2), "Graphs"),
    "FedStar": (lambda: models.FedStar(hidden_channels=4, num_layers=2), "Graphs"),
    "FedSSP": (lambda: models.FedSSP(hidden_channels=4, num_layers=2), "Graphs"),
    "FedEgo": (lambda: models.FedEgo(hidden_channels=4), "Nodes"),
    "FedEgo, centers": (lambda: models.FedEgo(hidden_channels=4, ego=False), "Nodes"),
    "NodeGCN": (lambda: models.NodeGCN(hidden_channels=4), "Whole"),
    "NodeSAGE": (lambda: models.NodeSAGE(hidden_channels=4), "Whole"),
    "MaskedGCN": (lambda: models.MaskedGCN(hidden_channels=4), "Whole"),
    "AdaFGL": (lambda: models.AdaFGL(hidden_channels=4), "Whole"),
    "FGGP": (lambda: models.FGGP(hidden_channels=4), "Whole"),
    "NeighGenSAGE": (lambda: models.NeighGenSAGE(hidden_channels=4), "Whole"),
    "RGCN": (lambda: models.RGCN(hidden_channels=4, num_bases=3), "Relations"),
    "HeteroGAT": (lambda: models.HeteroGAT(hidden_channels=4, num_bases=3), "Relations"),
}


class Norm(AddsLoss, FedAvg):
    """Half the squared length of what labelled things are represented by, times a factor."""

    def __init__(self, factor: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.factor = factor

    @property
    def adds_loss(self) -> bool:
        return self.factor != 0

    def further_loss(self, batch: Any, encoded: Tensor) -> Tensor:
        assert encoded.size(0) == labels_of(batch).numel()
        return self.factor * encoded.square().sum() / 2


def federation(kind: str) -> Any:
    return getattr(federations, kind)()


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_every_classifier_is_a_head_on_an_encoder(name: str, federate: Federate) -> None:
    model, kind = CLASSIFIERS[name]
    clients = federate(FedAvg()).host(model(), federation(kind), seed=1)
    module, batch = clients[min(clients)].module, next(iter(clients[min(clients)].data.train_dataloader()))
    encoded = module.eval().encode(batch)
    assert torch.equal(module(batch), module.head(encoded, batch))
    rows = module.represent(batch)
    assert rows.shape == (labels_of(batch).numel(), encoded.size(1))
    assert torch.equal(rows, module.rows(encoded, batch))


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_further_loss_is_added_in_training(name: str, federate: Federate) -> None:
    """Its gradient is that of a sum of both losses; it is no part of evaluations, nor of what is logged."""
    model, kind = CLASSIFIERS[name]
    clients = federate(FedAvg()).host(model(), federation(kind), seed=1)
    module, batch = clients[min(clients)].module, next(iter(clients[min(clients)].data.train_dataloader()))
    module.log = lambda *args, **kwargs: None
    losses, seen = [], []

    def further(batch: Any, rows: Tensor) -> Tensor:
        seen.append((labels_of(batch), rows))
        return rows.sum() * 3

    for added in (None, further):
        module.further_loss = added
        torch.manual_seed(0)
        module.train()
        losses.append(module.training_step(batch))
    (labels, rows), (parts, with_it) = seen[0], module._collected["train"]
    torch.testing.assert_close(losses[1] - losses[0], rows.sum() * 3)
    assert torch.equal(parts[0], with_it[0])
    assert torch.equal(with_it[2], labels.view(-1))
    assert rows.dtype == torch.float32
    plain, both = (
        torch.autograd.grad(loss, list(module.parameters()), allow_unused=True, retain_graph=True) for loss in losses
    )
    extra = torch.autograd.grad(rows.sum() * 3, list(module.parameters()), allow_unused=True)
    for a, b, c in zip(plain, extra, both, strict=True):
        parts_of = [gradient for gradient in (a, b) if gradient is not None]
        if parts_of:
            torch.testing.assert_close(sum(parts_of), c, rtol=1e-5, atol=1e-4)  # in front of a norm there is noise
    module.eval()
    before = module.validation_step(batch)
    module.further_loss = None
    assert torch.equal(module.validation_step(batch), before)


@pytest.mark.parametrize("name", ["GNN", "FedEgo", "NodeGCN", "RGCN"])
def test_an_algorithm_adds_it_for_as_long_as_its_clients_train(
    name: str, federate: Federate, assert_same: Callable[..., None]
) -> None:
    model, kind = CLASSIFIERS[name]
    states = []
    for aggregator in (FedAvg(), Norm(0.0), Norm(0.1)):
        trainer: Any = federate(aggregator, rounds=1, name="run")
        trainer.fit(model(), federation(kind))
        modules = {client: held.module for client, held in trainer.engine.clients.items()}
        assert all(module.further_loss is None for module in modules.values())
        states.append({client: module.state_dict() for client, module in modules.items()})
    assert_same(states[0], states[1])
    with pytest.raises(AssertionError):
        assert_same(states[0], states[2])


def test_other_models_are_refused(
    federate: Federate, toy_federation: Callable[..., Any], toy_module: type[Any]
) -> None:
    with pytest.raises(InputError, match=r"`model` to be one with a `further_loss`, such as .* but got 'ToyModule'"):
        federate(Norm(1.0), rounds=1).fit(toy_module(), toy_federation(4, 4))
