"""Training and evaluation mode of modules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn import Module


@contextmanager
def keeping_modes(module: Module) -> Iterator[None]:
    """Afterwards each part of a module is in the mode that it was in, whatever happens."""
    modes = {part: part.training for part in module.modules()}
    try:
        yield
    finally:
        for part, training in modes.items():
            part.training = training


@contextmanager
def evaluating(module: Module) -> Iterator[None]:
    """Within, a module has neither dropout nor gradients; afterwards its parts are in the modes that they were in."""
    with keeping_modes(module), torch.no_grad():
        module.eval()
        yield
