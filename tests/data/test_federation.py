"""What every federation's datamodule saves of its arguments."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData

from flgraph.data import (
    GraphFederation,
    HeteroClients,
    HeteroDataModule,
    HeteroFederation,
    HeteroGraph,
    NodeDataModule,
    NodeFederation,
    NodeGraph,
    PartitionedGraphFederation,
    SyntheticFederation,
    TUFederation,
    WholeGraphFederation,
)
from flgraph.errors import InputError
from flgraph.reproduce.fedego.published import PublishedNodeFederation

ELSEWHERE = {"graphs", "root"}
"""Data, and where it lies."""


def graphs() -> list[Data]:
    edges = torch.tensor([[0, 1], [1, 0]])
    return [Data(x=torch.rand(2, 3), edge_index=edges, y=torch.tensor([number % 2])) for number in range(20)]


def nodes() -> NodeGraph:
    return NodeGraph.from_pyg(Data(x=torch.rand(9, 2), edge_index=torch.tensor([[0], [1]]), y=torch.arange(9)), "nine")


def test_clients_are_known_after_setup() -> None:
    data = GraphFederation({"one": graphs()}, structure="none")
    for name in ("one", "two"):
        with pytest.raises(InputError, match=r"`client` to be one of the clients \((none before|one)"):
            data.client(name)
        data.setup()


def test_clients_print_as_their_graphs_do() -> None:
    data = GraphFederation({"one": graphs()}, structure="none")
    data.setup()
    assert str(data.client("one")).startswith("GraphDataModule(FlatGraphs(one: 20 graphs, 40 nodes")
    (*splits,) = torch.arange(9).split(3)
    assert str(NodeDataModule(nodes(), *splits)).startswith("NodeDataModule(NodeGraph(nine: 9 nodes")
    assert str(HeteroDataModule(hetero())).startswith("HeteroDataModule(HeteroGraph(eight: 8 nodes")


def hetero() -> HeteroGraph:
    data = HeteroData()
    data["a"].y = torch.arange(8) % 2
    data["a"].num_nodes = 8
    data["a"].train_mask = torch.ones(8, dtype=torch.bool)
    data["a", "r", "a"].edge_index = torch.tensor([[0, 1, 2], [3, 4, 5]])
    return HeteroGraph.from_pyg(data, "a", "eight")


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        (GraphFederation, {"graphs": {}, "batch_size": 7}, {"batch_size": 7}),
        (TUFederation, {"datasets": ["MUTAG"], "dse_dim": 3}, {"datasets": ["MUTAG"], "dse_dim": 3, "name": None}),
        (SyntheticFederation, {"seed": 4}, {"seed": 4, "structure": "rwse+dse"}),
        (PartitionedGraphFederation, {"dataset": graphs(), "emd": 0.3}, {"dataset": "graphs", "emd": 0.3}),
        (NodeFederation, {"dataset": nodes(), "alpha": 2.0}, {"dataset": "nine", "alpha": 2.0, "partition_seed": 123}),
        (WholeGraphFederation, {"dataset": "Cora", "cross_edges": False}, {"dataset": "Cora", "cross_edges": False}),
        (PublishedNodeFederation, {"dataset": "Cora", "isolated": "self"}, {"isolated": "self", "num_test": None}),
        (HeteroFederation, {"dataset": hetero(), "num_clients": 4}, {"dataset": "eight", "num_clients": 4}),
        (HeteroClients, {"graphs": {"one": hetero()}, "tie_names": True}, {"tie_names": True, "task": "nodes"}),
    ],
)
def test_arguments_are_hyperparameters(kind: type[Any], given: dict[str, Any], expected: dict[str, Any]) -> None:
    """Those of every class in between, as plain values; not the data, nor where it lies."""
    saved = dict(kind(**given).hparams)
    assert saved.items() >= expected.items()
    for base in kind.__mro__[: kind.__mro__.index(object)]:
        if base.__module__.startswith("flgraph."):
            named = inspect.signature(base.__init__).parameters
            assert saved.keys() | ELSEWHERE | {"self", "args", "kwargs", "dataset"} >= named.keys()
    assert not ELSEWHERE & saved.keys()
