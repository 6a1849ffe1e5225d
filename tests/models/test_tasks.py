"""Several labels, and numbers: losses and metrics against scikit-learn, and federations of graphs and of nodes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as reference
from torch.nn import functional as F
from torch_geometric.data import Data

from flgraph.callbacks import (
    FGGP,
    BadClients,
    EarlyStopping,
    FedAvg,
    FedGTA,
    FedProto,
    FedStar,
    FedTAD,
    FedThin,
    PredictedLabels,
)
from flgraph.data import FlatGraphs, GraphFederation, NodeFederation, NodeGraph, WholeGraphFederation
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer
from flgraph.models import GNN, AdaFGL, InfoGraph, NodeGCN, NodeSAGE
from flgraph.models import FedStar as FedStarModel
from flgraph.models.metrics import METRICS, task_metrics
from flgraph.nn.tasks import Task, task_loss
from flgraph.runs.history import read_records
from flgraph.testing import check_algorithm

NAN = float("nan")
LEARNED = [("multilabel", "accuracy"), ("regression", "rmse")]


def drawn(task: str, rows: int = 40, columns: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs and targets, a fifth of which are not known."""
    generator = torch.Generator().manual_seed(rows)
    target = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    outputs = target + torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    target = (target > 0).double() if task == "multilabel" else 100 + target
    target[torch.rand(rows, columns, generator=generator) < 0.2] = NAN
    return outputs + (0 if task == "multilabel" else 100), target


@pytest.mark.parametrize("weights", [None, [0.5, 3.0, 1.0]])
@pytest.mark.parametrize("task", ["multilabel", "regression"])
def test_losses_of_what_is_known(task: str, weights: Any) -> None:
    outputs, target = drawn(task)
    outputs.requires_grad_()
    known = ~target.isnan()
    if task == "multilabel":
        p, y, share = outputs.sigmoid()[known], target[known], torch.tensor(weights or [1.0] * 3).expand(40, 3)[known]
        expected = -(share * y * p.log() + (1 - y) * (1 - p).log()).mean()
    else:
        weights = None
        expected = torch.tensor(reference.mean_squared_error(target[known], outputs.detach()[known]))
    loss = task_loss(task, outputs, target, None if weights is None else torch.tensor(weights))
    torch.testing.assert_close(loss, expected, check_dtype=False)
    (gradient,) = torch.autograd.grad(loss, outputs)
    assert torch.equal(gradient != 0, known)
    nothing = task_loss(task, outputs, torch.full_like(target, NAN))
    assert float(nothing.detach()) == 0 == float(torch.autograd.grad(nothing, outputs)[0].abs().sum())


@pytest.mark.parametrize("task", ["multilabel", "regression"])
def test_metrics_equal_to_scikit_learn(task: Task) -> None:
    outputs, target = drawn(task)
    known = ~target.isnan()
    columns = [(outputs[own, c].numpy(), target[own, c].numpy()) for c, own in enumerate(known.t())]

    def mean(metric: Callable[..., float], of: Any = lambda scores: scores, **how: Any) -> float:
        return float(np.mean([metric(truth, of(scores), **how) for scores, truth in columns]))

    def predicted(scores: Any) -> Any:
        return scores > 0

    right = (outputs > 0) == (target == 1)
    rows = known.any(dim=1)
    if task == "multilabel":
        expected = {
            "accuracy": float(right[known].double().mean()),
            "exact_match": float((right | ~known).all(dim=1)[rows].double().mean()),
            "f1": mean(reference.f1_score, predicted),
            "precision": mean(reference.precision_score, predicted),
            "recall": mean(reference.recall_score, predicted),
            "specificity": mean(reference.recall_score, predicted, pos_label=0),
            "auroc": mean(reference.roc_auc_score),
            "average_precision": mean(reference.average_precision_score),
        }
    else:
        expected = {
            "rmse": mean(reference.root_mean_squared_error),
            "mae": mean(reference.mean_absolute_error),
            "mse": mean(reference.mean_squared_error),
            "r2": mean(reference.r2_score),
        }
    found = task_metrics(task, METRICS[task], outputs.float(), target.float())
    assert {name: float(value) for name, value in found.items()} == pytest.approx(expected, rel=1e-4)


