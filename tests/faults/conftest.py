"""Small data for runs that can be killed."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two data sets of paths (class 0) and cycles (class 1), with two node labels."""
    root = tmp_path_factory.mktemp("data")
    for name, graphs in (("ONE", 30), ("TWO", 20)):
        edges, owner, labels = [], [], []
        for graph in range(graphs):
            first, size = len(owner) + 1, 3 + graph % 4
            pairs = [(first + i, first + i + 1) for i in range(size - 1)]
            if graph % 2:
                pairs.append((first, first + size - 1))
            edges += [f"{a}, {b}" for pair in pairs for a, b in (pair, pair[::-1])]
            owner += [str(graph + 1)] * size
            labels += [str((graph + i) % 2) for i in range(size)]
        folder = root / name
        folder.mkdir()
        classes = [str(graph % 2) for graph in range(graphs)]
        for key, lines in (
            ("A", edges),
            ("graph_indicator", owner),
            ("graph_labels", classes),
            ("node_labels", labels),
        ):
            (folder / f"{name}_{key}.txt").write_text("\n".join(lines) + "\n")
    return root


@pytest.fixture
def options(data: Path, tmp_path: Path) -> list[str]:
    """A small run in ``tmp_path / "runs"``."""
    return [
        *("-c", "configs/method/fedprox.yaml", "--data.datasets", "[ONE, TWO]", "--data.root", str(data)),
        *("--trainer.default_root_dir", str(tmp_path / "runs"), "--trainer.name", "run"),
        *("--model.hidden_channels", "8", "--model.num_layers", "2", "--trainer.accelerator", "cpu"),
    ]
