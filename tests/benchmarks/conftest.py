from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def benchmark(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """The script that a module of tests is named after: ``test_fedstar_round.py`` tests ``fedstar_round.py``."""
    name = request.path.stem.removeprefix("test_")
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[2] / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]
