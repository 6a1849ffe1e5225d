"""Dropout that is quick on a CPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from flgraph.errors import expect
from flgraph.nn.products import with_room

# The number 2.0 has the same single bit set in every IEEE format, bfloat16 included: the highest exponent bit.
_INTEGERS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}


def dropout(x: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    r"""Sets each element to zero with probability ``p`` and divides the others by :math:`1 - p`.

    `"Dropout: A Simple Way to Prevent Neural Networks from Overfitting" <https://jmlr.org/papers/v15/srivastava14a.html>`_.
    PyTorch draws one number after another on a CPU, which takes a large part of a small model's step. Here one random
    bit decides an element where ``p`` is one half, and 16 bits otherwise (``p`` is then a multiple of 1/65536). Numbers
    come from PyTorch's default CPU generator, but are not those of :func:`torch.nn.functional.dropout`, which is used
    on other devices and for other types.

    Args:
        x: any floating-point tensor.
        p: probability of a zero, from 0 to 1.
        training: returns ``x`` itself if ``False``.

    Shapes:
        - **input:** any
        - **output:** as the input

    Raises:
        InputError: ``p`` is not a probability.

    Example:
        >>> dropout(torch.ones(2, 3), p=0.5, training=False)
        tensor([[1., 1., 1.],
                [1., 1., 1.]])
    """
    expect(0 <= p <= 1, "p", "a number from 0 to 1", p)
    if not training or p == 0:
        return x
    if x.device.type != "cpu" or x.dtype not in _INTEGERS:
        return F.dropout(x, p)
    if p == 0.5:
        return x * _half_mask(x)
    dropped = round(p * 65536)
    if dropped in (0, 65536):
        return x * (0 if dropped else 1)
    # A signed 16-bit number lies under `dropped - 32768` in `dropped` of 65536 cases.
    remains = _random_bits(x.numel(), torch.int16) >= dropped - 32768
    return x * remains[: x.numel()].view(x.shape).to(x.dtype).mul_(65536 / (65536 - dropped))


def relu_dropout(x: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """:func:`dropout` of the rectified input, ``dropout(relu(x), p, training)``, in fewer steps.

    Example:
        >>> relu_dropout(torch.tensor([-1.0, 2.0]), training=False)
        tensor([0., 2.])
    """
    if training and p == 0.5 and x.device.type == "cpu" and x.dtype in _INTEGERS:
        y: Tensor = _ReLUHalfDropout.apply(x)
        return y
    return dropout(torch.relu(x), p, training)


class _ReLUHalfDropout(torch.autograd.Function):
    """Where the result is not zero the gradient is doubled, elsewhere it is zero: no mask has to be stored.

    The backward step is linear in the gradient and made of operations with a gradient, so it can be differentiated
    again (meta-learning does); in an ordinary backward pass nothing is recorded.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = torch.mul(_half_mask(x), x, out=with_room(x)).relu_()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        # Only the signs of y count, which do not change with it: no gradient flows back through it.
        if torch.is_grad_enabled():
            result: Tensor = torch.ops.aten.threshold_backward(grad, y.detach(), 0)
        else:
            result = torch.ops.aten.threshold_backward(grad, y, 0, grad_input=with_room(y))
        return result.mul_(2)


def _half_mask(x: Tensor) -> Tensor:
    """Zeros and twos, equally likely, in shape and type of ``x``."""
    integer = _INTEGERS[x.dtype]
    usable = torch.iinfo(integer).bits - 1  # no shift to the left brings the sign bit under the mask
    two = 1 << (usable - 1)
    words = _random_bits(-(-x.numel() // usable), integer)
    # Every shift brings another bit of all words under the mask; shifts lie in the outer dimension so that the inner
    # loop runs over contiguous words.
    shifts = torch.arange(usable, dtype=integer).unsqueeze(1)
    return (words << shifts).bitwise_and_(two).view(x.dtype).view(-1)[: x.numel()].view(x.shape)


def sign_bits(shape: Sequence[int]) -> Tensor:
    """All bits or none, equally likely, as int16: a mask of bfloat16 numbers.

    Example:
        >>> sorted(set(sign_bits([8, 64]).flatten().tolist()))
        [-1, 0]
    """
    count = math.prod(shape)
    words = _random_bits(-(-count // 16), torch.int16)
    shifts = torch.arange(16, dtype=torch.int16).unsqueeze(1)
    return (words << shifts).bitwise_right_shift_(15).view(-1)[:count].view(*shape)


def _random_bits(count: int, integer: torch.dtype) -> Tensor:
    """At least ``count`` integers of uniformly random bits."""
    words = -(-count * torch.iinfo(integer).bits // 64)
    return torch.randint(-(2**63), 2**63 - 1, (words,)).view(integer)


class Dropout(torch.nn.Module):
    """:func:`dropout` as a module: active in training mode only.

    Args:
        p: probability of a zero, from 0 to 1.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        expect(0 <= p <= 1, "p", "a number from 0 to 1", p)
        self.p = p

    def forward(self, x: Tensor, rectify: bool = False) -> Tensor:
        """``x``, or ``relu(x)`` if ``rectify``, with some elements set to zero."""
        return (relu_dropout if rectify else dropout)(x, self.p, self.training)

    @property
    def activation(self) -> Literal["none", "relu", "relu_dropout"]:
        """What a layer may do in its stead, with ``rectify``; ``none`` where it cannot."""
        if not self.training or self.p == 0:
            return "relu"
        return "relu_dropout" if self.p == 0.5 else "none"

    def extra_repr(self) -> str:
        """Shown between the brackets of ``repr``."""
        return f"p={self.p}"
