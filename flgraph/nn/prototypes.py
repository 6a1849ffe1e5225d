"""Mean representations of classes: made, clustered, and asked for classes (FGGP)."""

from __future__ import annotations

import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor
from torch.nn import functional as F


def class_means(rows: Tensor, classes: Tensor, weights: Tensor, num_classes: int) -> Tensor:
    r""":math:`\sum_i w_i z_i / \sum_i w_i` over the rows of each class, 0 for a class without any.

    Args:
        rows: :math:`z`, ``[N, D]``.
        classes: ``[N]``.
        weights: :math:`w`, ``[N]``.
        num_classes: number of classes.

    Returns:
        ``[num_classes, D]``.

    Example:
        >>> class_means(torch.tensor([[1.0], [4.0]]), torch.tensor([1, 1]), torch.tensor([1.0, 2.0]), 2)
        tensor([[0.],
                [3.]])
    """
    # A product, since on a GPU sums by index have no order.
    share = F.one_hot(classes, num_classes).to(rows.dtype) * weights.unsqueeze(1)
    return (share / share.sum(dim=0).clamp(min=1e-12)).t() @ rows


def first_neighbour_clusters(rows: Tensor) -> Tensor:
    """Clusters rows without a number of clusters: each joins its nearest by the angle, and so do the clusters' means.

    FINCH (Sarfraz et al., `"Efficient Parameter-free Clustering Using First Neighbor Relations"
    <https://arxiv.org/abs/1902.11266>`_, CVPR 2019): two rows are linked where one is the nearest of the other, or both
    have the same nearest; clusters are what is connected. This goes on with the clusters' means for as long as more
    than one cluster is left.

    Args:
        rows: ``[n, D]``.

    Returns:
        The cluster of each row ``[n]``, of the coarsest partition that has several; a single one where the first
        partition has.

    Example:
        >>> first_neighbour_clusters(torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])).tolist()
        [0, 0, 1, 1]
    """
    rows = rows.double()
    found = _linked(rows)
    while int(found.max()) > 0:
        count = int(found.max()) + 1
        coarser = _linked(class_means(rows, found, rows.new_ones(len(rows)), count))
        if int(coarser.max()) + 1 in (1, count):
            break
        found = coarser[found]
    return found


def _linked(rows: Tensor) -> Tensor:
    """Connected components ``[n]`` of links to the nearest, which are at right angles for rows of zeros."""
    n = len(rows)
    if n == 1:
        return torch.zeros(1, dtype=torch.long)
    unit = F.normalize(rows, dim=1)
    nearest = (unit @ unit.t()).fill_diagonal_(-torch.inf).argmax(dim=1)
    # Rows with the same nearest are connected by it.
    links = coo_array((torch.ones(n).numpy(), (torch.arange(n).numpy(), nearest.numpy())), shape=(n, n))
    return torch.from_numpy(connected_components(links, directed=False)[1]).long()


def nearest_vote(
    rows: Tensor, prototypes: Tensor, classes: Tensor, num_classes: int, k: int, temperature: float
) -> Tensor:
    r"""Shares of classes among the ``k`` nearest prototypes, by :math:`\mathrm{softmax}(\cos / \tau)` over these.

    Args:
        rows: ``[N, D]``.
        prototypes: ``[M, D]``.
        classes: of the prototypes ``[M]``.
        num_classes: number of classes.
        k: how many prototypes count; all, where there are fewer.
        temperature: :math:`\tau`.

    Returns:
        ``[N, num_classes]``; rows sum up to 1.

    Example:
        >>> nearest_vote(torch.tensor([[2.0, 0.0]]), torch.eye(2), torch.tensor([1, 0]), 2, k=1, temperature=0.1)
        tensor([[0., 1.]])
    """
    cosines = F.normalize(rows, dim=1) @ F.normalize(prototypes, dim=1).t()
    best, where = cosines.topk(min(k, len(prototypes)), dim=1)
    votes = F.one_hot(classes, num_classes).to(rows.dtype)[where]
    return ((best / temperature).softmax(dim=1).unsqueeze(2) * votes).sum(dim=1)
