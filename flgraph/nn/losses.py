"""Losses of contrastive learning and of knowledge distillation between representations."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from flgraph.errors import expect

Similarity = Literal["cosine", "dot"]
"""Of two representations: their cosine, or their inner product."""


def instance_contrast(u: Tensor, v: Tensor, temperature: float = 0.5, similarity: Similarity = "cosine") -> Tensor:
    r"""Each row of one view against its counterpart in the other, all other rows of both being negatives.

    SimCLR (Chen et al., ICML 2020) and FCLG (Li et al., 2023), Eq. 5 and 6:

    .. math::
        \ell = \frac{1}{2B} \sum_{u \in U} \big[ L(u, v) + L(v, u) \big], \qquad
        L(u, v) = \log \frac{\sum_{z \in U \cup V, z \ne u} \exp(s(u, z) / \tau)}{\exp(s(u, v) / \tau)}.

    A single pair has no negatives; its loss is 0, and so is the gradient.

    Args:
        u: one view.
        v: the other view.
        temperature: :math:`\tau`.
        similarity: :math:`s`. FCLG's Eq. 5 is written with inner products; SimCLR, whose loss it is, normalises rows.

    Shapes:
        - **input:** ``[B, C]`` each
        - **output:** a scalar

    Example:
        >>> same = torch.eye(2)
        >>> instance_contrast(same, same) < instance_contrast(same, same.flip(0))
        tensor(True)
    """
    _check(temperature, similarity)
    rows = torch.cat([u, v])
    if similarity == "cosine":
        rows = F.normalize(rows, dim=1)
    logits = (rows @ rows.t()) / temperature
    logits = logits.masked_fill(torch.eye(len(rows), dtype=torch.bool, device=rows.device), float("-inf"))
    counterpart = torch.arange(len(rows), device=rows.device).roll(len(u))
    return F.cross_entropy(logits, counterpart)


def model_contrast(current: Tensor, toward: Tensor, away: Tensor, temperature: float = 0.5) -> Tensor:
    r"""Pulls each row towards one model's representation of it, and away from another's.

    MOON (Li et al., CVPR 2021) and FCLG (Li et al., 2023), Eq. 7 (rows are graphs) and Eq. 8 (rows are nodes), as the
    mean over rows of

    .. math::
        \log \frac{\exp(\cos(u, u_s) / \tau) + \exp(\cos(u, u_c) / \tau)}{\exp(\cos(u, u_s) / \tau)}.

    Args:
        current: :math:`u`, of the model that is trained.
        toward: :math:`u_s`, of the global model.
        away: :math:`u_c`, of the model one epoch ago.
        temperature: :math:`\tau`.

    Shapes:
        - **input:** ``[B, C]`` each
        - **output:** a scalar

    Example:
        >>> near, far = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
        >>> model_contrast(near, near, far) < model_contrast(near, far, near)
        tensor(True)
    """
    _check(temperature)
    unit = F.normalize(current, dim=1)
    gap = (unit * (F.normalize(away, dim=1) - F.normalize(toward, dim=1))).sum(1)
    return F.softplus(gap / temperature).mean()


def softmax_distillation(current: Tensor, toward: Tensor, temperature: float = 1.0) -> Tensor:
    r"""Kullback-Leibler divergence of rows taken as logits.

    FCLG (Li et al., 2023), Eq. 2, as the mean over rows of

    .. math::
        \sum_c \sigma(u_s)_c \big( \log \sigma(u_s)_c - \log \sigma(u)_c \big), \qquad
        \sigma = \mathrm{softmax}(\cdot / \tau).

    Args:
        current: :math:`u`, of the model that is trained.
        toward: :math:`u_s`, of the global model.
        temperature: :math:`\tau`; 1 in the paper.

    Shapes:
        - **input:** ``[B, C]`` each
        - **output:** a scalar

    Example:
        >>> softmax_distillation(torch.zeros(1, 2), torch.zeros(1, 2))
        tensor(0.)
    """
    _check(temperature)
    log_current, log_toward = (F.log_softmax(rows / temperature, dim=1) for rows in (current, toward))
    return F.kl_div(log_current, log_toward, reduction="batchmean", log_target=True)


def squared_distillation(current: Tensor, toward: Tensor) -> Tensor:
    r"""Mean over rows of :math:`\lVert u - u_s \rVert_2^2`, FCLG (Li et al., 2023), Eq. 3.

    Args:
        current: :math:`u`, of the model that is trained.
        toward: :math:`u_s`, of the global model.

    Shapes:
        - **input:** ``[B, C]`` each
        - **output:** a scalar

    Example:
        >>> squared_distillation(torch.zeros(2, 2), torch.ones(2, 2))
        tensor(2.)
    """
    return (current - toward).square().sum(1).mean()


def jsd_contrast(local: Tensor, summary: Tensor, graph: Tensor) -> Tensor:
    r"""Nodes against graphs, the Jensen-Shannon estimate of mutual information (Hjelm et al., ICLR 2019).

    A node's positive is its own graph, its negatives are all others: with :math:`s = \mathbf{l} \cdot \mathbf{g}` and
    :math:`\mathrm{sp}(x) = \log(1 + e^x)`, the mean of :math:`\mathrm{sp}(s) - \log 2` over negatives minus the mean
    of :math:`\log 2 - \mathrm{sp}(-s)` over positives. InfoGraph (Sun et al., ICLR 2020) and MVGRL (Hassani and
    Khasahmadi, ICML 2020) both minimise it.

    Args:
        local: of the nodes.
        summary: of the graphs.
        graph: the graph of each node.

    Shapes:
        - **input:** ``local [N, C]``, ``summary [B, C]``, ``graph [N]``
        - **output:** a scalar; 0 for a single graph, which has no negatives

    Example:
        >>> local, graph = torch.tensor([[1.0], [-1.0]]), torch.tensor([0, 1])
        >>> summary = torch.tensor([[2.0], [-2.0]])  # of each graph, like its nodes
        >>> jsd_contrast(local, summary, graph) < jsd_contrast(local, -summary, graph)
        tensor(True)
    """
    count = summary.size(0)
    if count < 2:
        return (local @ summary.t()).sum() * 0.0
    scores = local @ summary.t()
    own_scores = scores.gather(1, graph.unsqueeze(1))
    # sp(x) over all pairs less that over the positives: no mask of [N, B] is needed.
    negatives = F.softplus(scores).sum() - F.softplus(own_scores).sum()
    log2 = torch.log(scores.new_tensor(2.0))
    positives = log2 - F.softplus(-own_scores).mean()
    result: Tensor = negatives / (len(local) * (count - 1)) - log2 - positives
    return result


def _check(temperature: float, similarity: str = "cosine") -> None:
    expect(temperature > 0, "temperature", "a positive number", temperature)
    expect(similarity in get_args(Similarity), "similarity", "cosine or dot", similarity)
