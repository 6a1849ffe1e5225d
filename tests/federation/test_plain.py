"""Plain LightningDataModules, one per client, and what is no data or no model."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torch_geometric.loader import DataLoader as GraphLoader

from flgraph.callbacks import FedAvg
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer
from flgraph.models import GNN

Federate = Callable[..., FederatedTrainer]


class Rows(pl.LightningDataModule):
    """As in a Lightning tutorial: each stage makes its own parts."""

    def __init__(self, rows: int = 6, seed: int = 0, batch_size: int = 4) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.rows, self.seed, self.batch_size = rows, seed, batch_size

    def setup(self, stage: str) -> None:
        x = torch.randn(self.rows, 4, generator=torch.Generator().manual_seed(self.seed))
        own = TensorDataset(x, torch.arange(self.rows) % 2)
        if stage == "fit":
            self.train, self.val = own, own
        if stage == "test":
            self.tested = own
        if stage == "predict":
            self.predicted = x

    def train_dataloader(self) -> Any:
        return DataLoader(self.train, self.batch_size, shuffle=True)

    def val_dataloader(self) -> Any:
        return DataLoader(self.val, self.rows)

    def test_dataloader(self) -> Any:
        return DataLoader(self.tested, self.rows)

    def predict_dataloader(self) -> Any:
        return DataLoader(self.predicted, self.rows)


def test_what_would_be_lost_is_refused(federate: Federate, toy_module: Any) -> None:
    class Counting(Rows):
        def state_dict(self) -> dict[str, Any]:
            return {"epoch": 3}

    class Late(toy_module):  # type: ignore[misc]
        def configure_model(self) -> None:
            self.head = torch.nn.Linear(2, 2)

    class AtSetUp(toy_module):  # type: ignore[misc]
        def setup(self, stage: str) -> None:
            self.last = torch.nn.Linear(3, 2)

    for module, data, sentence in (
        (toy_module(), Counting(), r"`datamodule\.state_dict` to be in the model or the data set, as clients do not"),
        (Late(), Rows(), r"`model` to be one that makes its layers in `__init__`, .* but got 'Late\.configure_model'"),
        (AtSetUp(), Rows(), r"`model` to be one that makes its layers in `__init__`, .* 'AtSetUp, which makes some la"),
    ):
        with pytest.raises(InputError, match=sentence):
            federate(FedAvg(), rounds=1).fit(module, {"A": data})


def test_parts_without_weights_may_be_made_late(federate: Federate, toy_module: Any) -> None:
    class Late(toy_module):  # type: ignore[misc]
        def setup(self, stage: str) -> None:
            self.criterion = torch.nn.CrossEntropyLoss()

    assert federate(FedAvg(), rounds=2).fit(Late(), {"A": Rows()})["rounds"] == 2


def test_metrics_have_the_names_that_a_plain_trainer_gives(federate: Federate, toy_module: Any, tmp_path: Path) -> None:
    class Logging(toy_module):  # type: ignore[misc]
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val/both", 0.5, on_step=True, on_epoch=True)
            self.log("val/quiet", 0.25, logger=False)

    results = federate(FedAvg(), rounds=1).fit(Logging(), {"A": Rows()})
    own = results["final"]["clients"]["A"]
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    plain = pl.Trainer(max_epochs=1, default_root_dir=tmp_path, accelerator="cpu", enable_checkpointing=False, **quiet)
    rows = Rows()
    rows.setup("fit")
    plain.validate(Logging(in_features=4), rows.val_dataloader(), verbose=False)
    assert {name: value for name, value in own.items() if name.startswith("val/")} == {
        name: float(value) for name, value in plain.callback_metrics.items() if not name.endswith("_step")
    }


def test_draws_between_runs_do_not_follow_from_the_seed(federate: Federate, toy_module: Any) -> None:
    def draws() -> tuple[Any, ...]:
        return torch.rand(3).tolist(), np.random.rand(), random.random()

    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    expected = [draws() for _ in range(3)]
    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    for own in expected:
        assert draws() == own
        federate(FedAvg(), rounds=1).fit(toy_module(), {"A": Rows()})


class Noting(pl.loggers.CSVLogger):
    noted: dict[str, Any]

    def log_hyperparams(self, params: Any = None) -> None:
        self.noted = dict(params)


def test_loggers_are_told_the_settings(federate: Federate, toy_module: Any, tmp_path: Path) -> None:
    logger = Noting(str(tmp_path))
    federate(FedAvg(), rounds=1, logger=logger).fit(toy_module(), {"A": Rows()})
    assert logger.noted["aggregator"] == "FedAvg"


def test_equals_a_federated_datamodule(
    federate: Federate, toy_federation: Callable[..., Any], toy_module: Any, assert_same: Callable[..., None]
) -> None:
    """With the same rows, batches and names every number is the same."""
    wanted = federate(FedAvg(), rounds=2, name="one").fit(
        toy_module(), toy_federation(6, 8, batch_size=4, shuffle=True)
    )
    modules = {"A": Rows(6, 0), "B": Rows(8, 1)}
    trainer = federate(FedAvg(), rounds=2)
    model = toy_module()
    results = trainer.fit(model, modules)
    assert results["final"]["clients"] == wanted["final"]["clients"]
    assert results["data"]["B"] == {
        **{"num_train_samples": 8, "in_channels": 4, "in_features": 4},
        **{"rows": 8, "seed": 1, "batch_size": 4},
    }
    assert trainer.run_dir is not None
    assert trainer.run_dir.parent.name == "fedavg-a-b"
    assert len(trainer.predict(model, modules)["B"][0]) == 8  # those of the fit
    assert trainer.test(model, modules) == trainer.test(model, modules, ckpt_path="last")


@pytest.mark.filterwarnings("ignore:Your `IterableDataset` has")
def test_rows_that_come_in_a_stream(federate: Federate, toy_module: Any) -> None:
    """There is no first one to look at for a width; their number is known."""

    class Stream(IterableDataset[Any]):
        def __len__(self) -> int:
            return 6

        def __iter__(self) -> Any:
            return zip(torch.eye(6, 4), torch.arange(6) % 2, strict=True)

    class Streams(Rows):
        def train_dataloader(self) -> Any:
            return DataLoader(Stream(), 3)

    trainer = federate(FedAvg(), rounds=1)
    trainer.fit(toy_module(in_features=4), {"A": Streams(), "B": Rows()})
    assert [len(trainer.client_model(client).first.weight[0]) for client in "AB"] == [4, 4]


def test_goes_on_with_the_same_data_only(federate: Federate, toy_module: Any) -> None:
    federate(FedAvg(), rounds=1).fit(toy_module(), {"A": Rows()})
    federate(FedAvg(), rounds=2).fit(toy_module(), {"A": Rows()}, ckpt_path="last")
    with pytest.raises(InputError, match=r"`data\.A\.batch_size` to be 4 as in checkpoint"):
        federate(FedAvg(), rounds=3).fit(toy_module(), {"A": Rows(batch_size=3)}, ckpt_path="last")


def test_parts_that_data_lacks_are_named(federate: Federate, toy_module: Any, toy_federation: Any) -> None:
    class Silent(pl.LightningDataModule):
        num_train_samples, model_args = 6, {"in_features": 4}
        train_dataloader = toy_federation(6).client("A").train_dataloader

    class Sizeless(pl.LightningDataModule):
        num_train_samples = 6

    with pytest.raises(InputError, match="data of client `A` to be with `model_args` but got 'Sizeless without'"):
        federate(FedAvg(), rounds=1).fit(toy_module(), toy_federation(A=Sizeless()))
    trainer = federate(FedAvg(), rounds=1)
    trainer.fit(toy_module(), toy_federation(A=Silent()))
    with pytest.raises(InputError, match="data of client `A` to be with a `predict_dataloader`"):
        trainer.predict()


def test_sizes_of_a_template_come_from_the_data(federate: Federate, graph_list: Callable[..., Any]) -> None:
    class Graphs(pl.LightningDataModule):
        num_classes = 2  # of the datamodule; model_args is what counts
        model_args = {"in_channels": 5, "num_classes": 2}  # noqa: RUF012

        def train_dataloader(self) -> Any:
            return GraphLoader(graph_list(8, 5), batch_size=4)

        val_dataloader = train_dataloader

    trainer = federate(FedAvg(), rounds=1)
    trainer.fit(GNN(hidden_channels=4), {"north": Graphs(), "east": Graphs()})
    assert trainer.client_model("north").in_channels == 5


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([])


def of_stream() -> Any:
    class Streamed(Rows):
        def train_dataloader(self) -> Any:
            return DataLoader(Stream(), 2)

    return Streamed()


def with_transfer() -> Any:
    class Transferring(Rows):
        def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            return batch

    return Transferring()


LOADER = DataLoader(TensorDataset(torch.ones(2, 4)))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (Rows(), "`datamodule` to be one per client, {'north': datamodule, ...}, but got Rows."),
        (LOADER, "`datamodule` to be a federated datamodule or {'north': datamodule} but got DataLoader."),
        (
            Rows,
            "`datamodule` to be a federated datamodule or {'north': datamodule} but got the class Rows, which",
        ),
        ({"north": LOADER}, "`datamodule['north']` to be a LightningDataModule but got DataLoader."),
        ({"north": Rows}, "`datamodule['north']` to be a LightningDataModule but got the class Rows, which is not"),
        ({1: Rows()}, "`datamodule` to be LightningDataModules by names but got one by int."),
        ({}, "`data.clients` to be at least one client but got 'none'."),
        ({"a/b": Rows()}, "`data.clients` to be names that can be file names, and none of them `mean`, but got 'a/b'."),
        ({"north": of_stream()}, "`num_train_samples` of datamodule `north` to be given, as it is the client's weight"),
        ({"north": with_transfer()}, "`datamodule.on_after_batch_transfer` to be in the model or the data set, as"),
        (None, "`datamodule` to be a federated datamodule or {'north': datamodule} but got NoneType."),
    ],
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_what_is_no_data(federate: Federate, toy_module: Any, given: Any, told: str) -> None:
    with pytest.raises(InputError) as refused:
        federate(FedAvg(), rounds=1).fit(toy_module(in_features=4), given)
    assert told in str(refused.value)


class Other:
    """Stands for the LightningModule of the package `lightning`."""

    __module__ = "lightning.pytorch.core.module"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            torch.nn.Linear(4, 2),
            "`model` to be a LightningModule, or a function from a client's data to one, but",
        ),
        (GNN, "but got the class GNN, which is not called yet."),
        ("GNN", "but got str."),
        (Other(), "but got Other, a Other of `lightning`, not `pytorch_lightning`."),
        (
            lambda data: torch.nn.Linear(4, 2),
            "`model` to be a function that returns a LightningModule but got 'Lin",
        ),
        (Rows(), "but got Rows."),
    ],
    ids=["module", "class", "text", "other package", "function", "swapped"],
)
def test_what_is_no_model(federate: Federate, given: Any, told: str) -> None:
    with pytest.raises(InputError) as refused:
        federate(FedAvg(), rounds=1).fit(given, {"north": Rows()})
    assert told in str(refused.value)
