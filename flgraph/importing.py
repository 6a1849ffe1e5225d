"""How PyTorch, Lightning and PyG are imported, which takes seconds."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collections() -> Iterator[None]:
    """Keeps the collector of garbage out of the way of imports, which make a million objects that all stay."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
