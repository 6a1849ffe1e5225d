"""FedRep: Collins et al., "Exploiting Shared Representations for Personalized Federated Learning", ICML 2021."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import pytorch_lightning as pl
import torch

from flgraph.callbacks.fedavg import FedAvg
from flgraph.errors import expect
from flgraph.federation.client import Client
from flgraph.federation.routes import Route, personal


class FedRep(FedAvg):
    """FedAvg of the representation; clients train their own heads on it first, and then it for their heads (Alg. 1).

    In a round a client trains its head for ``head_epochs`` with all else as it was sent, and all else for its local
    epochs with the head as it then is. The head stays with the client. (FedPer trains both at once.) One optimizer,
    whose state is kept for each parameter, does both.

    Args:
        head: patterns of the head's tensors; without any this is FedAvg.
        head_epochs: epochs that the head is trained for; the paper's experiments have ten.
        kwargs: see :class:`FedAvg`.
    """

    def __init__(self, head: Sequence[str] = ("readout.*",), head_epochs: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        expect(head_epochs >= 1, "aggregator.head_epochs", "1 or more", head_epochs)
        self.head, self.head_epochs = list(head), head_epochs
        self._in_head_phase = False
        if self.head == ["readout.*"]:
            self.network = "GNN, FedStar or NodeGNN"

    def routes(self) -> list[Route]:
        return [*personal(*self.head), *super().routes()]

    # ----------------------------------------------------------------------------------------------- client half
    def local_update(self, client: Client, round: int, exchange: str) -> None:
        """Trains the head, then all else."""
        if self.head:
            self._in_head_phase = True
            client.fit(self.head_epochs)
        self._in_head_phase = False
        super().local_update(client, round, exchange)

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Leaves what is not trained now without a gradient, so that no optimizer moves it."""
        for name, parameter in pl_module.named_parameters():
            if any(fnmatchcase(name, pattern) for pattern in self.head) != self._in_head_phase:
                parameter.grad = None
