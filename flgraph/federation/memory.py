"""Python's garbage collector, where very many objects stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quick_garbage_collection() -> Iterator[None]:
    """Keeps what exists now out of garbage collections: libraries and idle clients are many, and they stay."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
