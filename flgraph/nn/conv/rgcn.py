"""Relational graph convolutions: a weight for each edge type, made of shared bases or not, or none at all."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from flgraph.nn.sparse.csr import sparse_times
from flgraph.nn.sparse.relations import Relations, SparseMap, Stacked

_SPARSE_COST = 16
"""Time of a multiplication in a sparse product, in those of a dense one (measured on a CPU: 1.3 and 20 per ns)."""

_BLOCK = 1 << 20
"""Numbers in the largest tensor that working on several bases at once may take."""


class BasisRGCNConv(torch.nn.Module):
    r"""A relational graph convolution whose weights are combinations of bases.

    `"Modeling Relational Data with Graph Convolutional Networks" <https://arxiv.org/abs/1703.06103>`_ without
    self-loops, as FedHGN uses it (Fu and King, IJCAI 2023, Eq. 2):

    .. math::
        \mathbf{x}^{\prime}_i = \mathbf{b} + \sum_r \frac{1}{|\mathcal{N}_r(i)|} \sum_{j \in \mathcal{N}_r(i)}
        \mathbf{x}_j \mathbf{W}_r, \qquad \mathbf{W}_r = \sum_b \beta_{rb} \mathbf{V}_b

    Computed for some bases at a time with one sparse matrix over all edges, :math:`\sum_b (\sum_r \beta_{rb}
    \mathbf{A}_r) \mathbf{X} \mathbf{V}_b`: there is neither a weight nor a product per edge type, and memory beyond
    input and output is that of one basis on large graphs.

    Args:
        in_channels: columns of the input.
        out_channels: columns of the output.
        num_relations: number of weights.
        num_bases: number of bases.

    Shapes:
        - **bases:** ``[num_bases, in_channels, out_channels]``, **coefficients:** ``[num_relations, num_bases]``,
          **bias:** ``[out_channels]``
        - **input:** ``[N, in_channels]``, ``relations`` of ``N`` senders
        - **output:** ``[n, out_channels]`` for the ``n`` receivers of ``relations``
    """

    def __init__(self, in_channels: int, out_channels: int, num_relations: int, num_bases: int) -> None:
        super().__init__()
        self.bases = torch.nn.Parameter(torch.empty(num_bases, in_channels, out_channels))
        self.coefficients = torch.nn.Parameter(torch.empty(num_relations, num_bases))
        self.bias = torch.nn.Parameter(torch.empty(out_channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weights as in the published code: Glorot, with the gain of a ReLU; zero bias."""
        gain = torch.nn.init.calculate_gain("relu")
        torch.nn.init.xavier_uniform_(self.bases, gain)
        # Each row is drawn as a matrix of its own there, so that its scale does not depend on how many rows there are.
        bound = gain * math.sqrt(6 / (self.coefficients.size(1) + 1))
        torch.nn.init.uniform_(self.coefficients, -bound, bound)
        torch.nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, relations: Relations) -> Tensor:
        """Node representations after one step."""
        return basis_product(x, self.coefficients, self.bases, relations) + self.bias

    def __repr__(self) -> str:
        bases, inner, outer = self.bases.shape
        return f"{type(self).__name__}({inner}, {outer}, relations={self.coefficients.size(0)}, bases={bases})"


