from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch.nn import functional as F

from flgraph.callbacks import FedAvg, FedRep
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer
from flgraph.models import GNN

Federate = Callable[..., FederatedTrainer]


def test_without_a_head_it_is_fedavg(
    graph_federation: Callable[..., Any], assert_equal_runs: Callable[..., None]
) -> None:
    """Dropout and Adam included."""
    model, how = partial(GNN, hidden_channels=4, num_layers=1), {"rounds": 3, "local_epochs": 2, "evaluate_every": 3}
    assert_equal_runs(FedAvg(), FedRep(head=[], head_epochs=5), model, graph_federation, **how)


class Moves(pl.Callback):
    """Notes which parameters each epoch moves."""

    seen: list[set[str]] = []  # noqa: RUF012

    def __deepcopy__(self, memo: dict[int, Any]) -> Moves:
        return self

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.before = {name: p.detach().clone() for name, p in pl_module.named_parameters()}

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.seen.append({name for name, p in pl_module.named_parameters() if not torch.equal(p, self.before[name])})


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_first_the_head_and_then_all_else(
    optimizer: str, federate: Federate, graph_federation: Callable[..., Any]
) -> None:
    """With weight decay, too, which moves what has no gradient from the loss."""
    moves = Moves()
    moves.seen.clear()
    trainer: Any = federate(FedRep(head_epochs=2), rounds=2, local_epochs=1, callbacks=[moves])
    trainer.fit(GNN(hidden_channels=4, num_layers=1, optimizer=optimizer, weight_decay=0.1), graph_federation())
    module = trainer.engine.clients["A"].module
    head = {name for name, _ in module.named_parameters() if name.startswith("readout.")}
    rest = {name for name, _ in module.named_parameters()} - head
    assert moves.seen == [head, head, rest] * 3 * 2
    assert all(parameter.requires_grad for parameter in module.parameters())
    one, other = (trainer.engine.clients[client].module.state_dict() for client in "AB")
    assert all(torch.equal(one[name], other[name]) for name in rest)
    assert not any(torch.equal(one[name], other[name]) for name in head)


def test_running_statistics_move_with_what_is_trained(
    federate: Federate, graph_federation: Callable[..., Any], recorder: Any
) -> None:
    trainer: Any = federate(FedRep(head_epochs=3), rounds=1, local_epochs=1, engine=recorder)
    trainer.fit(GNN(hidden_channels=4, num_layers=1, norm="batch"), graph_federation())
    for client, upload in recorder.uploads():
        counts = [int(tensor) for name, tensor in upload.tensors.items() if name.endswith("num_batches_tracked")]
        assert counts == [len(trainer.engine.clients[client].data.train_dataloader())]  # one epoch of four


def test_steps_by_autograd(
    federate: Federate, toy_federation: Callable[..., Any], toy_module: type[Any], recorder: Any
) -> None:
    """A round of Algorithm 1: two steps of the head, one of all else."""
    lr, data = 0.3, toy_federation(6, 10)
    start = toy_module(in_features=4, lr=lr)
    federate(FedRep(head=["last.*"], head_epochs=2), rounds=1, engine=recorder).fit(lambda _: deepcopy(start), data)
    for client, upload in recorder.uploads():
        module = deepcopy(start)
        for names in ("last", "last", "first"):
            module.zero_grad()
            F.cross_entropy(module(data.given[client].x), data.given[client].y).backward()
            with torch.no_grad():
                for name, p in module.named_parameters():
                    p -= lr * p.grad * name.startswith(names)
        assert set(upload.tensors) == {"first.weight", "first.bias"}
        for name, tensor in upload.tensors.items():
            torch.testing.assert_close(tensor, module.state_dict()[name])


def test_optimizers_of_what_is_trainable(
    federate: Federate, toy_federation: Callable[..., Any], toy_module: type[Any], recorder: Any
) -> None:
    """The usual filter makes one optimizer for both phases, as without it."""
    found = []
    for chosen in (list, lambda parameters: [p for p in parameters if p.requires_grad]):

        class Filtered(toy_module):  # type: ignore[misc]
            def configure_optimizers(self, chosen: Any = chosen) -> Any:
                return torch.optim.Adam(chosen(self.parameters()), lr=0.1)

        trainer: Any = federate(FedRep(head=["last.*"]), rounds=2)
        trainer.fit(lambda data, made=Filtered: made(in_features=4), toy_federation(6, 10))
        found.append(trainer.server.aggregator.shared)
    assert all(torch.equal(tensor, found[1][name]) for name, tensor in found[0].items())


def test_bad_settings(federate: Federate, toy_federation: Callable[..., Any], toy_module: type[Any]) -> None:
    with pytest.raises(InputError, match=r"`aggregator\.head_epochs` to be 1 or more but got 0"):
        FedRep(head_epochs=0)
    with pytest.raises(InputError, match=r"`model` to be GNN, FedStar or NodeGNN, the network of this algorithm, but"):
        federate(FedRep(), rounds=1).fit(toy_module(), toy_federation(4))
    with pytest.raises(InputError, match=r"`aggregator\.head` to be patterns of some of .*, and not of all, but got"):
        federate(FedRep(head=["*"]), rounds=1).fit(toy_module(), toy_federation(4))
