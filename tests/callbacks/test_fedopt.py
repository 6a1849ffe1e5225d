from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from flgraph.callbacks import FedAvg, FedOpt
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer, Payload
from flgraph.models import GNN


def begun(half: FedAvg) -> FedAvg:
    half.owners = {"A": ["w", "norm.running_var", "steps"], "B": ["w", "norm.running_var", "steps"]}
    half.start({"w": torch.tensor([1.0]), "norm.running_var": torch.ones(1), "steps": torch.tensor(4)}, ["A", "B"])
    return half


def step(half: FedAvg, mean: float) -> float:
    """A round after which FedAvg would be at ``mean``."""
    uploads = {
        client: Payload(
            {"w": torch.tensor([mean + gap]), "norm.running_var": torch.tensor([3.0]), "steps": torch.tensor(6)},
            {"num_samples": 5},
        )
        for client, gap in (("A", 1.0), ("B", -1.0))
    }
    half.accept(half.aggregate(uploads, 1, "train"))
    assert half.shared["norm.running_var"].item() == 3  # averaged, as is what counts
    assert half.shared["steps"].item() == 6
    return half.shared["w"].item()


@pytest.mark.parametrize(
    ("optimizer", "variances"),
    [
        ("adam", lambda d: [0.75 * 0.25 + 0.25 * 4, 0.75 * (0.75 * 0.25 + 0.25 * 4) + 0.25 * d]),
        # v - 1/4 D^2 sign(v - D^2): 1/4 < 4, and then 5/4 > D^2.
        ("yogi", lambda d: [0.25 + 0.25 * 4, 1.25 - 0.25 * d]),
        ("adagrad", lambda d: [0.25 + 4, 0.25 + 4 + d]),
    ],
)
def test_numbers_by_hand(optimizer: Any, variances: Callable[[float], list[float]]) -> None:
    """Algorithm 2 with tau = 1/2, so that v begins with 1/4."""
    half = begun(FedOpt(optimizer, server_lr=0.1, beta1=0.5, beta2=0.75, tau=0.5))
    first = 1 + 0.1 * 1.0 / (math.sqrt(variances(0.0)[0]) + 0.5)  # D = 2, m = 1
    assert step(half, 3.0) == pytest.approx(first, rel=1e-6)
    update = 0.5 - first
    momentum = 0.5 * 1.0 + 0.5 * update
    second = first + 0.1 * momentum / (math.sqrt(variances(update**2)[1]) + 0.5)
    twin: Any = copy.deepcopy(begun(FedOpt(optimizer, server_lr=0.1, beta1=0.5, beta2=0.75, tau=0.5)))
    twin.load_server_state(half.server_state())
    twin.accept({"w": half.shared["w"]})
    assert step(twin, 0.5) == pytest.approx(second, rel=1e-6)


def test_momentum_alone_is_fedavgm() -> None:
    half = begun(FedOpt("sgd", server_lr=0.5, beta1=0.5))
    assert step(half, 3.0) == 2.0  # 1 + 0.5 * 2
    assert step(half, 3.0) == 3.0  # 2 + 0.5 * (0.5 * 2 + 1)


def test_plain_steps_of_one_are_fedavg(
    federate: Callable[..., FederatedTrainer], graph_federation: Callable[..., Any]
) -> None:
    found = []
    for half in (FedAvg(), FedOpt("sgd", server_lr=1.0, beta1=0.0)):
        trainer: Any = federate(half, rounds=3, enable_checkpointing=False)
        trainer.fit(GNN(hidden_channels=4, num_layers=1), graph_federation())
        found.append(trainer.server.aggregator.shared)
    for name, tensor in found[0].items():
        torch.testing.assert_close(found[1][name], tensor, rtol=1e-5, atol=1e-6)


def test_names_and_bad_settings() -> None:
    assert [FedOpt(kind).name for kind in ("adam", "yogi", "adagrad", "sgd")] == [
        *("fedadam", "fedyogi", "fedadagrad"),
        "fedavgm",
    ]
    for settings, sentence in (
        ({"optimizer": "lion"}, "`aggregator.optimizer` to be one of adam, yogi, adagrad, sgd but got 'lion'"),
        ({"server_lr": 0.0}, "`aggregator.server_lr` to be a finite number above 0"),
        ({"tau": math.inf}, "`aggregator.tau` to be a finite number above 0"),
        ({"beta1": 1.0}, "`aggregator.beta1` to be at least 0 and less than 1"),
        ({"beta2": -0.1}, "`aggregator.beta2` to be at least 0 and less than 1"),
    ):
        with pytest.raises(InputError, match=sentence):
            FedOpt(**settings)  # type: ignore[arg-type]
