"""FedRep: Collins et al., "Exploiting Shared Representations for Personalized Federated Learning", ICML 2021."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from flgraph.callbacks.fedavg import FedAvg
from flgraph.errors import expect
from flgraph.federation.client import Client
from flgraph.federation.routes import Route, matches, personal


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
        self.further_epochs = head_epochs if self.head else 0
        # In a turn: whether the head is trained, and what is not.
        self._trains_head = False
        self._frozen: list[str] = []
        self._buffers: dict[str, Tensor] = {}  # such as running means, which move with what is trained only
        if self.head == ["readout.*"]:
            self.network = "GNN, FedStar or NodeGNN"

    def routes(self) -> list[Route]:
        return [*personal(*self.head), *super().routes()]

    # ----------------------------------------------------------------------------------------------- client half
    def local_update(self, client: Client, round: int, exchange: str) -> None:
        """Trains the head, then all else."""
        try:
            if self.head:
                self._trains_head = True
                client.fit(self.head_epochs)
            self._trains_head = False
            super().local_update(client, round, exchange)
        finally:
            self._thaw(client.module)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Freezes what is not trained now. No sooner: optimizers may be made of what is trainable."""

        def still(name: str) -> bool:
            return matches(name, self.head) != self._trains_head

        trainable = [name for name, tensor in pl_module.named_parameters() if tensor.requires_grad]
        self._frozen = [name for name in trainable if still(name)]
        wanted = "patterns of some of the model's trainable parameters, and not of all,"
        expect(len(self._frozen) < len(trainable), "aggregator.head", wanted, self.head)
        state = pl_module.state_dict()  # without what is only a cache
        buffers = dict(pl_module.named_buffers())
        self._buffers = {name: buffer.clone() for name, buffer in buffers.items() if name in state and still(name)}
        for name in self._frozen:
            pl_module.get_parameter(name).requires_grad_(False)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        for name, buffer in self._buffers.items():
            pl_module.get_buffer(name).copy_(buffer)
        self._buffers = {}
        self._thaw(pl_module)

    def _thaw(self, module: torch.nn.Module) -> None:
        for name in self._frozen:  # by name: a module that moves to another device may have new ones
            module.get_parameter(name).requires_grad_(True)
        self._frozen = []
