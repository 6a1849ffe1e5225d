from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch_geometric.data import HeteroData

from flgraph.callbacks import FedAvg, Local
from flgraph.data import HeteroDataModule, HeteroFederation, HeteroGraph, HeteroLoader, random_edges
from flgraph.data.hetero.schema import reordered, reverses
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer
from flgraph.federation.routes import RouteKind
from flgraph.models import RGCN
from flgraph.reproduce.fedhgn.published import PublishedHeteroFederation


def graph(names: tuple[str, ...] = ("r0", "r1", "r2", "r3", "r4", "r0"), val: bool = False) -> HeteroGraph:
    generator = torch.Generator().manual_seed(0)
    kinds, given = [("a", "b"), ("b", "a"), ("a", "a"), ("b", "b"), ("a", "b"), ("b", "b")], {}
    for name, (source, target) in zip(names, kinds, strict=True):
        given[source, name, target] = torch.randint(0, 30, (2, 40), generator=generator).unique(dim=1)
    y = torch.arange(30) % 3
    held = torch.arange(18, 22) if val else None
    splits = torch.arange(0, 18 if val else 20), held, torch.arange(22, 30)
    return HeteroGraph.from_edges({"a": 30, "b": 30}, given, "a", y, *splits, name="Toy")


def test_a_pass_is_one_batch() -> None:
    made = reordered(graph(), [1, 0], range(6))
    data = HeteroDataModule(made)
    (train,), (again,), (every,) = data.train_dataloader(), data.train_dataloader(), data.predict_dataloader()
    assert train is again  # what its edges are sorted into is kept
    assert torch.equal(train.index, made.train + 30)
    assert torch.equal(train.y, made.y[made.train])
    assert train.x == (None, None)
    assert train.relations is every.relations is made.relations()
    assert train.last.num_targets == 20
    assert every.y.numel() == 30
    assert len(data.val_dataloader()) == len(list(data.val_dataloader())) == 0
    moved = train.to("cpu")
    assert torch.equal(moved.index, train.index)
    assert data.to("cpu") is data
    assert data.num_train_samples == 20
    with pytest.raises(InputError, match="at least one training node in `Toy`"):
        HeteroDataModule(made.replace(train=made.train[:0]))
    assert len(HeteroLoader(made, made.train)) == 1


def test_predictions_name_the_nodes() -> None:
    data = HeteroDataModule(graph(val=True))
    rows, (batch,) = data.prediction_rows, data.predict_dataloader()
    assert rows["node"] == list(range(data.graph.num_targets))
    assert (batch.index - data.graph.target_start).tolist() == rows["node"]
    for split, index in (("train", data.graph.train), ("val", data.graph.val), ("test", data.graph.test)):
        assert {node for node in rows["node"] if rows["split"][node] == split} == set(index.tolist())


def test_rows_that_names_share() -> None:
    data = HeteroDataModule(graph(), tie_names=True)
    assert data.weight_rows == ["r0", "r1", "r2", "r3", "r4"]
    assert data.model_args["num_relations"] == 5
    (batch,) = data.train_dataloader()
    assert batch.relations.num_rows == 5
    apart = HeteroDataModule(graph())
    assert apart.weight_rows == list(graph().edge_types)
    assert apart.settings["content"] == data.settings["content"]


@pytest.mark.parametrize("partition", ["random_edges", "random_edge_types"])
def test_a_federation(partition: str) -> None:
    data = HeteroFederation(graph(), num_clients=3, partition=partition, partition_seed=3)
    data.setup("fit")
    data.setup("test")
    assert data.name == f"toy-{partition.replace('_', '-')}-3"
    assert data.clients == ["client-1", "client-2", "client-3"]
    for name in data.clients:
        client = data.client(name)
        assert client.graph.name == f"Toy, {name}"
        assert client.settings["partition"] == partition
        assert client.settings["digest"] == data.statistics["digest"][:16]
        assert data.statistics["clients"][name]["train"] == client.num_train_samples
        # A fifth of the training nodes are validation nodes everywhere.
        known = torch.cat([client.graph.train, client.graph.val])
        place = client.graph.node_types.index("a")
        ptr = client.graph.node_ptr
        assert bool((client.graph.nodes[ptr[place] : ptr[place + 1]][known] < 20).all())
    assert data.read().val.numel() == 4
    given = HeteroFederation(graph(val=True), val_fraction=0.5)
    assert given.read().val.tolist() == [18, 19, 20, 21]
    one_way = HeteroFederation(graph(), reverse=False)
    one_way.setup("fit")
    assert not reverses(one_way.client("client-1").graph)


