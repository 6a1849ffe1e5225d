from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Data

import flgraph.callbacks.fclg as module
from flgraph import models
from flgraph.callbacks import FCLG, FedAvg, FedProx
from flgraph.data import FlatGraphs, NodeFederation, NodeGraph, PartitionedGraphFederation
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer
from flgraph.models import GNN

Federate = Callable[..., FederatedTrainer]


@pytest.fixture
def data(graph_list: Callable[..., list[Data]]) -> Callable[..., PartitionedGraphFederation]:
    def make(graphs: int = 30, clients: int = 2, **kwargs: Any) -> PartitionedGraphFederation:
        given = FlatGraphs.from_pyg(graph_list(graphs), "toy")
        return PartitionedGraphFederation(given, clients, **{"batch_size": 6, **kwargs})

    return make


def net(**kwargs: Any) -> models.FCLG:
    return models.FCLG(**{"hidden_channels": 5, "num_layers": 2, "lr": 0.01, **kwargs})


class Steps(pl.Callback):
    """Notes every step: a copy of the model before it, its gradients, its batch, and its epoch within the turn."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, dict[str, Tensor], Any, int]] = []
        self.begins: list[Any] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> Steps:
        return self

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.first = trainer.current_epoch

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self.begins.append(self._copy(pl_module))

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.before, self.batch = self._copy(pl_module), batch

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        gradients = {name: p.grad.detach().clone() for name, p in pl_module.named_parameters()}
        epoch = len(self.begins) - 1
        self.seen.append((self.before, gradients, self.batch, epoch))

    @staticmethod
    def _copy(pl_module: Any) -> Any:
        own = models.FCLG(**pl_module.hparams)
        own.load_state_dict(pl_module.state_dict())
        return own


def literal(inter: str, u: Tensor, s: Tensor, c: Tensor, temperature: float) -> Tensor:
    """Eq. 2, 3, 7 and 8, row by row."""
    total = torch.zeros(())
    for own, server, previous in zip(u, s, c, strict=True):
        if inter == "kl":
            p, q = (server / temperature).softmax(0), (own / temperature).softmax(0)
            total = total + (p * (p.log() - q.log())).sum()
        elif inter == "mse":
            total = total + (own - server).square().sum()
        else:
            near = (F.cosine_similarity(own, server, dim=0) / temperature).exp()
            far = (F.cosine_similarity(own, previous, dim=0) / temperature).exp()
            total = total + ((near + far) / near).log()
    return total / len(u)


@pytest.mark.parametrize("norm", ["none", "batch"])
@pytest.mark.parametrize(
    ("inter", "level"),
    [("contrast", "graph"), ("contrast", "node"), ("kl", "graph"), ("mse", "graph"), ("mse", "node")],
)
def test_gradients_are_those_of_algorithm_1(
    inter: Any, level: Any, norm: Any, data: Callable[..., Any], federate: Federate
) -> None:
    """Copies of the global model and of the one an epoch ago encode every batch, as the paper writes it."""
    steps = Steps()
    temperature = 0.4 if inter == "contrast" else 5.0
    aggregator = FCLG(inter, level, temperature=temperature, weight=0.7)
    federate(aggregator, rounds=2, local_epochs=3, callbacks=[steps], monitor="train/loss").fit(net(norm=norm), data())
    assert len(steps.begins) == 2 * 2 * 3
    assert len(steps.seen) == 2 * 2 * 3 * 3
    moved = 0
    for before, gradients, batch, epoch in steps.seen:
        first = epoch - epoch % 3
        server = steps.begins[first].eval()
        previous = steps.begins[max(first, epoch)].eval()  # at its beginning: the weights that the last epoch left
        before.train()
        loss, own = before.contrast(batch)
        with torch.no_grad():
            others = [model.encode(batch) for model in (server, previous)]
        part = 0 if level == "node" else 1
        extra = literal(inter, own[part], others[0][part], others[1][part], temperature)
        if inter == "contrast" and epoch == first:
            assert extra.item() == pytest.approx(math.log(2), abs=1e-5)
        (loss + 0.7 * extra).backward()
        for name, parameter in before.named_parameters():
            scale = float(gradients[name].abs().max()) + 1e-3
            torch.testing.assert_close(gradients[name] / scale, parameter.grad / scale, atol=2e-4, rtol=1e-3)
        moved += epoch != first
    assert moved


def fitted(federate: Federate, aggregator: Any, given: Any, model: Any, **kwargs: Any) -> list[dict[str, Any]]:
    trainer: Any = federate(aggregator, rounds=2, enable_checkpointing=False, monitor="train/loss", **kwargs)
    trainer.fit(model, given)
    states = [client.state() for client in trainer.engine.clients.values()]
    return [{key: state[key] for key in ("state_dict", "optimizer_states")} for state in states]


def test_intra_fedavg_is_fedavg(data: Callable[..., Any], federate: Federate, assert_same: Callable[..., None]) -> None:
    """Bit for bit; so is FCLG with one local epoch, whose second contrast is then a constant."""
    results = [
        fitted(federate, aggregator, data(), net(), local_epochs=epochs)
        for aggregator, epochs in ((FedAvg(), 2), (FCLG(inter="none"), 2), (FCLG(weight=0.0), 2))
    ]
    assert_same(results[0], results[1])
    torch.testing.assert_close(results[0][0]["state_dict"], results[2][0]["state_dict"])
    single = [fitted(federate, aggregator, data(), net(), local_epochs=1) for aggregator in (FedAvg(), FCLG())]
    assert_same(single[0], single[1])


def test_one_local_epoch_is_said_once(
    data: Callable[..., Any], federate: Federate, monkeypatch: pytest.MonkeyPatch
) -> None:
    module._warn_once.cache_clear()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        fitted(federate, FCLG(), data(), net(), local_epochs=1)
        fitted(federate, FCLG(inter="kl"), data(), net(), local_epochs=1)
    ours = [str(warning.message) for warning in told if "FCLG" in str(warning.message)]
    assert len(ours) == 1
    assert "has no effect with 1 local epoch" in ours[0]


def test_the_global_model_is_tested_on_all_graphs(data: Callable[..., Any], federate: Federate) -> None:
    """By one client, since all have the same model; by all if wanted. Losses and their parts are told."""
    results = federate(FCLG(), rounds=2, local_epochs=2, monitor="train/loss").fit(net(), data())
    clients = results["final"]["clients"]
    assert "global_test/accuracy" in clients["client-1"]
    assert "global_test/accuracy" not in clients["client-2"]
    assert not any(name.startswith("test/") for name in results["final"]["mean"])
    told = clients["client-2"]
    assert told["train/loss"] == pytest.approx(told["train/intra"] + told["train/inter"], rel=1e-5)
    given = data(global_test="all", fractions=(0.6, 0.2, 0.2))
    everywhere = federate(FCLG(), rounds=1, local_epochs=2, monitor="val/loss").fit(net(), given)["final"]["clients"]
    names = [name for name in everywhere["client-1"] if name.startswith("global_test/")]
    assert len(names) == 5
    assert all(everywhere["client-1"][name] == everywhere["client-2"][name] for name in names)
    assert {"val/loss", "test/accuracy"} <= set(everywhere["client-2"])


def test_predictions_are_the_global_models_embeddings(data: Callable[..., Any], federate: Federate) -> None:
    given = data()
    trainer: Any = federate(FCLG(), rounds=1, local_epochs=2, monitor="train/loss")
    trainer.fit(net(), given)
    one = trainer.engine.clients["client-1"].module.eval()
    for name, parts in trainer.predict().items():
        expected = one(given.client(name).graphs.batch())
        torch.testing.assert_close(torch.cat(parts), expected)


def test_models_are_left_as_they_were(data: Callable[..., Any], federate: Federate) -> None:
    trainer: Any = federate(FCLG(level="node"), rounds=1, local_epochs=2, monitor="train/loss")
    trainer.fit(net(), data())
    for client in trainer.engine.clients.values():
        assert client.module.further_loss is None
        copy.deepcopy(client.aggregator)
        assert client.aggregator._global is None


def test_what_leaves_a_client(data: Callable[..., Any], federate: Federate, recorder: Any) -> None:
    """Weights and the number of graphs: no embedding, no label."""
    federate(FCLG(), rounds=2, local_epochs=2, engine=recorder, monitor="train/loss").fit(net(), data())
    for _, upload in recorder.uploads():
        assert all(name.startswith("encoder.") for name in upload.tensors)
        assert set(upload.scalars) == {"num_samples"}


def test_few_and_odd_graphs(graph_list: Callable[..., list[Data]], federate: Federate) -> None:
    """Fewer graphs than clients times classes, a graph without edges, one in two parts, one of a single node."""
    given = graph_list(8)
    for number, graph in enumerate(given):
        graph.y = torch.tensor([number % 5])
    given[0].edge_index = torch.zeros(2, 0, dtype=torch.long)
    given[1].edge_index = torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]])
    given[2] = Data(x=torch.ones(1, 4), edge_index=torch.zeros(2, 0, dtype=torch.long), y=torch.tensor([2]))
    data = PartitionedGraphFederation(FlatGraphs.from_pyg(given, "odd"), 3, batch_size=2)
    for level in ("graph", "node"):
        aggregator = FCLG(level=level)  # type: ignore[arg-type]
        trainer: Any = federate(aggregator, rounds=2, local_epochs=2, monitor="train/loss")
        results = trainer.fit(net(), data)
        assert all(math.isfinite(value) for value in results["final"]["mean"].values())
    assert [client["graphs"] for client in data.statistics["clients"].values()] in ([3, 3, 2], [3, 2, 3], [2, 3, 3])


def test_goes_on_with_the_same_bits(
    data: Callable[..., Any], federate: Federate, assert_same: Callable[..., None]
) -> None:
    """What is compared is made anew in every turn, so nothing of it has to be kept; models for the read-out are."""
    states, final = [], []
    for stops in ((3,), (1, 3)):
        for number, rounds in enumerate(stops):
            trainer: Any = federate(
                FCLG(), rounds=rounds, local_epochs=2, monitor="train/loss", name=f"run{len(stops)}"
            )
            results = trainer.fit(net(norm="batch", readout=3), data(), ckpt_path="last" if number else None)
        final.append(results["final"]["mean"])
        states.append([client.state()["state_dict"] for client in trainer.engine.clients.values()])
    assert_same(*states)
    assert final[0] == final[1]
    assert 0 < final[0]["global_test/readout_accuracy"] != final[0]["global_test/size_accuracy"]


def test_names() -> None:
    variants = [FCLG(), FCLG(level="node"), FCLG("none"), FCLG("kl"), FCLG("mse")]
    assert [v.name for v in variants] == ["fclg", "fclg-h", "intra-fedavg", "intra-kl", "intra-mse"]


def test_fits_fedprox_too(data: Callable[..., Any], federate: Federate) -> None:
    assert fitted(federate, FedProx(mu=0.1), data(), net(), local_epochs=1)


def test_refusals(graph_federation: Callable[..., Any], data: Callable[..., Any], federate: Federate) -> None:
    for wrong, field in (({"inter": "l2"}, "inter"), ({"level": "edge"}, "level"), ({"temperature": 0.0}, "temp")):
        with pytest.raises(InputError, match=f"Expected `aggregator.{field}"):
            FCLG(**wrong)  # type: ignore[arg-type]
    with pytest.raises(Exception, match="Expected `model` to be a GraphEmbedding"):
        federate(FCLG(), rounds=1, local_epochs=2).fit(GNN(hidden_channels=4), graph_federation())
    with pytest.raises(InputError, match="Expected `num_clients` to be between 1 and 15"):
        data(clients=16).setup()
    with pytest.raises(InputError, match=r"`data\.batch_size` to be 2 or more"):
        data(batch_size=1).setup()


def test_nodes_are_no_graphs(federate: Callable[..., FederatedTrainer]) -> None:
    edges = torch.tensor([range(40), [*range(1, 40), 0]])
    graph = NodeGraph.from_pyg(Data(x=torch.eye(40), edge_index=edges, y=torch.arange(40) % 2))
    nodes = NodeFederation(graph, num_clients=2, partition="dirichlet")
    with pytest.raises(InputError, match=r"Expected `data` to be one whose batches are graphs, such as .*'batches of"):
        federate(FCLG(), rounds=1, local_epochs=2).fit(net(), nodes)
