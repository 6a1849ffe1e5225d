"""Small data for runs that can be killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from federations import write_paths_and_cycles


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two data sets of paths (class 0) and cycles (class 1), with two node labels."""
    root = tmp_path_factory.mktemp("data")
    for name, graphs in (("ONE", 30), ("TWO", 20)):
        write_paths_and_cycles(root, name, graphs)
    return root


@pytest.fixture
def options(data: Path, tmp_path: Path) -> list[str]:
    """A small run in ``tmp_path / "runs"``."""
    return [
        *("-c", "configs/method/fedprox.yaml", "--data.datasets", "[ONE, TWO]", "--data.root", str(data)),
        *("--trainer.default_root_dir", str(tmp_path / "runs"), "--trainer.name", "run"),
        *("--model.hidden_channels", "8", "--model.num_layers", "2", "--trainer.accelerator", "cpu"),
    ]
