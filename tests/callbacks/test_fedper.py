from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from flgraph.callbacks import FedAvg, FedPer
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer
from flgraph.models import GNN


def test_with_nothing_personal_it_is_fedavg(
    graph_federation: Callable[..., Any], federate: Callable[..., FederatedTrainer], assert_same: Callable[..., None]
) -> None:
    runs = []
    for aggregator in (FedAvg(), FedPer(base=["*"])):
        trainer: Any = federate(aggregator, rounds=3, evaluate_every=3, enable_checkpointing=False)
        results = trainer.fit(GNN(hidden_channels=4, num_layers=1), graph_federation())
        runs.append(([client.state() for client in trainer.engine.clients.values()], results["bytes_per_round"]))
    assert_same(runs[0], runs[1])


def test_convolutions_are_shared_and_nothing_else(
    graph_federation: Callable[..., Any], federate: Callable[..., FederatedTrainer], recorder: Any
) -> None:
    trainer = federate(FedPer(), rounds=2, engine=recorder, enable_checkpointing=False)
    trainer.fit(GNN(hidden_channels=4, num_layers=2), graph_federation(features=(3, 5, 7)))
    crossed = recorder.uploads() + recorder.uploads("agree") + [(n, payload) for n, _, payload in recorder.downloads()]
    assert len(crossed) == 3 * 2 + 3 + 3 * 3
    assert all(name.startswith("convs.") for _, payload in crossed for name in payload.tensors)
    one, other = recorder.clients["A"].module, recorder.clients["B"].module
    for name, tensor in one.state_dict().items():
        equal = tensor.shape == other.state_dict()[name].shape and torch.equal(tensor, other.state_dict()[name])
        assert equal == name.startswith("convs."), name


def test_a_model_without_base_layers_is_refused(
    toy_federation: Callable[..., Any], toy_module: Any, federate: Callable[..., FederatedTrainer]
) -> None:
    with pytest.raises(
        InputError, match=r"`model` to be GNN or NodeGCN, the network of this algorithm, but got one with"
    ):
        federate(FedPer()).fit(toy_module(), toy_federation(6))
    with pytest.raises(InputError, match=r"`route base\.\*` to be that of a tensor of client `A`"):
        federate(FedPer(["base.*"])).fit(toy_module(), toy_federation(6))
