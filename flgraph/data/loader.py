"""Batches of graphs for any Lightning Trainer."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch_geometric.data import Batch

from flgraph.data.flat import FlatGraphs
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
    """

    def __init__(self, graphs: FlatGraphs, index: Tensor, batch_size: int, shuffle: bool = False) -> None:
        expect(batch_size >= 1, "data.batch_size", "1 or more", batch_size)
        self.graphs, self.index, self.batch_size, self.shuffle = graphs, index, batch_size, shuffle

    def __len__(self) -> int:
        return -(-self.index.numel() // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        index = self.index
        if self.shuffle:
            index = index[torch.randperm(index.numel()).to(index.device)]
        for chosen in index.split(self.batch_size):
            if chosen.numel():
                yield self.graphs.batch(chosen)
