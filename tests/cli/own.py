"""Classes of somebody who uses the command line."""

from __future__ import annotations

from typing import Any

import torch
from pytorch_lightning.cli import OptimizerCallable

from flgraph.callbacks import FedAvg
from flgraph.models import GNN


class Untyped(FedAvg):
    """Does not say what its rate is."""

    def __init__(self, rate) -> None:  # type: ignore[no-untyped-def]
        super().__init__()
        self.rate = rate


class Needing(GNN):
    """Cannot be made without its width."""

    def __init__(self, width: int) -> None:
        super().__init__(hidden_channels=width)


class Optimised(GNN):
    """Is given its optimizer."""

    def __init__(self, by: OptimizerCallable = torch.optim.Adam, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.save_hyperparameters()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.hparams.by(self.parameters())
