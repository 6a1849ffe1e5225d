"""What all models have in common: hyper-parameters, sizes that the data gives, the optimizer, metrics of an epoch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn.inits import reset

from flgraph.errors import expect
from flgraph.hooks import overrides
from flgraph.nn.batches import TensorBatch

OptimizerName = Literal["adam", "adamw", "sgd"]

OPTIMIZERS: dict[str, Any] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
"""Name to class."""

FurtherLoss = Callable[[Any, Any], Tensor]
"""A scalar with a gradient, from a training batch and what the model represents its labelled graphs or nodes by."""


class SizedModule(pl.LightningModule):
    """A module some of whose sizes may be given by the data, with an optimizer over all parameters.

    Sizes of -1 mean "given by the data". A module with such a size is a template: it holds hyper-parameters only, has
    no layers, and cannot be called. ``type(m)(**{**m.hparams, **sizes})`` makes a working module of it.

    All arguments of the subclass's ``__init__`` are saved as hyper-parameters.

    Args:
        lr: learning rate.
        weight_decay: weight decay (an L2 penalty, except with ``adamw``).
        optimizer: ``adam``, ``adamw`` or ``sgd``.

    Raises:
        InputError: a hyper-parameter or a batch cannot be used.
    """

    data_sizes: ClassVar[tuple[str, ...]] = ("in_channels", "num_classes")
    """Names of the hyper-parameters that may be -1, "given by the data"."""

    test_stages: ClassVar[tuple[str, ...]] = ("test", "global_test")
    """Under which names test loaders are logged, in their order where these have no ``stage`` of their own."""

    fused: ClassVar[bool] = True
    """Whether one kernel updates all parameters where it can; its last bits are not those of single steps."""

    def __init__(self, lr: float = 0.01, weight_decay: float = 0.0, optimizer: OptimizerName = "adam") -> None:
        super().__init__()
        self.save_hyperparameters()
        expect_finite(lr=lr, weight_decay=weight_decay)
        expect(optimizer in OPTIMIZERS, "model.optimizer", f"one of {', '.join(OPTIMIZERS)}", optimizer)
        self.lr, self.weight_decay, self.optimizer_name = lr, weight_decay, optimizer
        self._collected: dict[str, list[Any]] = defaultdict(list)

    def __setattr__(self, name: str, value: Any) -> None:
        """Quick for the name of a hook, which Lightning notes twice at each call."""
        if name == "_current_fx_name":
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    # ------------------------------------------------------------------------------------------------------ sizes
    @property
    def is_template(self) -> bool:
        """Whether a size is still to be given by the data."""
        return any(getattr(self, name) == -1 for name in self.data_sizes)

    def check_sizes(self) -> None:
        """What subclasses call first in ``forward``.

        Raises:
            InputError: the module is a template.
        """
        wanted = "given before the module is called (data of the kind that the model is for gives it)"
        for name in self.data_sizes:
            expect(getattr(self, name) != -1, f"model.{name}", wanted, -1)

    def reset_parameters(self) -> None:
        """Draws new weights for all layers."""
        for child in self.children():
            reset(child)

    # ------------------------------------------------------------------------------------------- loaders and batches
    def test_stage(self, number: int, loaders: Any = None) -> str:
        """What the test loader of this number is called: as its ``stage`` says, otherwise by its number.

        Args:
            number: of the loader.
            loaders: one or a list of them; those of the module's Trainer when ``None``.

        Raises:
            InputError: there are more loaders than names.
        """
        if loaders is None:
            loaders = None if self._trainer is None else self._trainer.test_dataloaders
        loaders = loaders if isinstance(loaders, list) else [loaders]
        named = getattr(loaders[number], "stage", None) if number < len(loaders) else None
        most = f"at most {len(self.test_stages)}, {' and '.join(self.test_stages)},"
        expect(named is not None or number < len(self.test_stages), "test dataloaders", most, number + 1)
        return named or self.test_stages[number]

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Leaves a batch as it is that was cut on its device: moving it would not leave its one-hots as such."""
        labels = batch.get("y") if isinstance(batch, Data) else None
        here = batch.device if isinstance(batch, TensorBatch) else getattr(labels, "device", None)
        return batch if here == device else super().transfer_batch_to_device(batch, device, dataloader_idx)

    # -------------------------------------------------------------------------------------------------- optimizer
    def parameter_groups(self) -> list[dict[str, Any]]:
        """What the optimizer is given: all parameters, in one group."""
        return [{"params": list(self.parameters())}]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimizer that the hyper-parameters name, over all parameters."""
        optimizer: torch.optim.Optimizer = OPTIMIZERS[self.optimizer_name](
            self.parameter_groups(), lr=self.lr, weight_decay=self.weight_decay, fused=self.fused and self._may_fuse()
        )
        return optimizer

    def _may_fuse(self) -> bool:
        """Whether one kernel may update all parameters, which takes less than half the time."""
        trainer = self._trainer
        if trainer is not None:
            # A fused optimizer undoes the scaling of float16 gradients itself, after the hooks that look at gradients,
            # and Lightning therefore refuses to clip them under mixed precision.
            precision = str(trainer.precision)
            if precision == "16-mixed" or ("mixed" in precision and trainer.gradient_clip_val):
                return False
        return all(p.is_floating_point() and p.device.type in ("cpu", "cuda") for p in self.parameters())

    # ---------------------------------------------------------------------------------------- metrics of an epoch
    @property
    def validation_names(self) -> tuple[str, ...] | None:
        """What a validation reports, such as ``loss``; ``None`` where that is not known beforehand."""
        return None

    def collect(self, stage: str, part: Any) -> None:
        """Stores what a step says of its batch for :meth:`epoch_metrics`."""
        self._collected[stage].append(part)

    def epoch_metrics(self, stage: str, parts: list[Any]) -> Mapping[str, Tensor | float]:
        """Metrics of an epoch from what its steps have collected; logged under ``{stage}/``."""
        raise NotImplementedError

    def on_train_epoch_start(self) -> None:
        """Forgets what an interrupted epoch left."""
        self._collected.clear()

    def on_validation_epoch_start(self) -> None:
        """Forgets what an interrupted epoch left (but not the training epoch that this may be a part of)."""
        self._collected.pop("val", None)

    def on_test_epoch_start(self) -> None:
        """Forgets what an interrupted epoch left."""
        self._collected.clear()

    def on_train_epoch_end(self) -> None:
        """Logs what was collected under ``train``; of an epoch in between only where somebody may look at it.

        Metrics take as long as a small model's step. Those of the last epoch are logged in any case.
        """
        trainer = self.trainer
        if _is_last_epoch(trainer) or _is_watched(trainer):
            self._log_epoch("train")

    def on_validation_epoch_end(self) -> None:
        """Logs what was collected under ``val``."""
        self._log_epoch("val")

    def on_test_epoch_end(self) -> None:
        """Logs what was collected of each test loader."""
        for stage in self.test_stages:
            self._log_epoch(stage)

    def _log_epoch(self, stage: str) -> None:
        parts = self._collected.pop(stage, [])
        if parts:
            metrics = {f"{stage}/{name}": value for name, value in self.epoch_metrics(stage, parts).items()}
            if stage == "train" and not self.trainer.loggers:
                # All that `log_dict` would do, in a hundredth of its time: it is made for values of steps.
                self.trainer.callback_metrics.update({name: torch.as_tensor(value) for name, value in metrics.items()})
            else:
                self.log_dict(metrics, batch_size=1)


_WATCHING = [
    name for name in dir(pl.Callback) if name.startswith(("on_train_epoch_", "on_train_batch_", "on_validation_"))
]


def _is_last_epoch(trainer: pl.Trainer) -> bool:
    """Whether ``fit`` ends with this epoch, as its loop will find."""
    epochs, steps = trainer.max_epochs, trainer.max_steps
    last = epochs is not None and epochs != -1 and trainer.current_epoch + 1 >= epochs
    return last or trainer.should_stop or (steps != -1 and trainer.global_step >= steps)


def _is_watched(trainer: pl.Trainer) -> bool:
    """Whether loggers, schedulers or callbacks may read metrics while training goes on."""
    if trainer.loggers or any(config.monitor for config in trainer.lr_scheduler_configs):
        return True
    return any(overrides(callback, pl.Callback, _WATCHING) for callback in trainer.callbacks)  # type: ignore[attr-defined]


def expect_positive(**sizes: int) -> None:
    """Raises :class:`~flgraph.errors.InputError` for hyper-parameters that are no positive integers."""
    for name, size in sizes.items():
        expect(size >= 1, f"model.{name}", "a positive integer", size)


def expect_sizes(**sizes: int) -> None:
    """Raises :class:`~flgraph.errors.InputError` for hyper-parameters that are neither positive integers nor -1."""
    for name, size in sizes.items():
        expect(size == -1 or size >= 1, f"model.{name}", "a positive integer, or -1 for given by the data", size)


def expect_finite(**values: float) -> None:
    """Raises :class:`~flgraph.errors.InputError` for hyper-parameters that are negative or not finite."""
    for name, value in values.items():
        expect(0 <= value < float("inf"), f"model.{name}", "a finite number, 0 or more", value)


def expect_share(**values: float) -> None:
    """Raises :class:`~flgraph.errors.InputError` for hyper-parameters that are no probabilities below 1."""
    for name, value in values.items():
        expect(0 <= value < 1, f"model.{name}", "at least 0 and less than 1", value)
