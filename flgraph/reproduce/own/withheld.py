"""Federations on which settings are chosen without a look at test nodes."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from flgraph.data.nodes.container import NodeGraph
from flgraph.data.nodes.datamodule import NodeFederation
from flgraph.data.nodes.partition import NodePartition
from flgraph.reproduce.fedego.published import PublishedNodeFederation, PublishedWholeGraphFederation

SHARE = 0.6
"""Of the nodes that one client or several validate on."""


def withheld(partition: NodePartition, seed: int) -> NodePartition:
    """The same clients without some of their validation nodes, which are the global test graph.

    Clients share nodes: what one validates on, others train on, so that its own validation rewards what was learnt by
    heart. These nodes are in no client's graph, and the graph of them is as that of the global test nodes is: drawn
    from all classes, and thin. Global test nodes have no use.

    Args:
        partition: of clients with validation nodes.
        seed: of the draw.
    """
    nodes = torch.cat([client.val for client in partition.clients]).unique()
    order = torch.randperm(nodes.numel(), generator=torch.Generator().manual_seed(seed))
    gone = nodes[order[: round(SHARE * nodes.numel())]].sort().values

    def rest(index: Tensor) -> Tensor:
        return index[~torch.isin(index, gone)]

    fields = ("nodes", "train", "val", "test", "query")
    clients = [replace(own, **{name: rest(getattr(own, name)) for name in fields}) for own in partition.clients]
    return NodePartition(clients, gone)


class _Withheld(NodeFederation):
    def make_partition(self, graph: NodeGraph) -> NodePartition:
        return withheld(super().make_partition(graph), self.partition_args["seed"])


class WithheldNodeFederation(_Withheld, PublishedNodeFederation):
    """The clients of FedEgo's authors after :func:`withheld`, with ego-graphs."""


class WithheldWholeGraphFederation(_Withheld, PublishedWholeGraphFederation):
    """The clients of FedEgo's authors after :func:`withheld`, for full-batch methods."""
