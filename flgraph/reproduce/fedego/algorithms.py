"""FedEgo and the methods that its paper compares it with, as the published code runs them."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from flgraph.callbacks import DFedGNN, FedAvg, FedEgo, FedGCN, FedProxAdaptive, GraphFL
from flgraph.errors import expect
from flgraph.federation import Client, Payload
from flgraph.models.nodes.fedego import FedEgo as FedEgoNet
from flgraph.models.nodes.fedego import Labels, MashedEgos


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
        soft_labels: Labels = "all",
        install_at: Literal["start", "end"] = "start",
        initial_weights: Literal["mean", "first"] = "mean",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        expect(edges in ("largest", "all"), "aggregator.edges", "largest or all", edges)
        expect(soft_labels in get_args(Labels), "aggregator.soft_labels", "training or all", soft_labels)
        expect(install_at in ("start", "end"), "aggregator.install_at", "start or end", install_at)
        self.edges, self.soft_labels, self.install_at, self.initial_weights = (
            edges,
            soft_labels,
            install_at,
            initial_weights,
        )
        self._waiting: Mapping[str, Tensor] = {}  # reduction layers for the next round

    def collect(self, uploads: Mapping[str, Payload]) -> MashedEgos:
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

    def mash(self, module: FedEgoNet, batch: Any) -> MashedEgos:
        return module.mash(batch, self.mixup, self.soft_labels)
