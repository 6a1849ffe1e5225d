"""FedNova: Wang et al., "Tackling the Objective Inconsistency Problem in ... Federated Optimization", NeurIPS 2020."""

from __future__ import annotations

from collections.abc import Mapping
from math import fsum
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from flgraph.callbacks.gradients import stepped
from flgraph.callbacks.server_step import ServerStep
from flgraph.errors import InputError, brief
from flgraph.federation.client import Client
from flgraph.federation.payload import Payload

_MOST_STEPS = 10**6
"""Of a client in a round: whoever says more would have all others' updates multiplied by it."""


class FedNova(ServerStep):
    r"""FedAvg of updates that are divided by how many steps a client took, so that those with more do not pull further.

    With :math:`p_i` the share of client :math:`i` (FedAvg's weight) and :math:`\tau_i` its steps, the server goes

    .. math::
        x \leftarrow x + \Big( \sum_i p_i \tau_i \Big) \sum_i p_i \frac{w_i - x}{\tau_i}

    (Section 4, with :math:`\tau_\mathrm{eff} = \sum_i p_i \tau_i`, the paper's choice). Where all take as many steps
    this is FedAvg. Local SGD with momentum :math:`\rho` counts as :math:`\lVert a_i \rVert_1 = \sum_k (1 - \rho^k) / (1
    - \rho)` steps, which is exact if its momentum begins with zero in every round (``optimizer_state="reset"``);
    dampening and Nesterov's momentum count likewise. For other optimizers, of which the paper says nothing, steps are
    counted. The steps of several optimizers are added up. Of clients that took no step, :math:`\tau_\mathrm{eff}` knows
    nothing: it is the mean over all others.

    Args:
        kwargs: see :class:`~flgraph.callbacks.server_step.ServerStep`.
    """

    upload_scalars = ("num_samples", "steps")

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # The client half's, in a turn: what its steps count, and the gradients in each optimizer's momentum.
        self._steps = 0.0
        self._momentum: dict[int, float] = {}

    # ----------------------------------------------------------------------------------------------- server half
    def check_upload(self, client: str, upload: Payload, round: int, exchange: str) -> None:
        """What FedAvg asks for, and a number of steps."""
        self.check_shared(client, upload)
        steps = upload.scalars.get("steps")
        if type(steps) is not float or not (steps == 0 or 1 <= steps <= _MOST_STEPS):
            wanted = f"one with `steps` of 0, or from 1 to {_MOST_STEPS}"
            raise InputError(f"upload` of client `{client}", wanted, brief(steps))

    def aggregate(self, uploads: Mapping[str, Payload], round: int, exchange: str) -> Mapping[str, Tensor]:
        weights = self.client_weights(uploads)
        steps = {client: float(upload.scalars["steps"]) for client, upload in uploads.items()}
        total = fsum(weights[client] for client in uploads if steps[client])
        effective = fsum(weights[client] * steps[client] for client in uploads) / total if total else 0.0
        moved = {}
        for client, upload in uploads.items():
            factor = effective / steps[client] if steps[client] else 1.0
            moved[client] = {name: self._further(name, tensor, factor) for name, tensor in upload.group().items()}
        return self.combine(moved, weights)

    def _further(self, name: str, tensor: Tensor, factor: float) -> Tensor:
        """As many times as far away from the present weights."""
        if factor == 1 or not self.is_stepped(name):
            return tensor
        before = self.shared[name].double()
        return (before + factor * (tensor.double() - before)).to(tensor.dtype)

    # ----------------------------------------------------------------------------------------------- client half
    def local_update(self, client: Client, round: int, exchange: str) -> None:
        self._steps, self._momentum = 0.0, {}
        super().local_update(client, round, exchange)

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Counts the step, by how much of all gradients so far it contains."""
        if not stepped(pl_module, optimizer):
            return
        group = optimizer.param_groups[0]
        if not (isinstance(optimizer, torch.optim.SGD) and group["momentum"]):
            self._steps += 1.0
            return
        before = self._momentum.get(id(optimizer))
        held = 1.0 if before is None else group["momentum"] * before + 1.0 - group["dampening"]
        self._momentum[id(optimizer)] = held
        self._steps += 1.0 + group["momentum"] * held if group["nesterov"] else held

    def upload(self, client: Client, round: int, exchange: str) -> Payload | None:
        return Payload(client.shared_tensors(), {**self.sample_count(client), "steps": self._steps})
