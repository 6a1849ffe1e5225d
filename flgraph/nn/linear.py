"""Linear maps: of one-hot rows, of two inputs side by side, and of sparse rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from flgraph.nn.products import rows_linear
from flgraph.nn.sparse.csr import sparse_matmul


@dataclass(frozen=True)
class OneHot:
    """Rows that hold a single one, written as its column; a product with them is a choice of the weight's columns.

    ``rows()`` is the tensor itself, ``[N, width]``, float32.

    Args:
        column: ``[N]``, int64.
        width: number of columns.
    """

    column: Tensor
    width: int

    def __call__(self) -> Tensor:
        rows = torch.zeros(self.column.numel(), self.width, device=self.column.device)
        return rows.scatter_(1, self.column.unsqueeze(1), 1.0)

    def linear(self, weight: Tensor) -> Tensor:
        """Product with the transpose of ``weight [out, width]``: ``[N, out]``."""
        device = weight.device.type
        if torch.is_autocast_enabled(device):  # which a product would be part of
            weight = weight.to(torch.get_autocast_dtype(device))
        return F.embedding(self.column, weight.t().contiguous())


def concat_linear(x: Tensor | OneHot, extra: Tensor | None, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    r""":math:`[\mathbf{x} \,\Vert\, \mathbf{e}] \mathbf{W}^{\top} + \mathbf{b}` without building the concatenation.

    Args:
        x: first input, a tensor or, where its rows are one-hots, their columns.
        extra: second input, or ``None`` for an ordinary linear map of ``x``.
        weight: weights; the first ``C1`` columns belong to ``x``, the rest to ``extra``.
        bias: added to every row.

    Shapes:
        - **x:** ``[N, C1]``, **extra:** ``[N, C2]``, **weight:** ``[out, C1 + C2]``, **bias:** ``[out]``
        - **output:** ``[N, out]``

    Example:
        >>> x, extra, weight = torch.ones(2, 3), torch.ones(2, 1), torch.ones(5, 4)
        >>> concat_linear(x, extra, weight).shape
        torch.Size([2, 5])
    """
    if isinstance(x, OneHot):
        rows = x.linear(weight[:, : x.width])
        if extra is not None:
            return F.linear(extra, weight[:, x.width :], bias) + rows
        return rows if bias is None else rows + bias.to(rows.dtype)
    return rows_linear(x, extra, weight, bias)


def fold(weight: Tensor, before: Sequence[torch.nn.Linear]) -> tuple[Tensor, Tensor | None]:
    r"""One linear map in place of two that follow each other.

    :math:`[\mathbf{x} \mathbf{A}^{\top} + \mathbf{a} \,\Vert\, \mathbf{e} \mathbf{B}^{\top} + \mathbf{b}]
    \mathbf{W}^{\top}` is a linear map of :math:`[\mathbf{x} \,\Vert\, \mathbf{e}]`, whose weight costs a product of two
    small matrices, where the first step would cost a product with every row of :math:`\mathbf{x}`.

    Args:
        weight: weight of the second map.
        before: the first maps, side by side; without any, ``weight`` is returned.

    Shapes:
        - **weight:** ``[out, C1 + C2]``, **before:** ``F1 -> C1`` and ``F2 -> C2``
        - **output:** ``[out, F1 + F2]`` and ``[out]``

    Example:
        >>> first, second = torch.nn.Linear(3, 4), torch.nn.Linear(4, 2, bias=False)
        >>> weight, bias = fold(second.weight, [first])
        >>> x = torch.ones(1, 3)
        >>> torch.allclose(x @ weight.T + bias, second(first(x)), atol=1e-6)
        True
    """
    if not before:
        return weight, None
    parts = weight.split([linear.out_features for linear in before], dim=1)
    with torch.autocast(weight.device.type, enabled=False):  # or else the product would be rounded twice
        weights = [part @ linear.weight for part, linear in zip(parts, before, strict=True)]
        biases = [torch.mv(part, linear.bias) for part, linear in zip(parts, before, strict=True)]
    return torch.cat(weights, dim=1), torch.stack(biases).sum(0)


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

    def forward(self, x: Tensor | OneHot, extra: Tensor | None = None) -> Tensor:
        """Maps ``x``, or ``x`` and ``extra`` side by side."""
        return concat_linear(x, extra, self.weight, self.bias)


class SparseLinear(torch.nn.Module):
    r"""A linear map :math:`\mathbf{x} \mathbf{W} + \mathbf{b}` of sparse or dense rows.

    The rows of a bag of words are 98 to 99 % zero: the map of 500 rows of 18 words among 1,433 to 512 columns and its
    gradient take 0.9 ms on a CPU, dense products 6.3 ms. The weight is stored as the transpose of a
    :class:`torch.nn.Linear`'s, because each word then chooses a contiguous row of it.

    Args:
        in_features: columns of the input.
        out_features: columns of the output.

    Shapes:
        - **weight:** ``[in_features, out_features]``, **bias:** ``[out_features]``
        - **input:** ``[N, in_features]``, dense or sparse CSR
        - **output:** ``[N, out_features]``, dense
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = torch.nn.Parameter(torch.empty(in_features, out_features))
        self.bias = torch.nn.Parameter(torch.empty(out_features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Kaiming-normal weights, as the published code of FedEgo, and a zero bias."""
        torch.nn.init.kaiming_normal_(self.weight.t(), nonlinearity="relu")
        torch.nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Maps every row."""
        if x.layout == torch.strided:
            return torch.addmm(self.bias, x, self.weight)
        return sparse_matmul(x, self.weight) + self.bias

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_features}, {self.out_features})"
