"""A model that the server trains."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch import Tensor

from flgraph.federation.arguments import refused_by_lightning
from flgraph.federation.display import quiet_lightning
from flgraph.federation.payload import Payload
from flgraph.federation.refit import OptimizerStates, fit_more, lasting_trainer, load_loop
from flgraph.federation.seeding import derive_seed, seed_all

_WEIGHT, _OPTIMIZER = "weight/", "optimizer/"


class ServerModel:
    """A LightningModule of an algorithm's server half, with a Trainer of its own that lives for the whole run.

    Its state, optimizer included, fits into a :class:`Payload`, as the server half's checkpoints need.

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

    def state(self) -> Payload:
        """Everything that another :class:`ServerModel` of the same module needs to go on."""
        tensors = {_WEIGHT + name: tensor for name, tensor in self.tensors().items()}
        optimizers = []
        for place, optimizer in enumerate(self._optimizers.optimizers):
            plain: dict[str, dict[str, Any]] = {}
            for number, values in optimizer["state"].items():
                for name, value in values.items():
                    if isinstance(value, Tensor):
                        tensors[f"{_OPTIMIZER}{place}/{number}/{name}"] = value.cpu().clone()
                    else:
                        plain.setdefault(str(number), {})[name] = value
            optimizers.append({"groups": optimizer["param_groups"], "plain": plain})
        schedulers = self._optimizers.schedulers
        progress = {"optimizers": optimizers, "schedulers": schedulers, "loop": self.trainer.fit_loop.state_dict()}
        return Payload(tensors, {"progress": json.dumps(progress)})

    def load_state(self, state: Payload) -> None:
        """Puts back what :meth:`state` returned."""
        weights = {n.removeprefix(_WEIGHT): t for n, t in state.tensors.items() if n.startswith(_WEIGHT)}
        self.module.load_state_dict(weights)
        progress = json.loads(str(state.scalars["progress"]))
        self._optimizers.optimizers = []
        for place, saved in enumerate(progress["optimizers"]):
            values: dict[int, dict[str, Any]] = {int(n): dict(plain) for n, plain in saved["plain"].items()}
            prefix = f"{_OPTIMIZER}{place}/"
            for key, tensor in state.tensors.items():
                if key.startswith(prefix):
                    number, _, name = key.removeprefix(prefix).partition("/")
                    values.setdefault(int(number), {})[name] = tensor.clone()
            self._optimizers.optimizers.append({"state": values, "param_groups": saved["groups"]})
        self._optimizers.schedulers = progress["schedulers"]
        load_loop(self.trainer, progress["loop"])


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
            return lasting_trainer(callbacks, {"devices": 1, **trainer_args})
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
