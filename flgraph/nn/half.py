"""Linear maps with what follows them in one step, in bfloat16 on a CPU.

There a product takes as long as one or two further steps over all rows, such as a bias or an activation. So products
bring bias and hyperbolic tangent along, and what is a matter of signs and zeros is done on the numbers' bits, as
integers, in a fifth of the time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from flgraph.nn.activations import Activation
from flgraph.nn.dropout import sign_bits
from flgraph.nn.precision import product_type
from flgraph.nn.products import columns_for, padded, room_for

LEAST_NAN = -127
"""As int16, all numbers below zero lie below it; what is no number, and not above zero, does not."""


def is_half(weight: Tensor) -> bool:
    """Whether products with this weight are for :func:`half_linear`."""
    if weight.device.type != "cpu" or product_type(weight) != torch.bfloat16:
        return False
    if not (torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled):
        return False
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def half_linear(x: Tensor, extra: Tensor | None, weight: Tensor, bias: Tensor, activation: Activation) -> Tensor:
    r""":math:`\sigma ( [\mathbf{x} \,\Vert\, \mathbf{e}] \mathbf{W}^{\top} + \mathbf{b} )` in bfloat16.

    Args:
        x: first input, bfloat16. If it has room (:func:`~flgraph.nn.products.with_room`), there are finite numbers in
            it, as after a sum over neighbours or after this function.
        extra: second input, likewise.
        weight: :math:`\mathbf{W}`.
        bias: :math:`\mathbf{b}`.
        activation: :math:`\sigma`.

    Shapes:
        - **x:** ``[N, C1]``, **extra:** ``[N, C2]``, **weight:** ``[out, C1 + C2]``, **bias:** ``[out]``
        - **output:** ``[N, out]``
    """
    y: Tensor = _HalfLinear.apply(x, extra, weight, bias, activation)
    return y


class _HalfLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, extra: Tensor | None, weight: Tensor, bias: Tensor, activation: Activation
    ) -> Tensor:
        # What dropout leaves is doubled: by the weight, without rounding.
        ctx.activation, ctx.factor = activation, 2 if activation == "relu_dropout" else 1
        ctx.types = weight.dtype, bias.dtype
        inputs = [rows for rows in (x, extra) if rows is not None]
        weights = columns_for(_times(weight, ctx.factor).bfloat16(), *inputs)
        linear = torch.ops.mkldnn._linear_pointwise
        after = "tanh" if activation == "tanh" and extra is None else "none"
        y: Tensor = linear(padded(inputs[-1]), weights[-1], _times(bias, ctx.factor).bfloat16(), after, [], "")
        if extra is not None:
            y = linear(padded(x), y, weights[0], None, "add")
            y = y.tanh_() if activation == "tanh" else y
        if activation in ("relu", "relu_dropout"):
            torch.threshold_(y.view(torch.int16), LEAST_NAN - 1, 0)
        y.resize_(x.size(0), weight.size(0))
        if activation == "relu_dropout":
            y.view(torch.int16).bitwise_and_(sign_bits(y.shape))
        ctx.save_for_backward(y, *inputs, *weights)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        y, *saved = ctx.saved_tensors
        inputs, weights = saved[: len(saved) // 2], saved[len(saved) // 2 :]
        rows, room = y.size(0), room_for(y.size(0))
        whole = grad.new_empty(room, y.size(1))
        whole[rows:].zero_()  # and what is in the room of the inputs counts for nothing
        grad = _before(ctx.activation, grad, y, whole[:rows])
        found: list[Tensor | None] = [None] * 5
        for number, (x, weight) in enumerate(zip(inputs, weights, strict=True)):
            if ctx.needs_input_grad[number]:
                back = torch.ops.mkldnn._linear_pointwise(whole, weight.t(), None, "none", [], "")
                found[number] = back.resize_(x.shape)
        if ctx.needs_input_grad[2]:
            outer = [whole.t() @ padded(x) for x in inputs]
            found[2] = _times(torch.cat(outer, dim=1).to(ctx.types[0]), ctx.factor)
        if ctx.needs_input_grad[3]:
            found[3] = _times(grad.sum(0).to(ctx.types[1]), ctx.factor)  # added up in float32
        return tuple(found)


def _before(activation: Activation, grad: Tensor, y: Tensor, out: Tensor) -> Tensor:
    """The gradient before the activation, but for dropout's factor; written to ``out``."""
    if activation == "none":
        return out.copy_(grad)
    if activation == "tanh":
        gradient: Tensor = torch.ops.aten.tanh_backward(grad, y, grad_input=out)
        return gradient
    bits = out.view(torch.int16)
    # All bits where y is above zero, none elsewhere.
    torch.neg(y.view(torch.int16), out=bits).bitwise_right_shift_(15).bitwise_and_(grad.contiguous().view(torch.int16))
    return out


def _times(x: Tensor, factor: int) -> Tensor:
    return x if factor == 1 else x * factor
