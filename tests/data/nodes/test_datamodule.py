"""Node classification as datamodules: what clients hold, what loaders give, and that a federated run takes them."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
import yaml
from jsonargparse import ArgumentParser
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Data

from flgraph.callbacks import FedAvg, Local
from flgraph.data import EgoBatch, NodeDataModule, NodeFederation, NodeGraph
from flgraph.data.nodes import datamodule
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer
from flgraph.federation.client import Client

CONFIGS = Path(__file__).parents[3] / "configs" / "data"


def graph(seed: int = 0) -> NodeGraph:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(5, (400,), generator=generator)
    x = (torch.rand(400, 30, generator=generator) < 0.1).float() + F.one_hot(y, 30)
    return NodeGraph.from_pyg(Data(x=x, edge_index=torch.randint(400, (2, 1200), generator=generator), y=y), "Toy")


def federation(**changes: Any) -> NodeFederation:
    arguments: dict[str, Any] = {"dataset": graph(), "num_clients": 3, "num_test": 20, "fanouts": [3, 2]}
    data = NodeFederation(**arguments | changes)
    data.setup()
    return data


class Words(pl.LightningModule):
    """Classes from the centers' own words."""

    def __init__(self, in_channels: int = -1, num_classes: int = -1) -> None:
        super().__init__()
        self.save_hyperparameters()
        if in_channels > 0:
            self.weight = torch.nn.Parameter(torch.zeros(in_channels, num_classes))

    def _log(self, batch: EgoBatch, split: str) -> Tensor:
        logits = (batch.x.to_dense() @ self.weight)[batch.index[:, 0]]
        hits = (logits.argmax(dim=1) == batch.y).float().mean()
        self.log(f"{split}/accuracy", hits, batch_size=batch.y.numel(), add_dataloader_idx=False, on_epoch=True)
        return F.cross_entropy(logits, batch.y)

    def training_step(self, batch: EgoBatch, batch_idx: int) -> Tensor:
        return self._log(batch, "train")

    def validation_step(self, batch: EgoBatch, batch_idx: int) -> None:
        self._log(batch, "val")

    def test_step(self, batch: EgoBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        self._log(batch, ("test", "global_test")[dataloader_idx])

    def predict_step(self, batch: EgoBatch, batch_idx: int) -> Tensor:
        return batch.y

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1.0)


# ------------------------------------------------------------------------------------------------------------- clients
@pytest.mark.parametrize("partition", ["label_skew", "louvain", "metis", "dirichlet"])
def test_clients_hold_parts_of_the_graph(partition: str) -> None:
    if partition == "metis":
        pytest.importorskip("pymetis")
    whole = graph()
    data = federation(partition=partition)
    assert data.name == f"toy-{partition}"
    assert data.clients == ["client-1", "client-2", "client-3"]
    for name, shown in data.statistics["clients"].items():
        client = data.client(name)
        part = client.graph
        part._validate()
        assert part.name == f"Toy, {name}"
        assert torch.equal(part.x.to_dense(), whole.x.to_dense()[part.nodes])
        assert torch.equal(part.y, whole.y[part.nodes])
        split = torch.cat([client.train, client.val, client.test])
        assert sorted(split.tolist()) == list(range(part.num_nodes))
        assert [shown[key] for key in ("nodes", "train", "val", "test")] == [
            part.num_nodes, client.train.numel(), client.val.numel(), client.test.numel(),
        ]  # fmt: skip
        assert shown["edges"] == part.edge_index.size(1) // 2
        assert client.num_train_samples == client.train_labels.numel() == shown["train"]
        assert torch.bincount(client.train_labels, minlength=5).tolist() == shown["train_labels"]
        assert client.model_args == {"in_channels": 30, "num_classes": 5}
        assert client.global_graph is not None
        assert not set(client.global_graph.nodes.tolist()) & set(part.nodes.tolist())
    assert client.global_graph.num_nodes == data.statistics["global_test"]["nodes"] == 120


def test_any_graph_and_names() -> None:
    assert federation(name="mine").name == "mine"
    ones = federation(normalize=True).client("client-1").graph.x
    torch.testing.assert_close(ones.to_dense().sum(dim=1), torch.ones(ones.size(0)))


