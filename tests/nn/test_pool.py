from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_geometric.nn import global_add_pool, global_max_pool, global_mean_pool

from flgraph.nn import PoolName, graph_pool

TWINS: dict[PoolName, Any] = {"sum": global_add_pool, "mean": global_mean_pool, "max": global_max_pool}
BATCH = torch.tensor([0, 0, 0, 2, 2, 3])  # graph 1 has no node


def test_hand_worked() -> None:
    x = torch.tensor([[1.0, -1.0], [2.0, -2.0], [6.0, -6.0], [4.0, -4.0], [8.0, -8.0], [5.0, -5.0]])
    assert graph_pool(x, BATCH, 4, "sum").tolist() == [[9, -9], [0, 0], [12, -12], [5, -5]]
    assert graph_pool(x, BATCH, 4, "mean").tolist() == [[3, -3], [0, 0], [6, -6], [5, -5]]
    assert graph_pool(x, BATCH, 4, "max").tolist() == [[6, -1], [0, 0], [8, -4], [5, -5]]


@pytest.mark.parametrize("name", ["sum", "mean", "max"])
def test_equals_pyg(name: PoolName) -> None:
    x = torch.randn(6, 3, dtype=torch.double, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    out, expected = graph_pool(x, BATCH, 4, name), TWINS[name](y, BATCH, 4)
    torch.testing.assert_close(out, expected)
    out.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    assert torch.autograd.gradcheck(lambda x: graph_pool(x, BATCH, 4, name), (x,))


@pytest.mark.parametrize("name", ["sum", "mean"])
def test_half_precision_is_summed_in_float32(name: PoolName) -> None:
    x = torch.ones(512, 1, dtype=torch.bfloat16)  # 256 + 1 is 256 in bfloat16
    out = graph_pool(x, torch.zeros(512, dtype=torch.long), 1, name)
    assert out.dtype == torch.bfloat16
    assert out.item() == (512 if name == "sum" else 1)


def test_a_mean_fits_where_its_sum_does_not() -> None:
    x = torch.full((5000, 1), 20.0, dtype=torch.float16)  # which holds no more than 65,504
    assert graph_pool(x, torch.zeros(5000, dtype=torch.long), 1, "mean").item() == 20


@pytest.mark.parametrize("name", ["sum", "mean", "max"])
def test_no_nodes(name: PoolName) -> None:
    assert graph_pool(torch.empty(0, 3), torch.empty(0, dtype=torch.long), 2, name).tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("name", ["sum", "mean"])
@pytest.mark.parametrize("dtype", [torch.double, torch.bfloat16])
def test_gradients(name: PoolName, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    batch = torch.tensor([2, 0, 2, 3, 0, 0])
    x, weights = torch.randn(6, 3, dtype=dtype, requires_grad=True), torch.randn(4, 3, dtype=dtype)
    graph_pool(x, batch, 4, name).mul(weights).sum().backward()
    matrix = (torch.arange(4).unsqueeze(1) == batch).double()
    matrix = matrix / matrix.sum(1, keepdim=True).clamp(min=1) if name == "mean" else matrix
    assert x.grad is not None
    torch.testing.assert_close(x.grad, (matrix.t() @ weights.double()).to(dtype))
    if dtype == torch.double:
        assert torch.autograd.gradgradcheck(lambda x: graph_pool(x, batch, 4, name).square(), x)
