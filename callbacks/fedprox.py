"""FedProx: Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from flgraph.callbacks.fedavg import FedAvg
from flgraph.callbacks.gradients import add_gradient, stepped
from flgraph.errors import expect
from flgraph.federation.client import Client


class FedProx(FedAvg):
    r"""FedAvg with a proximal term: clients minimise :math:`L_m(w) + \frac{\mu}{2} \lVert w - \bar w \rVert^2`.

    The term covers the shared parameters. Its gradient :math:`\mu (w - \bar w)` is added before every optimizer step
    (and before gradient clipping), exactly what automatic differentiation of the sum would give; the logged loss is
    the task's alone.

    Args:
        mu: weight of the proximal term; 0 is FedAvg.
        kwargs: see :class:`FedAvg`.
    """

    def __init__(self, mu: float = 0.01, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        expect(0 <= mu < float("inf"), "aggregator.mu", "a finite number, 0 or more", mu)
        self.mu = mu
        self._center: dict[str, Tensor] = {}  # the client half's, while it trains

    # ----------------------------------------------------------------------------------------------- client half
    def center(self, client: Client) -> dict[str, Tensor]:
        r""":math:`\bar w`, what the client was sent last, by the names of parameters (and buffers)."""
        return client.last_download.group()

    def local_update(self, client: Client, round: int, exchange: str) -> None:
        """Local training with the proximal term."""
        self._center = self.center(client)
        super().local_update(client, round, exchange)
        self._center = {}

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Moves the center to where the model is, once per training and not at every step."""
        parameters = dict(pl_module.named_parameters())  # buffers are shared, too, but have no gradient
        self._center = {name: t.to(parameters[name]) for name, t in self._center.items() if name in parameters}

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Adds the gradient of the proximal term."""
        if self.mu == 0:
            return
        for name, parameter in stepped(pl_module, optimizer).items():
            if name in self._center:
                add_gradient(parameter, parameter.detach() - self._center[name], self.mu)