def test_metrics_without_meaning_are_left_out() -> None:
    ones = torch.ones(4, 2)
    assert "auroc" not in task_metrics("multilabel", METRICS["multilabel"], torch.randn(4, 2), ones)
    assert list(task_metrics("regression", METRICS["regression"], torch.randn(4, 2), ones)) == ["rmse", "mae", "mse"]
    assert task_metrics("regression", ["rmse"], ones, ones * NAN) == {}


# --------------------------------------------------------------------------------------------------------- federations
def graphs(task: str, count: int = 20, seed: int = 0) -> list[Data]:
    """Rings of 3 to 8 nodes; what is learned is their size, or two facts about it, some of them not known."""
    found, generator = [], torch.Generator().manual_seed(seed)
    for number in range(count):
        size = 3 + number % 6
        ring = torch.arange(size)
        edges = torch.stack([ring, (ring + 1) % size])
        y = torch.tensor([size / 8]) if task == "regression" else torch.tensor([float(size > 5), float(size % 2)])
        if number % 7 == 6:
            y[0] = NAN
        x = torch.rand(size, 4, generator=generator)
        found.append(Data(x=x, edge_index=torch.cat([edges, edges.flip(0)], dim=1), y=y))
    return found


def rings(task: Task = "regression", **kwargs: Any) -> GraphFederation:
    given = {name: graphs(task, seed=seed) for seed, name in enumerate("AB")}
    return GraphFederation(given, task=task, batch_size=8, dse_dim=3, rwse_dim=3, **kwargs)


def network(task: Task = "regression", targets: int = 2) -> NodeGraph:
    """A ring of rings, whose nodes have the numbers of features; or whether these are large."""
    n, generator = 60, torch.Generator().manual_seed(1)
    ring = torch.arange(n)
    across = torch.stack([ring, (ring + 6) % n])
    x = torch.rand(n, 4, generator=generator)
    y = x[:, :targets] if task == "regression" else (x[:, :targets] > 0.5).float()
    edge_index = torch.cat([torch.stack([ring, (ring + 1) % n]), across], dim=1)
    return NodeGraph.from_pyg(Data(x=x, edge_index=edge_index, y=y), "ring", task=task)


def whole(task: Task = "regression", **kwargs: Any) -> WholeGraphFederation:
    return WholeGraphFederation(network(task), num_clients=2, partition="louvain", epoch_fraction=1.0, **kwargs)


@pytest.mark.parametrize(("task", "metric"), LEARNED)
@pytest.mark.parametrize("data", [rings, whole])
def test_federations(
    task: Task, metric: str, data: Callable[[Task], Any], federate: Callable[..., FederatedTrainer]
) -> None:
    """The metrics are the task's, and clients go back to the round that is best by one of them."""
    model = GNN(hidden_channels=8, dropout=0.0, lr=0.01) if data is rings else NodeSAGE(hidden_channels=8, lr=0.02)
    trainer = federate(FedAvg(), rounds=4, callbacks=[EarlyStopping(patience=4)])
    results = trainer.fit(model, data(task))
    assert trainer.run_dir is not None
    values = [record["mean"][f"val/{metric}"] for record in read_records(trainer.run_dir / "history.jsonl")]
    best = (min if task == "regression" else max)(values)
    assert results["final"]["mean"][f"val/{metric}"] == best == trainer.history.best["mean"][f"val/{metric}"]
    names = {name.rpartition("/")[2] for name in results["final"]["mean"] if name.startswith("test/")}
    assert names == {"loss", *(("rmse", "mae") if task == "regression" else ("accuracy", "f1"))}
    assert all(math.isfinite(value) for value in results["final"]["mean"].values())


