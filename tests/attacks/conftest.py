"""What attacks need."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import fuzz
import pytest
from federations import write_paths_and_cycles

collect_ignore = ["fuzz.py"]


@pytest.fixture(scope="session")
def made() -> Any:
    """Algorithm to what makes it, a model and data."""
    return fuzz.makes()


@pytest.fixture(scope="session")
def recorded(made: Any) -> Any:
    """An honest run of an algorithm, by its name."""
    return cache(lambda name: fuzz.record(made[name], rounds=3 if name.startswith("GCFL") else 2))


@pytest.fixture(scope="session")
def graph_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a data set ``ONE`` of paths (class 0) and cycles (class 1), as text files."""
    root = tmp_path_factory.mktemp("graphs")
    write_paths_and_cycles(root, "ONE", 30, labels=1)
    return root
