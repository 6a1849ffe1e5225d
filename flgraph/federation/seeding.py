"""Randomness that depends on who does what in which round, and on nothing else."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import torch


def derive_seed(seed: int, *parts: str | int) -> int:
    """A 63-bit seed from the run's seed and what it is for, for example ``(seed, "MUTAG", round, "train")``.

    Hashing (SHA-256) keeps the seeds of neighbouring rounds and similarly named clients unrelated, and the same on
    every machine and Python version.
    """
    text = "\x1f".join([str(seed), *map(str, parts)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def seed_all(seed: int) -> None:
    """Seeds torch (all devices), numpy's and Python's global generators."""
    if torch.cuda.is_available() or torch.backends.mps.is_available() or torch.xpu.is_available():
        torch.manual_seed(seed)
    else:  # which would note the seed, and who asked, for every device that may turn up
        torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)