def test_settings_tell_data_apart() -> None:
    same, other = federation().client("client-1").settings, federation().client("client-1").settings
    assert same == other
    assert same["partition_seed"] == 123
    contents = {federation(**changes).client("client-1").settings["content"] for changes in (
        {}, {"partition_seed": 1}, {"dataset": graph(1)}, {"num_test": 21}, {"normalize": True},
    )}  # fmt: skip
    assert len(contents) == 5


# ------------------------------------------------------------------------------------------------------------- loaders
def test_loaders() -> None:
    client = federation().client("client-1")
    train = client.train_dataloader()
    assert train.num_visited == int(0.2 * client.graph.num_nodes + 0.5)
    assert (train.shuffle, train.batch_size, train.fanouts) == (True, 32, (3, 2))
    local, everywhere = client.test_dataloader()
    assert torch.equal(torch.cat([batch.y for batch in local]), client.graph.y[client.test])
    assert client.global_graph is not None
    assert torch.equal(torch.cat([batch.y for batch in everywhere]), client.global_graph.y)
    assert torch.equal(torch.cat([batch.y for batch in client.val_dataloader()]), client.graph.y[client.val])
    assert torch.equal(torch.cat([batch.y for batch in client.predict_dataloader()]), client.graph.y)
    mixup = torch.cat([batch.y for batch in client.mixup_dataloader()])
    assert torch.equal(mixup.sort().values, client.train_labels.sort().values)
    first, second = next(iter(local)), next(iter(client.test_dataloader()[0]))
    assert torch.equal(first.labels, second.labels)


def test_one_loader_without_a_global_graph() -> None:
    client = federation(global_fraction=0.0).client("client-1")
    assert client.global_graph is None
    assert len(client.test_dataloader()) == 1
    assert torch.equal(next(iter(client.test_dataloader())).y, client.graph.y[client.test])


def test_the_global_graph_is_moved_once() -> None:
    data = federation()
    one, two = (data.client(name).to("meta") for name in ("client-1", "client-2"))
    assert one.global_graph is two.global_graph
    assert one.global_graph is not None
    assert {one.graph.y.device.type, one.train.device.type, one.global_graph.y.device.type} == {"meta"}
    assert data.client("client-3").to("cpu").global_graph is not one.global_graph
    del data, one, two
    gc.collect()
    assert len(datamodule._copies) == 0


# ---------------------------------------------------------------------------------------------------------------- runs
def test_a_federation_runs(tmp_path: Path) -> None:
    trainer = FederatedTrainer(rounds=3, aggregator=FedAvg(), default_root_dir=tmp_path, accelerator="cpu")
    trainer.fit(Words(), federation(epoch_fraction=1.0, partition="dirichlet"))
    metrics = trainer.test()
    for client in ("client-1", "client-2", "client-3"):
        assert metrics[client]["test/accuracy"] > 0.4
        assert metrics[client]["global_test/accuracy"] > 0.4


@pytest.mark.parametrize(
    ("local", "everywhere", "expected"),
    [
        (True, True, {"val/accuracy", "test/accuracy", "global_test/accuracy"}),
        (True, False, {"val/accuracy", "test/accuracy"}),
        (False, True, {"val/accuracy", "global_test/accuracy"}),
        (False, False, {"val/accuracy"}),
    ],
)
def test_evaluation_is_deterministic(local: bool, everywhere: bool, expected: set[str]) -> None:
    own = federation().client("client-1")
    test = own.test if local else own.test[:0]
    data = NodeDataModule(own.graph, own.train, own.val, test, own.global_graph if everywhere else None)
    client = Client("client-1", Words(**data.model_args), data, Local(), trainer_args={"accelerator": "cpu"})
    client.fit(1)
    first = client.evaluate(("val", "test"))
    assert set(first) == expected
    assert client.evaluate(("val", "test")) == first


def test_predictions_name_the_nodes_of_the_whole_graph() -> None:
    whole, data = graph(), federation(num_train=10, num_query=5)
    for own in (data.client(name) for name in data.clients):
        rows = own.prediction_rows
        assert rows["node"] == own.graph.nodes.tolist()
        assert torch.equal(whole.y[rows["node"]], torch.cat([batch.labels[:, 0] for batch in own.predict_dataloader()]))
        for split, index in (("train", own.train), ("val", own.val), ("test", own.test), ("query", own.query)):
            chosen = {node for node, place in zip(rows["node"], rows["split"], strict=True) if place == split}
            assert chosen == set(own.graph.nodes[index].tolist())
            assert chosen
        assert "" in rows["split"]


