from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

from flgraph.callbacks import FedEgo, GraphFL, Local
from flgraph.callbacks.fedego import _MashedLoader
from flgraph.data import NodeDataModule, NodeFederation
from flgraph.data.nodes.container import NodeGraph
from flgraph.errors import InputError
from flgraph.federation import Aggregator, FederatedTrainer, Payload
from flgraph.federation.client import Client
from flgraph.federation.payload import pack, unpack
from flgraph.federation.server_model import ServerModel, relative_distance
from flgraph.models import EgoHead, MashedEgoGraphs
from flgraph.models import FedEgo as FedEgoNet
from flgraph.reproduce.fedego.published import PublishedFedEgo

FANOUTS = (2, 2)
Federate = Callable[..., FederatedTrainer]
Make = Callable[..., Any]


class Bare:
    """Data without what FedEgo needs besides."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __getattr__(self, name: str) -> Any:
        if name == "mixup_dataloader":
            raise AttributeError(name)
        return getattr(self.data, name)


def net(**kwargs: Any) -> FedEgoNet:
    return FedEgoNet(**{"hidden_channels": 4, "dropout": 0.0, "lr": 0.05, **kwargs})


def weights(trainer: Any, client: str, part: str) -> dict[str, Tensor]:
    state = trainer.engine.clients[client].module.state_dict()
    return {name: tensor.clone() for name, tensor in state.items() if name.startswith(part)}


def test_a_round_by_hand(federate: Federate, ego_federation: Make, recorder: Any) -> None:
    """Mean of the reductions, mixing by Eq. 13 to 15, and what crossed."""
    before: dict[str, dict[str, Tensor]] = {}

    class Spy(FedEgo):
        def install(self, client: Any, download: Payload) -> None:
            if "labels/global" in download.tensors:
                before[client.name] = {n: t.clone() for n, t in client.module.state_dict().items()}
            super().install(client, download)

    trainer: Any = federate(Spy(gamma=0.5), rounds=1, engine=recorder, local_epochs=2)
    results = trainer.fit(net(), ego_federation())
    uploads = dict(recorder.uploads())
    for client, upload in uploads.items():
        names = {name for name in upload.tensors if not name.startswith("reduction.")}
        assert names == {"ego_graphs/embedding", "ego_graphs/label"}
        assert upload.tensors["ego_graphs/embedding"].shape == (3, 7, 4)  # 12 training nodes in batches of 4
        assert upload.tensors["ego_graphs/label"].shape == (3, 7, 3)
        torch.testing.assert_close(upload.tensors["ego_graphs/label"].sum(-1), torch.ones(3, 7))
        assert upload.scalars.keys() == {"num_classes", "fanouts"}
        assert client in before
    for name in weights(trainer, "A", "reduction."):
        mean = torch.stack([upload.tensors[name] for upload in uploads.values()]).mean(0)
        for client in "ABC":
            torch.testing.assert_close(weights(trainer, client, "reduction.")[name], mean)
    shared_labels = torch.cat([upload.tensors["ego_graphs/label"] for upload in uploads.values()]).mean((0, 1))
    received = trainer.server.aggregator.download("A", 1, None).tensors
    torch.testing.assert_close(received["labels/global"], shared_labels)
    for client, data in ego_federation().given.items():
        own = torch.bincount(data.train_labels, minlength=3) / 12
        emd = float((own - shared_labels).abs().sum())
        coefficient = math.sqrt(emd / 2)
        metrics = results["final"]["clients"][client]
        assert metrics["mixing/emd"] == pytest.approx(emd, rel=1e-5)
        assert metrics["mixing/lambda"] == pytest.approx(coefficient, rel=1e-5)
        after = weights(trainer, client, "personalization.")
        globally = {name: received[f"global/{name}"] for name in after}
        for name, tensor in after.items():
            expected = coefficient * globally[name] + (1 - coefficient) * before[client][name]
            torch.testing.assert_close(tensor, expected)
        gap = torch.cat([(after[n] - globally[n]).flatten() for n in after]).norm()
        length = torch.cat([globally[n].flatten() for n in after]).norm()
        assert metrics["mixing/divergence"] == pytest.approx(float(gap / length), rel=1e-4)
        assert {"test/accuracy", "global_test/accuracy", "val/accuracy"} <= metrics.keys()


def test_what_is_sent_stands_for_whole_batches_and_tells_the_classes(
    federate: Federate, ego_federation: Make, recorder: Any
) -> None:
    """No mashed ego-graph is of fewer nodes than a batch. Their labels sum up to the client's, as the docs say."""
    data = ego_federation(nodes=14)
    for name, given in data.given.items():
        module = NodeDataModule(given.graph, given.train, given.train, given.train, batch_size=4, fanouts=FANOUTS)
        data.given[name] = module  # type: ignore[assignment]
        assert [batch.y.numel() for batch in module.mixup_dataloader()] == [5, 5, 4]
    federate(FedEgo(), rounds=1, engine=recorder).fit(net(), data)
    for client, upload in recorder.uploads():
        assert upload.scalars.keys() == {"num_classes", "fanouts"}
        centers = upload.tensors["ego_graphs/label"][:, 0]
        sizes = torch.tensor([[5.0], [5.0], [4.0]])
        counts = torch.bincount(data.given[client].train_labels, minlength=3)
        torch.testing.assert_close((centers * sizes).sum(0), counts.float())


