from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch_geometric.data import Data

from flgraph.data import NodeGraph, WholeGraphFederation


@pytest.fixture
def federation() -> WholeGraphFederation:
    generator = torch.Generator().manual_seed(0)
    x = (torch.rand(120, 20, generator=generator) < 0.2).float()
    edges = torch.randint(0, 120, (2, 300), generator=generator)
    edges = edges[:, edges[0] != edges[1]]
    graph = NodeGraph.from_pyg(Data(x=x, edge_index=edges, y=torch.arange(120) % 3))
    return WholeGraphFederation(
        graph, num_clients=3, partition="dirichlet", global_fraction=0.0, alpha=100.0, epoch_fraction=1.0
    )


def test_plain_and_flgraph_train_alike(benchmark: ModuleType, federation: WholeGraphFederation) -> None:
    assert benchmark.check(federation, 3, 0) < 1e-5


def test_measures_every_variant(benchmark: ModuleType, federation: WholeGraphFederation) -> None:
    seconds = benchmark.measure(federation, 2 * benchmark.BLOCK, 0)
    assert {name: len(values) for name, values in seconds.items()} == dict.fromkeys(benchmark.VARIANTS, 2)
    assert "1.00 times" in benchmark.report(seconds)
