from __future__ import annotations

import pytest
import torch

from flgraph.nn import tanh
from flgraph.nn.tanh import _Tanh


def test_equals_torch() -> None:
    x = torch.cat([torch.linspace(-20, 20, 100_001), torch.tensor([0.0, 1e-30, 1e30, float("inf"), -float("inf")])])
    expected = torch.tanh(x.double())
    assert (tanh(x).double() - expected).abs().max() <= 2.4e-7
    assert tanh(torch.tensor(float("nan"))).isnan()


def test_gradient() -> None:
    x = torch.randn(100, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    tanh(x).square().sum().backward()
    torch.tanh(y).square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    z = torch.randn(5, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(_Tanh.apply, (z,))
    assert torch.autograd.gradgradcheck(_Tanh.apply, (z,))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_types_are_torch(dtype: torch.dtype) -> None:
    x = torch.randn(10, dtype=dtype)
    assert torch.equal(tanh(x), torch.tanh(x))


def test_bfloat16_is_that_of_float32() -> None:
    x = torch.randn(300, 4, dtype=torch.bfloat16)
    assert torch.equal(tanh(x), tanh(x.float()).bfloat16())


@pytest.mark.parametrize("shape", [(), (0, 3), (4, 2)])
def test_shapes(shape: tuple[int, ...]) -> None:
    assert tanh(torch.ones(shape)).shape == shape
