"""APFL: Deng et al., "Adaptive Personalized Federated Learning", 2020."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import chain
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.enums import GradClipAlgorithmType
from torch import Tensor
from torch.nn import Parameter

from flgraph.callbacks.fedavg import FedAvg
from flgraph.callbacks.gradients import loss_of, overflowed, scaler_of, silent
from flgraph.errors import expect
from flgraph.federation.client import Client
from flgraph.federation.lightning import copy_of
from flgraph.federation.payload import Payload


class APFL(FedAvg):
    r"""FedAvg, whose model each client mixes with one of its own that it trains for the mixture (Algorithm 1).

    A client has the common model :math:`w`, as in FedAvg, its own :math:`v`, and uses :math:`\bar v = \alpha v + (1 -
    \alpha) w`. At every step of local training, from the same batch,

    .. math::
        v \leftarrow v - \eta \nabla_v f(\bar v), \qquad w \leftarrow w - \eta \nabla f(w).

    :math:`\alpha` may be learned, too: at the first step of a round :math:`\alpha \leftarrow \alpha - \eta \langle v -
    w, \nabla f(\bar v) \rangle`, cut to 0 and 1. :math:`v` has an optimizer of its own, like the model's, and begins
    where :math:`w` does. Evaluated, and left in the client's checkpoint, is :math:`\bar v` with the newest common
    model. Running statistics are mixed like weights. With a fixed :math:`\alpha` of 0 this is FedAvg, with 1 clients
    are alone.

    Reported with evaluations: :math:`\alpha` (``apfl/alpha``).

    Args:
        alpha: :math:`\alpha`, at the beginning.
        adaptive: whether it is learned.
        kwargs: see :class:`FedAvg`.
    """

    client_attributes = ("alpha", "_own", "_common", "_states")
    reported_scalars = ("apfl/alpha",)

    def __init__(self, alpha: float = 0.5, adaptive: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        expect(0 <= alpha <= 1, "aggregator.alpha", "from 0 to 1", alpha)
        self.alpha, self.adaptive = alpha, adaptive
        # The client half's: v; what of w is not shared; states of v's optimizers, by number.
        self._own: dict[str, Tensor] = {}
        self._common: dict[str, Tensor] = {}
        self._states: list[dict[str, Any]] = []
        # In a turn: the mixture, v's parameters and their optimizers, w's parameters, whether the first step is done.
        self._mixture: pl.LightningModule | None = None
        self._parameters: dict[str, Parameter] = {}
        self._optimizers: list[torch.optim.Optimizer] = []
        self._stepped = False
        self._trained: dict[str, Tensor] = {}  # what is to be uploaded

    # ----------------------------------------------------------------------------------------------- server half
    def sums_suffice(self, round: int, exchange: str) -> bool:
        return True

    def check_upload(self, client: str, upload: Payload, round: int, exchange: str) -> None:
        self.check_shared(client, upload)

    # ----------------------------------------------------------------------------------------------- client half
    def install(self, client: Client, download: Payload) -> None:
        """Mixes the common model with the client's own; at first there is none."""
        if self._own:
            self._enter(client, download)
            self._mix_into(client.module)
        else:
            super().install(client, download)

    def _enter(self, client: Client, download: Payload) -> None:
        """Puts the common model into the client; a part of it would leave the mixture in the rest, and upload that."""
        client.expect_whole(download)
        client.module.load_state_dict({**client.module.state_dict(), **self._common})
        client.load_shared(download.group())

    @torch.no_grad()
    def _mix_into(self, module: torch.nn.Module) -> None:
        """Makes the mixture of a module that holds the common model; integers stay."""
        for name, tensor in chain(module.named_parameters(), module.named_buffers()):  # each once, if it has two names
            if name in self._own and (tensor.is_floating_point() or tensor.is_complex()):
                tensor.copy_(torch.lerp(tensor, self._own[name].to(tensor), self.alpha))

    def local_update(self, client: Client, round: int, exchange: str) -> None:
        """Trains both models."""
        self._enter(client, client.last_download)
        module = client.module
        self._own = self._own or {name: tensor.clone() for name, tensor in module.state_dict().items()}
        super().local_update(client, round, exchange)
        self._trained = {name: tensor.clone() for name, tensor in client.shared_tensors().items()}
        self._common = {name: t.clone() for name, t in module.state_dict().items() if name not in self._trained}
        self._mix_into(module)
        client.report("apfl/alpha", self.alpha)

    def upload(self, client: Client, round: int, exchange: str) -> Payload | None:
        trained, self._trained = self._trained, {}
        return Payload(trained, self.sample_count(client))

    @property
    def _alone(self) -> bool:
        """Whether there is nothing to be done for the own model: its gradient is zero."""
        return self.alpha == 0 and not self.adaptive

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Makes the mixture, and the own model's optimizers."""
        if self._alone:
            return
        expect(pl_module.automatic_optimization, "model", "a module with automatic optimization for APFL", "another")
        expect(trainer.world_size == 1, "trainer.strategy", "one of a single process for APFL", trainer.world_size)
        expect(all(own.param_groups for own in trainer.optimizers), "model", "one with an optimizer for APFL", "none")
        closures = any(isinstance(optimizer, torch.optim.LBFGS) for optimizer in trainer.optimizers)
        expect(not closures, "model", "one whose optimizer steps once for each gradient, for APFL,", "one with LBFGS")
        self._mixture, self._stepped = copy_of(pl_module), False
        self._mixture.trainer = trainer
        for name, buffer in self._mixture.named_buffers():
            if name in self._own:  # else it is not a part of the model's state
                buffer.copy_(self._own[name])
        self._parameters = {
            name: Parameter(self._own[name].to(p).clone(), p.requires_grad) for name, p in pl_module.named_parameters()
        }
        self._optimizers = [self._like(optimizer, pl_module) for optimizer in trainer.optimizers]
        for optimizer, state in zip(self._optimizers, self._states, strict=bool(self._states)):
            optimizer.load_state_dict(state)

    def _like(self, optimizer: torch.optim.Optimizer, module: pl.LightningModule) -> torch.optim.Optimizer:
        """One of the same kind and settings, for the own model's parameters."""
        names = {id(parameter): name for name, parameter in module.named_parameters()}
        groups = [
            {**group, "params": [self._parameters[names[id(parameter)]] for parameter in group["params"]]}
            for group in optimizer.param_groups
        ]
        kind: Any = type(optimizer)
        made: torch.optim.Optimizer = kind(groups, lr=groups[0]["lr"])
        return made

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lets the mixture forget what it has collected."""
        if self._mixture is not None:
            self._mixture.on_train_epoch_start()

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """A step of the own model, before the common one's."""
        mixture = self._mixture
        if mixture is None:
            return
        each = trainer.accumulate_grad_batches  # which a GradientAccumulationScheduler changes later than the start
        expect(each == 1, "trainer.accumulate_grad_batches", "1 for APFL, which steps at every batch,", each)
        common = dict(pl_module.named_parameters())
        with torch.no_grad():
            for name, parameter in mixture.named_parameters():
                parameter.copy_(torch.lerp(common[name], self._parameters[name], self.alpha))
                parameter.grad = None
        scaler = scaler_of(trainer)
        scale = 1.0 if scaler is None else scaler.get_scale()
        with trainer.precision_plugin.train_step_context(), silent(mixture):
            (loss_of(mixture, batch) * scale).backward()
        gradients = {name: p.grad / scale for name, p in mixture.named_parameters() if p.grad is not None}
        if overflowed(trainer, gradients.values()):
            return
        learned = self._learned(common, gradients, trainer) if self.adaptive and not self._stepped else self.alpha
        for own, optimizer in zip(self._optimizers, trainer.optimizers, strict=True):
            for mine, group in zip(own.param_groups, optimizer.param_groups, strict=True):
                # Schedulers change rates, and some of them momenta.
                mine.update({name: value for name, value in group.items() if name != "params"})
            for name, parameter in self._parameters.items():
                parameter.grad = self.alpha * gradients[name] if name in gradients else None
            how = trainer.gradient_clip_algorithm or "norm"
            trainer.precision_plugin.clip_gradients(own, trainer.gradient_clip_val or 0.0, GradClipAlgorithmType(how))
            own.step()
        self.alpha, self._stepped = learned, True

    def _learned(self, common: Mapping[str, Tensor], gradients: Mapping[str, Tensor], trainer: pl.Trainer) -> float:
        """The mixing weight after a step along its own gradient."""
        own = self._parameters
        along = sum(float(((own[n] - common[n]).detach() * g.conj()).sum().real) for n, g in sorted(gradients.items()))
        rate = float(trainer.optimizers[0].param_groups[0]["lr"])
        return min(1.0, max(0.0, self.alpha - rate * along)) if math.isfinite(along) else self.alpha

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Keeps the own model."""
        if self._mixture is None:
            return
        buffers = dict(self._mixture.named_buffers())
        self._own = {
            name: (self._parameters.get(name, buffers.get(name, tensor))).detach().cpu().clone()
            for name, tensor in self._own.items()
        }
        kept = self.optimizer_state == "keep"
        self._states = [optimizer.state_dict() for optimizer in self._optimizers] if kept else []
        self._mixture, self._parameters, self._optimizers = None, {}, []
