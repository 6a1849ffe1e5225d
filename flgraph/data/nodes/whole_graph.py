"""A client's whole graph as one batch, for full-batch training, and a federation of such clients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from flgraph.data.graphs.batching import visited
from flgraph.data.nodes.container import NodeGraph
from flgraph.data.nodes.datamodule import NodeDataModule, NodeFederation
from flgraph.data.nodes.partition import NodePartition
from flgraph.errors import expect
from flgraph.nn.batches import WholeGraph


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


class WholeGraphDataModule(NodeDataModule):
    """A :class:`NodeDataModule` whose loaders give the whole graph as one batch.

    Args:
        *args: see there.
        cross_edges: edges from the client's nodes to nodes that only other clients hold ``[2, E']``: numbers of
            ``graph``, and numbers of the whole graph; ``None`` where the client does not know them.
        **kwargs: see there.
    """

    def __init__(self, *args: Any, cross_edges: Tensor | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cross_edges = cross_edges

    def train_dataloader(self) -> WholeGraphLoader:  # type: ignore[override]
        """The training nodes, some of them in each epoch."""
        return WholeGraphLoader(self.graph, self.train, self.epoch_share)

    def val_dataloader(self) -> WholeGraphLoader:  # type: ignore[override]
        """The validation nodes."""
        return WholeGraphLoader(self.graph, self.val)

    def test_dataloader(self) -> WholeGraphLoader | list[WholeGraphLoader]:  # type: ignore[override]
        """The test nodes; with a global graph a list of two loaders, the second of all its nodes."""
        local = WholeGraphLoader(self.graph, self.test)
        if self.global_graph is None:
            return local
        return [local, self._all(self.global_graph)]

    def predict_dataloader(self) -> WholeGraphLoader:  # type: ignore[override]
        """All nodes of the client's graph."""
        return self._all(self.graph)

    def support_query(self, num_nodes: int) -> tuple[WholeGraph, WholeGraph]:
        """The whole graph with two disjoint random sets of nodes, see :class:`NodeDataModule`."""
        support, query = self.draw_support_query(num_nodes)
        return self.graph.batch(support), self.graph.batch(query)

    def _all(self, graph: NodeGraph) -> WholeGraphLoader:
        return WholeGraphLoader(graph, torch.arange(graph.num_nodes, device=graph.y.device))


class WholeGraphFederation(NodeFederation):
    """A :class:`NodeFederation` for full-batch methods: each client's graph is one batch.

    Args:
        *args: see there; what it says of ego-graphs and batches has no effect here.
        cross_edges: whether clients know the edges from their nodes to nodes that only other clients hold, and the
            numbers of these; FedGCN assumes so.
        **kwargs: see there.
    """

    def __init__(self, *args: Any, cross_edges: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cross_edges = cross_edges
        self._dealt: tuple[NodeGraph, NodePartition] | None = None
        self._whole: dict[str, WholeGraphDataModule] = {}

    def deal(self) -> tuple[NodeGraph, NodePartition]:
        """As :class:`NodeFederation` does; kept, because edges between clients are in no client's graph."""
        if self._dealt is None:
            self._dealt = super().deal()
        return self._dealt

    def client(self, name: str) -> WholeGraphDataModule:
        """A client's data; known after ``setup``."""
        if name not in self._whole:
            base = super().client(name)
            graph, dealt = self.deal()
            own = dealt.clients[self.clients.index(name)].nodes
            held = torch.cat([client.nodes for client in dealt.clients]).unique()
            place, other = edges_between(graph, own, held)
            self._whole[name] = WholeGraphDataModule(
                base.graph,
                base.train,
                base.val,
                base.test,
                base.global_graph,
                query=base.query,
                epoch_fraction=base.epoch_fraction,
                settings={**base.settings, "cross_edges": self.cross_edges},
                # The graph may be a part of another one, whose numbers its nodes keep.
                cross_edges=torch.stack([place, graph.nodes[other]]) if self.cross_edges else None,
            )
        return self._whole[name]


def edges_between(graph: NodeGraph, nodes: Tensor, others: Tensor) -> Tensor:
    """Edges of ``graph`` from ``nodes`` to those of ``others`` that are not among them ``[2, E']``.

    Row 0 holds places in ``nodes``, row 1 node numbers of ``graph``.
    """
    place = torch.full((graph.num_nodes,), -1, dtype=torch.long)
    place[nodes] = torch.arange(nodes.numel())
    wanted = torch.zeros(graph.num_nodes, dtype=torch.bool)
    wanted[others] = True
    wanted[nodes] = False
    source, target = graph.edge_index
    chosen = (place[source] >= 0) & wanted[target]
    return torch.stack([place[source[chosen]], target[chosen]])
