"""NeighGen: a generator of the neighbours that a part of a graph lacks (FedSage+)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flgraph.nn.conv.sage import SparseSAGEConv
from flgraph.nn.dropout import Dropout
from flgraph.nn.precision import at_least_float32
from flgraph.nn.sparse.adjacency import Adjacency, gather_ranges, offsets
from flgraph.nn.sparse.csr import rows_times, take_rows


class FeatureGenerator(torch.nn.Module):
    r"""Features of missing neighbours (the paper's fGen): linear layers with ReLU, and tanh at the end.

    Args:
        in_channels: columns of a node's representation, noise included.
        channels: columns of the layers between.
        out_channels: columns of a neighbour's features; those learned from should lie between -1 and 1.
        max_neighbours: neighbours per node.
        dropout: probability of a zero before the last layer.

    Shapes:
        - **input:** ``[n, in_channels]``
        - **output:** ``[n, max_neighbours, out_channels]``
    """

    def __init__(
        self, in_channels: int, channels: Sequence[int], out_channels: int, max_neighbours: int, dropout: float
    ) -> None:
        super().__init__()
        self.out_channels, self.max_neighbours = out_channels, max_neighbours
        sizes = [in_channels, *channels, max_neighbours * out_channels]
        self.layers = torch.nn.ModuleList(map(torch.nn.Linear, sizes[:-1], sizes[1:]))
        self.dropout = Dropout(dropout)

    def forward(self, z: Tensor) -> Tensor:
        """Features of every node's neighbours."""
        *hidden, last = self.layers
        for layer in hidden:
            z = layer(z).relu()
        return last(self.dropout(z)).tanh().unflatten(1, (self.max_neighbours, -1))


class NeighGen(torch.nn.Module):
    r"""A generator of missing neighbours, and of their number.

    `"Subgraph Federated Learning with Missing Neighbor Generation" <https://arxiv.org/abs/2106.13430>`_, Section 4:
    two GraphSAGE layers (:attr:`encoder`) represent a node, a linear layer with ReLU (:attr:`dgen`, dGen) tells how
    many of its neighbours are missing, and :attr:`fgen` (fGen) from the representation with Gaussian noise what
    features they have.

    Args:
        in_channels: columns of the features.
        hidden_channels: columns of a node's representation.
        fgen_channels: columns of the layers within fGen.
        max_neighbours: neighbours generated for a node at most.
        dropout: probability of a zero after the first layer of the encoder and before the last of fGen.
    """

    def __init__(
        self, in_channels: int, hidden_channels: int, fgen_channels: Sequence[int], max_neighbours: int, dropout: float
    ) -> None:
        super().__init__()
        self.encoder = torch.nn.ModuleList(
            [SparseSAGEConv(in_channels, hidden_channels), SparseSAGEConv(hidden_channels, hidden_channels)]
        )
        self.dropout = Dropout(dropout)
        self.dgen = torch.nn.Linear(hidden_channels, 1)
        self.fgen = FeatureGenerator(hidden_channels, fgen_channels, in_channels, max_neighbours, dropout)

    def forward(self, x: Tensor, adj: Adjacency) -> tuple[Tensor, Tensor]:
        """Represents nodes.

        Args:
            x: features ``[N, in_channels]``, dense or sparse CSR.
            adj: of ``N`` nodes.

        Returns:
            Representations ``[N, hidden_channels]``, and how many neighbours each node lacks ``[N]``, not rounded.
        """
        z = self.encoder[1]([self.dropout(self.encoder[0]([x], adj), rectify=True)], adj)
        return z, self.dgen(z).relu().squeeze(1)

    def features(self, z: Tensor, counts: Tensor) -> Tensor:
        """Features of as many neighbours of each node as ``counts`` ``[N]`` says ``[sum of counts, in_channels]``."""
        step = max(1, _CELLS // (self.fgen.max_neighbours * self.fgen.out_channels))
        parts = zip(z.split(step), counts.split(step), strict=True)
        return torch.cat([self.fgen(some)[first_ones(n, self.fgen.max_neighbours)] for some, n in parts])

    def round(self, missing: Tensor) -> Tensor:
        """Whole numbers of neighbours to generate ``[N]``, int64."""
        return missing.detach().float().round().long().clamp(0, self.fgen.max_neighbours)


@dataclass(frozen=True)
class ImpairedGraph:
    """A graph some of whose nodes are hidden, from which a generator can learn what is missing.

    Args:
        visible: numbers of the other nodes in the graph, in ascending order ``[V]``.
        adj: the adjacency among them.
        pairs: visible nodes, by their positions in ``visible``, and hidden neighbours, by their numbers in the graph
            ``[2, E]``, sorted by the first.
    """

    visible: Tensor
    adj: Adjacency
    pairs: Tensor

    @classmethod
    def of(cls, adj: Adjacency, hidden: Tensor) -> ImpairedGraph:
        """Hides nodes.

        Args:
            adj: the graph's.
            hidden: whether to hide each of its nodes ``[N]``.
        """
        target = adj.row
        source, visible = adj.col, (~hidden).nonzero().squeeze(1)
        position = torch.cumsum(~hidden, 0) - 1
        seen, lost = ~hidden[target] & ~hidden[source], ~hidden[target] & hidden[source]
        inside = torch.stack([position[source[seen]], position[target[seen]]])
        pairs = torch.stack([position[target[lost]], source[lost]])
        return cls(visible, Adjacency.from_edges(inside, visible.numel()), pairs)

    def candidates(self, max_neighbours: int) -> Tensor:
        """Pairs of a neighbour to generate, counted over all visible nodes, and a hidden node that it may be like.

        Args:
            max_neighbours: of a node that are generated; a node with fewer hidden ones has as many as these.

        Returns:
            ``[2, E']``, sorted by the first.
        """
        missing = self.missing
        rows = torch.repeat_interleave(missing.clamp(max=max_neighbours))  # the node of each
        positions, ptr = gather_ranges(offsets(missing), rows)
        return torch.stack([torch.repeat_interleave(ptr.diff()), self.pairs[1][positions]])

    @property
    def missing(self) -> Tensor:
        """How many hidden neighbours each visible node has ``[V]``."""
        return torch.bincount(self.pairs[0], minlength=self.visible.numel())


def mend(adj: Adjacency, counts: Tensor) -> Adjacency:
    """Adds neighbours to a graph, each joined to one node only, in both directions.

    Args:
        adj: of ``N`` nodes.
        counts: how many to add to each ``[N]``, int64.

    Returns:
        The adjacency of ``N + M`` nodes; the ``M`` new ones are in the order of the nodes that they belong to.
    """
    n = adj.num_nodes
    owner = torch.repeat_interleave(counts)
    new = n + torch.arange(owner.numel(), device=owner.device)
    target = adj.row
    edges = torch.cat([torch.stack([adj.col, target]), torch.stack([new, owner]), torch.stack([owner, new])], dim=1)
    return Adjacency.from_edges(edges, n + owner.numel())


def first_ones(counts: Tensor, size: int) -> Tensor:
    """Which of each node's ``size`` neighbours count ``[n, size]``, bool: the first ``counts`` ``[n]``."""
    return torch.arange(size, device=counts.device) < counts.unsqueeze(1)


def nearest_of_own(rows: Tensor, x: Tensor, pairs: Tensor) -> Tensor:
    """The nearest of its own candidates for every generated neighbour.

    Args:
        rows: features of the generated ``[m, F]``.
        x: features of the candidates ``[N, F]``, dense or sparse CSR.
        pairs: rows, in ascending order, and candidates of theirs, numbers of ``x`` ``[2, E]``; every row has one at
            least.

    Returns:
        Numbers of ``x``, ``[m]``.
    """
    row, candidate = pairs
    rows = at_least_float32(rows)
    distances = rows.new_empty(row.numel())
    step = max(1, _CELLS // max(1, rows.size(1)))
    for start in range(0, row.numel(), step):
        some = slice(start, start + step)
        distances[some] = (rows[row[some]] - _dense_rows(x, candidate[some], rows.dtype)).square().sum(1)
    least = distances.new_full(rows.shape[:1], torch.inf).scatter_reduce_(0, row, distances, "amin")
    # The first of those that are as near; any where distances are not numbers, so that the loss is none, either.
    order = torch.arange(row.numel(), device=row.device)
    order = torch.where(distances == least[row], order, row.numel())
    first = order.new_full(rows.shape[:1], row.numel()).scatter_reduce_(0, row, order, "amin")
    return candidate[first.clamp(max=row.numel() - 1)]


def nearest_of_all(rows: Tensor, x: Tensor) -> Tensor:
    """The nearest of all candidates for every generated neighbour.

    Args:
        rows: features of the generated ``[m, F]``.
        x: features of the candidates ``[N, F]``, dense or sparse CSR.

    Returns:
        Numbers of ``x``, ``[m]``.
    """
    rows = at_least_float32(rows)
    norms = _squared_norms(x, rows.dtype).unsqueeze(1)
    found = []
    for some in rows.split(max(1, _CELLS // x.size(0))):
        products = rows_times(x.to(rows.dtype), some.t())
        found.append((norms - 2 * products).argmin(0))  # a row's own square is the same for all candidates
    return torch.cat(found)


def feature_loss(rows: Tensor, x: Tensor, nearest: Tensor) -> Tensor:
    """Sum of squared distances between generated neighbours and those that they should be like.

    Args:
        rows: features of the generated ``[m, F]``.
        x: features ``[N, F]``, dense or sparse CSR.
        nearest: rows of ``x``, ``[m]``.

    Returns:
        A scalar, float32 at least, differentiable in ``rows``.
    """
    rows = at_least_float32(rows)
    return (rows - _dense_rows(x, nearest, rows.dtype)).square().sum()


_CELLS = 2**24
"""Numbers that are compared at a time, to bound the memory."""


def _dense_rows(x: Tensor, index: Tensor, dtype: torch.dtype) -> Tensor:
    return take_rows(x, index).to_dense().to(dtype)


def _squared_norms(x: Tensor, dtype: torch.dtype) -> Tensor:
    if x.layout == torch.strided:
        return x.to(dtype).square().sum(1)
    row = torch.repeat_interleave(x.crow_indices().diff(), output_size=x.values().numel())
    norms = torch.zeros(x.size(0), dtype=dtype, device=x.device)
    return norms.index_add_(0, row, x.values().to(dtype).square())
