from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from flgraph.callbacks import FedAvg, FedSage
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer
from flgraph.models import GNN


@pytest.mark.parametrize("conv", ["gin", "gcn"])
def test_refuses_another_network(
    conv: Any, graph_federation: Callable[..., Any], federate: Callable[..., FederatedTrainer]
) -> None:
    with pytest.raises(InputError, match=rf"`model\.conv` to be 'sage' for FedSage but got '{conv}'"):
        federate(FedSage()).fit(GNN(conv=conv), graph_federation())


def test_refuses_a_module_of_another_kind(toy_federation: Any, toy_module: Any, federate: Any) -> None:
    with pytest.raises(InputError, match=r"`model` to be GNN for FedSage \(for nodes, NodeSAGE with FedAvg\) but got"):
        federate(FedSage()).fit(toy_module(), toy_federation(6))


def test_is_fedavg_with_graphsage(graph_federation: Callable[..., Any], assert_equal_runs: Callable[..., None]) -> None:
    model = partial(GNN, hidden_channels=4, num_layers=1, conv="sage")
    assert_equal_runs(FedAvg(), FedSage(), model, graph_federation, rounds=2)
