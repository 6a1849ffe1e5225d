"""Soft labels spread over a graph, and what describes them: their moments, and how sure they are."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from flgraph.nn.sparse.csr import sparse_matmul

MomentKind = Literal["raw", "central", "hybrid"]


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
