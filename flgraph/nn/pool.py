"""From one row per node to one row per graph."""

from __future__ import annotations

from typing import Literal

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
    rows = at_least_float32(x)
    if how == "sum":  # as PyG's, but its gradient takes whole rows
        return rows.new_zeros(num_graphs, x.size(1)).index_add(0, batch, rows).to(x.dtype)
    return scatter(rows, batch, 0, num_graphs, how).to(x.dtype)
