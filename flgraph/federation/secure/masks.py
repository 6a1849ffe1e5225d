"""Masks: rows of numbers modulo 2^64 that cancel in a sum, or are taken from it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flgraph.federation.transforms import Draw

Row = NDArray[np.uint64]


def add_mask(row: Row, key: bytes, sign: int = 1) -> None:
    """Adds the mask of a key to a row, or subtracts it; whoever lacks the key sees evenly distributed numbers."""
    mask = Draw(key).integers(row.size)
    if sign > 0:
        row += mask
    else:
        row -= mask


def sign_of(client: str, other: str) -> int:
    """Whether a client adds the mask that it has in common with another one, or subtracts it."""
    return 1 if client < other else -1
