from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from flgraph.callbacks import Ditto, FedAvg, Local
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer
from flgraph.models import GNN

Federate = Callable[..., FederatedTrainer]


@pytest.mark.parametrize("state", ["keep", "reset"])
def test_the_global_model_is_that_of_fedavg(
    state: Any, federate: Federate, graph_federation: Callable[..., Any]
) -> None:
    """Bit for bit, dropout and Adam included, and so is what the clients have of it in layers that are not shared."""
    found = []
    for half in (FedAvg(optimizer_state=state), Ditto(optimizer_state=state)):
        trainer: Any = federate(half, rounds=3, local_epochs=2, evaluate_every=3)
        trainer.fit(GNN(hidden_channels=4, num_layers=1), graph_federation(features=(3, 4, 5)))
        found.append(trainer)
    plain, ditto = (trainer.server.aggregator.shared for trainer in found)
    assert all(torch.equal(tensor, ditto[name]) for name, tensor in plain.items())
    for client in "ABC":
        one, other = (trainer.engine.clients[client] for trainer in found)
        for name, tensor in other.aggregator._common.items():
            assert torch.equal(tensor, one.module.state_dict()[name])
        assert any(not torch.equal(tensor, plain[name]) for name, tensor in other.shared_tensors().items())


@pytest.mark.parametrize("lam", [0.0, 0.7])
def test_own_models_are_drawn_to_what_was_sent(
    lam: float, federate: Federate, toy_federation: Callable[..., Any], toy_module: type[Any], recorder: Any
) -> None:
    """With 0 they are those of clients alone; else as autograd has it with the term in the loss."""
    data, lr, start = toy_federation(6, 10), 0.3, toy_module(in_features=4, lr=0.3)
    trainer: Any = federate(Ditto(lam=lam), rounds=3, local_epochs=2, engine=recorder)
    trainer.fit(lambda _: deepcopy(start), data)
    sent = {(name, turn.round): download.group() for name, turn, download in recorder.downloads()}
    alone: Any = federate(Local(), rounds=3, local_epochs=2)
    alone.fit(lambda _: deepcopy(start), data)
    for client in "AB":
        module = deepcopy(start)
        for round in range(3):
            center = sent[client, round]  # the aggregate comes with the evaluation of the round before
            for _ in range(2):
                module.zero_grad()
                pull = sum((p - center[name]).square().sum() for name, p in module.named_parameters())
                (F.cross_entropy(module(data.given[client].x), data.given[client].y) + lam / 2 * pull).backward()
                with torch.no_grad():
                    for p in module.parameters():
                        p -= lr * p.grad
        own = trainer.engine.clients[client].module.state_dict()
        for name, tensor in module.state_dict().items():
            torch.testing.assert_close(own[name], tensor)
            if lam == 0:
                torch.testing.assert_close(own[name], alone.engine.clients[client].module.state_dict()[name])


def test_bad_settings() -> None:
    with pytest.raises(InputError, match=r"`aggregator\.lam` to be a finite number, 0 or more but got -1"):
        Ditto(lam=-1)


def test_schedules_count_each_model_s_own_epochs(
    federate: Federate, toy_federation: Any, toy_module: type[Any]
) -> None:
    """One that acts every second epoch does so for both models."""
    rates: list[float] = []

    class Watched(toy_module):  # type: ignore[misc]
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "frequency": 2}}

        def on_train_epoch_start(self) -> None:
            rates.append(self.optimizers().param_groups[0]["lr"])

    data = toy_federation(6)
    federate(Ditto(), rounds=2).fit(Watched(), data)
    trainer: Any = federate(Ditto(), rounds=5)
    trainer.fit(Watched(), data, ckpt_path="last")
    assert rates == [rate for rate in (1.0, 1.0, 0.5, 0.5, 0.25) for _ in ("common", "own")]
    assert trainer.engine.clients["A"].trainer.current_epoch == 5
