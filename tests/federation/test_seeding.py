from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from flgraph.callbacks import FedAvg, Local
from flgraph.federation import Client, FederatedTrainer, Request, Sequential, Turn
from flgraph.federation.seeding import derive_seed, seed_all


def test_seed_is_the_published_hash() -> None:
    """A change of this number breaks resuming every run that anybody has stopped."""
    digest = hashlib.sha256(b"3\x1fMUTAG\x1f7\x1ftrain").digest()
    assert derive_seed(3, "MUTAG", 7, "train") == int.from_bytes(digest[:8], "little") // 2


def test_seeds_fit_and_differ() -> None:
    seeds = [
        derive_seed(seed, client, round, exchange)
        for seed in range(3)
        for client in ("A", "B", "A1", "AA")
        for round in range(12)
        for exchange in ("train", "evaluate")
    ]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derive_seed(1, 23) != derive_seed(12, 3)
    assert derive_seed(0, "A", "B") != derive_seed(0, "AB")
    assert sum(seed & 1 for seed in seeds) > len(seeds) // 3, "the low bits are as random as the others"


def test_seed_all_reaches_every_generator() -> None:
    def draw() -> tuple[float, float, float]:
        seed_all(2**63 - 1)
        return torch.rand(1).item(), float(np.random.rand()), random.random()

    assert draw() == draw()


class Backwards(Sequential):
    """Asks the last client first, and draws random numbers between the turns."""

    def run(self, turns: Mapping[str, Turn]) -> dict[str, bytes]:
        answers = {}
        for name in reversed(turns):
            torch.rand(3)
            answers.update(super().run({name: turns[name]}))
        return answers


def test_a_turn_depends_on_client_round_and_exchange_alone(
    toy_federation: Callable[..., Any], toy_module: Any, federate: Callable[..., Any], assert_same: Callable[..., None]
) -> None:
    """Dropout and shuffling must not know who was asked before; else no two engines agree."""

    def run(engine: Sequential) -> FederatedTrainer:
        trainer = federate(FedAvg(), rounds=3, local_epochs=2, engine=engine, enable_checkpointing=False)
        trainer.fit(toy_module(dropout=0.5), toy_federation(6, 8, 7, batch_size=2, shuffle=True))
        return trainer

    one, other = run(Sequential()), run(Backwards())
    for name in "ABC":
        assert_same(one.engine.clients[name].state(), other.engine.clients[name].state())
    assert one.history.last["clients"] == other.history.last["clients"]
    assert list(one.history.last["clients"]) == list(other.history.last["clients"])


def test_rounds_and_clients_draw_different_numbers(toy_data: Callable[..., Any], toy_module: Any) -> None:
    """Equal seeds would drop the same units everywhere, and shuffle alike in every round."""

    class Draw(Local):
        def local_update(self, client: Client, round: int, exchange: str) -> None:
            drawn.append(torch.rand(1).item())

    drawn: list[float] = []
    clients = [Client(name, toy_module(4), toy_data(), Draw(), seed=seed) for name in "AB" for seed in (0, 1)]
    for client in clients:
        for round in (1, 2):
            client.turn(Turn(round, Request.EXCHANGE, "train"))
            client.turn(Turn(round, Request.EXCHANGE, "other"))
    assert len(set(drawn)) == len(drawn) == 16
