from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch.nn import functional as F

from flgraph.callbacks import FedProx, FedProxAdaptive
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer
from flgraph.federation.lightning import KeepOnDevice

Federate = Callable[..., FederatedTrainer]


def follow(losses: Sequence[float], **kwargs: Any) -> list[float]:
    """The coefficient after each of these rounds."""
    half = FedProxAdaptive(**kwargs)
    found = []
    for loss in losses:
        half._follow(loss)
        found.append(half.mu)
    return found


def test_up_when_the_loss_rises() -> None:
    assert follow([1.0, 2.0, 3.0, 3.0, 4.0]) == [0.01, 0.1, 1.0, 1.0, 1.0], "and no higher than the highest"


def test_down_when_it_has_fallen_five_times_in_a_row() -> None:
    """The first loss is compared with nothing, so five falls take six rounds; the count then begins anew."""
    found = follow([float(loss) for loss in range(20, 0, -1)])
    assert found == [0.01] * 5 + [0.001] * 15


def test_a_rise_or_a_standstill_breaks_the_row() -> None:
    assert follow([9, 8, 7, 7, 6, 5], patience=3) == [0.01] * 6
    assert follow([9, 8, 7, 8, 7, 6, 5], patience=3) == [0.01, 0.01, 0.01, 0.1, 0.1, 0.1, 0.01]
    assert follow([float("nan"), 1.0, float("nan"), 2.0]) == [0.01] * 4


