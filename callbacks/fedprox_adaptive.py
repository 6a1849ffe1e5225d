"""FedProx whose coefficient follows the loss: Li et al., MLSys 2020, Section 5.3.2; on FedEgo's grid of values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, get_args

import pytorch_lightning as pl
import torch
from torch import Tensor

from flgraph.callbacks.fedprox import FedProx
from flgraph.callbacks.gradients import scaler_of
from flgraph.errors import expect
from flgraph.federation.client import Client

Rule = Literal["loss", "ratio"]


class FedProxAdaptive(FedProx):
    r"""FedProx in which every client moves its own :math:`\mu` up and down a list of values.

    - ``"loss"``, the rule of Li et al.: after a round, one value up if the loss has risen since the client's last
      round, one value down if it has fallen ``patience`` rounds in a row (which are then counted anew). The loss is the
      task's, averaged over all batches of the client's local training. In their experiments :math:`\mu` moves by 0.1
      and for all clients alike, by the global loss; here every client goes by its own.
    - ``"ratio"``, the rule of FedEgo's published code, at every batch: one value up if the task's loss is above
      :math:`5 \mu P`, one down if it is below :math:`\mu P / 2`, where :math:`P` is the sum over all shared parameters
      of :math:`\lVert w - \bar w \rVert / |w|`, a tensor's distance divided by its number of elements.

    Clients report the coefficient of their last local training (at its end) as ``fedprox/mu``.

    Args:
        mu: the coefficient that clients begin with, one of ``values``.
        values: in ascending order; FedEgo's (Section 5.2) by default.
        rule: ``"loss"`` or ``"ratio"``.
        patience: falls in a row before a step down (``"loss"``).
        kwargs: see :class:`FedAvg`.
    """

    reported_scalars = ("fedprox/mu",)
    client_attributes = ("mu", "_last", "_falls")

    def __init__(
        self,
        mu: float = 0.01,
        values: Sequence[float] = (0.001, 0.01, 0.1, 1.0),
        rule: Rule = "loss",
        patience: int = 5,
        **kwargs: Any,
    ) -> None:
        super().__init__(mu, **kwargs)
        self.values, self.rule, self.patience = [float(value) for value in values], rule, patience
        ascending = all(a < b for a, b in pairwise(self.values))
        valid = len(self.values) > 0 and ascending and self.values[0] >= 0 and self.values[-1] < float("inf")
        expect(valid, "aggregator.values", "finite numbers of 0 or more in ascending order", list(values))
        expect(mu in self.values, "aggregator.mu", f"one of {self.values}", mu)
        expect(rule in get_args(Rule), "aggregator.rule", f"one of {', '.join(get_args(Rule))}", rule)
        expect(patience >= 1, "aggregator.patience", "1 or more", patience)
        self._losses: list[Tensor] = []  # of the batches of one local training
        self._last: float | None = None  # mean of the training before
        self._falls = 0

    # ----------------------------------------------------------------------------------------------- client half
    def local_update(self, client: Client, round: int, exchange: str) -> None:
        """Trains with the present coefficient, and chooses the next one."""
        self._losses = []
        super().local_update(client, round, exchange)
        client.report("fedprox/mu", self.mu)
        if self.rule == "loss" and self._losses:
            mean = torch.stack(self._losses).double().mean()
            self._follow(float(client.trainer.strategy.reduce(mean, reduce_op="mean")))
        self._losses = []

    def _follow(self, loss: float) -> None:
        """A step up or down by the loss of the round just ended."""
        rose = self._last is not None and loss > self._last
        fell = self._last is not None and loss < self._last
        self._last = loss
        self._falls = self._falls + 1 if fell else 0
        if rose:
            self._move(1)
        elif self._falls == self.patience:
            self._falls = 0
            self._move(-1)

    def _move(self, steps: int) -> None:
        index = self.values.index(self.mu) + steps
        self.mu = self.values[min(max(index, 0), len(self.values) - 1)]

    def on_before_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor) -> None:
        """Takes in a batch's loss; under ``"ratio"`` the coefficient is moved before the batch's step."""
        # Lightning has divided it where batches are accumulated, and multiplied it for float16.
        loss = loss.detach() * trainer.accumulate_grad_batches
        scaler = scaler_of(trainer)
        if scaler is not None:
            loss = loss / scaler.get_scale()
        if self.rule == "loss":
            self._losses.append(loss)
            return
        loss = trainer.strategy.reduce(loss, reduce_op="mean")  # several processes of a client go the same way
        proximal = self._distance(pl_module)
        if float(loss) > 5 * self.mu * proximal:
            self._move(1)
        elif float(loss) < self.mu * proximal / 2:
            self._move(-1)

    def _distance(self, module: pl.LightningModule) -> float:
        r""":math:`P` of the ratio rule."""
        parameters: Mapping[str, Tensor] = dict(module.named_parameters())
        parts = [(parameters[name].detach() - t).norm() / t.numel() for name, t in self._center.items() if t.numel()]
        return float(torch.stack(parts).sum()) if parts else 0.0
