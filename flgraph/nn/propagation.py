"""Soft labels spread over a graph, and what describes them: their moments, and how sure they are."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.nn.models import LabelPropagation
from torch_geometric.utils import to_undirected

from flgraph.nn.sparse.csr import sparse_matmul

MomentKind = Literal["raw", "central", "hybrid"]

_AT_A_TIME = 256
"""Nodes whose labels spread in one tensor of as many columns."""


def spread_labels(matrix: Tensor, soft: Tensor, known: Tensor, steps: int, alpha: float) -> Tensor:
    r"""Label propagation in which known nodes count twice (FedGTA's published code).

    :math:`Z^{(0)} = Y`, :math:`Z^{(k)} = \alpha \hat{A} Z^{(k-1)} + (1 - \alpha) Y + K Y`, where :math:`K` is 1 on the
    diagonal for known nodes and 0 elsewhere.

    Args:
        matrix: :math:`\hat{A}`, ``[N, N]`` sparse CSR, such as :func:`~flgraph.nn.gcn_matrix`.
        soft: :math:`Y`, ``[N, C]``, probabilities; one-hots of known nodes.
        known: numbers of the nodes whose labels are known ``[n]``.
        steps: how often.
        alpha: share of the neighbours.

    Returns:
        ``[N, C]``; rows do not sum to 1.
    """
    source = (1 - alpha) * soft
    source[known] += soft[known]
    spread = soft
    for _ in range(steps):
        spread = alpha * sparse_matmul(matrix, spread) + source
    return spread


def leave_one_out_spreading(
    edge_index: Tensor, known: Tensor, num_classes: int, alpha: float = 0.9, steps: int = 10
) -> Tensor:
    r"""Label spreading in which no node hears of its own label.

    Zhou et al., "Learning with Local and Global Consistency", NIPS 2003. Let :math:`\mathbf{S} = \mathbf{D}^{-1/2}
    \mathbf{A} \mathbf{D}^{-1/2}`, each pair of neighbours counting once, and :math:`\mathbf{M} = (1 - \alpha)
    \sum_{k<T} \alpha^k \mathbf{S}^k + \alpha^T \mathbf{S}^T`. Node :math:`i` hears of node :math:`j`'s label as
    much as :math:`\mathbf{M}_{ij}`; of its own not at all, so that what a training node hears is like what others do.

    Args:
        edge_index: ``[2, E]``, in one direction or in both.
        known: class of each node, -1 where it is not known, ``[N]``.
        num_classes: C.
        alpha: share of the neighbours.
        steps: T.

    Returns:
        ``[N, C]``, float32; rows do not sum to 1.

    Example:
        >>> leave_one_out_spreading(torch.tensor([[0], [1]]), torch.tensor([1, -1]), 2, alpha=0.5, steps=1)
        tensor([[0.0000, 0.0000],
                [0.0000, 0.5000]])
    """
    edges = to_undirected(edge_index, num_nodes=known.numel())
    spread = LabelPropagation(steps, alpha)
    votes = torch.zeros(known.numel(), num_classes, device=known.device)
    for voters in (known >= 0).nonzero()[:, 0].split(_AT_A_TIME):
        own = torch.arange(len(voters), device=known.device)
        heard = spread(votes.new_zeros(len(known), len(voters)).index_put_((voters, own), votes.new_ones(())), edges)
        heard[voters, own] = 0.0
        votes += heard @ F.one_hot(known[voters], num_classes).to(heard.dtype)
    return votes


def column_moments(x: Tensor, count: int, kind: MomentKind = "hybrid") -> Tensor:
    r"""Moments of every column of ``x [N, C]``, orders 1 to ``count``.

    Raw moments are :math:`\frac{1}{N} \sum_i x_{ic}^p`, central ones :math:`\frac{1}{N} \sum_i (x_{ic} - \mu_c)^p`.

    Args:
        x: ``[N, C]``.
        count: highest order.
        kind: ``"raw"``, ``"central"``, or ``"hybrid"``, raw and then central ones.

    Returns:
        ``[count, C]``, of ``hybrid`` ``[2 * count, C]``, in the type of ``x``.
    """
    parts = {"raw": [x], "central": [x - x.mean(dim=0)], "hybrid": [x, x - x.mean(dim=0)]}[kind]
    return torch.stack([part.pow(order).mean(dim=0) for part in parts for order in range(1, count + 1)])


def smoothing_confidence(soft: Tensor, degree: Tensor) -> float:
    r""":math:`\sum_i d_i \sum_c (e^{-1} + y_{ic} \log y_{ic})`: high where nodes of many neighbours are sure.

    Args:
        soft: :math:`y`, probabilities ``[N, C]``.
        degree: :math:`d`, ``[N]``.
    """
    terms = torch.special.xlogy(soft, soft) + math.exp(-1)  # each is 0 or more
    return float((degree.to(soft.dtype) @ terms).sum())
