"""A client's later fits: the same as Lightning's, to the last bit, without its preparations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor
from torch_geometric.data import Data

from flgraph.callbacks import FedAvg, FedProx
from flgraph.data import NodeGraph, WholeGraphFederation
from flgraph.federation import Client, lightning
from flgraph.federation.template import client_module
from flgraph.models import NodeGCN
from flgraph.nn.batches import WholeGraph
from flgraph.runs.checkpoint import load_bytes, state_bytes

HOOKS = [name for name in dir(pl.Callback) if name.startswith(("on_fit", "on_train", "on_before", "on_after"))]


class Hears(pl.Callback):
    """Notes every hook of a fit, what it gets, and where the Trainer is; logs something in two of them."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        pl_module.log("train/epochs", float(trainer.current_epoch))
        self.heard.append(("epoch", dict(trainer.callback_metrics)))

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        pl_module.log("train/batches", float(batch_idx), on_step=True, on_epoch=True, batch_size=1)
        self.heard.append(("batch", outputs["loss"], trainer.global_step, trainer.is_last_batch))


def _noted(name: str) -> Callable[..., None]:
    def hook(self: Hears, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any) -> None:
        self.heard.append((name, len(args), trainer.current_epoch, trainer.global_step, trainer.training))

    return hook


for _name in set(HOOKS) - vars(Hears).keys():
    setattr(Hears, _name, _noted(_name))


class Logs(NodeGCN):
    """Logs in its step, too, and returns more than the loss."""

    def training_step(self, batch: WholeGraph, batch_idx: int = 0) -> Any:
        loss: Tensor = super().training_step(batch, batch_idx)
        self.log("train/own", loss.detach(), on_step=False, on_epoch=True, batch_size=1)
        return {"loss": loss, "more": 1}


class Stops(pl.Callback):
    """Ends training in its third epoch."""

    def on_train_batch_start(self, trainer: pl.Trainer, *args: Any) -> None:
        trainer.should_stop = trainer.current_epoch == 2


class Prepares(pl.Callback):
    """Wants to see how a fit begins."""

    def setup(self, *args: Any, **kwargs: Any) -> None:
        self.seen = True


class Steps(NodeGCN):
    """Steps in its own way."""

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        super().optimizer_step(*args, **kwargs)


def nodes() -> WholeGraphFederation:
    generator = torch.Generator().manual_seed(0)
    x = (torch.rand(90, 12, generator=generator) < 0.2).float()
    graph = NodeGraph.from_pyg(
        Data(x=x, edge_index=torch.randint(0, 90, (2, 200), generator=generator), y=torch.arange(90) % 3)
    )
    return WholeGraphFederation(graph, num_clients=2, partition="dirichlet", global_fraction=0.0, alpha=100.0)


def client(model: type[NodeGCN], own: tuple[pl.Callback, ...], method: Any, **trainer_args: Any) -> Client:
    made = nodes()
    made.cross_edges = False
    made.setup()
    data = made.client("client-1")
    module = client_module(model(hidden_channels=4), data, 0, "client-1")
    arguments = {"accelerator": "cpu", "devices": 1, **trainer_args}
    return Client("client-1", module, data, method, own, trainer_args=arguments, device=torch.device("cpu"))


def trained(one: Client) -> dict[str, Any]:
    torch.manual_seed(0)
    metrics = []
    for _ in range(3):
        one.fit(2)
        metrics.append(one.evaluate())
    heard = next((own.heard for own in one.trainer.callbacks if isinstance(own, Hears)), [])  # type: ignore[attr-defined]
    return {"state": one.state(), "metrics": metrics, "heard": heard, "drawn": torch.rand(3)}


@pytest.fixture
def again(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each fit that was not Lightning's."""
    found: list[str] = []
    real = lightning.fit_again

    def noted(*args: Any) -> None:
        found.append("again")
        real(*args)

    monkeypatch.setattr(lightning, "fit_again", noted)
    return found


@pytest.mark.parametrize("model", [NodeGCN, Logs])
@pytest.mark.parametrize("own", [(), (Hears(),), (Stops(), Hears())], ids=["alone", "heard", "stopped"])
@pytest.mark.parametrize("method", [FedAvg(), FedProx(mu=0.1)], ids=["fedavg", "fedprox"])
def test_equals_lightnings(
    model: type[NodeGCN],
    own: tuple[pl.Callback, ...],
    method: Any,
    again: list[str],
    monkeypatch: pytest.MonkeyPatch,
    assert_same: Callable[..., None],
) -> None:
    found = trained(client(model, own, method))
    assert len(again) == 2, "all fits but the first"
    monkeypatch.setattr(lightning, "goes_on", lambda *args: False)
    assert_same(found, trained(client(model, own, method)))
    assert len(again) == 2


@pytest.mark.parametrize(
    ("model", "own", "arguments"),
    [
        (Steps, (), {}),
        (NodeGCN, (Prepares(),), {}),
        (NodeGCN, (), {"gradient_clip_val": 1.0}),
        (NodeGCN, (), {"precision": "64-true"}),
        (NodeGCN, (), {"profiler": "simple"}),
        (NodeGCN, (), {"max_steps": 5}),
    ],
)
def test_what_it_does_not_do_is_left_to_lightning(
    model: type[NodeGCN], own: tuple[pl.Callback, ...], arguments: dict[str, Any], again: list[str]
) -> None:
    trained(client(model, own, FedAvg(), **arguments))
    assert not again


def test_after_a_state_was_loaded_lightning_begins(again: list[str]) -> None:
    one = client(NodeGCN, (), FedAvg())
    one.fit(1)
    one.load_state(load_bytes(state_bytes(one.state()), "client-1"))
    one.fit(1)
    assert not again
    one.fit(1)
    assert again


class Observes(NodeGCN):
    """Trains nothing."""

    def configure_optimizers(self) -> Any:
        return None


def test_without_an_optimizer_every_fit_is_lightning_s(federate: Callable[..., Any]) -> None:
    results = federate(FedAvg(), rounds=3).fit(Observes(hidden_channels=4), nodes())
    assert results["rounds"] == 3
