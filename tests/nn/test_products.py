from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from flgraph.nn import ConcatLinear, products
from flgraph.nn.products import LONGEST, NARROWEST, STEP, rows_linear, with_room

ROWS = [STEP - 1, STEP, STEP + 1, 3 * STEP - 5]


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


def trained(x: Tensor, extra: Tensor | None, weight: Tensor, bias: Tensor | None) -> list[Tensor]:
    """Output and gradients."""
    given = [part for part in (x, extra, weight, bias) if part is not None]
    out = rows_linear(x, extra, weight, bias)
    return [out, *torch.autograd.grad(out.float().square().sum(), given)]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("bias", [True, False])
def test_the_same_map(rows: int, bias: bool) -> None:
    torch.manual_seed(0)
    x, extra, weight = numbers(rows, 20), numbers(rows, 30), numbers(40, 50)
    b = numbers(40) if bias else None
    given = [part for part in (x, extra, weight, b) if part is not None]
    out = F.linear(torch.cat([x, extra], dim=1), weight, b)
    expected = [out, *torch.autograd.grad(out.square().sum(), given)]
    for mine, theirs in zip(trained(x, extra, weight, b), expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(
    ("width", "out"), [(NARROWEST, NARROWEST), (64, 64), (LONGEST, 100), (LONGEST + 1, 64), (3, 64)]
)
def test_the_same_bits(rows: int, width: int, out: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On processors whose float32 products PyTorch computes with AVX2; elsewhere nobody has recorded others."""
    torch.manual_seed(0)
    given = numbers(rows, width), None, numbers(out, width), numbers(out)
    quick = trained(*given)
    monkeypatch.setattr(products, "_quick", lambda *_: False)
    for mine, theirs in zip(quick, trained(*given), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-4)
        if "AuthenticAMD" in processor():
            assert torch.equal(mine, theirs)


def processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return file.read()
    except OSError:
        return ""


@pytest.mark.parametrize("rows", ROWS)
def test_autocast(rows: int) -> None:
    torch.manual_seed(0)
    given = numbers(rows, 20), numbers(rows, 30), numbers(40, 50), numbers(40)
    expected = trained(*given)
    with torch.autocast("cpu", torch.bfloat16):
        half = trained(*given)
    assert half[0].dtype == torch.bfloat16
    for mine, theirs in zip(half, expected, strict=True):
        assert float((mine.float() - theirs).norm()) <= 0.02 * float(theirs.norm())
    assert all(grad.dtype == torch.float32 for grad in half[1:])


def test_nothing_behind_the_last_row_counts() -> None:
    torch.manual_seed(0)
    rows, weight = torch.randn(2 * STEP, 16), torch.randn(16, 16)
    expected = rows[:300].clone() @ weight.t()
    rows[300:] = float("nan")
    before = rows.clone()
    torch.testing.assert_close(rows_linear(rows[:300], None, weight, None), expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(rows.nan_to_num(), before.nan_to_num())


def test_rows_that_are_not_contiguous() -> None:
    torch.manual_seed(0)
    wide, weight = torch.randn(300, 64), torch.randn(16, 32)
    torch.testing.assert_close(
        rows_linear(wide[:, 32:], None, weight, None), wide[:, 32:] @ weight.t(), rtol=1e-4, atol=1e-4
    )


def test_no_gradient_where_none_is_wanted() -> None:
    layer, x = ConcatLinear(32, 16), torch.randn(300, 32)
    layer(x).sum().backward()
    assert x.grad is None
    assert layer.weight.grad is not None
    layer.requires_grad_(False)
    assert not layer(x).requires_grad


def test_room() -> None:
    made = with_room(torch.ones(STEP + 1, 3))
    assert made.shape == (STEP + 1, 3)
    assert made.untyped_storage().nbytes() == 2 * STEP * 3 * 4
    assert with_room(torch.ones(5)).shape == (5,)
    assert with_room(torch.ones(0, 3)).shape == (0, 3)
