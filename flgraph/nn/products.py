"""Products of many rows with a small weight, by the kernels that use the processor's widest instructions.

PyTorch multiplies float32 matrices with MKL, which takes AVX2 on processors that are not Intel's. The kernels of oneDNN,
which come with PyTorch, take AVX-512 and need less than half the time. They are compiled for each number of rows, which
takes longer than most products, so tensors here have room for a multiple of :data:`STEP` rows in their memory, and
kernels go over all of it. What follows the last row is never looked at.

A row's sums are added up in the same order either way, so that results have the same bits, as long as a row has at most
:data:`LONGEST` columns; longer ones MKL adds up in parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

STEP = 256
LONGEST = 192
NARROWEST = 16
"""Columns of an output from which on MKL, too, adds up a row's products one after another."""


def with_room(like: Tensor, shape: Sequence[int] | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """A new tensor; if it is a matrix, its memory holds a multiple of :data:`STEP` rows.

    Args:
        like: whose shape, type and device it gets.
        shape: another shape.
        dtype: another type.
    """
    shape = like.shape if shape is None else shape
    if len(shape) != 2:
        return like.new_empty(shape, dtype=dtype)
    return like.new_empty(_room(shape[0]), shape[1], dtype=dtype).resize_(*shape)


def rows_linear(x: Tensor, extra: Tensor | None, weight: Tensor, bias: Tensor | None) -> Tensor:
    r""":math:`[\mathbf{x} \,\Vert\, \mathbf{e}] \mathbf{W}^{\top} + \mathbf{b}`, in the type that autocast wants.

    Shapes:
        - **x:** ``[N, C1]``, **extra:** ``[N, C2]``, **weight:** ``[out, C1 + C2]``, **bias:** ``[out]``
        - **output:** ``[N, out]``
    """
    device = x.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        x, weight = x.to(dtype), weight.to(dtype)
        extra, bias = None if extra is None else extra.to(dtype), None if bias is None else bias.to(dtype)
    if _quick(x, weight):
        y: Tensor = _RowsLinear.apply(x, extra, weight, bias)
        return y
    if extra is None:
        return F.linear(x, weight, bias)
    columns = x.size(-1)
    # The second product is accumulated into the first, so neither the concatenation nor a sum of two results is stored.
    return torch.addmm(F.linear(extra, weight[:, columns:], bias), x, weight[:, :columns].t())


class _RowsLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, extra: Tensor | None, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, extra, weight)
        if extra is None:
            return _product(x, weight, bias)
        own, further = _columns(weight, x, extra)
        return _product(x, own, to=_product(extra, further, bias))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
        x, extra, weight = ctx.saved_tensors
        to_x, to_extra, to_weight, to_bias = ctx.needs_input_grad
        grad = grad.contiguous()
        inputs = [x] if extra is None else [x, extra]
        weights = _columns(weight, *inputs)
        back = [
            _product(grad, part.t()) if needed else None
            for part, needed in zip(weights, (to_x, to_extra), strict=False)
        ]
        parts = [_sum_of_outer(grad, rows) for rows in inputs] if to_weight else []
        return (
            back[0],
            back[1] if extra is not None else None,
            (parts[0] if extra is None else torch.cat(parts, dim=1)) if to_weight else None,
            grad.sum(0) if to_bias else None,
        )


def _columns(weight: Tensor, *inputs: Tensor) -> list[Tensor]:
    """The weight's columns for each input."""
    if len(inputs) == 1:
        return [weight]
    return [part.contiguous() for part in weight.split([rows.size(1) for rows in inputs], dim=1)]


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None, to: Tensor | None = None) -> Tensor:
    """``x @ weight.t() + bias + to``, with room."""
    rows = x.size(0)
    linear = torch.ops.mkldnn._linear_pointwise
    y = linear(_padded(x), weight, bias, "none", [], "") if to is None else linear(
        _padded(x), _padded(to), weight, bias, "add"
    )
    return y.resize_(rows, weight.size(0))


def _sum_of_outer(grad: Tensor, x: Tensor) -> Tensor:
    """``grad.t() @ x``."""
    if x.dtype != torch.bfloat16:
        return grad.t() @ x
    # Of these products, too, kernels are compiled for each number of rows.
    whole = x.size(0) // STEP * STEP
    rest = grad[whole:].t().float() @ x[whole:].float()
    return (grad[:whole].t() @ x[:whole]).add_(rest)


def _padded(x: Tensor) -> Tensor:
    """``x`` with further rows of any content, without a copy where its memory has them."""
    rows, columns = x.size(0), x.size(1)
    room = _room(rows)
    if room == rows and x.is_contiguous():
        return x
    end = (x.storage_offset() + room * columns) * x.element_size()
    if x.is_contiguous() and end <= x.untyped_storage().nbytes():
        return x.as_strided((room, columns), (columns, 1))
    copy = x.new_empty(room, columns)
    copy[:rows].copy_(x)
    return copy


def _room(rows: int) -> int:
    return -(-rows // STEP) * STEP


def _quick(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN's kernels are here, are quicker for these, and have the same bits in float32."""
    if x.device.type != "cpu" or x.dim() != 2 or x.size(0) < STEP or x.dtype not in (torch.float32, torch.bfloat16):
        return False
    if not torch.backends.mkldnn.enabled or torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    if x.dtype == torch.bfloat16:
        return True
    return NARROWEST <= weight.size(0) <= LONGEST and NARROWEST <= x.size(1) <= LONGEST
