"""Gradients that client halves compute with a module's own training step."""

from __future__ import annotations

from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor

from flgraph.callbacks import SCAFFOLD, FedNova
from flgraph.callbacks.gradients import add_gradient, loss_of
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


@pytest.mark.parametrize("algorithm", [SCAFFOLD, FedNova])
def test_steps_that_overflow_do_not_count(
    algorithm: Any, federate: Any, toy_federation: Any, toy_module: Any, recorder: Any, float16: Any
) -> None:
    """The scale is halved before gradients fit into float16; SCAFFOLD's means were of infinities."""
    trainer = federate(algorithm(), rounds=1, local_epochs=6, engine=recorder, callbacks=[float16])
    trainer.fit(lambda data: toy_module(in_features=4), toy_federation(4, 6))
    for _, upload in recorder.uploads():
        assert all(bool(control.isfinite().all()) for control in upload.group("control").values())
        assert 1 <= upload.scalars.get("steps", 1) < 6


def test_gradients_are_added_to_sparse_ones_and_to_none() -> None:
    """As of ``Embedding(sparse=True)``."""
    parameter = torch.nn.Parameter(torch.ones(3))
    for grad in (torch.tensor([0.0, 2.0, 0.0]).to_sparse(), torch.tensor([0.0, 2.0, 0.0]), None):
        parameter.grad = grad
        add_gradient(parameter, torch.tensor([1.0, 2.0, 3.0]), 0.5)
        assert parameter.grad is not None
        assert parameter.grad.tolist() == [0.5, 1.0 if grad is None else 3.0, 1.5]


def test_a_training_step_without_a_loss_is_refused() -> None:
    with pytest.raises(InputError, match=r"`model\.training_step` to be one that returns the loss"):
        loss_of(_NoLoss(), torch.ones(3))
