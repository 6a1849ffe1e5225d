"""Lightning's own callbacks and options: each works in every client, or is refused in favour of something else."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from lightning_fabric.utilities import registry
from pytorch_lightning import callbacks as lightning
from torch import Tensor

from flgraph.callbacks import EarlyStopping, FedAvg, FedRep, Local
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer
from flgraph.federation import lightning as trainers_of
from flgraph.models import GNN

Federate = Callable[..., FederatedTrainer]
TABLE = Path(__file__).resolve().parents[2] / "docs" / "lightning.md"

REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "EarlyStopping": (lambda: lightning.EarlyStopping("val/loss"), "flgraph.callbacks.EarlyStopping"),
    "ModelCheckpoint": (lightning.ModelCheckpoint, "`checkpoint_every`, `keep_checkpoints`"),
    "OnExceptionCheckpoint": (lambda: lightning.OnExceptionCheckpoint("."), "`checkpoint_every`"),
    "RichProgressBar": (lightning.RichProgressBar, "`enable_progress_bar`"),
    "TQDMProgressBar": (lightning.TQDMProgressBar, "`enable_progress_bar`"),
    "ModelSummary": (lightning.ModelSummary, "the table of routes"),
    "RichModelSummary": (lightning.RichModelSummary, "the table of routes"),
    "LearningRateMonitor": (lightning.LearningRateMonitor, "`self.log('train/lr', ...)`"),
    "DeviceStatsMonitor": (lightning.DeviceStatsMonitor, "history.jsonl"),
    "ThroughputMonitor": (lambda: lightning.ThroughputMonitor(len), "history.jsonl"),
    "Timer": (lambda: lightning.Timer("00:00:01:00"), "`ckpt_path`"),
    "StochasticWeightAveraging": (lambda: lightning.StochasticWeightAveraging(0.1), "`local_update` or `aggregate`"),
    "EMAWeightAveraging": (lambda: lightning.EMAWeightAveraging(), "`local_update` or `aggregate`"),
    "WeightAveraging": (lambda: lightning.WeightAveraging(), "`local_update` or `aggregate`"),
    "LearningRateFinder": (lightning.LearningRateFinder, "`flgraph report`"),
    "BatchSizeFinder": (lightning.BatchSizeFinder, "`flgraph report`"),
    "SpikeDetection": (lambda: lightning.SpikeDetection(), "write files by names of their own"),
    "BackboneFinetuning": (lightning.BackboneFinetuning, "`requires_grad`"),
    "ModelPruning": (lambda: lightning.ModelPruning("l1_unstructured"), "routes"),
    "BasePredictionWriter": (lambda: type("Writer", (lightning.BasePredictionWriter,), {})(), "`flgraph predict`"),
}
WORKS = {"LambdaCallback", "GradientAccumulationScheduler"}
BASES = {"Callback", "Checkpoint", "ProgressBar", "BaseFinetuning"}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    if not hasattr(lightning, name):
        pytest.skip("this version of Lightning does not have it")
    make, instead = REFUSED[name]
    with pytest.raises(InputError) as refused:
        FederatedTrainer(FedAvg(), callbacks=[make()])
    sentence = str(refused.value)
    assert sentence.startswith("Expected `trainer.callbacks` to be ")
    assert instead in sentence
    assert sentence.count("\n") == 0


def test_all_of_lightnings_callbacks_are_accounted_for() -> None:
    """Here, and in the table of the docs."""
    table = TABLE.read_text()
    for name in set(lightning.__all__) - BASES:
        assert name in REFUSED.keys() | WORKS, f"{name} is new: does it work in every turn of a client?"
        assert f"`{name}`" in table


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            lightning.LambdaCallback,
            "callbacks of `pytorch_lightning` or `flgraph`, made by calling their classes",
        ),
        ("EarlyStopping", "but got str."),
        ([FedAvg(), 3], "but got int."),
    ],
    ids=["class", "text", "number"],
)
def test_what_is_no_callback(given: Any, told: str) -> None:
    with pytest.raises(InputError) as refused:
        FederatedTrainer(FedAvg(), callbacks=[given] if isinstance(given, str) else given)
    assert told in str(refused.value)


def test_callbacks_that_a_model_configures(federate: Federate, toy_federation: Any, toy_module: Any) -> None:
    class Configuring(toy_module):  # type: ignore[misc]
        def configure_callbacks(self) -> Any:
            return lightning.EarlyStopping("train/loss")

    with pytest.raises(InputError, match=r"^Expected `Configuring.configure_callbacks` to be flgraph.callbacks.Ea"):
        federate(FedAvg(), rounds=1).fit(Configuring(), toy_federation(6))

    class Stopping(toy_module):  # type: ignore[misc]
        def configure_callbacks(self) -> Any:
            return [EarlyStopping(patience=1)]

    with pytest.raises(InputError, match=r"without what acts in rounds, as `trainer.callbacks` do, but got 'EarlySto"):
        federate(FedAvg(), rounds=1).fit(Stopping(), toy_federation(6))


# ---------------------------------------------------------------------------------------------------------- what works
Seen = list[tuple[int, float]]


def watching(toy_module: Any, seen: Seen, schedule: Callable[..., Any]) -> Any:
    """A module class that notes the learning rate of each batch."""

    class Watched(toy_module):  # type: ignore[misc]
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            seen.append((self.trainer.global_step, self.optimizers().param_groups[0]["lr"]))
            return super().training_step(batch, batch_idx)  # type: ignore[no-any-return]

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            return {"optimizer": optimizer, "lr_scheduler": schedule(self, optimizer)}

    return Watched


def per_step(module: Any, optimizer: Any) -> dict[str, Any]:
    return {"scheduler": torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)), "interval": "step"}


def per_epoch(module: Any, optimizer: Any) -> dict[str, Any]:
    return {"scheduler": torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 / (1 + epoch))}


def every_second(module: Any, optimizer: Any) -> dict[str, Any]:
    return {**per_epoch(module, optimizer), "frequency": 2}


def whole_run(module: Any, optimizer: Any) -> dict[str, Any]:
    steps = module.trainer.estimated_stepping_batches
    return {"scheduler": torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps), "interval": "step"}


@pytest.mark.parametrize("schedule", [per_step, per_epoch, every_second, whole_run])
@pytest.mark.parametrize("resumed", [False, True])
def test_schedulers_go_on_over_rounds(
    federate: Federate, toy_federation: Any, toy_module: Any, schedule: Callable[..., Any], resumed: bool
) -> None:
    """A client that trains alone has the learning rates of Lightning's Trainer over all epochs at once."""
    wanted: Seen = []
    data = toy_federation(6, batch_size=2)
    pl.Trainer(
        max_epochs=6, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False
    ).fit(watching(toy_module, wanted, schedule)(4), data.client("A").train_dataloader())
    seen: Seen = []
    model = watching(toy_module, seen, schedule)

    if resumed:
        trainer = federate(Local(), rounds=3, local_epochs=2)
        server = trainer._prepare(model(), data, None, "fit")
        trainer.rounds = 2  # as if killed: the clients were made for three rounds
        trainer._loop(server, data, resumed=False)
        federate(Local(), rounds=3, local_epochs=2).fit(model(), data, ckpt_path="last")
    else:
        federate(Local(), rounds=3, local_epochs=2).fit(model(), data)
    assert len(wanted) == 18
    assert seen == wanted


