from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from flgraph.callbacks import SCAFFOLD, FedAvg
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer, Payload
from flgraph.federation.robust import Median
from flgraph.models import GNN

Federate = Callable[..., FederatedTrainer]


def shared_after(trainer: Any, rounds: int, model: Any, data: Any) -> dict[str, Tensor]:
    trainer.fit(model, data)
    return dict(trainer.server.aggregator.shared)


def test_the_first_round_is_fedavg(federate: Federate, graph_federation: Callable[..., Any]) -> None:
    """All variates are zero: bit for bit, dropout and Adam included. Later rounds are not."""
    for rounds, same in ((1, True), (2, False)):
        found = [
            shared_after(federate(half, rounds=rounds, local_epochs=2), rounds, GNN(hidden_channels=4), data)
            for half, data in ((FedAvg(), graph_federation()), (SCAFFOLD(), graph_federation()))
        ]
        assert all(torch.equal(tensor, found[1][name]) for name, tensor in found[0].items()) == same


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize("server_lr", [1.0, 0.5])
def test_equals_the_paper_s_box(
    weighting: Any, server_lr: float, federate: Federate, toy_federation: Callable[..., Any], toy_module: type[Any]
) -> None:
    """Option II as it is written, in float64, with two of three clients in a round."""
    lr, steps, rounds = 0.3, 3, 4
    data = toy_federation(6, 10, 4)
    trainer: Any = federate(
        SCAFFOLD(weighting=weighting, server_lr=server_lr),
        rounds=rounds,
        local_epochs=steps,
        client_fraction=0.7,
        precision="64-true",
        seed=3,
    )
    results = []
    module = toy_module(in_features=4, lr=lr).double()
    start = deepcopy(module.state_dict())
    trainer.fit(lambda _: deepcopy(module), data)
    zero = {name: torch.zeros_like(tensor) for name, tensor in start.items()}
    x, c, own = start, zero, dict.fromkeys("ABC", zero)
    sizes = {"A": 6.0, "B": 10.0, "C": 4.0} if weighting == "samples" else dict.fromkeys("ABC", 1.0)
    for number in range(1, rounds + 1):
        results.append(trainer.server.participants(number))
        ends, changes = {}, {}
        for client in results[-1]:
            module.load_state_dict(x)
            rows, classes = data.given[client].x.double(), data.given[client].y
            for _ in range(steps):
                module.zero_grad()
                F.cross_entropy(module(rows), classes).backward()
                with torch.no_grad():
                    for name, p in module.named_parameters():
                        p -= lr * (p.grad - own[client][name] + c[name])
            ends[client] = {name: p.detach().clone() for name, p in module.named_parameters()}
            after = {n: own[client][n] - c[n] + (x[n] - y) / (steps * lr) for n, y in ends[client].items()}
            changes[client] = {n: after[n] - own[client][n] for n in after}
            own = {**own, client: after}
        total = sum(sizes[client] for client in ends)
        mean = {n: sum(sizes[i] * ends[i][n] for i in ends) / total for n in x}
        x = {n: x[n] + server_lr * (mean[n] - x[n]) for n in x}
        heard = {client for some in results for client in some}
        count = len(sizes) * sum(sizes[client] for client in heard) / len(heard)  # of all, as far as is known
        c = {n: sum(sizes[i] * own[i][n] for i in "ABC") / count for n in x}
    assert len(set(map(tuple, results))) > 1, "another client sits out now and then"
    server = trainer.server.aggregator
    for name, tensor in x.items():
        torch.testing.assert_close(server.shared[name], tensor, rtol=1e-6, atol=1e-7)  # variates cross in float32
        torch.testing.assert_close(server.control[name], c[name], rtol=1e-5, atol=1e-6)


def by_hand(**kwargs: Any) -> SCAFFOLD:
    half = SCAFFOLD(weighting="uniform", **kwargs)
    half.owners = {client: ["w"] for client in "ABC"}
    half.start({"w": torch.zeros(1)}, ["A", "B", "C"])
    return half


def told(**variates: float) -> dict[str, Payload]:
    return {
        client: Payload({"w": torch.zeros(1), "control": {"w": torch.tensor([variate])}}, {"num_samples": 1})
        for client, variate in variates.items()
    }


def test_what_was_lost_is_made_good() -> None:
    """A client whose variate did not arrive, or arrived changed, counts with the next that does."""
    half = by_hand()
    half.aggregate(told(A=3.0, B=6.0, C=9.0), 1, "train")
    assert half.control["w"].item() == 6
    half.aggregate(told(A=1.0, C=9.0), 2, "train")  # B's, 30, was refused
    assert half.control["w"].item() == pytest.approx(16 / 3)
    half.aggregate(told(B=2.0), 3, "train")
    assert half.control["w"].item() == 4


def test_a_robust_mean_is_one_of_variates_too() -> None:
    """Else one client could steer the gradients of all others."""
    half = by_hand(combine=Median())
    half.aggregate(told(A=1.0, B=2.0, C=900.0), 1, "train")
    assert half.control["w"].item() == 2


def test_who_is_left_out_takes_its_variate_along() -> None:
    half = by_hand()
    half.aggregate(told(A=3.0, B=6.0), 1, "train")
    assert half.control["w"].item() == 3  # C counts with zero
    half.excluded = {"B"}
    assert half.control["w"].item() == 1.5
    half.excluded = {"B", "D"}  # D before the first round
    assert half.control["w"].item() == 1.5
    half.excluded = {"A", "B", "D"}
    assert half.control == {}


@pytest.mark.parametrize("precision", ["64-true", "bf16-true"])
def test_a_server_s_step_in_other_precisions(
    precision: Any, federate: Federate, toy_federation: Callable[..., Any], toy_module: type[Any]
) -> None:
    """The server's first weights are in float32, the clients' means are not."""
    trainer: Any = federate(SCAFFOLD(server_lr=0.5), rounds=2, precision=precision)
    trainer.fit(lambda data: toy_module(in_features=4), toy_federation(6, 10))
    assert all(bool(tensor.isfinite().all()) for tensor in trainer.server.aggregator.shared.values())


def test_layers_that_are_not_shared_have_no_variates(federate: Federate, graph_federation: Callable[..., Any]) -> None:
    trainer: Any = federate(SCAFFOLD(), rounds=2)
    trainer.fit(GNN(hidden_channels=4, num_layers=1), graph_federation(features=(3, 5)))
    known = set(trainer.server.aggregator.control)
    assert "pre.weight" not in known
    assert known == set(trainer.engine.clients["A"].aggregator._own) == set(trainer.server.aggregator.shared)


def test_bad_settings() -> None:
    with pytest.raises(InputError, match=r"`aggregator\.server_lr` to be a finite number above 0 but got 0"):
        SCAFFOLD(server_lr=0)
