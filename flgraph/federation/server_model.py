"""A model that the server trains."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch import Tensor

from flgraph.federation.display import quiet_lightning
from flgraph.federation.lightning import (
    OptimizerStates,
    fit_more,
    load_loop,
    persistent_trainer,
    refused_by_lightning,
)
from flgraph.federation.seeding import derive_seed, seed_all


class ServerModel:
    """A LightningModule of an algorithm's server half, with a Trainer of its own that lives for the whole run.

    Its state, optimizer included, is made of tensors and plain values, as the server half's checkpoints need.

    Args:
        module: the model.
        seed: the run's seed; every call of :meth:`fit` is seeded by it and the round.
        trainer_args: arguments of the server's :class:`pytorch_lightning.Trainer`.

    Raises:
        InputError: Lightning does not take these arguments here.
    """

    def __init__(self, module: pl.LightningModule, seed: int, trainer_args: Mapping[str, Any] | None = None) -> None:
        self.module, self.seed = module, seed
        self._optimizers = OptimizerStates()
        self.trainer = server_trainer([self._optimizers], trainer_args or {})

    def fit(self, loader: Any, epochs: int, round: int) -> dict[str, float]:
        """Trains for some epochs more; returns what the module logged."""
        seed_all(derive_seed(self.seed, "server", round))
        with quiet_lightning():
            return fit_more(self.trainer, self.module, loader, epochs)

    def tensors(self) -> dict[str, Tensor]:
        """The model's parameters and buffers by name, copied to the CPU."""
        return {name: tensor.detach().cpu().clone() for name, tensor in self.module.state_dict().items()}

    def state(self) -> dict[str, Any]:
        """Everything that another :class:`ServerModel` of the same module needs to go on, for :meth:`load_state`."""
        optimizers = [_named(state) for state in self._optimizers.optimizers]
        progress = {"optimizers": optimizers, "schedulers": self._optimizers.schedulers}
        return {"weights": self.tensors(), "loop": self.trainer.fit_loop.state_dict(), **progress}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Puts back what :meth:`state` returned."""
        self.module.load_state_dict(state["weights"])
        self._optimizers.optimizers = [restored_optimizer(saved) for saved in state["optimizers"]]
        self._optimizers.schedulers = state["schedulers"]
        load_loop(self.trainer, state["loop"])


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """An optimizer's state as checkpoints of the server half hold it, copied."""
    return _named(copy.deepcopy(optimizer.state_dict()))


def _named(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state with names in place of parameters' numbers."""
    return {**state, "state": {str(number): values for number, values in state["state"].items()}}


def restored_optimizer(saved: Mapping[str, Any]) -> dict[str, Any]:
    """What ``load_state_dict`` of an optimizer takes, of :func:`optimizer_state`."""
    return {**saved, "state": {int(number): values for number, values in saved["state"].items()}}


def server_trainer(callbacks: list[pl.Callback], trainer_args: Mapping[str, Any]) -> pl.Trainer:
    """A Trainer for models of a server half, whose arguments users know as ``aggregator.server_...``.

    Args:
        callbacks: of the Trainer.
        trainer_args: its arguments.

    Raises:
        InputError: Lightning does not take them here.
    """
    with quiet_lightning():
        try:
            return persistent_trainer(callbacks, {"devices": 1, **trainer_args})
        except (MisconfigurationException, ValueError, TypeError) as error:
            raise refused_by_lightning(trainer_args, error, "aggregator.server_") from error


def relative_distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    r""":math:`\lVert w - v \rVert / \lVert v \rVert` over all tensors of the same names, in float64.

    Args:
        one: :math:`w`.
        other: :math:`v`.
    """
    gap = sum(
        float((one[name].double().cpu() - tensor.double().cpu()).square().sum()) for name, tensor in other.items()
    )
    length = sum(float(tensor.double().square().sum()) for tensor in other.values())
    return float(torch.tensor(gap / length).sqrt()) if length else float("nan")
