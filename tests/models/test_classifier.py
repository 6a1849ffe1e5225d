"""What all classifiers do beside their layers: metrics, and evaluations with and without a Trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Data
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

from flgraph.callbacks import FedAvg
from flgraph.data import NodeGraph, WholeGraphFederation
from flgraph.federation import Client
from flgraph.federation.lightning import fit_more, persistent_trainer
from flgraph.federation.template import client_module
from flgraph.models import NodeGCN
from flgraph.nn.batches import WholeGraph

QUIET: dict[str, Any] = {"accelerator": "cpu", "devices": 1}


def federation(global_fraction: float = 0.0) -> WholeGraphFederation:
    generator = torch.Generator().manual_seed(0)
    x = (torch.rand(90, 12, generator=generator) < 0.2).float()
    edges = torch.randint(0, 90, (2, 200), generator=generator)
    graph = NodeGraph.from_pyg(Data(x=x, edge_index=edges, y=torch.arange(90) % 3))
    made = WholeGraphFederation(
        graph, num_clients=2, partition="dirichlet", global_fraction=global_fraction, alpha=100.0, cross_edges=False
    )
    made.setup()
    return made


def client(model: NodeGCN, global_fraction: float = 0.0, callbacks: tuple[pl.Callback, ...] = ()) -> Client:
    data = federation(global_fraction).client("client-1")
    module = client_module(model, data, 0, "client-1")
    return Client("client-1", module, data, FedAvg(), callbacks, trainer_args=QUIET, device=torch.device("cpu"))


class Watching(pl.Callback):
    """Wants to see how a Trainer evaluates."""

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.seen = True


class Counting(NodeGCN):
    """Counts its forward passes while it is evaluated."""

    passes = 0

    def forward(self, batch: WholeGraph) -> Tensor:
        self.passes += not self.training
        return super().forward(batch)


class Own(Counting):
    """Has a step of its own."""

    def validation_step(self, batch: WholeGraph, batch_idx: int = 0) -> Tensor:
        self.log("val/own", 1.0, batch_size=1)
        return super().validation_step(batch, batch_idx)


@pytest.mark.parametrize("global_fraction", [0.0, 0.3])
def test_evaluates_as_a_trainer_does(global_fraction: float) -> None:
    """To the last bit; validation and test nodes of one graph in one pass."""
    alone, watched = (client(Counting(hidden_channels=4), global_fraction, own) for own in ((), (Watching(),)))
    for one in (alone, watched):
        torch.manual_seed(0)  # of dropout
        one.fit(2)
    found, expected = alone.evaluate(), watched.evaluate()
    assert found == expected
    assert set(found) > {"train/loss", "val/f1", "test/samples"}
    assert ("global_test/loss" in found) == (global_fraction > 0)
    assert alone.module.passes == watched.module.passes - 1 == 1 + (global_fraction > 0)
    assert alone.module.training
    assert alone.evaluate(("test",)).items() <= found.items()


def test_own_steps_are_the_trainers() -> None:
    one = client(Own(hidden_channels=4))
    one.fit(1)
    assert one.evaluate()["val/own"] == 1.0


def test_metrics_are_those_of_torchmetrics() -> None:
    torch.manual_seed(0)
    parts = [(torch.rand(()), torch.randn(n, 4), torch.randint(0, 3, (n,))) for n in (5, 2, 7)]
    found = NodeGCN(6, 4, hidden_channels=2).epoch_metrics("val", parts)
    loss, accuracy, f1 = MeanMetric(), MulticlassAccuracy(4, average="micro"), MulticlassF1Score(4, average="macro")
    for value, logits, labels in parts:
        loss.update(value.expand(labels.numel()))
        accuracy.update(logits, labels)
        f1.update(logits, labels)
    assert float(found["accuracy"]) == float(accuracy.compute())
    assert float(found["f1"]) == float(f1.compute())
    torch.testing.assert_close(found["loss"], loss.compute())
    assert float(found["samples"]) == 14


# ------------------------------------------------------------------------------------------------ metrics of training
@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The stages whose metrics were computed."""
    stages: list[str] = []
    before = NodeGCN.epoch_metrics

    def noted(self: NodeGCN, stage: str, parts: list[Any]) -> dict[str, Tensor]:
        stages.append(stage)
        return before(self, stage, parts)

    monkeypatch.setattr(NodeGCN, "epoch_metrics", noted)
    return iter([stages])


class Reads(pl.Callback):
    """Reads what the epoch before it logged."""

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.read = dict(trainer.callback_metrics)


class Stops(pl.Callback):
    """Ends training in its second epoch."""

    def on_before_zero_grad(self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Any) -> None:
        trainer.should_stop = trainer.current_epoch == 1


@pytest.mark.parametrize(
    ("callbacks", "arguments", "times"),
    [((), {}, 1), ((Reads(),), {}, 3), ((Stops(),), {}, 1), ((), {"max_steps": 2}, 1)],
    ids=["alone", "watched", "stopped", "steps"],
)
def test_the_last_epoch_is_logged_in_any_case(
    computed: Iterator[list[str]], callbacks: tuple[pl.Callback, ...], arguments: dict[str, Any], times: int
) -> None:
    data = federation().client("client-1")
    module = client_module(NodeGCN(hidden_channels=4, dropout=0.0), data, 0, "client-1")
    trainer = persistent_trainer(callbacks, {**QUIET, **arguments})
    metrics = fit_more(trainer, module, data.train_dataloader(), 3)
    assert set(metrics) == {"train/accuracy", "train/f1", "train/loss"}
    assert len(next(computed)) == times


def test_a_plain_trainer_with_a_logger_logs_every_epoch(computed: Iterator[list[str]], tmp_path: Any) -> None:
    from pytorch_lightning.loggers import CSVLogger

    data = federation().client("client-1")
    module = client_module(NodeGCN(hidden_channels=4), data, 0, "client-1")
    trainer = pl.Trainer(
        **QUIET,
        max_epochs=3,
        logger=CSVLogger(str(tmp_path)),
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(module, train_dataloaders=data.train_dataloader())
    assert len(next(computed)) == 3
    assert "train/loss" in trainer.logged_metrics


def test_loss_of_the_last_epoch_is_that_of_its_step() -> None:
    one = client(NodeGCN(hidden_channels=4, dropout=0.0))
    losses: list[float] = []
    keep: Callable[..., Tensor] = F.cross_entropy
    score = type(one.module)._score

    def noted(module: NodeGCN, logits: Tensor, labels: Tensor, stage: str) -> Tensor:
        losses.append(float(keep(logits, labels)))
        return score(module, logits, labels, stage)

    one.module._score = noted.__get__(one.module)
    one.fit(3)
    assert one.evaluate(("train",))["train/loss"] == pytest.approx(losses[-1], rel=1e-6)
