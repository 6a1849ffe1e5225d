"""Numbers below a float's usual range, which processors are slow with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def flushing_denormals() -> Iterator[None]:
    """Within, such numbers count as zero, in this thread and in those that it starts first.

    They are called denormal, or subnormal (IEEE 754), and :func:`torch.set_flush_denormal` is the switch. Adam's mean
    gradient of a weight that gets none any more shrinks by a tenth a step (``beta_1`` is 0.9). After some 800 steps it
    is below the usual range, where rounding keeps it for ever and some processors are slow: ``benchmarks/denormals.py``
    measures an optimizer's step. What is lost is below 1.2e-38 (float32), far below what Adam adds to the divisor.

    Outside, everything is as it was: other parts of a program may want these numbers.
    """
    before = _flushes()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def _flushes() -> bool:
    """PyTorch can set this, but does not tell it."""
    smallest = torch.finfo(torch.float32).tiny
    return not (torch.tensor(smallest) * 0.5).item()
