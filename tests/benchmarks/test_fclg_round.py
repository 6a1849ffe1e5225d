from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
from torch_geometric.data import Data

from flgraph.data import FlatGraphs


def test_the_plain_loop_trains_to_the_same_losses(
    benchmark: ModuleType, graph_list: Callable[..., list[Data]], capsys: pytest.CaptureFixture[str]
) -> None:
    """It is an implementation of Algorithm 1 of its own, with copies of models and PyG's diffusion."""
    benchmark.check(FlatGraphs.from_pyg(graph_list(36), "toy"), 3)
    assert "largest relative difference" in capsys.readouterr().out
