"""A kernel of graphs, and ridge regression with a kernel."""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.nn import WLConv

from flgraph.nn.structure import one_thread

_AT_A_TIME = 256
"""Rows of a kernel that are multiplied at once."""


def wl_kernel(x: Tensor, edge_index: Tensor, batch: Tensor, num_graphs: int, steps: int = 3) -> Tensor:
    r"""The Weisfeiler-Lehman subtree kernel of graphs, of logarithms of counts, normalised.

    Shervashidze et al., "Weisfeiler-Lehman Graph Kernels", JMLR 2011. Nodes are coloured twice: by their features, a
    colour for each different row, and all alike, which tells of structure alone. Each colouring is refined ``steps``
    times, and the colours of all steps are counted. With :math:`\phi_{gc} = \log(1 + \text{count of colour } c \text{
    in graph } g)`, :math:`\mathbf{K}_{gh} = \cos(\phi_g, \phi_h)`.

    Args:
        x: features of the nodes ``[N, F]``, on the CPU.
        edge_index: ``[2, E]``.
        batch: graph of each node ``[N]``.
        num_graphs: G.
        steps: how many times colours are refined.

    Returns:
        ``[G, G]``, float64.

    Example:
        >>> edges, batch = torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]]), torch.tensor([0, 0, 1, 1])
        >>> wl_kernel(torch.tensor([[0], [1], [1], [0]]), edges, batch, 2)  # two edges, their ends swapped
        tensor([[1., 1.],
                [1., 1.]], dtype=torch.float64)
    """
    phi = []
    for colours in (x.unique(dim=0, return_inverse=True)[1], torch.zeros_like(batch)):
        for step in range(steps + 1):
            colours = WLConv()(colours, edge_index) if step else colours
            entries = np.ones(len(batch)), (batch.numpy(), colours.numpy())
            phi.append(csr_array(entries, shape=(num_graphs, int(colours.max()) + 1)).log1p())
    kernel = np.empty((num_graphs, num_graphs))
    blocks = [slice(first, first + _AT_A_TIME) for first in range(0, num_graphs, _AT_A_TIME)]
    for rows in blocks:  # a sparse product of all rows would take three times the memory
        kernel[rows] = sum((part[rows] @ part.T).toarray() for part in phi)
    length = np.sqrt(kernel.diagonal())
    length[length == 0] = 1  # of a graph without nodes
    for rows in blocks:
        kernel[rows] /= np.outer(length[rows], length)
    return torch.from_numpy(kernel)


@one_thread()
def leave_one_out_ridge(kernel: Tensor, known: Tensor, num_classes: int, ridge: float = 0.1) -> Tensor:
    r"""Kernel ridge regression of classes, in which no label has a part in its own prediction.

    Let :math:`\mathbf{R} = (\mathbf{K} + \lambda \mathbf{I})^{-1}` of the rows whose class is known, :math:`\mathbf{Y}`
    their classes as one-hots less :math:`1 / C`, and :math:`\boldsymbol{\alpha} = \mathbf{R} \mathbf{Y}`. A row of
    unknown class gets :math:`\mathbf{k}^{\top} \boldsymbol{\alpha}`; one of known class what a regression without it
    would give it, :math:`\mathbf{y}_i - \boldsymbol{\alpha}_i / \mathbf{R}_{ii}` (Rifkin & Lippert, "Notes on
    Regularized Least Squares", 2007).

    Args:
        kernel: :math:`\mathbf{K}` of all rows, ``[G, G]``.
        known: class of each row, -1 where it is not known, ``[G]``.
        num_classes: C.
        ridge: :math:`\lambda`.

    Returns:
        ``[G, C]``, float32; 0 where nothing is known.

    Raises:
        torch.linalg.LinAlgError: the kernel has negative eigenvalues, or none above 0 where ``ridge`` is 0.

    Example:
        >>> alike = torch.tensor([[1.0, 1, 0], [1, 1, 0], [0, 0, 1]])
        >>> leave_one_out_ridge(alike, torch.tensor([1, -1, 0]), 2, ridge=1.0)  # the second is like the first
        tensor([[ 0.0000,  0.0000],
                [-0.2500,  0.2500],
                [ 0.0000,  0.0000]])
    """
    own, others = (known >= 0).nonzero()[:, 0], (known < 0).nonzero()[:, 0]
    labels = F.one_hot(known[own], num_classes).to(kernel) - 1 / num_classes
    shifted = kernel[own][:, own] + ridge * torch.eye(len(own)).to(kernel)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(shifted))
    alpha = inverse @ labels
    scores = kernel.new_empty(len(kernel), num_classes)
    scores[own] = labels - alpha / inverse.diagonal().unsqueeze(1)
    scores[others] = kernel[others][:, own] @ alpha
    return scores.float()
