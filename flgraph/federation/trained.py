"""What a federated trainer holds after a run, where users of Lightning look for it."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from flgraph.errors import expect
from flgraph.federation.lightning import copy_of
from flgraph.federation.loop import FederatedLoop
from flgraph.federation.routes import RouteKind


class TrainedLoop(FederatedLoop):
    """A loop whose clients' models and metrics can be looked at afterwards."""

    def client_model(self, name: str) -> pl.LightningModule:
        """A client's model as it is now: a copy on the CPU, in evaluation mode, with no federation in sight.

        A plain Trainer keeps the mode that it finds: call ``train()`` first where it is to train the model further.

        Args:
            name: of the client.

        Raises:
            InputError: no client of this name is in this process.
        """
        clients = getattr(self.engine, "clients", {})
        here = f"one of those in this process, {', '.join(clients) or 'which has none'},"
        expect(name in clients, "client", here, name)
        module: pl.LightningModule = clients[name].module
        return copy_of(module).cpu().eval()

    @property
    def model(self) -> Any:
        """The model that all clients have in common, a copy; ``None`` before a run, and where each has its own.

        :meth:`client_model` gives those.
        """
        clients = getattr(self.engine, "clients", {})
        kinds = {kind for client in clients.values() for _, _, kind in client.routing.lines}
        one = bool(clients) and (len(clients) == 1 or RouteKind.PERSONAL not in kinds)
        return self.client_model(next(iter(clients))) if one else None

    @property
    def callback_metrics(self) -> dict[str, Tensor]:
        """Means over clients of the metrics of the run's final evaluation, or of the newest; empty before."""
        evaluated = self.history.final or self.history.last
        return {name: torch.tensor(value) for name, value in evaluated.get("mean", {}).items()}
