"""Batches of one graph's nodes: ego-graphs of a fixed shape, sampled trees of neighbours, or the whole graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from flgraph.data.graphs.batching import visited
from flgraph.data.nodes.container import NodeGraph
from flgraph.errors import expect
from flgraph.nn.batches import EgoBatch, WholeGraph

_RANGE = 2**62
"""Random whole numbers are drawn below this; their remainders are even to within degree / 2^62."""


def hop_offsets(fanouts: Sequence[int]) -> list[int]:
    """Where the hops of an ego-graph begin, and its number of positions: ``(6, 6)`` gives ``[0, 1, 7, 43]``.

    Raises:
        InputError: a fanout is below 1.
    """
    ends, width = [0, 1], 1
    for k in fanouts:
        expect(isinstance(k, int) and k >= 1, "data.fanouts", "whole numbers of 1 or more", list(fanouts))
        width *= k
        ends.append(ends[-1] + width)
    return ends


def sample_ego_graphs(
    rowptr: Tensor,
    col: Tensor,
    centers: Tensor,
    fanouts: Sequence[int] = (6, 6),
    generator: torch.Generator | None = None,
) -> Tensor:
    """Samples an ego-graph around every center: ``fanouts[h]`` neighbours, with replacement, of each node of hop ``h``.

    Positions of an ego-graph are its hops one after another, hop 0 being the center. The children of the ``j``-th node
    of hop ``h`` are the positions ``hop_offsets(fanouts)[h + 1] + j * k`` up to, not including, ``... + (j + 1) * k``,
    where ``k = fanouts[h]``: every tree has the same shape, so layers reshape instead of scattering. A node without
    neighbours is its own neighbour. (FedEgo, Zhang et al., 2022, Section 4.1.)

    Args:
        rowptr: ``[N + 1]``; the neighbours of node ``i`` are ``col[rowptr[i]:rowptr[i + 1]]``.
        col: ``[E]``.
        centers: node numbers ``[B]``; repeats are allowed.
        fanouts: neighbours per node, for each hop.
        generator: of the random numbers; torch's default one on the CPU when ``None``, on every device alike.

    Returns:
        Node numbers ``[B, P]``, int64; ``P = 1 + 6 + 36`` with the default fanouts.

    Raises:
        InputError: a fanout is below 1.

    Example:
        >>> rowptr, col = torch.tensor([0, 2, 3, 4]), torch.tensor([1, 2, 0, 0])  # node 0 in the middle
        >>> centers = torch.tensor([1, 2])
        >>> sample_ego_graphs(rowptr, col, centers, fanouts=(2,))  # two draws of each one"s neighbours
        tensor([[1, 0, 0],
                [2, 0, 0]])
    """
    hop_offsets(fanouts)  # checks them
    hop = centers.long().unsqueeze(1)
    hops = [hop]
    for k in fanouts:
        parents = hop.unsqueeze(2)
        if col.numel() == 0:
            hop = parents.expand(*hop.shape, k).flatten(1)
        else:
            start = rowptr[parents]
            degree = rowptr[parents + 1] - start
            # Drawn on the CPU by default, so that a seed means the same ego-graphs on every device.
            where = "cpu" if generator is None else generator.device
            draw = torch.randint(_RANGE, (*hop.shape, k), generator=generator, device=where).to(col.device)
            # The clamps make a harmless gather for nodes without neighbours, whose result is then replaced.
            child = col[(start + draw % degree.clamp(min=1)).clamp(max=col.numel() - 1)]
            hop = torch.where(degree == 0, parents, child).flatten(1)
        hops.append(hop)
    return torch.cat(hops, dim=1)


class EgoLoader:
    """Iterates over some nodes of a graph in batches of their ego-graphs.

    Shuffling and sampling draw from torch's default generator, so ``torch.manual_seed`` decides them, on every device
    alike; not so where ``fixed``.

    Args:
        graph: the graph.
        index: centers ``[n]``, node numbers of ``graph``.
        batch_size: ego-graphs per batch; the last may be smaller.
        fanouts: neighbours per node, for each hop.
        shuffle: whether to draw a new order for each pass.
        fraction: share of the centers that a pass visits, drawn anew for each (rounded, and at least one); FedEgo's
            published code trains a local epoch on 0.2.
        fixed: whether to sample the ego-graphs once, from ``seed``, and use them in every pass, as evaluation should.
        seed: see ``fixed``.
        full: whether a remainder goes into the other batches, so that none is smaller than ``batch_size`` (unless there
            are fewer centers); what is averaged over a batch then never stands for a few.
        trained: nodes that the client trains on ``[N]``, bool; batches then say which positions are of these.

    Raises:
        InputError: a number is out of range.
    """

    def __init__(
        self,
        graph: NodeGraph,
        index: Tensor,
        batch_size: int = 32,
        fanouts: Sequence[int] = (6, 6),
        shuffle: bool = False,
        fraction: float = 1.0,
        fixed: bool = False,
        seed: int = 0,
        full: bool = False,
        trained: Tensor | None = None,
    ) -> None:
        expect(batch_size >= 1, "data.batch_size", "1 or more", batch_size)
        expect(0 < fraction <= 1, "data.epoch_fraction", "above 0 and at most 1", fraction)
        hop_offsets(fanouts)  # checks them
        self.graph, self.index, self.batch_size, self.fanouts = graph, index, batch_size, tuple(fanouts)
        self.shuffle, self.fraction, self.fixed, self.seed, self.full = shuffle, fraction, fixed, seed, full
        self.trained = trained
        self._ego_graphs: Tensor | None = None

    @property
    def num_visited(self) -> int:
        """Centers that one pass visits."""
        return visited(self.index.numel(), self.fraction)

    def __len__(self) -> int:
        if self.full:
            return min(self.num_visited, max(1, self.num_visited // self.batch_size))
        return -(-self.num_visited // self.batch_size)

    def __iter__(self) -> Iterator[EgoBatch]:
        order = self._order()
        for chosen in order.tensor_split(max(1, len(self))) if self.full else order.split(self.batch_size):
            if chosen.numel():
                yield self.collate(self._sample(chosen))

    def collate(self, ego_graphs: Tensor) -> EgoBatch:
        """The batch of ``ego_graphs [B, P]``, node numbers of the graph; subclasses may say more of them."""
        batch = EgoBatch.gather(self.graph.x, self.graph.y, ego_graphs, self.fanouts)
        batch.trained = None if self.trained is None else self.trained[ego_graphs]
        return batch

    def _order(self) -> Tensor:
        """Positions in ``index`` that this pass visits."""
        n, count = self.index.numel(), self.num_visited
        order = torch.randperm(n)[:count] if self.shuffle or count < n else torch.arange(n)
        return (order if self.shuffle else order.sort().values).to(self.index.device)

    def _sample(self, chosen: Tensor) -> Tensor:
        rowptr, col = self.graph.rowptr, self.graph.col
        if not self.fixed:
            return sample_ego_graphs(rowptr, col, self.index[chosen], self.fanouts)
        if self._ego_graphs is None:
            self._ego_graphs = self._shared_ego_graphs() if self._of_all else self._fixed_ego_graphs()
        return self._ego_graphs[chosen]

    @property
    def _of_all(self) -> bool:
        n = self.graph.num_nodes
        return self.index.numel() == n and torch.equal(self.index, torch.arange(n, device=self.index.device))

    def _shared_ego_graphs(self) -> Tensor:
        """Those of all nodes, cached with the graph: a thousand clients may be tested on the same one."""
        cached: dict[Any, Tensor] = self.graph.adj.derived.setdefault("ego_graphs", {})
        key = (self.fanouts, self.seed)
        if key not in cached:
            cached[key] = self._fixed_ego_graphs()
        return cached[key]

    def _fixed_ego_graphs(self) -> Tensor:
        # All at once, so that they do not depend on the batch size.
        generator = torch.Generator().manual_seed(self.seed)
        return sample_ego_graphs(self.graph.rowptr, self.graph.col, self.index, self.fanouts, generator)


class WholeGraphLoader:
    """One batch per pass: a whole graph, with some of its nodes to classify.

    Args:
        graph: the graph.
        index: nodes to classify ``[n]``, numbers of ``graph``.
        fraction: share of them that a pass is about, drawn anew for each from torch's default generator (rounded, and
            at least one).
    """

    def __init__(self, graph: NodeGraph, index: Tensor, fraction: float = 1.0) -> None:
        expect(0 < fraction <= 1, "data.epoch_fraction", "above 0 and at most 1", fraction)
        self.graph, self.index, self.fraction = graph, index, fraction

    def __len__(self) -> int:
        return min(1, self.index.numel())

    def __iter__(self) -> Iterator[WholeGraph]:
        count = self.index.numel()
        some = visited(count, self.fraction)
        if count:
            chosen = self.index
            if some < count:
                chosen = chosen[torch.randperm(count)[:some].sort().values.to(chosen.device)]
            yield self.graph.batch(chosen)
