from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

collect_ignore = ["fuzz.py"]  # found by name once its folder is on the path


@pytest.fixture(scope="session")
def fuzz() -> Any:
    """The module ``fuzz.py`` beside this one."""
    sys.path.insert(0, str(Path(__file__).parent))
    try:
        return import_module("fuzz")
    finally:
        sys.path.pop(0)


@pytest.fixture(scope="session")
def made(fuzz: Any) -> Any:
    """Algorithm to what makes it, a model and data."""
    return fuzz.makes()


@pytest.fixture(scope="session")
def recorded(fuzz: Any, made: Any) -> Any:
    """An honest run of an algorithm, by its name."""
    return cache(lambda name: fuzz.record(made[name], rounds=3 if name.startswith("GCFL") else 2))