class RGCNConv(torch.nn.Module):
    r"""A relational graph convolution with a full weight for each relation; otherwise as :class:`BasisRGCNConv`.

    Args:
        in_channels: columns of the input.
        out_channels: columns of the output.
        num_relations: number of weights.

    Shapes:
        - **weight:** ``[num_relations, in_channels, out_channels]``, **bias:** ``[out_channels]``
        - **input:** ``[N, in_channels]``, ``relations`` of ``N`` senders
        - **output:** ``[n, out_channels]`` for the ``n`` receivers of ``relations``
    """

    def __init__(self, in_channels: int, out_channels: int, num_relations: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(num_relations, in_channels, out_channels))
        self.bias = torch.nn.Parameter(torch.empty(out_channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weights as in the published code of FedHGN's baselines: Glorot of all as one tensor; zero bias."""
        torch.nn.init.xavier_uniform_(self.weight, torch.nn.init.calculate_gain("relu"))
        torch.nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, relations: Relations) -> Tensor:
        """Node representations after one step."""
        wide = relations.sent(x)
        with torch.autocast(x.device.type, enabled=False):
            out = relations.pairs.product(wide, self.weight.to(wide.dtype))
        return out.to(x.dtype) + self.bias

    def __repr__(self) -> str:
        rows, inner, outer = self.weight.shape
        return f"{type(self).__name__}({inner}, {outer}, relations={rows})"


class RelationMean(torch.nn.Module):
    r"""A relational graph convolution without weights: means over neighbours, added up over edge types.

    .. math::
        \mathbf{x}^{\prime}_i = \mathbf{b} + \sum_r \frac{1}{|\mathcal{N}_r(i)|} \sum_{j \in \mathcal{N}_r(i)}
        \mathbf{x}_j

    Args:
        channels: columns of input and output.

    Shapes:
        - **bias:** ``[channels]``
        - **input:** ``[N, channels]``, ``relations`` of ``N`` senders
        - **output:** ``[n, channels]`` for the ``n`` receivers of ``relations``
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bias = torch.nn.Parameter(torch.empty(channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """A zero bias."""
        torch.nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, relations: Relations) -> Tensor:
        """Node representations after one step."""
        return relations.mean_sum(x) + self.bias

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.bias.numel()})"


def basis_product(x: Tensor, coefficients: Tensor, bases: Tensor, relations: Relations) -> Tensor:
    r""":math:`\sum_b (\sum_r \beta_{rb} \mathbf{A}_r) \mathbf{X} \mathbf{V}_b`, once differentiable.

    Args:
        x: ``[N, C]``.
        coefficients: :math:`\beta`, ``[R, B]``.
        bases: :math:`\mathbf{V}`, ``[B, C, D]``.
        relations: whose means the :math:`\mathbf{A}_r` are.

    Returns:
        ``[n, D]`` in the type of ``x``; computed in float32 at least, autocast or not.

    Example:
        >>> edges, ends = torch.tensor([[0, 1], [2, 2]]), torch.tensor([0, 1, 2])  # two relations of one edge
        >>> relations = Relations.of(edges, ends, num_nodes=3)
        >>> x, coefficients, bases = torch.ones(3, 1), torch.tensor([[1.0], [10.0]]), torch.ones(1, 1, 1)
        >>> basis_product(x, coefficients, bases, relations)
        tensor([[ 0.],
                [ 0.],
                [11.]])
    """
    wide = relations.sent(x)
    with torch.autocast(x.device.type, enabled=False):
        out: Tensor = _BasisProduct.apply(wide, coefficients.to(wide.dtype), bases.to(wide.dtype), relations)
    return out.to(x.dtype)


def aggregate_first(relations: Relations, in_channels: int, out_channels: int) -> bool:
    """Whether adding up neighbours before the products with the bases is cheaper than after them."""
    edges, inner, outer = relations.num_edges, in_channels, out_channels
    before = _SPARSE_COST * edges * inner + relations.num_targets * inner * outer
    return before <= _SPARSE_COST * edges * outer + relations.num_sources * inner * outer


def block_size(relations: Relations, num_bases: int, in_channels: int, out_channels: int) -> int:
    """How many bases are worked on at once: all of them on small graphs, one at a time on large ones."""
    ends = relations.num_targets * in_channels, relations.num_sources * out_channels
    at_once = min(num_bases, max(1, _BLOCK // max(1, relations.num_edges, *ends)))
    return max(1, math.ceil(num_bases / max(1, math.ceil(num_bases / max(1, at_once)))))


class _BasisProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, coefficients: Tensor, bases: Tensor, relations: Relations) -> Tensor:
        ctx.save_for_backward(x, coefficients, bases)
        ctx.relations = relations
        ctx.aggregate_first = aggregate_first(relations, *bases.shape[1:])
        ctx.size = block_size(relations, *bases.shape)
        out = x.new_zeros(relations.num_targets, bases.size(2))
        parts = zip(coefficients.split(ctx.size, dim=1), bases.split(ctx.size), strict=True)
        for beta, basis in parts:
            values = _edge_values(beta, relations)
            if ctx.aggregate_first:
                stacked = relations.stacked(basis.size(0))
                out.addmm_(_aggregated(stacked, values, x, basis), basis.flatten(0, 1))
            else:
                beside = relations.beside(basis.size(0))
                sparse_times(beside.matrix(values.flatten()), _projected(x, basis), to=out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        x, coefficients, bases = ctx.saved_tensors
        relations = ctx.relations
        for_x, for_coefficients, for_bases, _ = ctx.needs_input_grad
        grad = grad.contiguous()
        grad_x = torch.zeros_like(x) if for_x else None
        grad_bases = torch.empty_like(bases) if for_bases else None
        columns = []
        of_bases = bases.split(ctx.size) if grad_bases is None else grad_bases.split(ctx.size)
        parts = zip(coefficients.split(ctx.size, dim=1), bases.split(ctx.size), of_bases, strict=True)
        for beta, basis, of_basis in parts:
            values = _edge_values(beta, relations)
            if ctx.aggregate_first:
                stacked = relations.stacked(basis.size(0))
                wanted = (grad @ basis.flatten(0, 1).t()).view(grad.size(0) * basis.size(0), x.size(1))
                if grad_x is not None:
                    sparse_times(stacked.pattern.transposed(stacked.arrange(values)), wanted, to=grad_x)
                if for_bases:
                    # Added up again, because to store all of them in the forward pass would take B times the memory.
                    torch.mm(_aggregated(stacked, values, x, basis).t(), grad, out=of_basis.flatten(0, 1))
                if for_coefficients:
                    columns.append(relations.row_sum(stacked.restore(_products(stacked.pattern, wanted, x))))
            else:
                beside = relations.beside(basis.size(0))
                back = sparse_times(beside.transposed(values.flatten()), grad).view(
                    x.size(0), basis.size(0) * grad.size(1)
                )
                if grad_x is not None:
                    grad_x.addmm_(back, _side_by_side(basis).t())
                if for_bases:
                    of_basis.copy_((x.t() @ back).view(x.size(1), *basis.shape[::2]).transpose(0, 1))
                if for_coefficients:
                    columns.append(relations.row_sum(_products(beside, grad, _projected(x, basis)).view_as(values)))
        return grad_x, torch.cat(columns, dim=1) if for_coefficients else None, grad_bases, None


def _edge_values(beta: Tensor, relations: Relations) -> Tensor:
    """What each edge's message is multiplied by for each of ``k`` bases, ``[E, k]``."""
    return beta.index_select(0, relations.row) * relations.shares(beta.dtype).unsqueeze(1)


def _aggregated(stacked: Stacked, values: Tensor, x: Tensor, basis: Tensor) -> Tensor:
    """Weighted sums of the senders for each of ``k`` bases, side by side: ``[n, k C]``."""
    sums = sparse_times(stacked.pattern.matrix(stacked.arrange(values)), x)
    return sums.view(sums.size(0) // basis.size(0), basis.size(0) * x.size(1))


def _side_by_side(basis: Tensor) -> Tensor:
    """``[k, C, D] -> [C, k D]``."""
    return basis.transpose(0, 1).flatten(1)


def _projected(x: Tensor, basis: Tensor) -> Tensor:
    """The products of each sender with ``k`` bases, one below another: ``[N k, D]``."""
    return (x @ _side_by_side(basis)).view(x.size(0) * basis.size(0), basis.size(2))


def _products(pattern: SparseMap, left: Tensor, right: Tensor) -> Tensor:
    """The product of ``left[row]`` and ``right[column]`` for every entry of a matrix; neither is gathered."""
    if pattern.row.numel() >= left.size(0) * right.size(0):
        # The sparse product would drop all but one of several edges in one entry; the dense one is the smaller here.
        return (left @ right.t())[pattern.row, pattern.col]
    matrix = pattern.matrix(left.new_zeros(pattern.row.numel()))
    return torch.sparse.sampled_addmm(matrix, left, right.t(), beta=0, out=matrix).values()
