from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.nn import functional as F

from flgraph.callbacks import FedAvg, FedProx
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer
from flgraph.models import GNN


def test_mu_of_zero_is_fedavg(graph_federation: Callable[..., Any], assert_equal_runs: Callable[..., None]) -> None:
    """Dropout and Adam included."""
    model, how = partial(GNN, hidden_channels=4, num_layers=1), {"rounds": 3, "local_epochs": 2, "evaluate_every": 3}
    assert_equal_runs(FedAvg(), FedProx(mu=0.0), model, graph_federation, **how)


class Steps(pl.Callback):
    """Notes every gradient as the optimizer gets it, and the weights it belongs to."""

    seen: list[tuple[dict[str, Tensor], dict[str, Tensor], list[Tensor]]] = []  # noqa: RUF012

    def __deepcopy__(self, memo: dict[int, Any]) -> Steps:
        return self

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: Any, batch: list[Tensor], batch_idx: int) -> None:
        self.batch = batch
        self.weights = {name: p.detach().clone() for name, p in pl_module.named_parameters()}

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, *args: Any) -> None:
        gradients = {name: p.grad.detach().clone() for name, p in pl_module.named_parameters()}
        self.seen.append((self.weights, gradients, self.batch))


@pytest.mark.parametrize("clip", [None, 0.05])
def test_gradient_is_that_of_the_proximal_loss(
    clip: float | None,
    toy_federation: Callable[..., Any],
    toy_module: Any,
    federate: Callable[..., FederatedTrainer],
    recorder: Any,
) -> None:
    """autograd of loss + mu / 2 * sum ||w - w_global||^2; where it is clipped, the norm is that of the sum."""
    mu, steps = 0.7, Steps()
    steps.seen.clear()
    trainer: Any = federate(
        FedProx(mu=mu), rounds=2, local_epochs=3, callbacks=[steps], gradient_clip_val=clip, engine=recorder
    )
    trainer.fit(toy_module(lr=0.3), toy_federation(8, batch_size=4))
    assert len(steps.seen) == 2 * 3 * 2
    pulled = 0
    downloads = {turn.round: payload for _, turn, payload in recorder.downloads()}
    for number, (weights, gradients, (x, y)) in enumerate(steps.seen):
        center = downloads[number // 6].tensors  # the aggregate that came with the evaluation of the round before
        module = toy_module(in_features=4)
        module.load_state_dict(weights)
        distance = sum((p - center[name]).square().sum() for name, p in module.named_parameters())
        (F.cross_entropy(module(x), y) + mu / 2 * distance).backward()
        if clip is not None:
            assert torch.nn.utils.clip_grad_norm_(module.parameters(), clip) > clip
        for name, parameter in module.named_parameters():
            torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-5, atol=1e-7)
        pulled += distance.item() > 1e-6
    assert pulled == 2 * 5, "the center stays put while the model walks away from it"


def test_only_shared_parameters_are_pulled(
    graph_federation: Callable[..., Any], federate: Callable[..., FederatedTrainer]
) -> None:
    """Features of different widths: the input layer is personal, and has no center."""
    trainer: Any = federate(FedProx(mu=1.0), rounds=2, enable_checkpointing=False)
    trainer.fit(GNN(hidden_channels=4, num_layers=1), graph_federation(features=(3, 5)))
    client = trainer.engine.clients["A"]
    center = client.aggregator.center(client)
    assert "pre.weight" not in center
    assert "pre.bias" in center


def test_parameters_that_a_batch_does_not_use_are_pulled_too(
    toy_federation: Callable[..., Any], toy_module: Any, federate: Callable[..., FederatedTrainer]
) -> None:
    """Their loss is constant, the proximal term is not: mu (w - center) is all their gradient."""

    class Sometimes(toy_module):  # type: ignore[misc]
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.scale = torch.nn.Parameter(torch.ones(1))

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            loss = super().training_step(batch, batch_idx)
            return loss + self.scale.sum() if batch_idx == 0 else loss

    trainer: Any = federate(FedProx(mu=0.5), rounds=1, enable_checkpointing=False)
    trainer.fit(lambda data: Sometimes(in_features=4, lr=0.1), toy_federation(8, batch_size=4))
    # From 1: a step of -0.1 * (1 + 0.5 * 0), then one of -0.1 * 0.5 * (0.9 - 1).
    assert trainer.engine.clients["A"].module.scale.item() == pytest.approx(0.905)


def test_each_optimizer_pulls_its_own_parameters_once(
    toy_federation: Callable[..., Any], toy_module: Any, federate: Callable[..., FederatedTrainer]
) -> None:
    """With two optimizers the hook is called twice per batch."""

    class Two(toy_module):  # type: ignore[misc]
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.automatic_optimization = False
            self.scale = torch.nn.Parameter(torch.ones(1))
            self.other = torch.nn.Parameter(torch.ones(1))

        def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
            self.manual_backward(self.scale.sum() + self.other.sum())
            for optimizer in self.optimizers():
                optimizer.step()
            for optimizer in self.optimizers():
                optimizer.zero_grad()

        def configure_optimizers(self) -> Any:
            return [torch.optim.SGD([self.scale], lr=0.1), torch.optim.SGD([self.other], lr=0.1)]

    trainer: Any = federate(FedProx(mu=0.5), rounds=1, enable_checkpointing=False)
    trainer.fit(lambda data: Two(in_features=4), toy_federation(8, batch_size=4))
    # From 1: a step of -0.1, then one of -0.1 * (1 + 0.5 * (0.9 - 1)).
    assert trainer.engine.clients["A"].module.scale.item() == pytest.approx(0.805)
    assert trainer.engine.clients["A"].module.other.item() == pytest.approx(0.805)


def test_a_large_mu_keeps_clients_together(
    toy_federation: Callable[..., Any], toy_module: Any, federate: Callable[..., FederatedTrainer], recorder: Any
) -> None:
    def spread(mu: float) -> float:
        engine = type(recorder)()
        trainer = federate(FedProx(mu=mu), rounds=1, local_epochs=10, engine=engine, enable_checkpointing=False)
        trainer.fit(toy_module(), toy_federation(6, 6))
        uploads = dict(engine.uploads())
        return (uploads["A"].tensors["first.weight"] - uploads["B"].tensors["first.weight"]).norm().item()

    assert spread(5.0) < 0.5 * spread(0.0)


def test_refuses_a_mu_that_cannot_be() -> None:
    for mu in (-1, float("inf"), float("nan")):
        with pytest.raises(InputError, match=rf"`aggregator\.mu` to be a finite number, 0 or more but got {mu}"):
            FedProx(mu=mu)
