"""FedRep: Collins et al., "Exploiting Shared Representations for Personalized Federated Learning", ICML 2021."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

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
        if self.head == ["readout.*"]:
            self.network = "GNN, FedStar or NodeGNN"

    def routes(self) -> list[Route]:
        return [*personal(*self.head), *super().routes()]

    # ----------------------------------------------------------------------------------------------- client half
    def local_update(self, client: Client, round: int, exchange: str) -> None:
        """Trains the head, then all else."""
        if self.head:
            with self._only(client.module, head=True):
                client.fit(self.head_epochs)
        with self._only(client.module, head=False):
            super().local_update(client, round, exchange)

    @contextmanager
    def _only(self, module: torch.nn.Module, head: bool) -> Iterator[None]:
        """Within, nothing else is trained."""
        rest = [
            name
            for name, parameter in module.named_parameters()
            if parameter.requires_grad and any(fnmatchcase(name, pattern) for pattern in self.head) != head
        ]
        for name in rest:
            module.get_parameter(name).requires_grad_(False)
        try:
            yield
        finally:
            for name in rest:  # by name: a module that moves to another device may have new ones
                module.get_parameter(name).requires_grad_(True)
