"""Tests of the switch for numbers below the usual range."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from flgraph.federation.lightning import fit_more, flushing_denormals, persistent_trainer

TINY = torch.finfo(torch.float32).tiny

pytestmark = pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this processor has no such switch")


@pytest.fixture(autouse=True)
def kept() -> Iterator[None]:
    """Every test begins and ends with PyTorch's default."""
    torch.set_flush_denormal(False)
    yield
    torch.set_flush_denormal(False)


def halved() -> float:
    return (torch.tensor(TINY) * 0.5).item()


@pytest.mark.parametrize("before", [False, True])
def test_within_and_after(before: bool) -> None:
    torch.set_flush_denormal(before)
    with flushing_denormals():
        assert halved() == 0
        with pytest.raises(ZeroDivisionError), flushing_denormals():
            raise ZeroDivisionError
        assert halved() == 0
    assert (halved() == 0) is before


class Words(pl.LightningModule):
    """Two weights, of which one gets a gradient in the first step only."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))
        self.halved: list[float] = []

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        self.halved.append(halved())
        return (self.weight * batch.squeeze(0)).square().sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def test_training_flushes_them() -> None:
    """The mean gradient ends at zero, where it would stay below the usual range, and no weight differs for it."""
    batches = [torch.ones(1, 2), *[torch.tensor([[1.0, 0.0]])] * 1199]
    module = Words()
    trainer = persistent_trainer([], {"accelerator": "cpu"})
    fit_more(trainer, module, DataLoader(batches, batch_size=None), 1)
    assert set(module.halved) == {0.0}
    assert halved() == TINY / 2

    other = Words()
    optimizer = other.configure_optimizers()
    for batch in batches:
        optimizer.zero_grad()
        other.training_step(batch, 0).backward()
        optimizer.step()
    mine, plain = (next(iter(one.state.values()))["exp_avg"][1].item() for one in (trainer.optimizers[0], optimizer))
    assert mine == 0
    assert 0 < plain < TINY
    assert torch.equal(module.weight, other.weight)
