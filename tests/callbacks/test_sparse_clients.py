"""Methods for nodes with clients that have next to nothing: no edge, no other client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

from flgraph.callbacks import DFedGNN, FedEgo, FedGCN, FedSagePlus, GraphFL
from flgraph.data import NodeDataModule, NodeGraph, WholeGraphDataModule
from flgraph.federation import Aggregator, FederatedTrainer
from flgraph.models import FedEgo as FedEgoNet
from flgraph.models import NeighGenSAGE, NodeGCN
from flgraph.reproduce.fedego.published import PublishedFedEgo, PublishedNodeDataModule

Federate = Callable[..., FederatedTrainer]
Kind = type[NodeDataModule] | type[WholeGraphDataModule]


def part(kind: Kind, edges: int, first: int = 0, **kwargs: Any) -> Any:
    """20 of 40 nodes, from ``first`` on, and some edges both ways."""
    random = torch.Generator().manual_seed(edges)
    x = (torch.rand(40, 9, generator=random) < 0.3).float()
    ends = torch.randint(first, first + 20, (2, edges), generator=random)
    whole = NodeGraph.from_pyg(Data(x=x, edge_index=torch.cat([ends, ends.flip(0)], 1), y=torch.arange(40) % 3))
    graph = whole.subgraph(torch.arange(first, first + 20))
    train, val, test = torch.arange(20).split([10, 5, 5])
    return kind(graph, train, val, test, **kwargs)


METHODS = {
    "fedego": (FedEgo(), FedEgoNet(hidden_channels=4), NodeDataModule, {"fanouts": (2, 2)}),
    "fedego, none": (FedEgo(), FedEgoNet(hidden_channels=4), PublishedNodeDataModule, {"fanouts": (2, 2)}),
    "fedego, published": (
        PublishedFedEgo(),
        FedEgoNet(hidden_channels=4),
        NodeDataModule,
        {"fanouts": (2, 2)},
    ),
    "graphfl": (GraphFL(num_nodes=4), FedEgoNet(hidden_channels=4), NodeDataModule, {"fanouts": (2, 2)}),
    "dfedgnn": (DFedGNN(), FedEgoNet(hidden_channels=4), NodeDataModule, {"fanouts": (2, 2)}),
    "fedgcn": (FedGCN(), NodeGCN(hidden_channels=4), WholeGraphDataModule, {}),
    "fedsage+": (
        FedSagePlus(pretrain_epochs=2, generator_rounds=2),
        NeighGenSAGE(hidden_channels=4, fgen_channels=(5,)),
        WholeGraphDataModule,
        {},
    ),
}


def weights(client: Any) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in client.module.state_dict().values()])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("others", [0, 1], ids=["alone", "beside another"])
@pytest.mark.parametrize("edges", [0, 30], ids=["no edge", "edges"])
def test_such_clients_train(method: str, others: int, edges: int, federate: Federate, toy_federation: Any) -> None:
    aggregator, model, kind, settings = METHODS[method]
    assert isinstance(aggregator, Aggregator)
    clients = {"A": part(kind, edges, **settings)}
    if others:
        clients["B"] = part(kind, 40, first=20, **settings)
    trainer: Any = federate(aggregator, rounds=2, enable_checkpointing=False)
    start = {name: weights(client) for name, client in trainer.host(model, toy_federation(**clients)).items()}
    trainer = federate(aggregator, rounds=2, enable_checkpointing=False)
    results = trainer.fit(model, toy_federation(**clients))
    assert list(results["final"]["clients"]) == list(clients)
    for name, client in trainer.engine.clients.items():
        assert weights(client).isfinite().all()
        assert not torch.equal(weights(client), start[name])
        assert 0 <= results["final"]["clients"][name]["test/accuracy"] <= 1
