"""Who misses which round, and that a run that goes on decides the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flgraph.callbacks import FedAvg, Stragglers
from flgraph.errors import InputError
from flgraph.federation import FederatedCallback

Federate = Callable[..., Any]


def took_part(trainer: Any) -> list[list[str]]:
    lines = (trainer.run_dir / "history.jsonl").read_text().splitlines()
    return [json.loads(line)["clients"] for line in lines]


@pytest.fixture
def run(federate: Federate, toy_module: Any, toy_federation: Any) -> Callable[..., Any]:
    def make(rounds: int, *callbacks: Any, ckpt_path: str | None = None, **kwargs: Any) -> Any:
        trainer = federate(FedAvg(), rounds=rounds, callbacks=list(callbacks), **kwargs)
        trainer.fit(toy_module(), toy_federation(4, 4, 4), ckpt_path=ckpt_path)
        return trainer

    return make


def test_clients_come_and_go(run: Any) -> None:
    trainer = run(4, Stragglers(away={"A": [[1, 2]], "C": [[2, 2], [4, 9]]}))
    assert took_part(trainer) == [["B", "C"], ["B"], ["A", "B", "C"], ["A", "B"]]


class _Skip(FederatedCallback):
    def __init__(self, clients: Any) -> None:
        self.clients = clients

    def on_round_start(self, trainer: Any) -> None:
        trainer.skip(self.clients)


def test_several_callbacks_skip_together(run: Any) -> None:
    assert took_part(run(2, _Skip(["A"]), Stragglers(away={"B": [[1, 1]]}))) == [["C"], ["B", "C"]]


@pytest.mark.parametrize("clients", ["A", ["A", "Z"]])
def test_only_clients_that_there_are_can_be_skipped(run: Any, clients: Any) -> None:
    with pytest.raises(InputError, match=r"`clients` of `trainer.skip` to be a list of clients, among A, B, C,"):
        run(1, _Skip(clients))


def test_each_is_late_as_often_as_wanted() -> None:
    stragglers, missed = Stragglers(late={"A": 0.5, "B": 0.9}), list[str]()
    clients = SimpleNamespace(clients=dict.fromkeys("ABC"))
    trainer: Any = SimpleNamespace(federated_data=clients, participants=list("ABC"), skip=missed.extend)
    for number in range(1, 1001):
        trainer.current_round = number
        stragglers.on_round_start(trainer)
    assert missed.count("C") == 0
    assert missed.count("A") == pytest.approx(500, abs=48)  # three standard errors
    assert missed.count("B") == pytest.approx(900, abs=29)


@pytest.mark.parametrize("client_fraction", [1.0, 0.5])
def test_somebody_is_in_time(run: Any, client_fraction: float) -> None:
    trainer = run(5, Stragglers(late=0.999), client_fraction=client_fraction)
    assert all(len(part) == 1 for part in took_part(trainer))


def test_a_run_goes_on_with_the_same_bits(run: Any) -> None:
    late = Stragglers(late=0.5)
    whole, half = run(4, late), run(2, late)
    again = run(4, late, ckpt_path=str(half.run_dir / "checkpoints"))
    assert took_part(again) == took_part(whole)
    for name, client in whole.engine.clients.items():
        weights = again.engine.clients[name].module.state_dict()
        assert all(torch.equal(tensor, weights[key]) for key, tensor in client.module.state_dict().items())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"late": 1.0}, "`Stragglers.late` to be 0 or more and below 1 but got 1.0"),
        ({"late": {"A": -0.1}}, "`Stragglers.late`"),
        ({"away": {"A": [3]}}, r"`Stragglers.away` to be lists of rounds from 1, \[first, last\], but got \[3\]"),
        ({"away": {"A": [[3, 2]]}}, "`Stragglers.away`"),
    ],
)
def test_refusals(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        Stragglers(**arguments)


def test_refusals_of_names_and_of_empty_rounds(run: Any) -> None:
    with pytest.raises(InputError, match="`Stragglers` to be about clients among A, B, C but got 'Z'"):
        run(1, Stragglers(away={"Z": [[1, 1]]}))
    with pytest.raises(InputError, match="spans that leave a client in each round but got 'none in round 2'"):
        run(2, Stragglers(away={name: [[2, 2]] for name in "ABC"}))
