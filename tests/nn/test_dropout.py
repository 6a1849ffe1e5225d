from __future__ import annotations

import pytest
import torch

from flgraph.errors import InputError
from flgraph.nn import Dropout, dropout, relu_dropout

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("p", [0.5, 0.1, 0.7])
def test_share_and_scale(p: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.ones(1003, 301, dtype=dtype)
    out = dropout(x, p)
    assert out.dtype == dtype
    assert out.shape == x.shape
    effective = 0.5 if p == 0.5 else round(p * 65536) / 65536
    scale = torch.tensor(1 / (1 - effective), dtype=dtype).item()
    assert set(out.unique().tolist()) == {0.0, scale}
    zeros = (out == 0).double()
    error = (p * (1 - p) / out.numel()) ** 0.5
    assert abs(zeros.mean().item() - p) < 4 * error
    # Neither rows nor columns may be luckier than others, nor may neighbours agree.
    assert (zeros.mean(dim=0) - p).abs().max() < 5 * (p * (1 - p) / 1003) ** 0.5
    assert (zeros.mean(dim=1) - p).abs().max() < 5 * (p * (1 - p) / 301) ** 0.5
    flat = zeros.flatten() - p
    for lag in (1, 2, 4, 7, 8, 16, 31, 32, 63, 64, 301, 9739):
        correlation = (flat[lag:] * flat[:-lag]).mean() / (p * (1 - p))
        assert abs(correlation) < 5 / out.numel() ** 0.5, lag


@pytest.mark.parametrize("p", [0.5, 0.3])
def test_seed_repeats(p: float) -> None:
    x = torch.ones(100, 7)
    torch.manual_seed(1)
    first, other = dropout(x, p), dropout(x, p)
    torch.manual_seed(1)
    assert torch.equal(dropout(x, p), first)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("p", [0.5, 0.3])
def test_gradient_is_the_mask(p: float) -> None:
    x = torch.randn(50, 9, dtype=torch.double, requires_grad=True)
    out = dropout(x, p)
    out.sum().backward()
    torch.testing.assert_close(x.grad, (out / x).detach())


@pytest.mark.parametrize("p", [0.5, 0.3])
@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (), (1,), (63,), (64,), (65,), (2, 3, 5)])
def test_shapes(shape: tuple[int, ...], p: float) -> None:
    out = dropout(torch.ones(shape), p)
    assert out.shape == shape


@pytest.mark.parametrize("p", [0.5, 0.3])
def test_not_contiguous(p: float) -> None:
    x = torch.randn(40, 30)
    torch.manual_seed(0)
    expected = dropout(x.t().contiguous(), p)
    torch.manual_seed(0)
    assert torch.equal(dropout(x.t(), p), expected)


def test_limits() -> None:
    x = torch.randn(5, 5)
    assert dropout(x, 0.0) is x
    assert dropout(x, 0.5, training=False) is x
    assert not dropout(x, 1.0).any()
    assert torch.equal(dropout(x, 1e-7), x)
    assert not dropout(x, 1 - 1e-7).any()
    for p in (-0.1, 1.1, float("nan")):
        with pytest.raises(InputError, match="Expected `p` to be a number from 0 to 1"):
            dropout(x, p)
        with pytest.raises(InputError, match="Expected `p`"):
            Dropout(p)


def test_module() -> None:
    module, x = Dropout(0.5), torch.ones(20, 20)
    assert str(module) == "Dropout(p=0.5)"
    assert (module(x) == 0).any()
    assert module.eval()(x) is x


def test_can_be_differentiated_twice() -> None:
    """Meta-learning needs the gradient of a gradient; the mask is that of the forward step all along."""
    x = torch.randn(6, 5, dtype=torch.double, requires_grad=True)

    def function(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)  # the same mask at every call
        return relu_dropout(x).sin()

    assert torch.autograd.gradcheck(function, x)
    assert torch.autograd.gradgradcheck(function, x)


def test_the_gradient_is_the_same_with_and_without_a_graph_of_it() -> None:
    x = torch.randn(50, 9, requires_grad=True)
    weight = torch.randn(50, 9)
    gradients = []
    for create_graph in (False, True):
        torch.manual_seed(0)
        loss = (relu_dropout(x) * weight).sum()
        gradients.append(torch.autograd.grad(loss, x, create_graph=create_graph)[0])
    assert not gradients[0].requires_grad
    torch.manual_seed(0)
    mask = (relu_dropout(x.detach()) > 0).float() * 2
    assert torch.equal(gradients[0], weight * mask)
    assert torch.equal(gradients[1].detach(), gradients[0])
