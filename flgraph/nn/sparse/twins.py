"""Neighbour sums on graphs where many nodes have the same neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from flgraph.nn.linear import OneHot
from flgraph.nn.precision import at_least_float32
from flgraph.nn.sparse.adjacency import Adjacency, gather_ranges, offsets
from flgraph.nn.sparse.csr import csr


class TwinAdjacency(Adjacency):
    r"""An undirected adjacency matrix that has one row for each class of twins.

    Twins are nodes with the same closed neighbourhood: the same neighbours, and each other. Examples are the nodes of a
    clique that have no neighbours outside of it. Let :math:`\mathbf{P}` say which node is in which class, and
    :math:`\mathbf{B}` which classes are neighbours. Then

    .. math::
        \mathbf{A} + \mathbf{I} = \mathbf{P} (\mathbf{B} + \mathbf{I}) \mathbf{P}^{\top}

    exactly, and two classes of ``m`` and ``n`` nodes have one entry in :math:`\mathbf{B}` where they have ``m n`` in
    :math:`\mathbf{A}`. Twins have the same degree, too. So layers sum the rows of twins (:meth:`merge`), compute on
    :attr:`quotient`, and copy each result to all of its class (:meth:`spread`).

    ``rowptr`` and ``col`` are those of :math:`\mathbf{A}`, made when they are first read.

    Args:
        quotient: :math:`\mathbf{B}`, of ``C`` classes; its ``degree`` is the degree of a node of each class.
        classes: class of each node ``[N]``.
        member_ptr: ``[C + 1]``; the nodes of class ``c`` are ``members[member_ptr[c]:member_ptr[c + 1]]``.
        members: ``[N]``.
    """

    def __init__(self, quotient: Adjacency, classes: Tensor, member_ptr: Tensor, members: Tensor) -> None:
        self.classes, self.member_ptr, self.members = classes, member_ptr, members
        self.transposed, self.derived = None, {}
        self._quotient, self._degree = quotient, None
        self._expanded: tuple[Tensor, Tensor] | None = None
        self._matrices = {}
        self._merging: dict[torch.dtype, Tensor] = {}

    @classmethod
    def from_sorted(cls, edge_index: Tensor, num_nodes: int, symmetric: bool = True) -> TwinAdjacency:
        """From ``edge_index [2, E]`` sorted by (source, target), symmetric, without loops and repeated edges."""
        source, target = edge_index
        classes, first = find_twins(edge_index, num_nodes)
        # Between classes there are all edges or none, so those between their first nodes tell.
        between = first.index_select(0, source) & first.index_select(0, target)
        pairs = classes.index_select(0, edge_index[:, between].reshape(-1)).view(2, -1)
        degree = torch.bincount(source, minlength=num_nodes)[first].unsqueeze(1).float()
        num_classes = degree.numel()
        quotient = Adjacency(offsets(torch.bincount(pairs[0], minlength=num_classes)), pairs[1], degree=degree)
        sizes = torch.bincount(classes, minlength=num_classes)
        return cls(quotient, classes, offsets(sizes), classes.argsort(stable=True))

    @property
    def rowptr(self) -> Tensor:
        """Where each row begins in :attr:`col`, ``[N + 1]``."""
        return self._expand()[0]

    @property
    def col(self) -> Tensor:
        """Senders of all rows, one after another, ``[E]``."""
        return self._expand()[1]

    def _expand(self) -> tuple[Tensor, Tensor]:
        if self._expanded is not None:
            return self._expanded
        inner, n = self._quotient, max(self.num_nodes, 1)
        number = torch.arange(inner.num_nodes, device=self.classes.device)
        # The closed neighbourhood of each class, first as classes, then as nodes in order, then once for each node.
        rows = torch.cat([number.repeat_interleave(inner.rowptr.diff()), number])
        nodes, ptr = gather_ranges(self.member_ptr, torch.cat([inner.col.long(), number]))
        keys = rows.repeat_interleave(ptr.diff()) * n + self.members.index_select(0, nodes)
        keys = keys.sort().values
        closed = offsets(torch.bincount(keys.div(n, rounding_mode="floor"), minlength=number.numel()))
        position, rowptr = gather_ranges(closed, self.classes)
        col = (keys % n).index_select(0, position)
        row = torch.arange(self.num_nodes, device=col.device).repeat_interleave(rowptr.diff())
        self._expanded = rowptr - torch.arange(rowptr.numel(), device=col.device), col[col != row]
        return self._expanded

    @property
    def num_nodes(self) -> int:
        """Rows, and columns."""
        return self.classes.numel()

    @property
    def degree(self) -> Tensor:
        """Number of senders per node ``[N, 1]``, float32."""
        if self._degree is None:
            self._degree = self._quotient.degree.index_select(0, self.classes)
        return self._degree

    @property
    def quotient(self) -> Adjacency:
        """The adjacency of classes, with the degrees of their nodes."""
        return self._quotient

    def merge(self, x: Tensor) -> Tensor:
        """Sum of the rows of each class: ``P^T x``, ``[N, C] -> [N', C]``; differentiable, in float32 at least."""
        merged: Tensor = _Merge.apply(at_least_float32(x), self)
        return merged

    def spread(self, x: Tensor) -> Tensor:
        """The row of its class for each node: ``P x``, ``[N', C] -> [N, C]``; differentiable."""
        out: Tensor = _Spread.apply(x, self)
        return out

    def sum(self, x: Tensor) -> Tensor:
        """See :meth:`Adjacency.sum`; a node's row is added and taken away again."""
        merged = self.merge(x)
        return (self.spread(self._quotient.sum(merged) + merged) - x).to(x.dtype)

    def to(self, device: torch.device | str, **kwargs: Any) -> Adjacency:
        """The same matrix on another device."""
        if self.classes.device == torch.device(device):
            return self
        parts = [tensor.to(device, **kwargs) for tensor in (self.classes, self.member_ptr, self.members)]
        return TwinAdjacency(self._quotient.to(device, **kwargs), *parts)

    def __repr__(self) -> str:
        inner = self._quotient
        return f"{type(self).__name__}({self.num_nodes} nodes in {inner.num_nodes} classes, {inner.col.numel()} edges)"

    def _merge(self, x: Tensor) -> Tensor:
        if x.dtype not in self._merging:
            ones = torch.ones_like(self.members, dtype=x.dtype)
            self._merging[x.dtype] = csr(self.member_ptr, self.members, ones, self.num_nodes)
        with torch.autocast(x.device.type, enabled=False):
            return torch.addmm(x.new_zeros(self._quotient.num_nodes, x.size(1)), self._merging[x.dtype], x)


def merge_inputs(
    x: Tensor | OneHot, extra: Tensor | None, adj: Adjacency, before: Sequence[torch.nn.Linear]
) -> tuple[Tensor | OneHot, Tensor | None, bool]:
    """Inputs of a linear map whose output is merged, merged already where that is possible: so it maps fewer rows.

    It is not where the map has a bias (of ``before``), which merging multiplies, nor below float32.

    Returns:
        ``x``, ``extra``, and whether they are merged.
    """
    if not isinstance(adj, TwinAdjacency) or before or not isinstance(x, Tensor):
        return x, extra, False
    if x.dtype not in (torch.float32, torch.float64) or torch.is_autocast_enabled(x.device.type):
        return x, extra, False
    return adj.merge(x), None if extra is None else adj.merge(extra), True


def find_twins(edge_index: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """Classes of nodes with the same closed neighbourhood.

    Args:
        edge_index: ``[2, E]``, sorted by (source, target), symmetric, without loops and repeated edges.
        num_nodes: number of nodes.

    Returns:
        Class of each node ``[N]``, numbered in the order of their first nodes, and which nodes are the first of their
        class ``[N]``, bool.
    """
    source, target = edge_index.long()
    device = source.device
    node = torch.arange(num_nodes, device=device)
    degree = torch.bincount(source, minlength=num_nodes)
    # Equal neighbourhoods have equal sums of random numbers ...
    generator = torch.Generator().manual_seed(0)
    number = torch.randint(-(2**62), 2**62, (num_nodes,), generator=generator).to(device)
    total = number.clone().index_add_(0, source, number.index_select(0, target))
    _, group = total.unique(return_inverse=True)
    first = torch.full_like(node, num_nodes).scatter_reduce_(0, group, node, "amin").index_select(0, group)
    # ... and where sums are equal, the neighbourhoods are compared. Each has its node inserted, in order.
    ptr = offsets(degree + 1)
    closed = torch.empty(source.numel() + num_nodes, dtype=torch.long, device=device)
    later = target > source
    closed[torch.arange(source.numel(), device=device) + source + later] = target
    closed[ptr[1:] - 1 - torch.bincount(source[later], minlength=num_nodes)] = node
    doubtful = (first != node).nonzero().squeeze(1)
    fits = degree[doubtful] == degree[first[doubtful]]
    first[doubtful[~fits]] = doubtful[~fits]
    doubtful = doubtful[fits]
    mine, lengths = gather_ranges(ptr, doubtful)
    theirs, _ = gather_ranges(ptr, first[doubtful])
    owner = doubtful.repeat_interleave(lengths.diff())
    wrong = owner[closed[mine] != closed[theirs]]
    first[wrong] = wrong  # a class of its own is always right
    is_first = first == node
    return (is_first.cumsum(0) - 1).index_select(0, first), is_first


class _Merge(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, adj: TwinAdjacency) -> Tensor:
        ctx.adj = adj
        return adj._merge(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.adj.spread(grad), None


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, adj: TwinAdjacency) -> Tensor:
        ctx.adj = adj
        return x.index_select(0, adj.classes)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.adj.merge(grad.contiguous()).to(grad.dtype), None
