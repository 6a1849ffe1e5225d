"""Exact graph diffusion of many small graphs (Gasteiger et al., "Diffusion Improves Graph Learning", NeurIPS 2019)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from flgraph.data.cache import cached, content_key
from flgraph.data.graphs.container import FlatGraphs
from flgraph.data.graphs.weighted import WeightedEdges
from flgraph.errors import expect
from flgraph.nn.sparse.adjacency import gather_ranges, offsets
from flgraph.nn.sparse.norm import inverse_sqrt

DiffusionKind = Literal["ppr", "heat"]
Sparsify = Literal["threshold", "topk", "none"]

_BLOCK = 1 << 21
"""Numbers in a batch of dense matrices: 16 MiB in float64."""

_VERSION = 1
"""Part of the cache's key; raise it when results change."""


@dataclass(frozen=True)
class Diffusion:
    r"""How a graph's edges are replaced; defaults are those of :class:`torch_geometric.transforms.GDC`.

    With :math:`T = D^{-1/2} (A + w I) D^{-1/2}`, personalised PageRank is :math:`\alpha (I - (1 - \alpha) T)^{-1}`, the
    heat kernel :math:`\exp(-t (I - T))`. Small weights are then left out and, with ``normalize``, what every node
    receives is scaled to sum to 1.

    Args:
        kind: ``ppr`` or ``heat``.
        alpha: probability of a return (``ppr``).
        time: :math:`t` (``heat``).
        self_loop: :math:`w`.
        sparsify: ``threshold`` keeps weights of at least ``eps``, ``topk`` the ``top_k`` largest of what each node
            receives, ``none`` all that are not 0.
        eps: smallest weight to keep (``threshold``); when ``None``, chosen for each graph so that a node keeps
            ``avg_degree`` weights on average.
        avg_degree: see ``eps``.
        top_k: see ``sparsify``.
        normalize: whether weights that a node receives sum to 1.

    Raises:
        InputError: a value is out of range.
    """

    kind: DiffusionKind = "ppr"
    alpha: float = 0.15
    time: float = 5.0
    self_loop: float = 1.0
    sparsify: Sparsify = "threshold"
    eps: float | None = None
    avg_degree: int = 64
    top_k: int = 64
    normalize: bool = True

    def __post_init__(self) -> None:
        expect(self.kind in get_args(DiffusionKind), "diffusion.kind", "ppr or heat", self.kind)
        expect(self.sparsify in get_args(Sparsify), "diffusion.sparsify", "threshold, topk or none", self.sparsify)
        expect(0 < self.alpha <= 1, "diffusion.alpha", "above 0 and at most 1", self.alpha)
        expect(0 < self.time < float("inf"), "diffusion.time", "a positive, finite number", self.time)
        expect(0 <= self.self_loop < float("inf"), "diffusion.self_loop", "a finite number, 0 or more", self.self_loop)
        valid = self.eps is None or 0 < self.eps < float("inf")
        expect(valid, "diffusion.eps", "a positive, finite number or null", self.eps)
        for name, count in (("avg_degree", self.avg_degree), ("top_k", self.top_k)):
            expect(count >= 1, f"diffusion.{name}", "1 or more", count)


def diffused(graphs: FlatGraphs, how: Diffusion) -> WeightedEdges:
    """The diffused edges of every graph, from the cache if they were computed before.

    Graphs of equal size are diffused together, as batches of dense matrices in float64. Nodes of different components
    stay apart; an isolated node keeps itself.

    Args:
        graphs: the graphs; repeated edges add up, as in PyG.
        how: the diffusion.

    Example:
        >>> from torch_geometric.data import Data
        >>> path = Data(x=torch.ones(3, 1), edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), y=torch.tensor(0))
        >>> weights = diffused(FlatGraphs.from_pyg([path]), Diffusion(sparsify="none"))
        >>> len(weights.weight)  # every node now receives from every node
        9
    """
    edges, node_ptr, edge_ptr = (part.cpu() for part in (graphs.edge_index, graphs.node_ptr, graphs.edge_ptr))
    key = content_key("diffusion", _VERSION, asdict(how), edges, node_ptr, edge_ptr)
    stored = cached(key, lambda: _compute(edges, node_ptr, edge_ptr, how).tensors)
    return WeightedEdges(**stored)


