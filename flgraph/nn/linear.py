"""A linear map of two inputs side by side."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def concat_linear(x: Tensor, extra: Tensor | None, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    r""":math:`[\mathbf{x} \,\Vert\, \mathbf{e}] \mathbf{W}^{\top} + \mathbf{b}` without building the concatenation.

    Args:
        x: first input.
        extra: second input, or ``None`` for an ordinary linear map of ``x``.
        weight: weights; the first ``C1`` columns belong to ``x``, the rest to ``extra``.
        bias: added to every row.

    Shapes:
        - **x:** ``[N, C1]``, **extra:** ``[N, C2]``, **weight:** ``[out, C1 + C2]``, **bias:** ``[out]``
        - **output:** ``[N, out]``
    """
    if extra is None:
        return F.linear(x, weight, bias)
    columns = x.size(-1)
    # The second product is accumulated into the first, so neither the concatenation nor a sum of two results is stored.
    return torch.addmm(F.linear(extra, weight[:, columns:], bias), x, weight[:, :columns].t())


class ConcatLinear(torch.nn.Linear):
    r"""A :class:`torch.nn.Linear` whose input may come in two parts, :math:`[\mathbf{x} \,\Vert\, \mathbf{e}]`.

    It has one weight and one bias, the same names and the same initialisation as :class:`torch.nn.Linear`.

    Args:
        in_features: columns of both parts together.
        out_features: columns of the output.
        bias: whether to add a bias.

    Shapes:
        - **input:** ``x [N, C1]`` and optionally ``extra [N, C2]`` with ``C1 + C2 = in_features``
        - **output:** ``[N, out_features]``
    """

    def forward(self, x: Tensor, extra: Tensor | None = None) -> Tensor:
        """Maps ``x``, or ``x`` and ``extra`` side by side."""
        return concat_linear(x, extra, self.weight, self.bias)
