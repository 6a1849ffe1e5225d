"""What every test can count on: few threads, a cache of its own, and an environment that nobody has changed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

# Variables that libraries and pytest itself set in passing. Anything else that a test leaves behind fails it.
PASSING = {
    "PYTEST_CURRENT_TEST",
    "PYTEST_VERSION",
    "PL_GLOBAL_SEED",  # pytorch_lightning.seed_everything
    "PL_SEED_WORKERS",
    "TF_CPP_MIN_LOG_LEVEL",  # tensorboard
    "KMP_INIT_AT_FORK",  # torch
    "KMP_DUPLICATE_LIB_OK",
}


@pytest.fixture(scope="session", autouse=True)
def threads() -> None:
    """At most two threads for torch, so that timings and parallel tests (pytest -n) stay sane on large machines."""
    torch.set_num_threads(min(2, torch.get_num_threads()))


@pytest.fixture(scope="session", autouse=True)
def cache() -> Iterator[Path]:
    """An empty FLGRAPH_CACHE, gone after the session."""
    with tempfile.TemporaryDirectory(prefix="flgraph-cache-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLGRAPH_CACHE", folder)
        yield Path(folder)


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of real datasets named by FLGRAPH_DATA; the test is skipped where there is none."""
    folder = os.environ.get("FLGRAPH_DATA", "")
    if not folder:
        pytest.skip("needs real data: FLGRAPH_DATA names no folder")
    if not Path(folder).is_dir():
        pytest.fail(f"FLGRAPH_DATA is {folder!r}, which is not a folder")
    return Path(folder)


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """Restores the environment after each test, and fails the test that changed it (monkeypatch undoes its own)."""
    before = dict(os.environ)
    yield
    after = dict(os.environ)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    for name in changed - {"PYTEST_CURRENT_TEST"}:
        if name in before:
            os.environ[name] = before[name]
        else:
            del os.environ[name]
    leaked = sorted(changed - PASSING)
    assert not leaked, f"the test left environment variables changed: {', '.join(leaked)}"