def test_a_partition_file(tmp_path: Path) -> None:
    first = HeteroFederation(graph(), partition_seed=7)
    first.setup("fit")
    whole = first.read()
    partition = first.make_partition(whole)
    partition.save(tmp_path / "partition.npz")
    second = HeteroFederation(whole, root=str(tmp_path), partition="partition.npz")
    second.setup("fit")
    assert second.statistics == first.statistics
    other = HeteroFederation(graph(val=True), partition=str(tmp_path / "partition.npz"))
    with pytest.raises(InputError, match="`graph` to be the one with digest"):
        other.setup("fit")
    assert random_edges(whole, 3, 7).digest == partition.digest
    assert (second.name, second.num_clients) == ("toy-partition", 3)
    assert second.hparams["partition"] == f"file {partition.digest[:16]}"  # wherever it lies
    with pytest.warns(UserWarning, match="`data.num_clients: 7` has no effect: the partition file has 3 clients"):
        HeteroFederation(whole, num_clients=7, partition=str(tmp_path / "partition.npz"))


def test_trains_in_a_federation(federate: Callable[..., FederatedTrainer], recorder: Any) -> None:
    """Bases are averaged while each client has relations, nodes and embeddings of its own, also where sizes agree."""
    data = HeteroFederation(graph(), partition="random_edge_types", partition_seed=3)
    results = federate(FedAvg(), rounds=2, engine=recorder).fit(RGCN(hidden_channels=8, num_bases=3), data)
    modules = [client.module for client in recorder.clients.values()]
    assert len({module.embedding.weight.size(0) for module in modules}) > 1
    assert len({module.convs[1].coefficients.size(0) for module in modules}) > 1
    for module in modules[1:]:
        assert torch.equal(module.convs[1].bases, modules[0].convs[1].bases)
    for client in recorder.clients.values():
        kept = {name for name, row in client.routing.rows.items() if row.route.kind == RouteKind.PERSONAL}
        assert kept == {"embedding.weight", "convs.1.coefficients"}
    assert results["partition"]["digest"] == data.statistics["digest"]


def test_errors() -> None:
    for change in ({"partition": "metis"}, {"val_fraction": 1.0}):
        (field,) = change
        with pytest.raises(InputError, match=f"`data.{field}`"):
            HeteroFederation(graph(), **change)


def test_a_pyg_graph_needs_a_target() -> None:
    with pytest.raises(InputError, match=r"HeteroGraph\.from_pyg\(data, target\), but got 'HeteroData'"):
        HeteroFederation(HeteroData())  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["aifb", "mutag", "bgs"])
@pytest.mark.parametrize("kind", ["random_edges", "random_edge_types"])
@pytest.mark.parametrize("clients", [None, 3, 5, 10])
def test_configurations(name: str, kind: str, clients: int | None, data_root: Path) -> None:
    """As they are, and with the partitions of FedHGN's authors."""
    arguments = yaml.safe_load((Path(__file__).parents[3] / f"configs/data/{name}.yaml").read_text())["data"]
    assert arguments["class_path"] == "flgraph.data.HeteroFederation"
    if not (data_root / "entities" / f"{arguments['init_args']['dataset'].lower()}.npz").is_file():
        pytest.skip("needs the data set in entities/")
    made = PublishedHeteroFederation if clients else HeteroFederation
    data = made(**{**arguments["init_args"], "partition": kind, **({"num_clients": clients} if clients else {})})
    data.setup("fit")
    assert len(data.clients) == (clients or 3)
    assert all(client["train"] > 0 and client["val"] > 0 for client in data.statistics["clients"].values())


def test_no_partition_is_the_union_of_all_partitions(federate: Callable[..., FederatedTrainer]) -> None:
    """Central training: one client with the edges of all, the same validation nodes, and the same test nodes."""
    data = HeteroFederation(graph(), num_clients=1, partition="none", partition_seed=3)
    data.setup("fit")
    assert (data.name, data.clients) == ("toy-whole", ["client-1"])
    central = data.client("client-1").graph
    dealt = HeteroFederation(graph(), num_clients=3, partition_seed=3)
    dealt.setup("fit")
    clients = [dealt.client(name).graph for name in dealt.clients]
    assert central.num_edges == 2 * graph().num_edges
    assert set(central.edge_types) == {kind for client in clients for kind in client.edge_types}
    for split in ("train", "val", "test"):
        known = [
            {int(client.nodes[client.target_start + node]) for node in getattr(client, split)} for client in clients
        ]
        own = {int(central.nodes[central.target_start + node]) for node in getattr(central, split)}
        assert own == set().union(*known)
    with pytest.raises(InputError, match=r"`data\.num_clients` to be 1, where there is no partition, but got 3"):
        HeteroFederation(graph(), partition="none")
    results = federate(Local(), rounds=2).fit(RGCN(hidden_channels=4, num_bases=0), data)
    assert results["final"]["clients"]["client-1"]["test/samples"] == 8