def test_predictions_and_metrics_are_the_models_own(federate: Callable[..., FederatedTrainer]) -> None:
    """Recomputed from the predictions of each client with NumPy."""
    data = whole("regression", global_fraction=0.0)
    trainer = federate(FedAvg(), rounds=1, monitor="val/mae", precision=64)
    model = NodeGCN(hidden_channels=4, metrics=["rmse", "mae", "r2"])
    results = trainer.fit(model, data)
    for name, predictions in trainer.predictions():
        client = data.client(name)
        values = torch.cat(predictions.batches)[client.test].numpy()
        truth = client.graph.y[client.test].double().numpy()
        own = results["final"]["clients"][name]
        assert own["test/mae"] == pytest.approx(reference.mean_absolute_error(truth, values), rel=1e-5)
        assert own["test/r2"] == pytest.approx(reference.r2_score(truth, values), rel=1e-5)
        assert own["test/samples"] == len(client.test)
    assert data.statistics["clients"]["client-1"].keys() == {"nodes", "edges", "edges_cut", "train", "val", "test"}
    assert data.figures() == {}


def test_runs_go_on_with_the_same_bits() -> None:
    check_algorithm(lambda: (FedStar(), FedStarModel(hidden_channels=4, num_layers=2), rings()), monitor="val/rmse")


def test_trains_alone() -> None:
    """A module is a module: no federation, and the labels of PyG's own batches."""
    from torch_geometric.loader import DataLoader

    batch = next(
        iter(DataLoader([Data(**{**one.to_dict(), "y": one.y.view(1, -1)}) for one in graphs("multilabel")], 8))
    )
    model = GNN(4, 2, task="multilabel", hidden_channels=4, dropout=0.0)
    known = ~batch.y.isnan()
    expected = F.binary_cross_entropy(model(batch).sigmoid()[known], batch.y[known])
    torch.testing.assert_close(model.training_step(batch), expected)
    torch.testing.assert_close(model.predict_step(batch), model(batch).sigmoid())


def test_clients_weigh_what_they_know() -> None:
    """Nodes without a number are neighbours only."""
    graph = network()
    graph.y = graph.y.clone()
    graph.y[::2] = NAN
    data = WholeGraphFederation(graph, num_clients=2, partition="louvain", global_fraction=0)
    data.setup()
    for name in data.clients:
        client = data.client(name)
        for index in (client.train, client.val, client.test):
            assert not client.graph.y[index].isnan().any()
        assert client.num_train_samples == client.train.numel() < client.graph.num_nodes / 2


def test_what_is_not_known_does_not_count_in_losses() -> None:
    """Whatever the batches are; where nothing is known there is no loss."""
    generator = torch.Generator().manual_seed(0)
    outputs, targets = torch.rand(7, 1, generator=generator), torch.rand(7, 1, generator=generator)
    targets[[0, 1, 5]] = NAN
    model = GNN(4, 1, task="regression", hidden_channels=4)
    for sizes in ([7], [3, 4], [1] * 7):
        batches = zip(outputs.split(sizes), targets.split(sizes), strict=True)
        parts = [(task_loss("regression", own, y), own, y) for own, y in batches]
        expected = (outputs - targets)[~targets.isnan()].square().mean()
        torch.testing.assert_close(model.epoch_metrics("val", parts)["loss"], expected)
    nothing = torch.full((2, 1), NAN)
    parts = [(task_loss("regression", outputs[:2], nothing), outputs[:2], nothing)]
    assert set(model.epoch_metrics("val", parts)) == {"samples"}


