"""A federation of as many small clients as are wanted, to see from how many on noise leaves accuracy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from flgraph.data import FlatGraphs, GraphFederation
from flgraph.data.graphs.synthetic import synthetic_graphs
from flgraph.errors import expect


class ManyClients(GraphFederation):
    """The ``trees`` of :class:`~flgraph.data.SyntheticFederation` without distractors, as many for every client.

    Args:
        num_clients: how many.
        num_graphs: of each.
        **kwargs: see :class:`GraphFederation`.

    Raises:
        InputError: a setting cannot be used.
    """

    def __init__(self, num_clients: int, num_graphs: int = 10, **kwargs: Any) -> None:
        super().__init__({}, 2, f"{num_clients}-clients", **kwargs)
        expect(num_clients >= 1, "data.num_clients", "1 or more", num_clients)
        expect(num_graphs >= 2, "data.num_graphs", "2 or more", num_graphs)
        self.num_clients, self.num_graphs = num_clients, num_graphs

    def load(self) -> Iterable[tuple[str, FlatGraphs, int]]:
        every = self.embed(synthetic_graphs("trees", self.num_clients * self.num_graphs, distractors=0))
        shards = torch.arange(len(every)).view(self.num_clients, self.num_graphs)
        for number, shard in enumerate(shards, 1):
            yield f"client-{number}", every.select(shard), 2
