"""Layers whose weights depend on node and edge types, made of bases that do not."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch_geometric.utils import softmax

from flgraph.nn.sparse.relations import Relations


class BasisWeights(torch.nn.Module):
    r"""A weight for each type as a combination of bases (FedHGN, Fu and King, IJCAI 2023, Eq. 2).

    .. math::
        \boldsymbol\theta_s = \sum_b \beta_{sb} \mathbf{v}_b

    Args:
        num_types: number of node or edge types.
        num_bases: number of bases.
        shape: of a weight, two dimensions or more; its last two are those that Glorot's rule looks at.

    Shapes:
        - **coefficients:** ``[num_types, num_bases]``, **bases:** ``[num_bases, *shape]``
        - **output:** ``[num_types, *shape]``
    """

    def __init__(self, num_types: int, num_bases: int, *shape: int) -> None:
        super().__init__()
        self.coefficients = torch.nn.Parameter(torch.empty(num_types, num_bases))
        self.bases = torch.nn.Parameter(torch.empty(num_bases, *shape))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot bases, and coefficients of a variance that gives their sums the variance of a single basis."""
        inner, outer = self.bases.shape[-2:]
        bound = math.sqrt(6 / (inner + outer))
        torch.nn.init.uniform_(self.bases, -bound, bound)
        bound = math.sqrt(3 / self.coefficients.size(1))
        torch.nn.init.uniform_(self.coefficients, -bound, bound)

    def forward(self) -> Tensor:
        """The weights."""
        return torch.tensordot(self.coefficients, self.bases, dims=1)

    def __repr__(self) -> str:
        types, bases = self.coefficients.shape
        return f"{type(self).__name__}({types} of {list(self.bases.shape[1:])}, bases={bases})"


class TypedAttentionConv(torch.nn.Module):
    r"""Attention over the neighbours of all edge types, with weights for node types and vectors for edge types.

    Attention as in Simple-HGN (`"Are we really making much progress?" <https://arxiv.org/abs/2112.14936>`_, Eq. 3), on
    projections that are of node types as in HGT; all that belongs to a type is made of bases. For each head, where
    :math:`\psi(e)` is the type of the edge :math:`e = (j, i)` and :math:`\phi(i)` that of the node:

    .. math::
        \mathbf{z}_i = \mathbf{x}_i \mathbf{W}_{\phi(i)}, \qquad
        \alpha_e = \operatorname{softmax}_{e \to i} \operatorname{LeakyReLU}(\mathbf{a}_s^\top \mathbf{z}_j +
        \mathbf{a}_t^\top \mathbf{z}_i + \mathbf{a}_e^\top \mathbf{t}_{\psi(e)}), \qquad
        \mathbf{x}^{\prime}_i = \mathbf{b} + \mathbf{x}_i + \sum_{e \to i} \alpha_e \mathbf{z}_j

    Args:
        channels: columns of input and output.
        num_types: number of node types.
        num_relations: number of edge types.
        num_bases: number of bases of each.
        heads: attention heads; must divide ``channels``.
        edge_channels: columns of a head's vectors of edge types.
        slope: of LeakyReLU below zero.

    Shapes:
        - **nodes:** weights ``[num_types, channels, channels]``, **edges:** ``[num_relations, heads, edge_channels]``,
          **attention:** ``[heads, 2 * channels / heads + edge_channels]``, **bias:** ``[channels]``
        - **input:** ``[N, channels]``, the type of each node ``[N]``; ``relations`` of ``n`` receivers, and which nodes
          these are ``[n]`` (all ``N`` when ``None``)
        - **output:** ``[n, channels]``
    """

    def __init__(
        self,
        channels: int,
        num_types: int,
        num_relations: int,
        num_bases: int,
        heads: int = 4,
        edge_channels: int = 16,
        slope: float = 0.2,
    ) -> None:
        super().__init__()
        self.channels, self.heads, self.edge_channels, self.slope = channels, heads, edge_channels, slope
        self.nodes = BasisWeights(num_types, num_bases, channels, channels)
        self.edges = BasisWeights(num_relations, num_bases, heads, edge_channels)
        self.attention = torch.nn.Parameter(torch.empty(heads, 2 * (channels // heads) + edge_channels))
        self.bias = torch.nn.Parameter(torch.empty(channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot weights, a zero bias."""
        self.nodes.reset_parameters()
        self.edges.reset_parameters()
        torch.nn.init.xavier_uniform_(self.attention)
        torch.nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, types: Tensor, relations: Relations, index: Tensor | None = None) -> Tensor:
        """Node representations after one step."""
        weights, senders = self.nodes(), relations.senders
        source = (
            typed_linear(x, types, weights) if senders is None else typed_linear(x[senders], types[senders], weights)
        )
        receivers = x if index is None else x.index_select(0, index)
        everyone = senders is None and index is None
        target = source if everyone else typed_linear(receivers, types if index is None else types[index], weights)
        width = self.channels // self.heads
        source, target = source.view(-1, self.heads, width), target.view(-1, self.heads, width)
        to_source, to_target, to_edge = self.attention.split([width, width, self.edge_channels], dim=1)
        scores = (
            (source * to_source).sum(-1).index_select(0, relations.source)
            + (target * to_target).sum(-1).index_select(0, relations.target)
            + (self.edges() * to_edge).sum(-1).index_select(0, relations.row)
        )
        scores = torch.nn.functional.leaky_relu(scores, self.slope)
        shares = softmax(scores, relations.target, num_nodes=relations.num_targets)
        messages = shares.unsqueeze(-1) * source.index_select(0, relations.source)
        total = messages.new_zeros(relations.num_targets, self.heads, width)
        return receivers + self.bias + total.index_add(0, relations.target, messages).flatten(1)

    def __repr__(self) -> str:
        types, relations = self.nodes.coefficients.size(0), self.edges.coefficients.size(0)
        return f"{type(self).__name__}({self.channels}, types={types}, relations={relations}, heads={self.heads})"


def typed_linear(x: Tensor, types: Tensor, weights: Tensor) -> Tensor:
    """Each row times the weight of its type.

    Args:
        x: ``[N, C]``.
        types: type of each row ``[N]``, ascending or not.
        weights: ``[T, C, D]``.

    Returns:
        ``[N, D]``.

    Example:
        >>> weights = torch.tensor([[[1.0]], [[10.0]]])  # of two types
        >>> typed_linear(torch.ones(3, 1), types=torch.tensor([0, 1, 0]), weights=weights)
        tensor([[ 1.],
                [10.],
                [ 1.]])
    """
    counts = torch.bincount(types, minlength=weights.size(0)).tolist()
    if sum(count > 0 for count in counts) == 1:
        return x @ weights[next(t for t, count in enumerate(counts) if count)]
    order = types.argsort(stable=True)
    parts = zip(x.index_select(0, order).split(counts), weights, strict=True)
    done = torch.cat([part @ weight for part, weight in parts])
    return torch.empty_like(done).index_copy(0, order, done)
