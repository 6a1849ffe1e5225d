"""What attacks need."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import fuzz
import pytest

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
    edges, owner = list[str](), list[str]()
    for graph in range(30):
        first, size = len(owner) + 1, 3 + graph % 4
        pairs = [(first + i, first + i + 1) for i in range(size - 1)] + [(first, first + size - 1)] * (graph % 2)
        edges += [f"{a}, {b}" for pair in pairs for a, b in (pair, pair[::-1])]
        owner += [str(graph + 1)] * size
    lines = {"A": edges, "graph_indicator": owner, "graph_labels": [str(graph % 2) for graph in range(30)]}
    (root / "ONE").mkdir()
    for key, own in {**lines, "node_labels": ["0"] * len(owner)}.items():
        (root / "ONE" / f"ONE_{key}.txt").write_text("\n".join(own) + "\n")
    return root