@pytest.mark.parametrize(
    ("make", "none"),
    [(FedEgo, True), (partial(PublishedFedEgo, soft_labels="training"), True), (PublishedFedEgo, False)],
)
def test_held_back_classes_have_no_influence_unless_wanted(
    federate: Federate, ego_federation: Make, recorder: Any, make: Callable[[], FedEgo], none: bool
) -> None:
    """As the published code has it, they are in the server's label distribution."""
    received = []
    for held_back in (0, 1):
        data = ego_federation(nodes=14)
        for name, given in data.given.items():
            train, rest = torch.arange(8), torch.arange(8, 14)
            y = given.graph.y.clone()
            y[rest] = held_back
            graph = NodeGraph(given.graph.x, given.graph.edge_index, y, 3)
            module = NodeDataModule(graph, train, rest[:3], rest[3:], batch_size=4, fanouts=FANOUTS)
            data.given[name] = module  # type: ignore[assignment]
        trainer: Any = federate(make(), rounds=2, engine=recorder)
        trainer.fit(net(), data)
        received.append(trainer.server.aggregator.download("A", 1, None).tensors)
    assert all(torch.equal(received[0][name], received[1][name]) for name in received[0]) == none
    assert float(received[0]["labels/global"].sum()) == pytest.approx(1)


def test_evaluation_has_no_influence_on_those_who_sit_out(
    federate: Federate, ego_federation: Make, assert_same: Callable[..., None]
) -> None:
    states = []
    for every in (1, 4):
        trainer: Any = federate(FedEgo(), rounds=4, client_fraction=0.34, evaluate_every=every)
        trainer.fit(net(), ego_federation())
        states.append([trainer.engine.clients[client].module.state_dict() for client in "ABC"])
    assert_same(*states)


@pytest.mark.parametrize("mixing", [0.0, 1.0])
def test_fixed_mixing_is_its_two_ablations(federate: Federate, ego_federation: Make, mixing: float) -> None:
    """With 0 the personalization is the client's own; with 1 it is the server's."""
    trainer: Any = federate(FedEgo(mixing=mixing), rounds=2)
    trainer.fit(net(), ego_federation())
    received = trainer.server.aggregator.download("A", 2, None).tensors
    for client in "ABC":
        own = weights(trainer, client, "personalization.")
        same = all(torch.equal(tensor, received[f"global/{name}"]) for name, tensor in own.items())
        assert same == (mixing == 1)


def test_without_any_exchange_it_is_local_training(
    ego_federation: Make, assert_equal_runs: Callable[..., None]
) -> None:
    """ "w/o RL" and "w/o PL" together leave nothing but the ego-graphs that go up."""
    nothing = FedEgo(mixing=0.0, average_reduction=False)
    assert_equal_runs(nothing, Local(), net, ego_federation, ("state_dict",), rounds=2)


def test_without_reduction_layers_they_stay(federate: Federate, ego_federation: Make, recorder: Any) -> None:
    trainer: Any = federate(FedEgo(average_reduction=False), rounds=1, engine=recorder)
    trainer.fit(net(), ego_federation())
    assert all(
        upload.tensors.keys() == {"ego_graphs/embedding", "ego_graphs/label"} for _, upload in recorder.uploads()
    )