def test_a_cycle_spans_what_else_is_trained(federate: Federate, toy_federation: Any, toy_module: Any) -> None:
    """FedRep's heads have epochs of their own."""
    seen: Seen = []
    data, aggregator = toy_federation(6, batch_size=2), FedRep(head=["last.*"], head_epochs=2)
    federate(aggregator, rounds=3).fit(watching(toy_module, seen, whole_run)(), data)
    assert len(seen) == 3 * 3 * (2 + 1)
    assert seen[-1][1] < 1e-3 < max(rate for _, rate in seen) == pytest.approx(0.1, rel=1e-3)


def test_reduce_on_plateau_watches_training_metrics(federate: Federate, toy_federation: Any, toy_module: Any) -> None:
    """With this threshold no loss is ever better than the one before."""

    def plateau(module: Any, optimizer: Any) -> dict[str, Any]:
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=10, factor=0.5)
        return {"scheduler": scheduler, "monitor": "train/loss"}

    seen: Seen = []
    federate(FedAvg(), rounds=4).fit(watching(toy_module, seen, plateau)(), toy_federation(6))
    assert [rate for _, rate in seen] == [0.1, 0.05, 0.025, 0.0125]


def test_gradients_are_accumulated(federate: Federate, toy_federation: Any, toy_module: Any) -> None:
    """Two batches of three rows are one of six, where a step takes their mean."""
    weights = []
    for batch_size, accumulated in ((6, 1), (3, 2)):
        trainer = federate(FedAvg(), rounds=3, accumulate_grad_batches=accumulated)
        trainer.fit(toy_module(), toy_federation(6, batch_size=batch_size))
        weights.append(trainer.client_model("A").first.weight)
    torch.testing.assert_close(*weights)