# ------------------------------------------------------------------------------------------------- files and arguments
@pytest.mark.parametrize("file", ["cora", "citeseer", "dblp"])
def test_configs(file: str, data_root: Path) -> None:
    parser = ArgumentParser()
    parser.add_subclass_arguments(pl.LightningDataModule, "data")
    content = yaml.safe_load((CONFIGS / f"{file}.yaml").read_text())
    data = parser.instantiate(parser.parse_object(content)).data
    data.setup()
    assert data.name == f"{file}-label_skew"
    assert len(data.clients) == (10 if file == "dblp" else 5)
    assert {client["test"] for client in data.statistics["clients"].values()} == {300}
    assert all(0 < client["emd"] < 2 for client in data.statistics["clients"].values())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"partition": "random"},
            "`data.partition` to be one of label_skew, dirichlet, feature_skew, topology_skew, louvain, "
            "louvain_balanced, louvain_plus, metis, metis_plus, or a file .npz or .json but got 'random'.",
        ),
        (
            {"dataset": Data()},
            "`data.dataset` to be the name of a data set or a NodeGraph, for example NodeGraph.from_pyg(data), but got "
            "'Data'.",
        ),
        ({"batch_size": 0}, "`data.batch_size` to be a whole number of 1 or more but got 0."),
        ({"batch_size": 2.5}, "`data.batch_size` to be a whole number of 1 or more but got 2.5."),
        ({"eval_batch_size": 0}, "`data.eval_batch_size` to be a whole number of 1 or more but got 0."),
        ({"fanouts": 6}, "`data.fanouts` to be a list of neighbours per node, one number for each hop, but got 6."),
        ({"fanouts": []}, "`data.fanouts` to be a list of neighbours per node, one number for each hop, but got []."),
        ({"epoch_fraction": 0}, "`data.epoch_fraction` to be above 0 and at most 1 but got 0."),
        ({"fanouts": [6, 0]}, "`data.fanouts` to be whole numbers of 1 or more but got [6, 0]."),
    ],
)
def test_federation_refuses(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        NodeFederation(**{"dataset": "Cora", **changes})
    assert str(caught.value) == f"Expected {message}"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": torch.arange(0)}, "`data` to be at least one training node in `Toy` but got none."),
        ({"train": torch.tensor([400])}, "`train` to be nodes 0 to 399 of `Toy` but got [400]."),
        ({"val": torch.tensor([-1])}, "`val` to be nodes 0 to 399 of `Toy` but got [-1]."),
        ({"test": torch.zeros(400).bool()}, "`test` to be node numbers, int64 but got torch.bool."),
        ({"val": torch.zeros(1, 1).long()}, "`val` to be of shape [n] but got [1, 1]."),
    ],
)
def test_module_refuses(changes: dict[str, Any], message: str) -> None:
    index = {"train": torch.arange(3), "val": torch.arange(0), "test": torch.arange(0)}
    with pytest.raises(InputError) as caught:
        NodeDataModule(graph(), **index | changes)
    assert str(caught.value) == f"Expected {message}"


def test_a_global_graph_of_another_kind_is_refused() -> None:
    other = NodeGraph.from_pyg(Data(x=torch.rand(3, 2), edge_index=torch.zeros(2, 0).long(), y=torch.arange(3)))
    message = r"`global_graph` to be of as many features and classes as `Toy`, \[30, 5\], but got \[2, 3\]"
    with pytest.raises(InputError, match=message):
        NodeDataModule(graph(), torch.arange(3), torch.arange(0), torch.arange(0), other)


def test_sparse_features_are_never_made_dense() -> None:
    """Ten million columns: one dense copy would take 16 GB."""
    generator = torch.Generator().manual_seed(0)
    where = torch.stack([torch.arange(400).repeat(9), torch.randint(10**7, (3600,), generator=generator)])
    x = torch.sparse_coo_tensor(where, torch.ones(3600), (400, 10**7))
    wide = NodeGraph.from_pyg(Data(x=x, edge_index=graph().edge_index, y=graph().y), "wide")
    client = federation(dataset=wide, normalize=True).client("client-1")
    for loader in (client.train_dataloader(), *client.test_dataloader()):
        for batch in loader:
            assert batch.x.layout == torch.sparse_csr
            assert batch.x.shape == (int(batch.index.max()) + 1, 10**7)


