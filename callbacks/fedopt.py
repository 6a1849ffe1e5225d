"""FedOpt: Reddi et al., "Adaptive Federated Optimization", ICLR 2021."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from flgraph.callbacks.server_step import ServerStep
from flgraph.errors import expect

ServerOptimizer = Literal["adam", "yogi", "adagrad", "sgd"]


class FedOpt(ServerStep):
    r"""FedAvg whose server steps along its clients' mean update with an optimizer: FedAdam, FedYogi, FedAdagrad.

    With :math:`\Delta_t = \bar w - x_t`, the way to the mean that FedAvg would go, and by parameter (Algorithm 2)

    .. math::
        m_t &= \beta_1 m_{t-1} + (1 - \beta_1) \Delta_t \\
        v_t &= \begin{cases}
        \beta_2 v_{t-1} + (1 - \beta_2) \Delta_t^2 & \text{adam} \\
        v_{t-1} - (1 - \beta_2) \Delta_t^2 \, \mathrm{sign}(v_{t-1} - \Delta_t^2) & \text{yogi} \\
        v_{t-1} + \Delta_t^2 & \text{adagrad}
        \end{cases} \\
        x_{t+1} &= x_t + \eta \, m_t / (\sqrt{v_t} + \tau),

    beginning with :math:`m = 0`, :math:`v = \tau^2`, and without a correction for it. ``sgd`` is FedAvgM (Hsu et al.,
    2019): :math:`m_t = \beta_1 m_{t-1} + \Delta_t`, :math:`x_{t+1} = x_t + \eta \, m_t`; with :math:`\eta = 1` and
    :math:`\beta_1 = 0` it is FedAvg. Clients do what they do in FedAvg.

    Args:
        optimizer: the server's.
        server_lr: :math:`\eta`, which the paper searches for each data set.
        beta1: :math:`\beta_1`; the paper has 0 for ``adagrad``.
        beta2: :math:`\beta_2`.
        tau: :math:`\tau`.
        kwargs: see :class:`~flgraph.callbacks.server_step.ServerStep`. The paper's mean is ``weighting="uniform"``.
    """

    server_attributes = ("_momentum", "_variance")

    def __init__(
        self,
        optimizer: ServerOptimizer = "adam",
        server_lr: float = 0.01,
        beta1: float = 0.9,
        beta2: float = 0.99,
        tau: float = 1e-3,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        known = get_args(ServerOptimizer)
        expect(optimizer in known, "aggregator.optimizer", f"one of {', '.join(known)}", optimizer)
        for name, value in (("server_lr", server_lr), ("tau", tau)):
            expect(0 < value < float("inf"), f"aggregator.{name}", "a finite number above 0", value)
        for name, value in (("beta1", beta1), ("beta2", beta2)):
            expect(0 <= value < 1, f"aggregator.{name}", "at least 0 and less than 1", value)
        self.optimizer, self.server_lr = optimizer, server_lr
        self.beta1, self.beta2, self.tau = beta1, beta2, tau
        self._momentum: dict[str, Tensor] = {}  # float64, as all that is computed here
        self._variance: dict[str, Tensor] = {}

    @property
    def name(self) -> str:
        """``fedadam``, ``fedyogi``, ``fedadagrad`` or ``fedavgm``."""
        return "fedavgm" if self.optimizer == "sgd" else f"fed{self.optimizer}"

    # ----------------------------------------------------------------------------------------------- server half
    def take_mean(self, mean: Mapping[str, Tensor], round: int, exchange: str) -> Mapping[str, Tensor]:
        return {name: self._step(name, own) if self.is_stepped(name) else own for name, own in mean.items()}

    def _step(self, name: str, mean: Tensor) -> Tensor:
        before = self.shared[name].double()
        update = mean.double() - before
        momentum = self._momentum.get(name, torch.zeros_like(update))
        if self.optimizer == "sgd":
            self._momentum[name] = self.beta1 * momentum + update
            return (before + self.server_lr * self._momentum[name]).to(mean.dtype)
        self._momentum[name] = self.beta1 * momentum + (1 - self.beta1) * update
        variance, square = self._variance.get(name, torch.full_like(update, self.tau**2)), update.square()
        if self.optimizer == "adam":
            variance = self.beta2 * variance + (1 - self.beta2) * square
        elif self.optimizer == "yogi":
            variance = variance - (1 - self.beta2) * square * (variance - square).sign()
        else:
            variance = variance + square
        self._variance[name] = variance
        return (before + self.server_lr * self._momentum[name] / (variance.sqrt() + self.tau)).to(mean.dtype)
