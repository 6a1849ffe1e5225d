"""MOON: Li et al., "Model-Contrastive Federated Learning", CVPR 2021."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from flgraph.callbacks.fedavg import FedAvg
from flgraph.callbacks.further_loss import AddsLoss
from flgraph.errors import expect
from flgraph.federation.client import Client
from flgraph.federation.lightning import copy_of
from flgraph.models.classifier import Classifier
from flgraph.nn import model_contrast


class MOON(AddsLoss, FedAvg):
    r"""FedAvg whose clients are drawn to the global model's representations, away from their last own (Algorithm 1).

    With :math:`z` what the model makes of a labelled graph or node before its last layer, :math:`z_\mathrm{glob}` what
    the global model makes of it, and :math:`z_\mathrm{prev}` what the client's own last trained model does, clients
    minimise their loss and :math:`\mu` times the mean of

    .. math::
        -\log \frac{\exp(\cos(z, z_\mathrm{glob}) / \tau)}
        {\exp(\cos(z, z_\mathrm{glob}) / \tau) + \exp(\cos(z, z_\mathrm{prev}) / \tau)}.

    The other two models are evaluated without dropout, and with their own running statistics. In a client's first round
    there is no last model, and nothing is added. The paper's projection head is the layer before the last, as in its
    code; models here keep theirs.

    Goes with every classifier of :mod:`flgraph.models`.

    Args:
        mu: :math:`\mu`; 0 is FedAvg.
        temperature: :math:`\tau`.
        kwargs: see :class:`FedAvg`.
    """

    client_attributes = ("_previous",)

    def __init__(self, mu: float = 1.0, temperature: float = 0.5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        expect(0 <= mu < float("inf"), "aggregator.mu", "a finite number, 0 or more", mu)
        expect(0 < temperature < float("inf"), "aggregator.temperature", "a positive, finite number", temperature)
        self.mu, self.temperature = mu, temperature
        self._previous: dict[str, Tensor] = {}  # the client half's model after its last training
        self._others: list[Classifier[Any]] = []  # in a turn: the global model, and that

    # ----------------------------------------------------------------------------------------------- client half
    @property
    def adds_loss(self) -> bool:
        return self.mu > 0 and bool(self._previous)

    def local_update(self, client: Client, round: int, exchange: str) -> None:
        super().local_update(client, round, exchange)
        trained = client.module.state_dict()
        # What is not finite is refused, and would spoil all later turns, too.
        if self.mu > 0 and all(bool(own.isfinite().all()) for own in trained.values()):
            self._previous = {name: tensor.clone() for name, tensor in trained.items()}

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Makes the models to compare with: the client's is the global one now."""
        if self.mu > 0:  # in the first round, too, which adds no loss yet
            expect(isinstance(pl_module, Classifier), "model", "a classifier for MOON", type(pl_module).__name__)
        if self.adds_loss:
            assert isinstance(pl_module, Classifier)
            self._others = [copy_of(pl_module).eval() for _ in range(2)]
            self._others[1].load_state_dict(self._previous)
        super().on_train_start(trainer, pl_module)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leaves the model as it was."""
        super().on_train_end(trainer, pl_module)
        self._others = []

    def further_loss(self, batch: Any, encoded: Tensor) -> Tensor:
        """The model-contrastive loss of a batch."""
        with torch.no_grad():
            toward, away = (other.represent(batch) for other in self._others)
        return self.mu * model_contrast(encoded, toward, away, self.temperature)