def test_accumulation_by_epoch(federate: Federate, toy_federation: Any, toy_module: Any) -> None:
    """Epochs count over rounds."""
    steps: list[int] = []
    noted = lightning.LambdaCallback(on_train_epoch_end=lambda trainer, module: steps.append(trainer.global_step))
    scheduled = lightning.GradientAccumulationScheduler({0: 1, 2: 3})
    trainer = federate(FedAvg(), rounds=3, local_epochs=2, callbacks=[scheduled, noted])
    trainer.fit(toy_module(), toy_federation(6, batch_size=2))
    assert steps == [3, 6, 7, 8, 9, 10]


def test_accumulation_by_epoch_of_own_loaders(federate: Federate, graph_federation: Any) -> None:
    """Whose later fits are not Lightning's own."""
    steps: list[int] = []
    noted = lightning.LambdaCallback(on_train_epoch_end=lambda trainer, module: steps.append(trainer.global_step))
    scheduled = lightning.GradientAccumulationScheduler({0: 1, 2: 4})
    data = graph_federation((4,), batch_size=2)
    federate(FedAvg(), rounds=4, callbacks=[scheduled, noted]).fit(GNN(hidden_channels=4), data)
    batches = len(data.client(data.clients[0]).train_dataloader())
    assert batches > 4
    assert steps[:2] == [batches, 2 * batches]
    assert steps[3] - steps[2] == steps[2] - steps[1] == -(-batches // 4)


def test_learning_rates_are_logged_by_the_module(federate: Federate, toy_federation: Any, toy_module: Any) -> None:
    """What stands in for LearningRateMonitor."""

    class Logging(toy_module):  # type: ignore[misc]
        def on_train_epoch_start(self) -> None:
            self.log("train/lr", self.optimizers().param_groups[0]["lr"])

    results = federate(FedAvg(), rounds=3).fit(Logging(decay_every=1), toy_federation(6))
    assert list(results.history["train/lr"]) == pytest.approx([0.1, 0.05, 0.025])


def test_callbacks_of_installed_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each Trainer has its own, though what is installed is read once."""
    (tmp_path / "more_callbacks.py").write_text(
        "import pytorch_lightning as pl\n\ndef factory():\n    return [type('Further', (pl.Callback,), {})()]\n"
    )
    installed = tmp_path / "more_callbacks-1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: more-callbacks\nVersion: 1\n")
    group = "[pytorch_lightning.callbacks_factory]\nfurther = more_callbacks:factory\n"
    (installed / "entry_points.txt").write_text(group)
    monkeypatch.syspath_prepend(tmp_path)
    trainers_of._entry_points.cache_clear()
    try:
        trainers: list[Any] = [trainers_of.persistent_trainer([], {"accelerator": "cpu"}) for _ in range(2)]
        own = [next(c for c in trainer.callbacks if type(c).__name__ == "Further") for trainer in trainers]
        assert own[0] is not own[1]
        assert trainers_of._entry_points.cache_info().hits == 1
        assert registry.entry_points is importlib.metadata.entry_points
    finally:
        trainers_of._entry_points.cache_clear()


def test_functions_are_called_in_every_round(federate: Federate, graph_federation: Any) -> None:
    """Lightning's LambdaCallback has its hooks in the object, not in the class; evaluations have some, too."""
    trained: list[int] = []
    tested: list[int] = []
    noted = lightning.LambdaCallback(
        on_train_epoch_end=lambda trainer, module: trained.append(trainer.current_epoch),
        on_test_epoch_end=lambda trainer, module: tested.append(trainer.current_epoch),
    )
    federate(FedAvg(), rounds=3, callbacks=[noted]).fit(GNN(hidden_channels=4), graph_federation((4,)))
    assert trained == [0, 1, 2]
    assert tested == [1, 2, 3]


class Counts(pl.Callback):
    """Counts epochs, and has each client log how many."""

    def __init__(self) -> None:
        self.count = 0

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.count += 1
        pl_module.log("train/counted", float(self.count))

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.count = state_dict["count"]


def test_what_a_model_configures_keeps_its_state(federate: Federate, toy_federation: Any, toy_module: Any) -> None:
    """Over rounds and over a resume; one of the same kind given to the trainer gives way, as in Lightning."""

    class Configuring(toy_module):  # type: ignore[misc]
        def configure_callbacks(self) -> pl.Callback:
            return Counts()

    data = toy_federation(6)
    federate(FedAvg(), rounds=2, callbacks=[Counts()]).fit(Configuring(), data)
    results = federate(FedAvg(), rounds=4, callbacks=[Counts()]).fit(Configuring(), data, ckpt_path="last")
    assert list(results.history["train/counted"]) == [1, 2, 3, 4]
