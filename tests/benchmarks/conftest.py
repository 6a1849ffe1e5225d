from __future__ import annotations

from importlib import import_module
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def benchmark(request: pytest.FixtureRequest) -> ModuleType:
    """The script that a module of tests is named after: ``test_fedstar_round.py`` tests ``fedstar_round.py``."""
    return import_module(request.path.stem.removeprefix("test_"))
