"""Products of many rows with a small weight, by the kernels that use the processor's widest instructions.

PyTorch multiplies float32 matrices with MKL, which takes AVX2 on processors that are not Intel's. Kernels of oneDNN,
which come with PyTorch, take AVX-512 and need half the time. They are compiled for each number of rows, which
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

from flgraph.nn.precision import product_type

STEP = 256
LONGEST = 192
NARROWEST = 16
"""Columns of an output from which on MKL, too, adds up a row's products one after another."""


def with_room(like: Tensor, shape: Sequence[int] | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """A new tensor; if it is a matrix on a CPU, its memory holds a multiple of :data:`STEP` rows.

    Args:
        like: whose shape, type and device it gets.
        shape: another shape.
        dtype: another type.
    """
    shape = like.shape if shape is None else shape
    if len(shape) != 2 or like.device.type != "cpu":
        return like.new_empty(shape, dtype=dtype)
    return like.new_empty(room_for(shape[0]), shape[1], dtype=dtype).resize_(*shape)


def rows_linear(x: Tensor, extra: Tensor | None, weight: Tensor, bias: Tensor | None) -> Tensor:
    r""":math:`[\mathbf{x} \,\Vert\, \mathbf{e}] \mathbf{W}^{\top} + \mathbf{b}`, in the type that autocast wants.

    Shapes:
        - **x:** ``[N, C1]``, **extra:** ``[N, C2]``, **weight:** ``[out, C1 + C2]``, **bias:** ``[out]``
        - **output:** ``[N, out]``
    """
    dtype = product_type(weight)
    if _quick([x] if extra is None else [x, extra], weight, dtype):
        y: Tensor = _RowsLinear.apply(x, extra, weight, bias, dtype)
        return y
    if extra is None:
        return F.linear(x, weight, bias)
    columns = x.size(-1)
    # The second product is accumulated into the first, so neither the concatenation nor a sum of two results is stored.
    return torch.addmm(F.linear(extra, weight[:, columns:], bias), x, weight[:, :columns].t())


class _RowsLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, extra: Tensor | None, weight: Tensor, bias: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        ctx.types = [None if given is None else given.dtype for given in (x, extra, weight, bias)]
        inputs = [_as(given, dtype) for given in (x, extra) if given is not None]
        weights = columns_for(weight.to(dtype), *inputs)
        ctx.save_for_backward(*inputs, *weights)
        bias = None if bias is None else bias.to(dtype)
        if extra is None:
            return _product(inputs[0], weights[0], bias)
        return _product(inputs[0], weights[0], to=_product(inputs[1], weights[1], bias))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        count = len(ctx.saved_tensors) // 2
        inputs, weights = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        grad = grad.contiguous()
        found: list[Tensor | None] = [None] * 5
        for n, weight in enumerate(weights):
            if ctx.needs_input_grad[n]:
                found[n] = _product(grad, weight.t())
        if ctx.needs_input_grad[2]:
            found[2] = torch.cat([_sum_of_outer(grad, rows) for rows in inputs], dim=1)
        if ctx.needs_input_grad[3]:
            found[3] = grad.sum(0, dtype=ctx.types[3])
        return tuple(
            None if own is None else own.to(wanted) for own, wanted in zip(found, [*ctx.types, None], strict=True)
        )


def _as(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x if x.dtype == dtype else with_room(x, dtype=dtype).copy_(x)


def columns_for(weight: Tensor, *inputs: Tensor) -> list[Tensor]:
    """The weight's columns for each input."""
    return [part.contiguous() for part in weight.split([rows.size(1) for rows in inputs], dim=1)]


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None, to: Tensor | None = None) -> Tensor:
    """``x @ weight.t() + bias + to``, with room."""
    rows = x.size(0)
    linear = torch.ops.mkldnn._linear_pointwise
    if to is None:
        y: Tensor = linear(padded(x), weight, bias, "none", [], "")
    else:
        y = linear(padded(x), padded(to), weight, bias, "add")
    return y.resize_(rows, weight.size(0))


def _sum_of_outer(grad: Tensor, x: Tensor) -> Tensor:
    """``grad.t() @ x``."""
    if x.dtype != torch.bfloat16:
        return grad.t() @ x
    # Of these products, too, kernels are compiled for each number of rows.
    whole = x.size(0) // STEP * STEP
    rest = grad[whole:].t().float() @ x[whole:].float()
    return rest.add_(grad[:whole].t() @ x[:whole])


def padded(x: Tensor) -> Tensor:
    """``x`` with further rows: of whatever its memory has there, or of zeros in a copy."""
    rows, columns = x.size(0), x.size(1)
    room = room_for(rows)
    if room == rows and x.is_contiguous():
        return x
    end = (x.storage_offset() + room * columns) * x.element_size()
    if x.is_contiguous() and end <= x.untyped_storage().nbytes():
        return x.as_strided((room, columns), (columns, 1))
    copy = x.new_empty(room, columns)
    copy[:rows].copy_(x)
    copy[rows:].zero_()
    return copy


def room_for(rows: int) -> int:
    """The multiple of :data:`STEP` that holds as many rows."""
    return -(-rows // STEP) * STEP


def _quick(inputs: list[Tensor], weight: Tensor, dtype: torch.dtype) -> bool:
    """Whether oneDNN's kernels are here, are quicker for these, and have the same bits in float32."""
    x = inputs[0]
    if x.device.type != "cpu" or x.dim() != 2 or x.size(0) < STEP:
        return False
    if not (torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled):
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if {dtype, weight.dtype, *(rows.dtype for rows in inputs)} != {torch.float32}:
        return False
    widths = [weight.size(0), *(rows.size(1) for rows in inputs)]
    fits = all(NARROWEST <= width <= LONGEST for width in widths)
    return fits and torch.backends.cpu.get_cpu_capability() == "AVX512"