def test_support_and_query_are_disjoint_training_nodes() -> None:
    edges = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 0, 3, 2, 5, 4]])
    graph = NodeGraph(torch.eye(6), edges, torch.tensor([0, 1, 0, 1, 0, 1]))
    data = NodeDataModule(graph, torch.arange(5), torch.tensor([5]), torch.tensor([5]))
    for asked, got in ((2, 2), (100, 2), (1, 1)):
        support, query = data.support_query(asked)
        centers = [batch.x[batch.index[:, 0]].argmax(1).tolist() for batch in (support, query)]
        assert [len(part) for part in centers] == [got, got]
        assert not set(centers[0]) & set(centers[1])
        assert set(centers[0]) | set(centers[1]) <= set(range(5))
    alone = NodeDataModule(graph, torch.tensor([3]), torch.tensor([5]), torch.tensor([5]))
    for draw in (lambda: alone.support_query(7), alone.mixup_dataloader):
        with pytest.raises(
            InputError, match=r"Expected `data` to be two training nodes or more in `graph`.* but got 1"
        ):
            draw()


def test_a_mean_over_one_node_is_refused() -> None:
    client = federation(batch_size=1).client("client-1")
    assert len(client.train_dataloader()) > 1
    with pytest.raises(InputError, match=r"`data.batch_size` to be 2 or more: a mean over one node is that node but"):
        client.mixup_dataloader()


def test_query_sets_of_nodes_that_are_kept_for_them() -> None:
    data = federation(num_train=6, num_query=3)
    for name in data.clients:
        client = data.client(name)
        assert not torch.isin(client.query, torch.cat([client.train, client.val, client.test])).any()
        for asked, got in ((2, [2, 2]), (100, [6, 3])):
            support, query = client.draw_support_query(asked)
            assert [support.numel(), query.numel()] == got
            assert torch.isin(support, client.train).all()
            assert torch.isin(query, client.query).all()
    plain = federation(num_train=6)
    assert plain.client("client-1").settings["content"] != data.client("client-1").settings["content"]
    one, edges = torch.tensor([0]), torch.tensor([[0, 1], [1, 0]])
    with pytest.raises(InputError, match=r"Expected `query` to be nodes 0 to 2 of `graph` but got \[3\]"):
        NodeDataModule(NodeGraph(torch.eye(3), edges, torch.tensor([0, 1, 0])), one, one, one, query=one + 3)


def test_the_partition_is_told_in_results_and_tensorboard(tmp_path: Path) -> None:
    data = federation()
    trainer = FederatedTrainer(
        Local(), rounds=1, default_root_dir=str(tmp_path), enable_progress_bar=False, accelerator="cpu"
    )
    trainer.fit(Words(), data)
    assert trainer.run_dir is not None
    told = json.loads((trainer.run_dir / "results.json").read_text())["partition"]
    assert told == data.statistics
    assert told["clients"].keys() == {"client-1", "client-2", "client-3"}
    events = EventAccumulator(str(trainer.run_dir))
    events.Reload()
    assert events.Tags()["images"] == ["partition/labels"]


def test_the_picture_shows_every_clients_shares_and_the_global_test() -> None:
    data = federation()
    axes = data.figures()["partition/labels"].get_axes()[0]
    widths: dict[int, float] = {}
    for bars in axes.containers:
        for place, bar in enumerate(bars):
            widths[place] = widths.get(place, 0.0) + bar.get_width()
    assert widths == {place: pytest.approx(1.0) for place in range(4)}
    first = data.statistics["clients"]["client-1"]
    assert axes.containers[2][0].get_width() == pytest.approx(first["train_labels"][2] / first["train"])
    everywhere = data.statistics["global_test"]
    assert axes.containers[2][3].get_width() == pytest.approx(everywhere["labels"][2] / everywhere["nodes"])
    told = [text.get_text() for text in axes.texts]
    assert f"{first['train']}, EMD {first['emd']:.2f}" in told
    assert told[-1] == str(everywhere["nodes"])
