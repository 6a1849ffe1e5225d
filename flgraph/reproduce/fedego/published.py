"""FedEgo and the methods that its paper compares it with, as the published code draws, runs and evaluates them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from flgraph.callbacks import DFedGNN, FedAvg, FedEgo, FedGCN, FedProxAdaptive, GraphFL
from flgraph.data.nodes.batching import EgoLoader, hop_offsets
from flgraph.data.nodes.container import NodeGraph
from flgraph.data.nodes.datamodule import NodeDataModule, NodeFederation
from flgraph.data.nodes.partition import NodePartition, check_skew, divide_nodes
from flgraph.data.nodes.whole_graph import WholeGraphFederation
from flgraph.errors import expect
from flgraph.federation import Client, Payload
from flgraph.models.nodes.fedego import FedEgo as FedEgoNet
from flgraph.models.nodes.fedego import MashedEgoGraphs
from flgraph.nn.batches import EgoBatch

Isolated = Literal["self", "none"]


def authors_label_skew(
    graph: NodeGraph,
    num_clients: int,
    local_fraction: float = 0.3,
    global_fraction: float = 0.3,
    major_labels: int = 3,
    major_rate: float = 0.8,
    num_test: int = 300,
    val_fraction: float = 0.2,
    num_train: int | None = None,
    num_query: int = 0,
    seed: int = 123,
) -> NodePartition:
    """:func:`~flgraph.data.label_skew` by the very draws of FedEgo's published code.

    A seed gives the clients that the authors had: their numbers of training nodes on Cora and CiteSeer reproduce the
    megabytes of the paper's Table 7. It differs from :func:`~flgraph.data.label_skew` in details, too: nodes without an
    edge in the whole graph are left out first (48 in CiteSeer), shares are rounded down, frequent labels are drawn
    among all labels, a client's test nodes leave the pool, but may be training nodes of earlier clients. Draws are
    those of NumPy's legacy generator and of Python's, both seeded with ``seed``; the order in which CPython iterates
    over a set of integers counts, too.

    Args:
        graph: the whole graph, its edges sorted by source.
        num_clients: number of clients.
        local_fraction: nodes that a client asks for, as a share of all.
        global_fraction: share of all nodes that is the global test graph.
        major_labels: frequent labels per client.
        major_rate: share of a client's nodes that have them.
        num_test: test nodes per client.
        val_fraction: validation nodes, as a share of all nodes of the client.
        num_train: see :func:`~flgraph.data.label_skew`.
        num_query: see there.
        seed: of all draws; the paper's are 1027, 1107, 2333 and 9973.

    Raises:
        InputError: a number is out of range, or a client would have no edge or too few nodes.
    """
    check_skew(graph, num_clients, local_fraction, global_fraction, major_rate, num_test, val_fraction, num_train, seed)
    expect(num_query >= 0, "data.num_query", "0 or more", num_query)
    edges = graph.edge_index.t().contiguous()
    # Nodes are numbered as they come up in the list of edges, source and target in turn.
    flat = edges.flatten().numpy()
    numbers, first = np.unique(flat, return_index=True)
    original = numbers[np.argsort(first)]
    number_of = np.full(graph.num_nodes, -1)
    number_of[original] = np.arange(original.size)
    y, count = graph.y.numpy()[original], original.size
    expect(count > 0, "data.dataset", "a graph with edges", graph.name)
    labels = np.unique(y)
    valid = 1 <= major_labels <= labels.size
    expect(valid, "data.major_labels", f"between 1 and the {labels.size} labels of {graph.name}", major_labels)
    neighbours: list[list[int]] = [[] for _ in range(count)]
    for source, target in number_of[edges.numpy()].tolist():
        neighbours[source].append(target)
        neighbours[target].append(source)

    numpy, python = np.random.RandomState(seed), random.Random(seed)
    held = numpy.permutation(count)[: int(count * global_fraction)]
    expect(held.size < count, "data.global_fraction", f"small enough to leave nodes of {graph.name}", global_fraction)
    size, gone = int(count * local_fraction), set(held.tolist())
    clients = []
    for number in range(1, num_clients + 1):
        left = np.array([node for node in range(count) if node not in gone], dtype=np.int64)
        chosen = labels[numpy.permutation(labels.size)[:major_labels]]
        of_labels = np.concatenate([left[y[left] == label] for label in chosen])
        major = numpy.permutation(of_labels)[: int(size * major_rate)]
        others = numpy.permutation(left[~np.isin(left, major)])[: size - major.size]
        drawn = np.concatenate([major, others]).tolist()
        nodes = _connected(drawn, neighbours)
        what = f"large enough for client `client-{number}` to have an edge"
        expect(len(nodes) > 0, "data.local_fraction", what, local_fraction)
        python.shuffle(nodes)
        rest, test = nodes[: max(0, len(nodes) - num_test)], nodes[max(0, len(nodes) - num_test) :]
        gone |= set(test)
        num_val = int(val_fraction * len(nodes))
        train, val = rest[: max(0, len(rest) - num_val)], rest[max(0, len(rest) - num_val) :]
        own = torch.from_numpy(original[np.array(val + train + test)])
        clients.append(divide_nodes(own, num_test, num_val, num_train, num_query, f"client-{number}"))
    return NodePartition(clients, torch.from_numpy(np.sort(original[held])))


def _connected(drawn: list[int], neighbours: list[list[int]]) -> list[int]:
    """Those with an edge to another, in the order of a set that they enter pair by pair, in the order of ``drawn``."""
    at = {node: position for position, node in enumerate(drawn)}
    found: set[int] = set()
    for node in drawn:
        beside = {other for other in neighbours[node] if other in at}
        for other in sorted(beside, key=at.__getitem__):
            found.add(node)
            found.add(other)
    return list(found)


class PublishedEgoLoader(EgoLoader):
    """Ego-graphs in which a node without neighbours may have nothing below it.

    Args:
        *args: see :class:`~flgraph.data.EgoLoader`.
        isolated: what stands for the neighbours of a node without any: the node itself (``"self"``), or nothing
            (``"none"``), so that their mean is zero.
        **kwargs: see there.
    """

    def __init__(self, *args: Any, isolated: Isolated = "none", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Clients' parts of a graph mostly have no such nodes; then layers need not look for them in every batch.
        self._some_alone = isolated == "none" and bool((self.graph.degree == 0).any())

    def collate(self, ego_graphs: Tensor) -> EgoBatch:
        """The batch, which says which nodes have no neighbours."""
        batch = super().collate(ego_graphs)
        if self._some_alone:
            inner = hop_offsets(self.fanouts)[-2]  # positions that have children
            batch.childless = self.graph.degree[ego_graphs[:, :inner]] == 0
        return batch


class PublishedNodeDataModule(NodeDataModule):
    """One client's graph, with ego-graphs as FedEgo's published code samples them, anew at every evaluation.

    So a model has no one accuracy, and the best of many rounds is the best of as many draws, too.

    Args:
        *args: see :class:`~flgraph.data.NodeDataModule`.
        isolated: see :class:`PublishedEgoLoader`.
        **kwargs: see :class:`~flgraph.data.NodeDataModule`.
    """

    def __init__(self, *args: Any, isolated: Isolated = "none", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.isolated = isolated
        self.settings["isolated"] = isolated

    def make_loader(self, graph: NodeGraph, index: Tensor, batch_size: int, **kwargs: Any) -> EgoLoader:
        """The loader of some nodes of a graph, which samples anew in each pass."""
        sampling = {**kwargs, "fixed": False, "isolated": self.isolated}
        return PublishedEgoLoader(graph, index, batch_size, self.fanouts, **sampling)


class PublishedNodeFederation(NodeFederation):
    """The clients of FedEgo's authors, evaluated as in their published code.

    Args:
        *args: see :class:`~flgraph.data.NodeFederation`; ``label_skew`` is :func:`authors_label_skew`, which has
            neither ``local_of`` nor ``exclusive_test``.
        isolated: see :class:`PublishedEgoLoader`. Clients of ``label_skew`` have no nodes without neighbours in an
            undirected graph, the global test graph has.
        **kwargs: see :class:`~flgraph.data.NodeFederation`.
    """

    client_class = PublishedNodeDataModule
    partitioners: ClassVar = {**NodeFederation.partitioners, "label_skew": authors_label_skew}

    def __init__(self, *args: Any, isolated: Isolated = "none", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        expect(isolated in get_args(Isolated), "data.isolated", f"one of {', '.join(get_args(Isolated))}", isolated)
        self.sampling["isolated"] = isolated
        if self.hparams["name"] is None:
            self.name += "-published"


class PublishedWholeGraphFederation(WholeGraphFederation):
    """The clients of FedEgo's authors for full-batch methods, see :class:`PublishedNodeFederation`."""

    partitioners: ClassVar = PublishedNodeFederation.partitioners


