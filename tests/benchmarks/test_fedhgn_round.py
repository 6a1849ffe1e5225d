from __future__ import annotations

from types import ModuleType

import pytest
import torch

from flgraph.data import HeteroDataModule
from flgraph.data.hetero.schema import with_reverse
from flgraph.models import RGCN


def test_all_variants_compute_the_same_round(benchmark: ModuleType) -> None:
    torch.manual_seed(0)
    data = HeteroDataModule(with_reverse(benchmark.synthetic(12, 240, 60, node_types=4)))
    net = RGCN(**data.model_args, hidden_channels=8, num_bases=3)
    found = []
    for make in benchmark.VARIANTS.values():
        work = make(data, net)
        work()
        (batch,) = data.test_dataloader()
        # The model that was trained is in the function's closure.
        model = next(cell.cell_contents for cell in work.__closure__ if isinstance(cell.cell_contents, torch.nn.Module))
        found.append(getattr(model, "net", model)(batch).detach())
    for other in found[1:]:
        torch.testing.assert_close(other, found[0])
    assert not torch.allclose(found[0], net(batch))


def test_the_large_graph_in_small(benchmark: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    benchmark.large(20, 2000, 200, 1)
    assert "3 clients (Random Edges), reverse edges included" in capsys.readouterr().out
