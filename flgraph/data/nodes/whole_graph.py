"""A client's whole graph as one batch, for full-batch training, and a federation of such clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch_geometric.utils import index_to_mask

from flgraph.data.checks import link_arguments, warn_of_common
from flgraph.data.nodes.batching import WholeGraphLoader
from flgraph.data.nodes.container import NodeGraph
from flgraph.data.nodes.datamodule import NodeDataModule, NodeFederation
from flgraph.data.nodes.links import LinkDataModule
from flgraph.data.nodes.partition import NodePartition
from flgraph.data.nodes.sampled import SampledLoader
from flgraph.errors import expect
from flgraph.nn.batches import WholeGraph
from flgraph.nn.tasks import NodeTask, check_task


class WholeGraphDataModule(NodeDataModule):
    """A :class:`NodeDataModule` whose loaders give the whole graph as one batch.

    Args:
        *args: see there.
        cross_edges: edges from the client's nodes to nodes that only other clients hold ``[2, E']``: numbers of
            ``graph``, and numbers of the whole graph; ``None`` where the client does not know them.
        sampled: whether training batches are small graphs instead, of ``batch_size`` nodes and sampled neighbours.
        **kwargs: see there.
    """

    def __init__(self, *args: Any, cross_edges: Tensor | None = None, sampled: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cross_edges, self.sampled = cross_edges, sampled
        self.settings["cross_edges"] = cross_edges is not None
        if sampled:
            self.settings["sampled"] = True

    def train_dataloader(self) -> WholeGraphLoader | SampledLoader:  # type: ignore[override]
        """The training nodes, some of them in each epoch."""
        if self.sampled:
            return SampledLoader(self.graph, self.train, self.batch_size, self.fanouts, self.epoch_share)
        return WholeGraphLoader(self.graph, self.train, self.epoch_share)

    def support_query(self, num_nodes: int) -> tuple[WholeGraph, WholeGraph]:
        """The whole graph with two disjoint random sets of nodes, see :class:`NodeDataModule`."""
        support, query = self.draw_support_query(num_nodes)
        return self.graph.batch(support), self.graph.batch(query)

    def _evaluation(self, graph: NodeGraph, index: Tensor) -> WholeGraphLoader:  # type: ignore[override]
        return WholeGraphLoader(graph, index.to(graph.y.device))


class WholeGraphFederation(NodeFederation):
    """A :class:`NodeFederation` for full-batch methods: each client's graph is one batch.

    Args:
        *args: see there; what it says of ego-graphs and batches has no effect here, unless ``sampled``.
        cross_edges: whether clients know the edges from their nodes to nodes that only other clients hold, and the
            numbers of these; FedGCN assumes so.
        sampled: whether clients train on batches of ``batch_size`` nodes and neighbours sampled for them, ``fanouts``
            of each hop (:class:`~flgraph.data.SampledLoader`), as large graphs need; they are evaluated on whole
            graphs. Only without ``cross_edges``, and not for links.
        task: see there; or ``links``, to predict links between a client's nodes.
        links: further arguments of :class:`LinkDataModule`, for links.
        **kwargs: see there.

    Raises:
        InputError: as :class:`NodeFederation`, or both are true.
    """

    client_class: ClassVar[type[NodeDataModule]] = WholeGraphDataModule

    def __init__(
        self,
        *args: Any,
        cross_edges: bool = True,
        sampled: bool = False,
        task: NodeTask = "multiclass",
        links: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        check_task(task, "data.task", NodeTask)
        kwargs["task"] = "multiclass" if task == "links" else task
        super().__init__(*args, **kwargs)
        expect(not (sampled and cross_edges), "data.cross_edges", "false where training is sampled", cross_edges)
        expect(not (sampled and task == "links"), "data.sampled", "false for links", sampled)
        self.cross_edges, self.sampled = cross_edges and task != "links", sampled
        self.links = link_arguments(task, links)
        if task == "links":
            self.client_class = LinkDataModule  # type: ignore[misc]

    def client_args(self, graph: NodeGraph, partition: NodePartition, nodes: Tensor) -> dict[str, Any]:
        """As :class:`NodeFederation` has them, and the edges between clients, which are in no client's graph."""
        args = {**super().client_args(graph, partition, nodes), **self.links}
        if self.client_class is LinkDataModule:
            held = [client.nodes for client in partition.clients]
            warn_of_common(held, "nodes", "`data.partition` louvain cuts without.")
        if self.sampled:
            return {**args, "sampled": True}
        if not self.cross_edges:
            return args
        held = torch.cat([client.nodes for client in partition.clients]).unique()
        position, other = edges_between(graph, nodes, held)
        # The graph may be a part of another one, whose numbers its nodes have.
        return {**args, "cross_edges": torch.stack([position, graph.nodes[other]])}


def edges_between(graph: NodeGraph, nodes: Tensor, others: Tensor) -> Tensor:
    """Edges of ``graph`` from ``nodes`` to those of ``others`` that are not among them ``[2, E']``.

    Row 0 holds positions in ``nodes``, row 1 node numbers of ``graph``.
    """
    position = torch.full((graph.num_nodes,), -1, dtype=torch.long)
    position[nodes] = torch.arange(nodes.numel())
    wanted = index_to_mask(others, graph.num_nodes) & (position < 0)
    source, target = graph.edge_index
    chosen = (position[source] >= 0) & wanted[target]
    return torch.stack([position[source[chosen]], target[chosen]])
