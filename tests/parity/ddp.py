"""Every client's Trainer spans all processes (``ddp``), which torchrun started; or there is but one process."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from flgraph.callbacks import FedAvg
from flgraph.federation import FederatedTrainer

ROWS = 8


class Linear(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)

    def _loss(self, batch: Any, split: str) -> Tensor:
        loss = F.cross_entropy(self.layer(batch[0]), batch[1])
        self.log(f"{split}/loss", loss, on_step=False, on_epoch=True)
        return loss

    def training_step(self, batch: Any) -> Tensor:
        return self._loss(batch, "train")

    def validation_step(self, batch: Any) -> None:
        self._loss(batch, "val")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5)


class Rows:
    """All rows in one batch of all processes together."""

    num_train_samples = ROWS
    model_args: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, seed: int, processes: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.x, self.batch_size = torch.randn(ROWS, 3, generator=generator), ROWS // processes

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(TensorDataset(self.x, torch.arange(ROWS) % 2), self.batch_size)

    val_dataloader = predict_dataloader = train_dataloader

    def test_dataloader(self) -> None:
        """None."""


class Two:
    name = "two"
    clients = ("A", "B")

    def __init__(self, processes: int) -> None:
        self.processes = processes

    def client(self, name: str) -> Rows:
        return Rows(ord(name), self.processes)

    def prepare_data(self) -> None: ...

    def setup(self, stage: str) -> None: ...


def fit(folder: str, processes: int) -> None:
    """Three rounds, the last of them resumed."""
    torch.manual_seed(0)
    model = Linear()
    strategy = "ddp" if processes > 1 else "auto"
    for rounds, ckpt in ((2, None), (3, "last")):
        trainer = FederatedTrainer(
            FedAvg(),
            rounds=rounds,
            monitor="val/loss",
            monitor_mode="min",
            accelerator="cpu",
            devices=processes,
            strategy=strategy,
            default_root_dir=folder,
            name="run",
            logger=False,
            enable_progress_bar=False,
        )
        trainer.fit(model, Two(processes), ckpt_path=ckpt)