def test_without_mixup_the_first_ego_graph_of_a_batch_is_sent(
    federate: Federate, ego_federation: Make, recorder: Any
) -> None:
    trainer = federate(FedEgo(mixup=False), rounds=1, engine=recorder)
    trainer.fit(net(), ego_federation())
    for _, upload in recorder.uploads():
        label = upload.tensors["ego_graphs/label"]
        assert torch.equal(label.max(-1).values, torch.ones(3, 7))


def test_without_ego_graphs_centers_are_sent(federate: Federate, ego_federation: Make, recorder: Any) -> None:
    trainer = federate(FedEgo(), rounds=1, engine=recorder)
    trainer.fit(net(ego=False), ego_federation())
    assert all(upload.tensors["ego_graphs/embedding"].shape == (3, 1, 4) for _, upload in recorder.uploads())


def test_noise_is_added_to_what_is_sent(federate: Federate, ego_federation: Make) -> None:
    sent = []
    for noise in (0.0, 3.0):
        trainer: Any = federate(FedEgo(noise=noise), rounds=1)
        trainer.fit(net(), ego_federation(nodes=40))
        aggregator = copy.deepcopy(trainer.engine.clients["A"].aggregator)
        client = trainer.engine.clients["A"]
        torch.manual_seed(0)
        sent.append(aggregator.upload(client, 1, "train").tensors["ego_graphs/embedding"])
    assert float((sent[1] - sent[0]).std()) == pytest.approx(3.0, rel=0.5)


@pytest.mark.parametrize(("settings", "batches"), [({}, [1, 1]), ({"server_batch_size": 2}, [2, 2])])
def test_the_server_s_settings_are_used(
    settings: dict[str, int], batches: list[int], federate: Federate, ego_federation: Make
) -> None:
    """Of 9 mashed ego-graphs, an epoch at the server visits four ninths in batches."""
    passes: list[list[int]] = []

    class Count(EgoHead):
        def on_train_epoch_start(self) -> None:
            passes.append([])

        def on_train_batch_start(self, batch: MashedEgoGraphs, batch_idx: int) -> None:
            passes[-1].append(batch.label.size(0))

    class Counting(FedEgo):
        def _make_model(self) -> ServerModel:
            return ServerModel(Count(4, self._classes), self.seed, {"accelerator": "cpu"})

    federate(Counting(server_epochs=2, server_fraction=4 / 9, **settings), rounds=1).fit(
        net(), ego_federation(nodes=12)
    )
    assert [len(sizes) for sizes in passes] == batches
    assert all(sum(sizes) == 4 for sizes in passes)


@pytest.mark.parametrize(
    "settings",
    [{}, {"average_reduction": False, "server_lr": 0.1}],
    ids=["whole", "ablation"],
)
def test_resumed_equals_uninterrupted(
    settings: dict[str, Any], federate: Federate, ego_federation: Make, assert_same: Callable[..., None], tmp_path: Any
) -> None:
    """The server's model and its Adam included."""

    def run(folder: str, rounds: int, ckpt: str | None = None) -> Any:
        trainer: Any = federate(
            FedEgo(**settings), rounds=rounds, default_root_dir=str(tmp_path / folder), client_fraction=0.7
        )
        trainer.fit(net(dropout=0.5), ego_federation(), ckpt_path=ckpt)
        return trainer

    whole = run("whole", 4)
    run("cut", 2)
    resumed = run("cut", 4, "last")
    for client in "ABC":
        assert_same(resumed.engine.clients[client].state(), whole.engine.clients[client].state())
    assert resumed.server.state({}) == whole.server.state({})
    assert resumed.history.last == whole.history.last


def test_the_servers_model_learns_and_its_loss_is_logged(federate: Federate, ego_federation: Make) -> None:
    trainer: Any = federate(FedEgo(server_fraction=1.0, server_lr=0.05), rounds=12)
    trainer.fit(net(), ego_federation())
    lines = [json.loads(line) for line in (trainer.run_dir / "history.jsonl").read_text().splitlines()]
    losses = [line["server"]["server_loss"] for line in lines]
    assert losses[-1] < losses[0]


