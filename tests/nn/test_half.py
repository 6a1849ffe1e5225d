from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from flgraph.nn import Dropout
from flgraph.nn.activations import Activation, activate
from flgraph.nn.half import half_linear, is_half

ROWS = [5, 255, 256, 700]

pytestmark = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="a processor without bf16 instructions"
)


def numbers(*shape: int) -> Tensor:
    """Numbers that bfloat16 holds."""
    return torch.randn(*shape).bfloat16().float().requires_grad_()


def close(mine: Tensor, exact: Tensor) -> bool:
    difference = mine.detach().double() - exact.detach()
    return float(difference.norm()) <= 0.03 * float(exact.detach().norm()) + 1e-9


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("activation", ["none", "relu", "tanh"])
@pytest.mark.parametrize("two", [False, True])
def test_against_autograd_in_float64(rows: int, activation: Activation, two: bool) -> None:
    torch.manual_seed(0)
    x, extra, weight, bias = (
        numbers(rows, 24),
        numbers(rows, 40) if two else None,
        numbers(16, 24 + 40 * two),
        numbers(16),
    )
    given = [part for part in (x, extra, weight, bias) if part is not None]
    out = half_linear(
        x.bfloat16(), None if extra is None else extra.bfloat16(), 0.1 * weight, bias, activation=activation
    )
    assert out.dtype == torch.bfloat16
    found = torch.autograd.grad(out.float().square().sum(), given)
    inputs = [part.detach().double().requires_grad_() for part in given]
    exact = F.linear(torch.cat(inputs[:-2], dim=1), 0.1 * inputs[-2], inputs[-1])
    exact = {"none": lambda y: y, "relu": torch.relu, "tanh": torch.tanh}[activation](exact)
    expected = torch.autograd.grad(exact.square().sum(), inputs)
    assert close(out, exact)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == torch.float32
        assert close(mine, theirs)


@pytest.mark.parametrize("rows", ROWS)
def test_dropout(rows: int) -> None:
    torch.manual_seed(0)
    x, weight, bias = numbers(rows, 24), numbers(16, 24), numbers(16)
    plain = half_linear(x.bfloat16(), None, weight, bias, "relu")
    out = half_linear(x.bfloat16(), None, weight, bias, "relu_dropout")
    assert torch.equal(out, plain * 2 * (out > 0))
    if rows >= 255:
        assert 0.45 < float((out > 0).sum() / (plain > 0).sum()) < 0.55
    kept = out.detach() > 0
    expected = torch.autograd.grad((plain * 2 * kept).float().square().sum(), (x, weight, bias))
    for mine, theirs in zip(torch.autograd.grad(out.float().square().sum(), (x, weight, bias)), expected, strict=True):
        assert close(mine, theirs.double())


@pytest.mark.parametrize("sign", [1, -1])
def test_nan_stays(sign: int) -> None:
    x = torch.ones(300, 16, dtype=torch.bfloat16)
    x[0, 0] = torch.tensor(0x7FC0 if sign == 1 else -0x40, dtype=torch.int16).view(torch.bfloat16)
    assert x[0, 0].isnan()
    for activation in ("none", "relu", "tanh"):
        out = half_linear(x, None, torch.ones(16, 16), torch.zeros(16), activation)
        assert out[0].isnan().all()
        assert not out[1:].isnan().any()


def test_relu_of_all_numbers() -> None:
    everything = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16).view(-1, 16)
    finite = everything.nan_to_num(0.0, 0.0, 0.0)
    out = half_linear(finite, None, torch.eye(16), torch.zeros(16), "relu")
    expected = torch.relu(half_linear(finite, None, torch.eye(16), torch.zeros(16), "none"))
    assert torch.equal(out, expected)
    assert not out.signbit().any()


def test_gradients_of_columns_of_something_wider() -> None:
    torch.manual_seed(0)
    x, weight, bias = numbers(300, 16), numbers(16, 16), numbers(16)
    for activation in ("none", "relu", "tanh"):
        whole, part = (half_linear(x.bfloat16(), None, weight, bias, activation) for _ in range(2))
        wide = torch.randn(300, 48).bfloat16()
        one = torch.autograd.grad(whole, weight, wide[:, 16:32].contiguous())
        two = torch.autograd.grad(part, weight, wide[:, 16:32])
        assert torch.equal(one[0], two[0])


def test_where_it_is_used() -> None:
    weight = torch.ones(3, 3)
    assert not is_half(weight)
    with torch.autocast("cpu", torch.bfloat16):
        assert is_half(weight)
        assert not is_half(weight.double())
    with torch.autocast("cpu", torch.float16):
        assert not is_half(weight)


def test_activations_are_torchs() -> None:
    x = torch.randn(50, 4, dtype=torch.double)
    assert torch.equal(activate(x, "none"), x)
    assert torch.equal(activate(x, "relu"), torch.relu(x))
    assert torch.equal(activate(x, "tanh"), torch.tanh(x))


def test_what_dropout_leaves_to_a_layer() -> None:
    torch.manual_seed(0)
    x = torch.randn(50, 4)
    for p, name in ((0.0, "relu"), (0.5, "relu_dropout"), (0.3, "none")):
        layer = Dropout(p)
        assert layer.activation == name
        assert layer.eval().activation == "relu"
    torch.manual_seed(1)
    expected = Dropout(0.5)(x, rectify=True)
    torch.manual_seed(1)
    assert torch.equal(activate(x, "relu_dropout"), expected)
