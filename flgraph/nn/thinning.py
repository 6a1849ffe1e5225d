"""Graphs with random edges and features left out."""

from __future__ import annotations

import torch
from torch import Tensor

from flgraph.errors import expect
from flgraph.nn.dropout import dropout
from flgraph.nn.sparse.adjacency import Adjacency
from flgraph.nn.sparse.csr import csr


def drop_edges(adj: Adjacency, p: float) -> Adjacency:
    """The adjacency without some of its edges, each left out with probability ``p`` (DropEdge, Rong et al., 2020).

    An undirected graph stays undirected: both directions of an edge go together. Numbers come from PyTorch's default
    CPU generator.

    Args:
        adj: without self-loops.
        p: from 0, which gives ``adj`` itself, to 1.

    Raises:
        InputError: ``p`` is not a probability.

    Example:
        >>> adj = Adjacency.from_edges(torch.tensor([[0, 1], [1, 0]]), num_nodes=2)
        >>> drop_edges(adj, p=1.0).degree.tolist()
        [[0.0], [0.0]]
    """
    expect(0 <= p <= 1, "p", "a number from 0 to 1", p)
    if p == 0:
        return adj
    receiver, sender = adj.row, adj.col
    undirected = adj.transposed is None
    if undirected:
        once = receiver < sender
        receiver, sender = receiver[once], sender[once]
    kept = (torch.rand(sender.numel()) >= p).to(sender.device)
    edges = torch.stack([sender[kept], receiver[kept]])
    if not undirected:
        return Adjacency.from_edges(edges, adj.num_nodes)
    edges = torch.cat([edges, edges.flip(0)], dim=1)
    order = (edges[0] * adj.num_nodes + edges[1]).argsort()
    return Adjacency.from_sorted(edges[:, order], adj.num_nodes, symmetric=True)


def drop_features(x: Tensor, p: float) -> Tensor:
    """Features some of which are zero, each with probability ``p``, the others divided by :math:`1 - p`.

    Of sparse rows the zeros are left out. Numbers come from PyTorch's default CPU generator.

    Args:
        x: ``[N, F]``, dense or sparse CSR.
        p: from 0, which gives ``x`` itself, to less than 1.

    Raises:
        InputError: ``p`` is out of range.

    Example:
        >>> drop_features(torch.tensor([[0.0, 2.0]]).to_sparse_csr(), p=0.0).to_dense()
        tensor([[0., 2.]])
    """
    expect(0 <= p < 1, "p", "a number from 0 to less than 1", p)
    if p == 0 or x.layout != torch.sparse_csr:
        return dropout(x, p)
    kept = (torch.rand(x.values().numel()) >= p).to(x.device)
    before = torch.cat([kept.new_zeros(1, dtype=torch.long), kept.cumsum(0)])  # how many of the first are kept
    rowptr = before[x.crow_indices().long()]
    return csr(rowptr, x.col_indices()[kept], x.values()[kept] / (1 - p), x.size(1))