def diffusion_matrix(adj: Tensor, how: Diffusion) -> Tensor:
    """Dense matrices ``[b, n, n]`` of the diffused graphs; the weight from node ``i`` to node ``j`` is at ``(i, j)``.

    Args:
        adj: adjacency matrices, in the same orientation; float64.
        how: the diffusion.
    """
    n = adj.size(-1)
    one = torch.eye(n, dtype=adj.dtype, device=adj.device)
    looped = adj + how.self_loop * one
    scale = inverse_sqrt(looped.sum(-2))
    transition = scale.unsqueeze(-1) * looped * scale.unsqueeze(-2)
    if how.kind == "ppr":
        matrix = how.alpha * torch.linalg.inv(one - (1 - how.alpha) * transition)
    else:
        matrix = torch.linalg.matrix_exp(-how.time * (one - transition))
    symmetric = (adj == adj.mT).all(dim=(-1, -2)).view(-1, 1, 1)
    matrix = torch.where(symmetric, (matrix + matrix.mT) / 2, matrix)  # both ways are kept, or neither
    matrix = matrix * _connected(looped)
    matrix = matrix * _kept(matrix, how)
    if how.normalize:
        received = matrix.sum(-2, keepdim=True)
        matrix = matrix / torch.where(received == 0, 1, received)
    return matrix


def _connected(looped: Tensor) -> Tensor:
    """Which nodes a walk leads to: elsewhere weights are zero, but for what solving leaves there."""
    n = looped.size(-1)
    reach = (looped != 0) | torch.eye(n, dtype=torch.bool, device=looped.device)
    steps = 1
    while steps < n:
        further = (reach.float() @ reach.float()) > 0
        if torch.equal(further, reach):
            break
        reach, steps = further, 2 * steps
    return reach


def _kept(matrix: Tensor, how: Diffusion) -> Tensor:
    n = matrix.size(-1)
    if how.sparsify == "topk" and how.top_k < n:
        chosen = matrix.topk(how.top_k, dim=-2).indices
        return torch.zeros_like(matrix, dtype=torch.bool).scatter_(-2, chosen, True)
    if how.sparsify == "threshold" and how.eps is not None:
        return matrix >= how.eps
    if how.sparsify == "threshold" and how.avg_degree < n:
        ordered = matrix.flatten(1).sort(dim=1, descending=True).values
        last, next_one = ordered[:, how.avg_degree * n - 1], ordered[:, how.avg_degree * n]
        return matrix >= ((last + next_one) / 2).view(-1, 1, 1)
    return torch.ones_like(matrix, dtype=torch.bool)


def _compute(edge_index: Tensor, node_ptr: Tensor, edge_ptr: Tensor, how: Diffusion) -> WeightedEdges:
    sizes, num_graphs = node_ptr.diff(), node_ptr.numel() - 1
    row_length = torch.zeros(int(node_ptr[-1]), dtype=torch.int32)
    counts = torch.zeros(num_graphs, dtype=torch.long)
    found: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []  # graph of each entry, and the three parts
    for index, n in _equal_sizes(sizes):
        adj = _dense(edge_index, edge_ptr, index, n)
        received = diffusion_matrix(adj, how).mT  # rows are receivers
        graph, row, column = ((received != 0) | (received.mT != 0)).nonzero(as_tuple=True)
        counts[index] = torch.bincount(graph, minlength=index.numel())
        rows = (node_ptr[index].unsqueeze(1) + torch.arange(n)).view(-1)
        row_length[rows] = torch.bincount(graph * n + row, minlength=rows.numel()).int()
        weights = (received[graph, row, column].float(), received[graph, column, row].float())
        found.append((index[graph], column.int(), *weights))
    graph = torch.cat([part[0] for part in found])
    order = graph.argsort(stable=True)
    col, weight, back = (torch.cat([part[column] for part in found])[order] for column in (1, 2, 3))
    return WeightedEdges(row_length, col, weight, back, offsets(counts))


def _equal_sizes(sizes: Tensor) -> Iterator[tuple[Tensor, int]]:
    """Numbers of graphs of one size, as many as fit into a batch, and that size."""
    for n in sizes.unique().tolist():
        if n:
            for index in (sizes == n).nonzero().squeeze(1).split(max(1, _BLOCK // n**2)):
                yield index, n


def _dense(edge_index: Tensor, edge_ptr: Tensor, index: Tensor, n: int) -> Tensor:
    """Adjacency matrices ``[b, n, n]`` float64 of graphs of ``n`` nodes; repeated edges add up."""
    edges, ptr = gather_ranges(edge_ptr, index)
    graph = torch.repeat_interleave(ptr.diff())
    source, target = edge_index[:, edges].long()
    ones = torch.ones(edges.numel(), dtype=torch.float64)
    dense = torch.zeros(index.numel(), n, n, dtype=torch.float64)
    return dense.index_put_((graph, source, target), ones, accumulate=True)
