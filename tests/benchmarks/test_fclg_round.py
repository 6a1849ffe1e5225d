from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch_geometric.data import Data

from flgraph.data import FlatGraphs


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    file = Path(__file__).resolve().parents[2] / "benchmarks" / "fclg_round.py"
    spec = importlib.util.spec_from_file_location("fclg_round", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "fclg_round", module)
    spec.loader.exec_module(module)
    return module


def test_the_plain_loop_trains_to_the_same_losses(
    benchmark: Any, graph_list: Callable[..., list[Data]], capsys: pytest.CaptureFixture[str]
) -> None:
    """It is an implementation of Algorithm 1 of its own, with copies of models and PyG's diffusion."""
    benchmark.check(FlatGraphs.from_pyg(graph_list(36), "toy"), 3)
    assert "largest relative difference" in capsys.readouterr().out