# ------------------------------------------------------------------------------------------------------- algorithms
class PublishedFedAvg(FedAvg):
    """FedAvg from the mean of the clients' own first weights, evaluated before clients get the average."""

    initial_weights = "mean"
    evaluated_model = "trained"


class PublishedFedProx(FedProxAdaptive):
    """FedProx that begins and is evaluated as :class:`PublishedFedAvg`."""

    initial_weights = "mean"
    evaluated_model = "trained"


class PublishedDFedGNN(DFedGNN):
    """D-FedGNN whose clients begin each with weights of its own."""

    initial_weights = "own"


class PublishedFedGCN(FedGCN):
    """FedGCN whose average is computed and never installed, so that clients go on alone, from weights of their own."""

    initial_weights = "own"

    def download(self, client: str, round: int, exchange: str | None) -> Payload | None:
        payload = super().download(client, round, exchange)
        sums = {} if payload is None else {name: t for name, t in payload.tensors.items() if name not in self.shared}
        return Payload(sums) if sums else None


class GraphFLFromMean(GraphFL):
    """GraphFL from the mean of the clients' own first weights."""

    initial_weights = "mean"


class PublishedGraphFL(GraphFLFromMean):
    """GraphFL that adapts by local training, from the mean of the clients' own first weights.

    A client adapts for its local epochs, with its own optimizer, whose state both exchanges share, on all its training
    data; its meta-gradient is the gradient at the weights that it has then. Query sets are never trained on.

    Args:
        first_order: must be true.
        kwargs: see :class:`~flgraph.callbacks.GraphFL`.
    """

    def __init__(self, first_order: bool = True, **kwargs: Any) -> None:
        super().__init__(first_order=first_order, **kwargs)
        expect(first_order, "aggregator.first_order", "true for an adaptation by training", first_order)

    def meta_gradients(self, client: Client) -> dict[str, Tensor]:
        start = {name: tensor.clone() for name, tensor in client.module.state_dict().items()}
        client.fit()
        try:
            return self.adapted_gradients(client, steps=0)
        finally:
            client.module.load_state_dict(start)


