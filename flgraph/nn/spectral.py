"""Functions of a graph's Laplacian at its edges, with what they are of eigenvalues learned (Specformer, FedSSP)."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from flgraph.errors import expect
from flgraph.nn.batch_norm import BatchNorm
from flgraph.nn.sparse.adjacency import Adjacency, lasting

_KEPT = 8192
"""Graphs whose eigenvectors are kept."""

_LARGEST = 512
"""Nodes of the largest of them."""

_SCALE = 100.0
"""Of eigenvalues, before sines and cosines."""


class EigenvalueEncoder(torch.nn.Module):
    r"""Each eigenvalue beside sines and cosines of it, and a linear map.

    `"Specformer: Spectral Graph Neural Networks Meet Transformers" <https://arxiv.org/abs/2303.01028>`_ (ICLR 2023),
    Eq. 3 and 4: :math:`[\lambda, \sin(100 \lambda / 10000^{2i/d}), \cos(100 \lambda / 10000^{2i/d})]`.

    Args:
        channels: :math:`d`, columns of the output; even.

    Shapes:
        - **input:** ``[...]``
        - **output:** ``[..., channels]``
    """

    frequency: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        expect(channels % 2 == 0, "channels", "an even number", channels)
        self.lin = torch.nn.Linear(channels + 1, channels)
        frequency = torch.exp(torch.arange(0, channels, 2) * (-math.log(10_000.0) / channels))
        self.register_buffer("frequency", frequency, persistent=False)

    def forward(self, eigenvalues: Tensor) -> Tensor:
        """One row per eigenvalue."""
        angle = _SCALE * eigenvalues.unsqueeze(-1) * self.frequency
        columns = torch.cat([eigenvalues.unsqueeze(-1), angle.sin(), angle.cos()], dim=-1)
        rows: Tensor = self.lin(columns.to(self.lin.weight))
        return rows


class SpectralConv(torch.nn.Module):
    r"""Messages weighed by channel along each edge, and two linear layers, both added to what there is.

    .. math::
        y_i = x_i + \mathrm{dropout} \Big( \sum_{j \to i} w_{ij} \odot \mathrm{gelu}(W x_j + b) \Big), \qquad
        x^\prime_i = y_i + \mathrm{dropout}(\mathrm{ffn}(y_i)).

    Args:
        channels: columns of input and output.
        dropout: probability of a zero.

    Shapes:
        - **input:** ``x [N, channels]``, ``adj`` of ``N`` nodes, ``weights [E, channels]`` in the order of its edges
        - **output:** ``[N, channels]``
    """

    def __init__(self, channels: int, dropout: float) -> None:
        super().__init__()
        self.message = torch.nn.Linear(channels, channels)
        layers: list[torch.nn.Module] = []
        for _ in range(2):
            layers += [torch.nn.Linear(channels, channels), BatchNorm(channels), torch.nn.ReLU()]
        self.ffn = torch.nn.Sequential(*layers)
        self.dropout = torch.nn.Dropout(dropout)

    def forward(self, x: Tensor, adj: Adjacency, weights: Tensor) -> Tensor:
        """Node representations after one step."""
        sent = F.gelu(self.message(x)).index_select(0, adj.col) * weights
        x = x + self.dropout(sum_by_row(sent, adj).to(x))
        out: Tensor = x + self.dropout(self.ffn(x))
        return out


def sum_by_row(values: Tensor, adj: Adjacency) -> Tensor:
    """Sums ``[N, C]`` of values of edges ``[E, C]`` over those that a node receives."""
    if not len(values):
        return values.new_zeros(adj.num_nodes, values.size(1))
    return torch.segment_reduce(values, "sum", offsets=adj.rowptr, axis=0, initial=0)  # in a fixed order


def laplacian_spectra(adj: Adjacency, ptr: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    r"""Eigenvalues of :math:`L = D - A` of every graph, and eigenvectors' products :math:`u_{ik} u_{jk}` at its edges.

    With them :math:`(U f(\Lambda) U^\top)_{ij}` of all edges is a product of matrices. Directed graphs count as
    undirected.

    Args:
        adj: of all graphs together.
        ptr: where the nodes of each begin ``[B + 1]``.

    Returns:
        For each graph of ``n`` nodes and ``e`` edges ``[n]`` and ``[e, n]``, float32.
    """
    bounds, device = ptr.tolist(), ptr.device
    edge_bounds = adj.rowptr[ptr].tolist()
    row, col = (part.cpu() for part in (adj.row, adj.col))
    values, products = [], []
    for number, first in enumerate(bounds[:-1]):
        n, edges = bounds[number + 1] - first, slice(edge_bounds[number], edge_bounds[number + 1])
        local = torch.stack([row[edges], col[edges]]) - first
        find = _spectrum if n <= _LARGEST else _spectrum.__wrapped__
        found, product = find(n, local.int().numpy().tobytes())
        values.append(found.to(device))
        products.append(product.to(device))
    return values, products


@lru_cache(maxsize=_KEPT)
def _spectrum(n: int, edges: bytes) -> tuple[Tensor, Tensor]:
    read = torch.frombuffer(bytearray(edges), dtype=torch.int32) if edges else torch.empty(0)
    pairs = read.view(2, -1).long()
    with lasting():
        dense = torch.zeros(n, n, dtype=torch.float64)
        dense[pairs[0], pairs[1]] = 1.0
        dense = torch.maximum(dense, dense.t()).fill_diagonal_(0.0)
        values, vectors = torch.linalg.eigh(dense.sum(dim=1).diag() - dense)
        return values.float(), (vectors[pairs[0]] * vectors[pairs[1]]).float()
