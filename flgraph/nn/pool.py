"""From one row per node to one row per graph."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch_geometric.utils import scatter

from flgraph.nn.precision import at_least_float32

PoolName = Literal["sum", "mean", "max"]
"""How the nodes of a graph become one row."""


def graph_pool(x: Tensor, batch: Tensor, num_graphs: int, how: PoolName = "sum") -> Tensor:
    """Sum, mean or largest value of each graph's rows; zero for a graph without nodes.

    Half-precision rows are added in float32: their sum may be more than float16 holds even where the mean is not.

    Args:
        x: a row per node.
        batch: graph number of each node.
        num_graphs: number of graphs.
        how: ``sum``, ``mean`` or ``max``.

    Shapes:
        - **input:** ``x [N, C]``, ``batch [N]``
        - **output:** ``[num_graphs, C]``

    Example:
        >>> import torch
        >>> graph_pool(torch.tensor([[1.0], [2.0], [5.0]]), batch=torch.tensor([0, 0, 1]), num_graphs=2, how="mean")
        tensor([[1.5000],
                [5.0000]])
    """
    if how != "sum":
        return scatter(at_least_float32(x), batch, 0, num_graphs, how).to(x.dtype)
    total: Tensor = _Sum.apply(x, batch, num_graphs)
    return total


class _Sum(torch.autograd.Function):
    """The gradient of PyG's sum takes numbers one by one, in float32; this one takes rows as they are."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
        ctx.batch = batch
        return scatter(at_least_float32(x), batch, 0, num_graphs, "sum").to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad.index_select(0, ctx.batch), None, None
