"""Batches for training on large graphs: some nodes, and the neighbours that are sampled for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from flgraph.data.checks import edge_keys
from flgraph.data.graphs.batching import visited
from flgraph.data.nodes.batching import hop_offsets
from flgraph.data.nodes.container import NodeGraph
from flgraph.errors import expect
from flgraph.nn.batches import SampledGraph
from flgraph.nn.sparse.adjacency import Adjacency, gather_ranges


def sample_neighbours(rowptr: Tensor, col: Tensor, seeds: Tensor, fanouts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Nodes within some hops of ``seeds``, by a few neighbours of each.

    `"Inductive Representation Learning on Large Graphs" <https://arxiv.org/abs/1706.02216>`_, Algorithm 2. A node with
    at most ``fanouts[h]`` neighbours has all of them; others have as many draws with replacement, of which repeats
    count once. A node is expanded once, in the hop that first reaches it. Draws are from torch's default generator.

    Args:
        rowptr: ``[N + 1]``; the neighbours of node ``i`` are ``col[rowptr[i]:rowptr[i + 1]]``.
        col: ``[E]``.
        seeds: different node numbers ``[n]``.
        fanouts: neighbours per node, for each hop.

    Returns:
        Node numbers ``[M]``, those of ``seeds`` first, and edges ``[2, E']`` from neighbours to the nodes that they
        were sampled for, as positions among these.

    Example:
        >>> rowptr, col = torch.tensor([0, 2, 3, 4]), torch.tensor([1, 2, 0, 0])  # node 0 in the middle
        >>> sample_neighbours(rowptr, col, torch.tensor([1]), fanouts=(2, 2))
        (tensor([1, 0, 2]), tensor([[1, 0, 2],
                [0, 1, 1]]))
    """
    position = torch.full((rowptr.numel() - 1,), -1, dtype=torch.long, device=col.device)
    position[seeds] = torch.arange(seeds.numel(), device=col.device)
    nodes, count, frontier = [seeds], seeds.numel(), seeds
    edges = []
    for k in fanouts:
        senders, receivers = _draw(rowptr, col, frontier, k)
        frontier = senders[position[senders] < 0].unique()
        position[frontier] = torch.arange(count, count + frontier.numel(), device=col.device)
        nodes, count = [*nodes, frontier], count + frontier.numel()
        edges.append(torch.stack([position[senders], position[receivers]]))
    return torch.cat(nodes), torch.cat(edges, dim=1)


def _draw(rowptr: Tensor, col: Tensor, nodes: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Neighbours of each of ``nodes``, at most ``k``, and whose they are; different pairs."""
    degree = rowptr[nodes + 1] - rowptr[nodes]
    few, many = nodes[degree <= k], nodes[degree > k]
    places, ptr = gather_ranges(rowptr, few)
    senders, receivers = col[places], few.repeat_interleave(ptr.diff())
    if many.numel() == 0:
        return senders, receivers
    # On the CPU, so that a seed means the same neighbours on every device.
    draws = torch.rand(many.numel(), k, dtype=torch.float64).to(col.device)
    drawn = rowptr[many].unsqueeze(1) + (draws * degree[degree > k].unsqueeze(1)).long()
    drawn = drawn.sort(dim=1).values
    once = torch.ones_like(drawn, dtype=torch.bool)
    once[:, 1:] = drawn[:, 1:] != drawn[:, :-1]
    return torch.cat([senders, col[drawn[once]]]), torch.cat([receivers, many.repeat_interleave(once.sum(1))])


class SampledLoader:
    """Iterates over some nodes of a graph in batches of small graphs around them, in a new order for each pass.

    Everything is drawn from torch's default generator. Layers see the sampled edges only: means are over sampled
    neighbours, and a GCN's degrees are those of the small graph, as with PyG's ``NeighborLoader``.

    Args:
        graph: the graph.
        index: nodes to classify ``[n]``, numbers of ``graph``.
        batch_size: how many of them in a batch; the last may be smaller.
        fanouts: neighbours per node, for each hop; as many hops as the model has layers.
        fraction: share of them that a pass visits, drawn anew for each.

    Raises:
        InputError: a number is out of range.
    """

    def __init__(
        self, graph: NodeGraph, index: Tensor, batch_size: int, fanouts: Sequence[int], fraction: float = 1.0
    ) -> None:
        expect(batch_size >= 1, "data.batch_size", "1 or more", batch_size)
        expect(0 < fraction <= 1, "data.epoch_fraction", "above 0 and at most 1", fraction)
        hop_offsets(fanouts)  # checks them
        self.graph, self.index, self.batch_size = graph, index, batch_size
        self.fanouts, self.fraction = tuple(fanouts), fraction

    @property
    def num_visited(self) -> int:
        """Nodes that one pass is about."""
        return visited(self.index.numel(), self.fraction)

    def __len__(self) -> int:
        return -(-self.num_visited // self.batch_size)

    def __iter__(self) -> Iterator[SampledGraph]:
        graph, order = self.graph, torch.randperm(self.index.numel())[: self.num_visited].to(self.index.device)
        known = graph.edge_attr
        keys = None if known is None else edge_keys(graph.edge_index, graph.num_nodes)
        for seeds in self.index[order].split(self.batch_size):
            nodes, edges = sample_neighbours(graph.rowptr, graph.col, seeds, self.fanouts)
            adj = Adjacency.from_edges(edges, nodes.numel())
            index = torch.arange(seeds.numel(), device=seeds.device)
            features: tuple[Tensor, ...] = ()
            if known is not None and keys is not None:
                place = torch.searchsorted(keys, edge_keys(nodes[edges], graph.num_nodes))
                features = (edges, known[place])
            yield SampledGraph(graph.rows(nodes), adj, graph.nodes[nodes], index, graph.y[seeds], *features)
