from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from flgraph.callbacks import FedAvg, PredictedLabels
from flgraph.data import NodeFederation, NodeGraph
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer
from flgraph.models import FedEgo

Federate = Callable[..., FederatedTrainer]


def data() -> NodeFederation:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(120) % 4
    edge_index = torch.randint(0, 120, (2, 900), generator=generator)
    both = torch.cat([edge_index, edge_index.flip(0)], dim=1)
    graph = NodeGraph.from_pyg(Data(x=torch.randn(120, 5, generator=generator), edge_index=both, y=y), name="toy")
    return NodeFederation(graph, num_clients=2, partition="dirichlet", num_test=10, batch_size=8)


def run(federate: Federate, federation: Any, **kwargs: Any) -> FederatedTrainer:
    trainer = federate(FedAvg(), rounds=2, **kwargs)
    trainer.fit(FedEgo(hidden_channels=4), federation)
    return trainer


def test_shares_of_predicted_and_true_classes(federate: Federate) -> None:
    federation = data()
    trainer: Any = run(federate, federation, callbacks=[PredictedLabels()])
    everywhere = federation.client(federation.clients[0]).global_graph
    assert everywhere is not None
    true = torch.bincount(everywhere.y, minlength=4) / everywhere.num_nodes
    for name, client in trainer.engine.clients.items():
        told = trainer.history.last["clients"][name]
        torch.testing.assert_close(torch.tensor([told[f"global_test/true_{label}"] for label in range(4)]), true)
        client.module.eval()
        with torch.no_grad():
            batches = federation.client(name).test_dataloader()[1]
            classes = torch.cat([client.module(batch).argmax(dim=1) for batch in batches])
        shares = torch.bincount(classes, minlength=4) / len(classes)
        torch.testing.assert_close(torch.tensor([told[f"global_test/predicted_{label}"] for label in range(4)]), shares)
        assert "test/predicted_0" not in told
        assert not client.module._forward_hooks


def test_changes_nothing_else(federate: Federate, assert_same: Callable[..., None]) -> None:
    runs: list[Any] = [run(federate, data(), callbacks=callbacks) for callbacks in ([], [PredictedLabels("test")])]
    assert_same(*[[client.state()["state_dict"] for client in one.engine.clients.values()] for one in runs])
    metrics = [one.history.last["clients"] for one in runs]
    for name, told in metrics[1].items():
        others = {key: value for key, value in told.items() if "predicted" not in key and "true" not in key}
        assert others == metrics[0][name]
        assert len(told) == len(others) + 8


def test_data_without_the_stage(federate: Federate) -> None:
    federation = NodeFederation(data().dataset, num_clients=2, partition="dirichlet", global_fraction=0.0, batch_size=8)
    with pytest.warns(UserWarning, match="nothing to log: the data has no `global_test`"):
        run(federate, federation, callbacks=[PredictedLabels()])


def test_unknown_stage(federate: Federate) -> None:
    with pytest.raises(InputError, match=r"`callbacks\.stage` to be one of test, global_test but got 'everywhere'"):
        run(federate, data(), callbacks=[PredictedLabels("everywhere")])
