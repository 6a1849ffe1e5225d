"""What all models have in common: sizes that the data gives, and the optimizer."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import pytorch_lightning as pl
import torch
from torch import Tensor

from flgraph.errors import InputError, expect

OptimizerName = Literal["adam", "adamw", "sgd"]

OPTIMIZERS: dict[str, Any] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
"""Name to class."""


class SizedModule(pl.LightningModule):
    """A module some of whose sizes may be given by the data, with an optimizer over all parameters.

    Sizes of -1 mean "given by the data". A module with such a size is a template: it holds hyper-parameters only, has
    no layers, and cannot be called. ``type(m)(**{**m.hparams, **sizes})`` makes a working module of it.

    Args:
        in_channels: columns of the features.
        num_classes: number of classes.
        lr: learning rate.
        weight_decay: weight decay (an L2 penalty, except with ``adamw``).
        optimizer: ``adam``, ``adamw`` or ``sgd``.

    Raises:
        InputError: a hyper-parameter cannot be used.
    """

    data_sizes: ClassVar[tuple[str, ...]] = ("in_channels", "num_classes")
    """Names of the hyper-parameters that may be -1, "given by the data"."""

    test_stages: ClassVar[tuple[str, ...]] = ("test", "global_test")
    """Under which names test loaders are logged, in their order where these have no ``stage`` of their own."""

    def __init__(
        self, in_channels: int, num_classes: int, lr: float, weight_decay: float, optimizer: OptimizerName
    ) -> None:
        super().__init__()
        for name, size in (("in_channels", in_channels), ("num_classes", num_classes)):
            expect(size == -1 or size >= 1, f"model.{name}", "a positive integer, or -1 for given by the data", size)
        expect(0 <= lr < float("inf"), "model.lr", "a finite number, 0 or more", lr)
        expect(0 <= weight_decay < float("inf"), "model.weight_decay", "a finite number, 0 or more", weight_decay)
        expect(optimizer in OPTIMIZERS, "model.optimizer", f"one of {', '.join(OPTIMIZERS)}", optimizer)
        self.in_channels, self.num_classes = in_channels, num_classes
        self.lr, self.weight_decay, self.optimizer_name = lr, weight_decay, optimizer

    @property
    def is_template(self) -> bool:
        """Whether a size is still to be given by the data."""
        return any(getattr(self, name) == -1 for name in self.data_sizes)

    def check_sizes(self) -> None:
        """What subclasses call first in ``forward``.

        Raises:
            InputError: the module is a template.
        """
        if self.is_template:
            missing = " and ".join(f"`model.{name}`" for name in self.data_sizes if getattr(self, name) == -1)
            raise InputError(
                f"Expected {missing} to be given before the module is called but got -1 (given by the data, where that "
                "is of the kind that the model is for)."
            )

    def test_stage(self, number: int) -> str:
        """What the test loader of this number is called: as its ``stage`` says, otherwise by its place.

        Raises:
            InputError: there are more loaders than names.
        """
        given = None if self._trainer is None else self._trainer.test_dataloaders
        loaders = given if isinstance(given, list) else [given]
        named = getattr(loaders[number], "stage", None) if number < len(loaders) else None
        most = f"at most {len(self.test_stages)}, {' and '.join(self.test_stages)},"
        expect(named is not None or number < len(self.test_stages), "test dataloaders", most, number + 1)
        return named or self.test_stages[number]

    def reset_parameters(self) -> None:
        """Draws new weights for all layers."""
        _reset(self)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Leaves a batch as it is that was cut on its device: moving it would not leave its one-hots as such."""
        labels = getattr(batch, "y", None)
        if isinstance(labels, Tensor) and labels.device == device:
            return batch
        return super().transfer_batch_to_device(batch, device, dataloader_idx)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """What the optimizer is given: all parameters, in one group."""
        return [{"params": list(self.parameters())}]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimizer that the hyper-parameters name, over all parameters."""
        optimizer: torch.optim.Optimizer = OPTIMIZERS[self.optimizer_name](
            self.parameter_groups(), lr=self.lr, weight_decay=self.weight_decay, fused=self._may_fuse()
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


def _reset(module: torch.nn.Module) -> None:
    for child in module.children():
        reset = getattr(child, "reset_parameters", None)
        if callable(reset):
            reset()
        else:
            _reset(child)
