"""Gradients that client halves compute with a module's own training step."""

from __future__ import annotations

from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor

from flgraph.callbacks.gradients import loss_of
from flgraph.errors import InputError


class _BatchOnly(pl.LightningModule):
    def training_step(self, batch: Tensor) -> Any:
        return {"loss": batch.sum()}


class _AnyName(pl.LightningModule):
    def training_step(self, batch: Tensor, i: int) -> Any:
        return batch.sum() + i


class _NoLoss(pl.LightningModule):
    def training_step(self, batch: Tensor, *rest: int) -> Any:
        assert rest == (0,)


@pytest.mark.parametrize("kind", [_BatchOnly, _AnyName])
def test_training_steps_are_called_as_lightning_does(kind: type[pl.LightningModule]) -> None:
    """The number of the batch may have any name, or have no place."""
    assert loss_of(kind(), torch.ones(3)) == 3


def test_a_training_step_without_a_loss_is_refused() -> None:
    with pytest.raises(InputError, match=r"`model\.training_step` to be one that returns the loss"):
        loss_of(_NoLoss(), torch.ones(3))