@pytest.mark.parametrize("rule", ["loss", "ratio"])
def test_processes_of_a_client_go_the_same_way(
    rule: Any, federate: Federate, toy_federation: Any, toy_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss that decides is the mean over them: here all the others' losses rise, and rise."""
    means: list[torch.Tensor] = []

    def reduce(self: Any, tensor: torch.Tensor, *args: Any, reduce_op: str = "", **kwargs: Any) -> torch.Tensor:
        if reduce_op != "mean":
            return tensor  # what Lightning sums up for its own ends
        means.append(tensor)
        return tensor + 1000.0 * len(means)

    monkeypatch.setattr(KeepOnDevice, "reduce", reduce)
    trainer = federate(FedProxAdaptive(rule=rule), rounds=4)
    trainer.fit(toy_module(), toy_federation(6))
    assert means
    assert trainer.engine.clients["A"].aggregator.mu == 1.0  # type: ignore[attr-defined]


class Told(pl.Callback):
    """Notes each batch's loss, computed anew, and what the coefficient is when the optimizer steps."""

    seen: list[tuple[float, float]] = []  # noqa: RUF012

    def __deepcopy__(self, memo: dict[int, Any]) -> Told:
        return self

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        with torch.no_grad():
            self.loss = F.cross_entropy(pl_module(batch[0]), batch[1]).item()

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        half = next(callback for callback in trainer.callbacks if isinstance(callback, FedProxAdaptive))
        self.seen.append((self.loss, half.mu))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_loss_is_the_mean_over_the_round_s_batches(
    accumulate: int, toy_federation: Callable[..., Any], toy_module: Any, federate: Federate
) -> None:
    """And mu is reported with the metrics, round by round; it is what the round was trained with."""
    told, mus = Told(), []
    told.seen.clear()

    class Losses(FedProxAdaptive):
        def _follow(self, loss: float) -> None:
            mus.append((self.mu, loss))
            super()._follow(loss)

    trainer: Any = federate(
        Losses(patience=1), rounds=3, local_epochs=2, callbacks=[told], accumulate_grad_batches=accumulate
    )
    trainer.fit(toy_module(), toy_federation(8, batch_size=4))
    if accumulate == 1:
        means = [sum(loss for loss, _ in told.seen[4 * i : 4 * i + 4]) / 4 for i in range(3)]
        assert [loss for _, loss in mus] == pytest.approx(means)
        assert [mu for _, mu in told.seen] == [mu for mu, _ in mus for _ in range(4)]
    falls = [b < a for (_, a), (_, b) in pairwise(mus)]
    assert all(falls), "the toy problem is learnt"
    assert [mu for mu, _ in mus] == [0.01, 0.01, 0.001]
    assert trainer.engine.clients["A"].evaluate(("train",))["fedprox/mu"] == 0.001


def test_the_ratio_rule_by_hand(
    toy_federation: Callable[..., Any], toy_module: Any, federate: Federate, recorder: Any
) -> None:
    """At every batch before the step: times ten above 5 mu P, over ten below mu P / 2, within the list."""
    seen = []

    class Ratio(FedProxAdaptive):
        def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
            before = self.mu
            super().on_before_backward(trainer, pl_module, loss)
            seen.append(
                (before, self.mu, loss.item(), {n: p.detach().clone() for n, p in pl_module.named_parameters()})
            )

    # Values so far up that the distance decides: P is of the order of a hundredth here.
    values = [1.0, 10.0, 100.0, 1000.0]
    trainer: Any = federate(Ratio(mu=1.0, values=values, rule="ratio"), rounds=2, local_epochs=4, engine=recorder)
    trainer.fit(toy_module(lr=1e-2), toy_federation(8, batch_size=4))
    downloads = {turn.round: payload for _, turn, payload in recorder.downloads()}
    mu, moves = 1.0, set()
    for number, (before, after, loss, weights) in enumerate(seen):
        assert before == mu
        center = downloads[number // 8].tensors
        proximal = sum(float((weights[name] - t).norm()) / t.numel() for name, t in center.items())
        if loss > 5 * mu * proximal:
            mu = min(mu * 10, 1000.0)
        elif loss < mu * proximal / 2:
            mu = max(mu / 10, 1.0)
        assert after == mu
        moves.add(after / before)
    assert moves == {0.1, 1.0, 10.0}


def test_the_gradient_has_the_present_coefficient(
    toy_federation: Callable[..., Any], toy_module: Any, assert_equal_runs: Callable[..., None]
) -> None:
    """While it does not move, it is FedProx with that coefficient."""
    model, data = partial(toy_module, dropout=0.0), partial(toy_federation, 6, 8)
    still = FedProxAdaptive(mu=0.1, patience=9)
    assert_equal_runs(FedProx(mu=0.1), still, model, data, ("state_dict",), rounds=3, local_epochs=2)


def test_every_client_has_its_own(toy_federation: Callable[..., Any], toy_module: Any, federate: Federate) -> None:
    trainer: Any = federate(FedProxAdaptive(patience=2), rounds=2, enable_checkpointing=False)
    trainer.fit(toy_module(), toy_federation(6, 8))
    one, other = (client.aggregator for client in trainer.engine.clients.values())
    one._follow(99.0)
    assert (one.mu, other.mu) == (0.1, 0.01)
    fresh = FedProxAdaptive(patience=2)
    fresh.load_state_dict(one.state_dict())
    assert (fresh.mu, fresh._last, fresh._falls) == (0.1, 99.0, 0)
    other.load_state_dict(fresh.state_dict())
    other._follow(100.0)
    assert other.mu == 1.0


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"mu": 0.5}, r"`aggregator.mu` to be one of \[0.001, 0.01, 0.1, 1.0\] but got 0.5"),
        ({"mu": 1, "values": [1, 1]}, "`aggregator.values` to be finite numbers of 0 or more in ascending order"),
        ({"mu": 1, "values": [1, float("inf")]}, r"`aggregator.values` to be finite .* but got \[1, inf\]"),
        ({"mu": 1, "values": []}, "`aggregator.values` to be finite numbers"),
        ({"rule": "both"}, "`aggregator.rule` to be one of loss, ratio but got 'both'"),
        ({"patience": 0}, "`aggregator.patience` to be 1 or more but got 0"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        FedProxAdaptive(**settings)