# ------------------------------------------------------------------------------------------------------------- refusals
def test_methods_that_need_classes(federate: Callable[..., FederatedTrainer]) -> None:
    sentence = r"`model\.task` to be multiclass for {}, which needs classes, but got 'regression'"
    for aggregator in (FedProto(), FGGP(), FedGTA(), FedTAD(), FedThin()):
        with pytest.raises(InputError, match=sentence.format(type(aggregator).__name__)):
            federate(aggregator, monitor="val/rmse").fit(NodeGCN(hidden_channels=4), whole())
    with pytest.raises(InputError, match=r"`model\.task` to be multiclass for AdaFGL but got 'regression'"):
        federate(FedAvg(), monitor="val/rmse").fit(AdaFGL(hidden_channels=4), whole())
    for callback in (PredictedLabels("test"), BadClients(["client-1"], "label_flip")):
        with pytest.raises(InputError, match=sentence.format(type(callback).__name__ + r".*")):
            federate(FedAvg(), monitor="val/rmse", callbacks=[callback]).fit(NodeGCN(hidden_channels=4), whole())
    with pytest.raises(InputError, match=r"classes, which clusters are compared with, but got torch.float32"):
        federate(FedAvg(), monitor="val/loss").fit(InfoGraph(hidden_channels=4), rings(structure="none"))
    with pytest.raises(InputError, match=r"`data\.partition` to be one that needs no classes for regression"):
        NodeFederation(network(), num_clients=2, partition="dirichlet").setup()
    trainer = federate(FedAvg(), rounds=1, monitor="val/accuracy")
    with pytest.raises(InputError, match=r"`trainer\.monitor` to be one of val/rmse, val/mae, val/loss but got"):
        trainer.fit(NodeGCN(hidden_channels=4), whole())
    assert trainer.server is None  # before anything was trained
    with pytest.raises(InputError, match=r"`EarlyStopping\.monitor` to be one of val/rmse, val/mae, val/loss but"):
        federate(FedAvg(), callbacks=[EarlyStopping("rmse")]).fit(NodeGCN(hidden_channels=4), whole())


def test_settings_that_contradict_each_other(federate: Callable[..., FederatedTrainer]) -> None:
    with pytest.raises(InputError, match=r"`model\.task` to be regression, as in the data of client `client-1`"):
        federate(FedAvg()).fit(NodeGCN(hidden_channels=4, task="multilabel"), whole())
    classes = GraphFederation({"A": [Data(x=one.x, edge_index=one.edge_index, y=n % 2) for n, one in
                                     enumerate(graphs("regression"))]}, structure="none")  # fmt: skip
    with pytest.raises(InputError, match="tensor"):
        classes.setup()
    for settings, sentence in (
        ({"task": "ranking"}, r"`model\.task` to be one of multiclass, multilabel, regression but got 'ranking'"),
        ({"metrics": ["auc"]}, r"`model\.metrics` to be names among .*auroc.*rmse.* but got 'auc'"),
        ({"task": "regression", "metrics": ["f1"]}, r"names among rmse, mae, mse, r2 for regression but got 'f1'"),
        ({"task": "regression", "class_weights": [1.0]}, r"`model\.class_weights` to be null for regression"),
    ):
        with pytest.raises(InputError, match=sentence):
            NodeGCN(**settings)
    with pytest.raises(InputError, match=r"names among rmse, mae, mse, r2 for regression but got 'f1'"):
        federate(FedAvg()).fit(NodeGCN(hidden_channels=4, metrics=["f1"]), whole())


@pytest.mark.parametrize(
    ("task", "y", "sentence"),
    [
        ("multiclass", [0.5], r"`g\.y` to be whole numbers, one class each \(or `data\.task` regression\)"),
        ("multiclass", [1.0, 0.0], r"`g\.y` to be one class \(or `data\.task` multilabel or regression\)"),
        ("multilabel", [2.0, 0.0], r"`g\.y` to be 0 or 1 for each label, or NaN, but got"),
        ("regression", [math.inf], r"`g\.y` to be finite numbers, or NaN, but got"),
        ("ranking", [1.0], r"`data\.task` to be one of multiclass, multilabel, regression"),
    ],
)
def test_targets_that_are_none(task: Any, y: list[float], sentence: str) -> None:
    data = Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]]), y=torch.tensor(y))
    with pytest.raises(InputError, match=sentence):
        FlatGraphs.from_pyg([data, data], "g", task)


def test_a_batch_of_classes_is_no_batch_of_numbers() -> None:
    batch = FlatGraphs.from_pyg([Data(x=torch.ones(2, 4), edge_index=torch.tensor([[0], [1]]), y=torch.tensor(1))])
    model = GNN(4, 1, task="regression", hidden_channels=4)
    with pytest.raises(InputError, match=r"`batch\.y` to be floats of shape \[1, 1\] for regression"):
        model.training_step(batch.batch())
