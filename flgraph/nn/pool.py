"""From one row per node to one row per graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from flgraph.errors import expect

PoolName = Literal["sum", "mean", "max"]
"""Names that :func:`graph_pool` knows."""

Pool = Callable[[Tensor, Tensor, int], Tensor]
"""``pool(x, batch, num_graphs)``."""


def graph_sum(x: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
    """Sum of each graph's rows; zero for a graph without nodes. Half-precision rows are added in float32.

    Args:
        x: a row per node.
        batch: graph number of each node.
        num_graphs: number of graphs.

    Shapes:
        - **input:** ``x [N, C]``, ``batch [N]``
        - **output:** ``[num_graphs, C]``
    """
    return _wide_sum(x, batch, num_graphs).to(x.dtype)


def graph_mean(x: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
    """Mean of each graph's rows; arguments and shapes as in :func:`graph_sum`."""
    count = torch.bincount(batch, minlength=num_graphs).clamp(min=1).unsqueeze(1)
    total = _wide_sum(x, batch, num_graphs)  # which may be more than float16 holds
    return (total / count.to(total.dtype)).to(x.dtype)


def _wide_sum(x: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
    wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    return wide.new_zeros(num_graphs, x.size(1)).index_add_(0, batch, wide)


def graph_max(x: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
    """Largest value of each graph and column; arguments and shapes as in :func:`graph_sum`."""
    out = x.new_zeros(num_graphs, x.size(1))
    index = batch.unsqueeze(1).expand_as(x)
    return out.scatter_reduce_(0, index, x, "amax", include_self=False)


_POOLS: dict[str, Pool] = {"sum": graph_sum, "mean": graph_mean, "max": graph_max}


def graph_pool(name: str, *, field: str = "pool") -> Pool:
    """The pooling function called ``sum``, ``mean`` or ``max``.

    Args:
        name: which one.
        field: what an error message calls ``name``.

    Raises:
        InputError: the name is unknown.
    """
    expect(name in _POOLS, field, f"one of {', '.join(_POOLS)}", name)
    return _POOLS[name]
