from __future__ import annotations

import ctypes
import os
import sys
from types import SimpleNamespace

import pytest

from flgraph.cli.main import keep_memory


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's")
@pytest.mark.parametrize("given", [None, "131072"])
def test_what_the_environment_says_counts(monkeypatch: pytest.MonkeyPatch, given: str | None) -> None:
    asked: list[tuple[int, int]] = []
    library = SimpleNamespace(mallopt=lambda *pair: asked.append(pair))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    if given is not None:
        monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", given)
    keep_memory()
    assert asked == ([(-3, 2**25), (-1, 2**29)] if given is None else [])


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's")
def test_another_c_library(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(ctypes, "CDLL", lambda name: asked.append(name) or SimpleNamespace())
    keep_memory()  # does nothing further
    assert asked == ([] if "MALLOC_TRIM_THRESHOLD_" in os.environ else [None])
