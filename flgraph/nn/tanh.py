"""Hyperbolic tangent that is quick on a CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flgraph.nn.products import with_room


def tanh(x: Tensor) -> Tensor:
    r"""Hyperbolic tangent, :math:`2 \sigma(2x) - 1`.

    On a CPU PyTorch's logistic function takes a tenth of the time of its hyperbolic tangent. In float32 the two ways
    differ by at most 2.4e-7, everywhere; bfloat16 is computed in it. For other types and devices this is
    :func:`torch.tanh`.

    Args:
        x: any tensor.

    Example:
        >>> tanh(torch.tensor([0.0, 100.0]))
        tensor([0., 1.])
    """
    if x.device.type != "cpu" or x.dtype not in (torch.float32, torch.bfloat16):
        return torch.tanh(x)
    y: Tensor = _Tanh.apply(x)
    return y


_MINUS_ONE = torch.tensor(-1.0)


class _Tanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = torch.mul(x, 2, out=with_room(x, dtype=torch.promote_types(x.dtype, torch.float32))).sigmoid_()
        torch.add(_MINUS_ONE, y, alpha=2, out=y)
        y = y if y.dtype == x.dtype else with_room(x).copy_(y)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        result: Tensor = torch.ops.aten.tanh_backward(grad, y)
        return result
