"""GraphSAGE over ego-graphs of a fixed shape."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod

import torch
from torch import Tensor
from torch.nn import functional as F

from flgraph.errors import expect
from flgraph.nn.sparse.csr import csr, sparse_matmul


class EgoSAGEConv(torch.nn.Module):
    r"""A GraphSAGE layer over trees of sampled neighbours (FedEgo, Eq. 9).

    .. math::
        \mathbf{p}^{\prime}_v = \mathbf{W}_s \mathbf{p}_v
        + \mathbf{W}_n \frac{1}{k} \sum_{u \in \mathrm{children}(v)} \mathbf{p}_u + \mathbf{b}

    All trees have the same shape, so the mean over children is a mean over a dimension. The last hop has no children
    and is left out of the output. Where the input says which positions are the same node,
    :math:`\mathbf{W}_s` is applied to every node once, and the mean is a product with a sparse matrix.

    Args:
        in_channels: columns of the input.
        out_channels: columns of the output.

    Shapes:
        - **input:** ``[B, P, in_channels]``; positions are hops one after another, the children of a position
          contiguous, see :func:`flgraph.data.sample_ego_graphs`. Or ``[n, in_channels]``, a row per node, with
          ``index [B, P]``, the node at every position. ``childless [B, P']``, bool, or more columns: positions whose
          mean is zero
        - **output:** ``[B, P', out_channels]``, the positions of all hops but the last
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.in_channels, self.out_channels = in_channels, out_channels
        self.lin_self = torch.nn.Linear(in_channels, out_channels, bias=False)
        self.lin_neighbour = torch.nn.Linear(in_channels, out_channels)

    def reset_parameters(self) -> None:
        """Kaiming-normal weights, as the published code of FedEgo, and zero biases."""
        for linear in (self.lin_self, self.lin_neighbour):
            kaiming(linear)

    def forward(
        self, p: Tensor, fanouts: Sequence[int], index: Tensor | None = None, childless: Tensor | None = None
    ) -> Tensor:
        """One step; ``fanouts`` are the neighbours per node of each hop that there is."""
        last = prod(fanouts)
        if index is None:
            root = self.lin_self(p[:, :-last].contiguous())  # or else, in inference, a product for every ego-graph
            mean = children_mean(p, fanouts)
        else:
            nodes, position = index[:, :-last].unique(return_inverse=True)
            root = take_nodes(self.lin_self(p.index_select(0, nodes)), position)
            if torch.is_grad_enabled() or p.size(0) > position.numel():
                mean = children_mean_of_nodes(p, index, fanouts)
            else:  # larger batches, of evaluation, hold fewer nodes than positions: nodes are mapped, and then averaged
                mapped = F.linear(p, self.lin_neighbour.weight)
                mean = _without(childless, children_mean_of_nodes(mapped, index, fanouts))
                return root + mean + self.lin_neighbour.bias.to(mean.dtype)
        return root + self.lin_neighbour(_without(childless, mean))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels})"


def take_nodes(x: Tensor, index: Tensor) -> Tensor:
    """Rows ``x [n, C]`` of the nodes at positions ``index [B, P]``: ``[B, P, C]``."""
    return x.index_select(0, index.reshape(-1)).view(*index.shape, -1)


def children_mean(p: Tensor, fanouts: Sequence[int]) -> Tensor:
    """The mean over the children of every position that has some.

    Args:
        p: ``[B, P, C]``.
        fanouts: neighbours per node, for each hop.

    Returns:
        ``[B, P', C]``, ``P'`` being the positions of all hops but the last.

    Raises:
        InputError: ``P`` is not what the fanouts make.

    Example:
        >>> p = torch.tensor([[[0.0], [1.0], [3.0]]])  # a center and its two children
        >>> children_mean(p, fanouts=(2,))
        tensor([[[2.]]])
    """
    widths = _widths(p, fanouts)
    if len(set(fanouts)) == 1:  # then the children of all positions lie in one row
        return p[:, 1:].unflatten(1, (-1, fanouts[0])).mean(2)
    hops = p.split(widths, dim=1)[1:]
    return torch.cat([hop.unflatten(1, (-1, k)).mean(2) for hop, k in zip(hops, fanouts, strict=True)], dim=1)


def children_mean_of_nodes(p: Tensor, index: Tensor, fanouts: Sequence[int]) -> Tensor:
    """:func:`children_mean` of ``p [n, C]``, a row per node, and the node at every position, ``index [B, P]``.

    It is a product with a sparse matrix that has a row per parent: there is no row per position.
    """
    parents = list(zip(_widths(index, fanouts), fanouts, strict=False))
    count = torch.cat([torch.full((width,), k, device=index.device) for width, k in parents]).repeat(index.size(0))
    rowptr = F.pad(count.cumsum(0), (1, 0))
    children = index[:, 1:].flatten()  # hops one after another are the parents' children one after another
    share = count.to(torch.promote_types(p.dtype, torch.float32)).reciprocal()
    value = share.repeat_interleave(count, output_size=children.numel())
    mean = sparse_matmul(csr(rowptr, children, value, p.size(0)), p)
    return mean.view(index.size(0), sum(width for width, _ in parents), p.size(1))


def _widths(p: Tensor, fanouts: Sequence[int]) -> list[int]:
    """Positions of each hop of ``p [B, P, ...]``."""
    widths = [1, *accumulate(fanouts, lambda width, k: width * k)]
    expect(len(fanouts) > 0 and p.size(1) == sum(widths), "p", f"of {sum(widths)} positions", p.size(1))
    return widths


def below(childless: Tensor, fanouts: Sequence[int]) -> Tensor:
    """Which positions ``[B, P]`` are below one of ``childless [B, P']``, at any depth."""
    hop = childless.new_zeros(childless.size(0), 1)
    hops, start = [hop], 0
    for k in fanouts:
        end = start + hop.size(1)
        hop, start = (hop | childless[:, start:end]).repeat_interleave(k, dim=1), end
        hops.append(hop)
    return torch.cat(hops, dim=1)


def _without(childless: Tensor | None, mean: Tensor) -> Tensor:
    """The means, zero where there are no children."""
    return mean if childless is None else mean.masked_fill(childless[:, : mean.size(1)].unsqueeze(2), 0.0)


def kaiming(linear: torch.nn.Linear) -> None:
    """Kaiming-normal weights and zero biases."""
    torch.nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
    if linear.bias is not None:
        torch.nn.init.zeros_(linear.bias)
