from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from flgraph.callbacks import Local, PredictedLabels
from flgraph.data import Diffusion, FlatGraphs, GraphLoader, PartitionedGraphFederation, ViewDataModule
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer
from flgraph.models import GNN


@pytest.fixture
def graphs(graph_list: Callable[..., list[Data]]) -> FlatGraphs:
    return FlatGraphs.from_pyg(graph_list(40), "toy")


def test_any_graphs(graphs: FlatGraphs, graph_list: Callable[..., list[Data]]) -> None:
    data = PartitionedGraphFederation(graph_list(40), 4)
    data.setup()
    given = PartitionedGraphFederation(graphs, 4)
    given.setup()
    assert [data.client(name).num_train_samples for name in data.clients] == [10] * 4
    for name in data.clients:
        assert torch.equal(data.client(name).graphs.x, given.client(name).graphs.x)
    plain: Any = {"alpha": 0.3}
    with pytest.raises(InputError, match=r"Expected `data.diffusion` to be a Diffusion but got 'dict'"):
        PartitionedGraphFederation(graphs, diffusion=plain)


def test_classifiers_call_the_graphs_of_all_clients_by_their_name(
    graphs: FlatGraphs, federate: Callable[..., FederatedTrainer]
) -> None:
    """Also where a client has no test graphs of its own, so that they are its first loader."""
    for fractions, own in (((1.0, 0.0, 0.0), set()), ((0.5, 0.25, 0.25), {"test"})):
        data = PartitionedGraphFederation(graphs, 2, fractions=fractions)
        trainer = federate(Local(), rounds=1, callbacks=[PredictedLabels()])
        results = trainer.fit(GNN(hidden_channels=4, num_layers=1), data)
        first, second = (results["final"]["clients"][name] for name in data.clients)
        tested = {name.partition("/")[0] for name in first if "test" in name}
        assert tested == {"global_test"} | own
        assert {name.partition("/")[0] for name in second if "test" in name} == own
        assert first["global_test/samples"] == 40
        assert first["global_test/true_0"] == 0.5


def test_statistics(graphs: FlatGraphs) -> None:
    data = PartitionedGraphFederation(graphs, 4, emd=0.6, tolerance=0.05)
    data.setup()
    told = data.statistics
    assert data.name == "toy-emd0.6"
    assert abs(told["emd"] - 0.6) <= 0.05
    assert told["wanted_emd"] == 0.6
    own = told["clients"].values()
    assert [client["graphs"] for client in own] == [10] * 4
    assert torch.tensor([client["train_labels"] for client in own]).sum(0).tolist() == [20, 20]
    assert sum(client["emd"] for client in own) / 4 == pytest.approx(told["emd"])
    assert set(data.figures()) == {"partition/labels"}


def test_deterministic_in_its_seed(graphs: FlatGraphs) -> None:
    def contents(seed: int) -> list[Any]:
        data = PartitionedGraphFederation(graphs, 4, emd=0.6, tolerance=0.05, partition_seed=seed)
        data.setup()
        return [data.client(name).settings["content"] for name in data.clients]

    assert contents(1) == contents(1)
    assert contents(1) != contents(2)


def test_loaders(graphs: FlatGraphs) -> None:
    data = PartitionedGraphFederation(graphs, 4, batch_size=3, fractions=(0.6, 0.2, 0.2))
    data.setup()
    first, second = (data.client(name) for name in data.clients[:2])
    local, everywhere = first.test_dataloader()  # type: ignore[misc]
    assert (len(local.index), len(everywhere.index)) == (2, 40)
    assert everywhere.stage == "global_test"
    assert isinstance(second.test_dataloader(), GraphLoader)
    assert [batch.num_graphs for batch in first.train_dataloader()] == [3, 3]
    assert all(batch.diffused.num_nodes == batch.x.size(0) for batch in second.predict_dataloader())


@pytest.mark.parametrize(("count", "sizes"), [(7, [3, 4]), (8, [3, 3, 2]), (9, [3, 3, 3]), (1, [1]), (2, [2]), (0, [])])
def test_no_batch_of_one_graph_is_left_over(graphs: FlatGraphs, count: int, sizes: list[int]) -> None:
    loader = GraphLoader(graphs, torch.arange(count), 3, shuffle=True, min_batch=2)
    assert [batch.num_graphs for batch in loader] == sizes
    assert len(loader) == len(sizes)
    assert sorted(i for batch in loader for i in batch.graph_index.tolist()) == list(range(count))


def test_one_training_graph(graphs: FlatGraphs) -> None:
    with pytest.raises(InputError, match="two training graphs or more"):
        ViewDataModule(graphs, (torch.tensor([0]), torch.tensor([1]), torch.tensor([2])))


def test_settings_tell_the_data_apart(graphs: FlatGraphs) -> None:
    data = PartitionedGraphFederation(graphs, 2, diffusion=Diffusion(kind="heat", time=3.0))
    data.setup()
    settings = data.client("client-1").settings
    assert settings["diffusion"]["time"] == 3.0
    assert settings["emd"] is None
    assert data.name == "toy-iid"


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"emd": -0.1}, "data.emd"),
        ({"num_clients": 0}, "data.num_clients"),
        ({"global_test": "last"}, "data.global_te"),
    ],
)
def test_refusals(graphs: FlatGraphs, wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError, match=f"Expected `{field}"):
        PartitionedGraphFederation(graphs, **wrong)