def test_server_model_goes_on_where_another_stopped() -> None:
    torch.manual_seed(0)
    embedding, label = torch.randn(8, 7, 4), torch.rand(8, 7, 3).softmax(-1)
    batches = _MashedLoader(MashedEgoGraphs(embedding, label, FANOUTS), 4, 1.0)

    def fresh() -> ServerModel:
        torch.manual_seed(1)
        return ServerModel(EgoHead(4, 3), 5, {"accelerator": "cpu"})

    one, other = fresh(), fresh()
    one.fit(batches, 2, round=1)
    other.load_state(unpack(Payload.from_bytes(pack(one.state()).to_bytes())))
    one.fit(batches, 3, round=2)
    other.fit(batches, 3, round=2)
    assert pack(one.state()).to_bytes() == pack(other.state()).to_bytes()
    assert one.trainer.current_epoch == 5


def test_relative_distance() -> None:
    one, other = {"a": torch.tensor([4.0, 2.0])}, {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([2.0])}
    assert relative_distance({**one, "b": torch.tensor([6.0])}, other) == pytest.approx(5 / 3)
    assert math.isnan(relative_distance(other, {"a": torch.zeros(2)}))


def test_bad_settings(federate: Federate, ego_federation: Make) -> None:
    for settings, sentence in (
        ({"gamma": -1.0}, "`aggregator.gamma` to be a finite number, 0 or more but got -1"),
        ({"gamma": math.inf}, "`aggregator.gamma` to be a finite number, 0 or more but got inf"),
        ({"mixing": 1.5}, "`aggregator.mixing` to be from 0 to 1, or null for adaptive but got 1.5"),
        ({"noise": -1.0}, "`aggregator.noise` to be a finite number, 0 or more"),
        ({"noise": math.inf}, "`aggregator.noise` to be a finite number, 0 or more"),
        ({"server_epochs": 0}, "`aggregator.server_epochs` to be 1 or more"),
        ({"server_fraction": 0.0}, "`aggregator.server_fraction` to be above 0 and at most 1"),
        ({"server_lr": 0.0}, "`aggregator.server_lr` to be a finite number above 0"),
    ):
        with pytest.raises(InputError, match=sentence):
            FedEgo(**settings)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"`aggregator\.server_accelerator` to be one .* but got 'nonsense'"):
        federate(FedEgo(server_accelerator="nonsense"), rounds=1).fit(net(), ego_federation())
    bare = ego_federation()
    bare.given["A"] = Bare(bare.given["A"])
    with pytest.raises(InputError, match="`data` to be data with `mixup_dataloader` and `train_labels` in client `A`"):
        federate(FedEgo(), rounds=1).fit(net(), bare)
    data = ego_federation()
    data.given["B"].graph.num_classes = 4
    with pytest.raises(InputError, match="`num_classes` of client `B` to be 3, as of most clients"):
        federate(FedEgo(), rounds=1).fit(net(), data)


@pytest.mark.parametrize("precision", ["64-true", "bf16-true"])
@pytest.mark.parametrize("method", [FedEgo(), GraphFL()])
def test_precision_holds_outside_of_lightning_s_loops_too(
    method: Aggregator, precision: str, federate: Callable[..., FederatedTrainer]
) -> None:
    """Dense features, which are multiplied as they are; the first exchange of a run included."""
    random = torch.Generator().manual_seed(0)
    x, edges = torch.randn(60, 4, generator=random), torch.randint(0, 60, (2, 400), generator=random)
    graph = NodeGraph.from_pyg(Data(x=x, edge_index=edges, y=torch.arange(60) % 2))
    data = NodeFederation(graph, num_clients=2, partition="dirichlet", fanouts=(2, 2), batch_size=4)
    trainer: Any = federate(method, rounds=2, precision=precision)
    trainer.fit(FedEgoNet(hidden_channels=4), data)
    for client in trainer.engine.clients.values():
        wanted = torch.float64 if precision == "64-true" else torch.bfloat16
        assert {parameter.dtype for parameter in client.module.parameters()} == {wanted}


def test_data_that_cannot_be_mashed_is_refused_before_training(
    federate: Federate, ego_federation: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = ego_federation()
    own = data.given["A"]
    data.given["A"] = NodeDataModule(own.graph, own.train[:1], own.train[1:2], own.train[2:3], fanouts=FANOUTS)
    monkeypatch.setattr(Client, "fit", lambda *_: pytest.fail("trained"))
    with pytest.raises(InputError, match="training node"):
        federate(FedEgo(), rounds=1).fit(net(), data)