class PublishedFedEgo(FedEgo):
    """FedEgo as its published code runs it.

    Clients begin with the mean of their own first weights. They take over averaged reduction layers at the start of
    their next round, so that they are evaluated with their own. Soft labels average the classes of validation and test
    nodes, too. At the server only as many mashed ego-graphs have edges as the client sends that sends most of them, the
    first ones in the order of clients' names, since the edges of all clients go into one graph where each client's
    nodes are numbered from 0; the others are centers alone.

    Args:
        edges: which mashed ego-graphs have edges at the server: ``"largest"`` as above, or ``"all"``.
        soft_labels: whose classes are averaged: ``"all"`` nodes' as above, or those of ``"training"`` nodes.
        install_at: when reduction layers are taken over: at the ``"start"`` of a round as above, or at its ``"end"``.
        initial_weights: see :class:`~flgraph.federation.Aggregator`.
        kwargs: see :class:`~flgraph.callbacks.FedEgo`.
    """

    client_attributes = (*FedEgo.client_attributes, "_waiting")

    def __init__(
        self,
        edges: Literal["largest", "all"] = "largest",
        soft_labels: Literal["all", "training"] = "all",
        install_at: Literal["start", "end"] = "start",
        initial_weights: Literal["mean", "first"] = "mean",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        expect(edges in ("largest", "all"), "aggregator.edges", "largest or all", edges)
        expect(soft_labels in ("all", "training"), "aggregator.soft_labels", "training or all", soft_labels)
        expect(install_at in ("start", "end"), "aggregator.install_at", "start or end", install_at)
        self.edges, self.soft_labels, self.install_at = edges, soft_labels, install_at
        self.initial_weights = initial_weights
        self._waiting: Mapping[str, Tensor] = {}  # reduction layers for the next round

    def collect(self, uploads: Mapping[str, Payload]) -> MashedEgoGraphs:
        ego_graphs = super().collect(uploads)
        if self.edges == "all":
            return ego_graphs
        most = max(upload.tensors["ego_graphs/label"].size(0) for upload in uploads.values())
        bare = torch.arange(ego_graphs.label.size(0)) >= most
        inner = ego_graphs.label.size(1) - prod(ego_graphs.fanouts) if ego_graphs.fanouts else 0
        ego_graphs.childless = bare.unsqueeze(1).expand(-1, inner)
        return ego_graphs

    def install_reduction(self, client: Client, layers: Mapping[str, Tensor]) -> None:
        self._waiting = layers
        if self.install_at == "end":
            self._install_waiting(client)

    def _install_waiting(self, client: Client) -> None:
        client.load_shared(self._waiting)
        self._waiting = {}

    def local_update(self, client: Client, round: int, exchange: str) -> None:
        self._install_waiting(client)
        super().local_update(client, round, exchange)

    def mash(self, module: FedEgoNet, batch: EgoBatch) -> MashedEgoGraphs:
        if self.soft_labels == "training":
            return super().mash(module, batch)
        return mash_all_labels(module, batch, self.mixup)


def mash_all_labels(model: FedEgoNet, batch: EgoBatch, mixup: bool = True) -> MashedEgoGraphs:
    """:meth:`flgraph.models.FedEgo.mash` with the classes of validation and test nodes, too.

    A position that no ego-graph has a node at keeps the classes that stand there.

    Args:
        model: the client's.
        batch: see there, as for ``mixup``.
        mixup: see there.
    """
    mashed = model.mash(replace(batch, trained=None), mixup)
    label = F.one_hot(batch.labels[:, : mashed.label.size(1)], mashed.label.size(2)).to(mashed.label.dtype)
    label = label.mean(0, keepdim=True) if mixup else label[:1]
    return replace(mashed, label=torch.where(mashed.label.sum(2, keepdim=True) > 0, mashed.label, label))
