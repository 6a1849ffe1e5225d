from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from flgraph.callbacks import Local
from flgraph.federation import FederatedTrainer
from flgraph.models import GNN


def test_nothing_is_sent_in_either_direction(
    graph_federation: Callable[..., Any], federate: Callable[..., FederatedTrainer], recorder: Any
) -> None:
    """Zero bytes, not a small number: no empty envelope counts as an upload."""
    trainer = federate(Local(), rounds=2, engine=recorder, enable_checkpointing=False)
    results = trainer.fit(GNN(hidden_channels=4, num_layers=1), graph_federation())
    assert results["bytes_per_round"] == {"up": 0.0, "down": 0.0}
    assert recorder.downloads() == []
    assert [answer for _, turn, answer in recorder.crossed if turn.name == "train"] == 6 * [b""]
    assert not any(upload.tensors for name in ("agree", "describe") for _, upload in recorder.uploads(name))


def test_clients_do_not_know_of_each_other(
    toy_federation: Callable[..., Any], toy_module: Any, federate: Callable[..., FederatedTrainer], assert_same: Any
) -> None:
    """Alone or in company, a client learns the same."""
    states = []
    for rows in ((6,), (6, 8, 9)):
        trainer: Any = federate(Local(), rounds=3, enable_checkpointing=False)
        trainer.fit(toy_module(dropout=0.5), toy_federation(*rows, batch_size=2, shuffle=True))
        states.append(trainer.engine.clients["A"].state())
    assert_same(*states)


def test_clients_begin_and_end_with_weights_of_their_own(
    toy_federation: Callable[..., Any], toy_data: Any, toy_module: Any, federate: Callable[..., FederatedTrainer]
) -> None:
    trainer: Any = federate(Local(), rounds=2, enable_checkpointing=False)
    trainer.fit(toy_module(), toy_federation(A=toy_data(), B=toy_data()))
    clients = trainer.engine.clients
    assert not torch.equal(clients["A"].module.first.weight, clients["B"].module.first.weight)
