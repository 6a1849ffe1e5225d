"""Symmetric normalisation of adjacency matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from flgraph.nn.sparse.adjacency import Adjacency, lasting


def inverse_sqrt(degree: Tensor) -> Tensor:
    r""":math:`d^{-1/2}` of degrees of 0 or more, of any shape; 0 where they are 0.

    Example:
        >>> inverse_sqrt(torch.tensor([4.0, 0.0]))
        tensor([0.5000, 0.0000])
    """
    return degree.rsqrt().nan_to_num(posinf=0.0)


def gcn_norm(adj: Adjacency, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    r"""Inverse square roots of the degrees with self-loops, and the weights of the self-loops that nodes still lack.

    Args:
        adj: the adjacency.
        dtype: type of the values that will be scaled; below float32 the result is float32.

    Returns:
        :math:`\hat{d}_i^{-1/2}` and :math:`(1 - A_{ii}) / \hat{d}_i`, ``[N, 1]`` each. A loop that is present several
        times counts once, so the second may be negative.

    Example:
        >>> adj = Adjacency.from_edges(torch.tensor([[0, 1], [1, 0]]), num_nodes=2)
        >>> scale, loop = gcn_norm(adj, torch.float32)
        >>> scale.T, loop.T
        (tensor([[0.7071, 0.7071]]), tensor([[0.5000, 0.5000]]))
    """
    dtype = dtype if dtype == torch.float64 else torch.float32
    cached: dict[torch.dtype, tuple[Tensor, Tensor]] = adj.derived.setdefault("gcn norm", {})
    if dtype not in cached:
        with lasting():
            receivers = adj.row
            present = torch.zeros(adj.num_nodes, dtype=dtype, device=adj.col.device)
            present.index_add_(0, receivers, (receivers == adj.col).to(dtype))
            lacking = (1 - present).unsqueeze(1)
            scale = inverse_sqrt(adj.degree.to(dtype) + lacking)
            cached[dtype] = scale, lacking * scale * scale
    return cached[dtype]


def gcn_matrix(adj: Adjacency) -> Tensor:
    r""":math:`\hat{D}^{-1/2} (A + I) \hat{D}^{-1/2}` as sparse CSR ``[N, N]`` float32, made once per adjacency.

    Made in float64, with the loops among the entries, so that its products have other last bits than those of a layer
    that uses :func:`gcn_norm`.

    Args:
        adj: without self-loops.

    Example:
        >>> adj = Adjacency.from_edges(torch.tensor([[0, 1], [1, 0]]), num_nodes=2)
        >>> gcn_matrix(adj).to_dense()
        tensor([[0.5000, 0.5000],
                [0.5000, 0.5000]])
    """
    if "gcn matrix" not in adj.derived:
        with lasting():
            n, loop = adj.num_nodes, torch.arange(adj.num_nodes, device=adj.col.device)
            row = torch.cat([adj.row, loop])
            edges = torch.stack([row, torch.cat([adj.col, loop])])
            looped = Adjacency.from_sorted(edges[:, (edges[0] * n + edges[1]).argsort()], n, symmetric=True)
            scale = inverse_sqrt(looped.degree.double().squeeze(1))
            adj.derived["gcn matrix"] = looped.matrix(torch.float32, scale=scale)
    matrix: Tensor = adj.derived["gcn matrix"]
    return matrix
