from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch.nn import functional as F

from flgraph.callbacks import APFL, FedAvg, Local
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer
from flgraph.models import GNN

Federate = Callable[..., FederatedTrainer]


def test_alpha_of_zero_is_fedavg(graph_federation: Callable[..., Any], assert_equal_runs: Callable[..., None]) -> None:
    """Dropout and Adam included."""
    alone, how = APFL(alpha=0.0, adaptive=False), {"rounds": 3, "local_epochs": 2, "evaluate_every": 3}
    model, data = partial(GNN, hidden_channels=4, num_layers=1), partial(graph_federation, features=(3, 4, 5))
    assert_equal_runs(FedAvg(), alone, model, data, ("state_dict", "optimizer_states"), **how)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_alpha_of_one_is_local(
    optimizer: str, federate: Federate, toy_federation: Callable[..., Any], toy_module: type[Any]
) -> None:
    """From the same first weights, Adam's state kept over rounds; others learn from it all the same."""
    module = toy_module(in_features=4, optimizer=optimizer)
    found = []
    for half in (Local(), APFL(alpha=1.0, adaptive=False)):
        trainer: Any = federate(half, rounds=3, local_epochs=2)
        trainer.fit(lambda _: deepcopy(module), toy_federation(6, 10, batch_size=4))
        found.append({name: client.module.state_dict() for name, client in trainer.engine.clients.items()})
    for name, state in found[0].items():
        for key, tensor in state.items():
            torch.testing.assert_close(found[1][name][key], tensor)


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("clip", [None, 0.05])
def test_equals_the_paper_s_box(
    adaptive: bool,
    clip: float | None,
    federate: Federate,
    toy_federation: Callable[..., Any],
    toy_module: type[Any],
) -> None:
    """Gradients of the mixture by autograd, through the mixing."""
    data, lr, alpha = toy_federation(6, 10), 0.3, 0.4
    module = toy_module(in_features=4, lr=lr)
    start = module.state_dict()
    trainer: Any = federate(
        APFL(alpha, adaptive, weighting="uniform"), rounds=3, local_epochs=2, gradient_clip_val=clip
    )
    results = trainer.fit(lambda _: deepcopy(module), data)
    common = dict(start)
    own = {client: {n: t.clone() for n, t in start.items()} for client in "AB"}
    alphas = dict.fromkeys("AB", alpha)
    for _ in range(3):
        ends = {}
        for client in "AB":
            x, y = data.given[client].x, data.given[client].y
            w = {n: t.clone().requires_grad_() for n, t in common.items()}
            for step in range(2):
                v = {n: t.clone().requires_grad_() for n, t in own[client].items()}
                a = torch.tensor(alphas[client], requires_grad=True)
                fixed = {n: t.detach() for n, t in w.items()}
                mixed = {n: a * v[n] + (1 - a) * fixed[n] for n in v}
                loss = F.cross_entropy(torch.func.functional_call(module, mixed, (x,)), y)
                *gradients, along = torch.autograd.grad(loss, [*v.values(), a])
                plain = torch.autograd.grad(
                    F.cross_entropy(torch.func.functional_call(module, w, (x,)), y), list(w.values())
                )
                for tensors in (gradients, list(plain)):
                    length = torch.stack([g.norm() for g in tensors]).norm()
                    if clip is not None and length > clip:
                        for g in tensors:
                            g.mul_(clip / (length + 1e-6))
                own[client] = {n: (v[n] - lr * g).detach() for n, g in zip(v, gradients, strict=True)}
                w = {n: (w[n] - lr * g).detach().requires_grad_() for n, g in zip(w, plain, strict=True)}
                if adaptive and step == 0:
                    alphas[client] = min(1.0, max(0.0, alphas[client] - lr * float(along)))
            ends[client] = {n: t.detach() for n, t in w.items()}
        common = {n: (ends["A"][n] + ends["B"][n]) / 2 for n in start}
    for client in "AB":
        state = trainer.engine.clients[client].module.state_dict()
        assert results["final"]["clients"][client]["apfl/alpha"] == pytest.approx(alphas[client], rel=1e-5)
        assert (alphas[client] != alpha) == adaptive
        for name, tensor in state.items():
            expected = alphas[client] * own[client][name] + (1 - alphas[client]) * common[name]
            torch.testing.assert_close(tensor, expected, rtol=1e-4, atol=1e-6)


def test_bad_settings(federate: Federate, toy_federation: Callable[..., Any], toy_module: type[Any]) -> None:
    with pytest.raises(InputError, match=r"`aggregator\.alpha` to be from 0 to 1 but got 1.5"):
        APFL(alpha=1.5)
    with pytest.raises(InputError, match=r"`trainer\.accumulate_grad_batches` to be 1 for APFL"):
        federate(APFL(), rounds=1, accumulate_grad_batches=2).fit(toy_module(), toy_federation(8, batch_size=2))
    later = pl.callbacks.GradientAccumulationScheduler({0: 2})
    with pytest.raises(InputError, match=r"`trainer\.accumulate_grad_batches` to be 1 for APFL"):
        federate(APFL(), rounds=1, callbacks=[later]).fit(toy_module(), toy_federation(8, batch_size=2))


def test_schedules_of_momenta_are_the_own_model_s_too(
    federate: Federate, toy_federation: Callable[..., Any], toy_module: type[Any], assert_same: Callable[..., None]
) -> None:
    class Cycle(toy_module):  # type: ignore[misc]
        def configure_optimizers(self) -> Any:
            made = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
            steps = int(self.trainer.estimated_stepping_batches)
            cycle = torch.optim.lr_scheduler.OneCycleLR(made, max_lr=0.1, total_steps=steps)
            return [made], [{"scheduler": cycle, "interval": "step"}]

    module, found = Cycle(in_features=4), []
    for half in (Local(), APFL(alpha=1.0, adaptive=False)):
        trainer: Any = federate(half, rounds=3, local_epochs=2)
        trainer.fit(lambda _: deepcopy(module), toy_federation(12, 8, batch_size=4))
        found.append({name: dict(client.module.state_dict()) for name, client in trainer.engine.clients.items()})
    assert_same(*found)


def test_gradients_in_float16_do_not_vanish(
    federate: Federate, toy_federation: Callable[..., Any], toy_module: type[Any], float16: Any
) -> None:
    """Losses of a millionth move the own model as far as in float32."""

    class Small(toy_module):  # type: ignore[misc]
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return 1e-6 * super().training_step(batch, batch_idx)

    module, moved = Small(in_features=4, lr=1e5), []
    for callbacks in ([], [float16]):
        trainer: Any = federate(APFL(alpha=1.0, adaptive=False), rounds=1, local_epochs=2, callbacks=callbacks)
        trainer.fit(lambda _: deepcopy(module), toy_federation(500, 400))
        own = trainer.engine.clients["A"].aggregator._own
        moved.append({name: own[name] - tensor for name, tensor in module.state_dict().items()})
    assert all(bool(tensor.any()) for tensor in moved[0].values())
    torch.testing.assert_close(moved[1], moved[0], rtol=0.05, atol=1e-3)
