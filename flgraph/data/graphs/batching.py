"""Batches of graphs for any Lightning Trainer."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch_geometric.data import Batch

from flgraph.data.graphs.container import FlatGraphs
from flgraph.errors import expect


def visited(count: int, fraction: float) -> int:
    """How many of ``count`` a pass visits that visits a fraction of them: rounded, halves up, and at least one."""
    return min(count, max(1, int(fraction * count + 0.5)))


class GraphLoader:
    """Iterates over some graphs of a flat set in batches; what PyG's ``DataLoader`` does, without the loop over graphs.

    Shuffling draws from torch's default generator, so ``torch.manual_seed`` decides the order, on every device alike.

    Args:
        graphs: the flat set.
        index: which of its graphs, ``[n]``.
        batch_size: graphs per batch; the last may be smaller.
        shuffle: whether to draw a new order for each pass.
        min_batch: a last batch of fewer graphs becomes part of the one before.
        stage: under what name metrics of a test go, where not by the loader's position in the list.
    """

    def __init__(
        self,
        graphs: FlatGraphs,
        index: Tensor,
        batch_size: int,
        shuffle: bool = False,
        min_batch: int = 1,
        stage: str | None = None,
    ) -> None:
        expect(batch_size >= 1, "data.batch_size", "1 or more", batch_size)
        self.graphs, self.index, self.batch_size, self.shuffle = graphs, index, batch_size, shuffle
        self.min_batch, self.stage = min_batch, stage

    def __len__(self) -> int:
        return len(self._sizes())

    def _sizes(self) -> list[int]:
        """Graphs of each batch."""
        whole, rest = divmod(self.index.numel(), self.batch_size)
        sizes = [self.batch_size] * whole
        if rest and (rest >= self.min_batch or not whole):
            return [*sizes, rest]
        if rest:
            sizes[-1] += rest
        return sizes

    def __iter__(self) -> Iterator[Batch]:
        index = self.index
        if self.shuffle:
            index = index[torch.randperm(index.numel()).to(index.device)]
        for chosen in index.split(self._sizes()):
            yield self.graphs.batch(chosen)
