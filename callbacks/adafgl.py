"""AdaFGL: Li et al., "A New Paradigm for Federated Node Classification with Topology Heterogeneity", ICDE 2024."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from flgraph.callbacks.fedavg import FedAvg
from flgraph.errors import expect, expect_kind
from flgraph.federation.client import Client
from flgraph.federation.payload import Payload
from flgraph.federation.routes import Route, personal, shared
from flgraph.models.nodes.adafgl import AdaFGL as AdaFGLModel
from flgraph.models.nodes.adafgl import Knowledge
from flgraph.nn import gcn_matrix
from flgraph.nn.propagation import spread_labels


class AdaFGL(FedAvg):
    r"""FedAvg of a GCN for some rounds; after that every client trains alone, with what the GCN says of its nodes.

    In the ``"train"`` exchanges of the first ``federated_rounds`` rounds clients train and send the GCN. In the
    ``"personal"`` ones after that nothing is sent. Before the first of these a client takes the common model's
    predictions of its nodes, and finds out how far its labels can be told from neighbours': half of its training nodes,
    drawn at random, spread theirs (:func:`~flgraph.nn.propagation.spread_labels`, from a uniform start), and
    ``homophily`` is the share of the other half that are then right. It is among the client's metrics. The optimizer
    begins anew.

    Goes with :class:`flgraph.models.AdaFGL` and data whose batches are whole graphs, such as
    :class:`flgraph.data.WholeGraphFederation`.

    Args:
        federated_rounds: rounds with others; fewer than the run's.
        steps: of spreading labels.
        alpha: share of the neighbours in a step.
        kwargs: see :class:`FedAvg`.
    """

    network = "AdaFGL"
    reported_scalars = ("train/homophily",)
    server_attributes: Sequence[str] = ("_alone",)

    def __init__(self, federated_rounds: int = 50, steps: int = 10, alpha: float = 0.5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        expect(federated_rounds >= 1, "aggregator.federated_rounds", "1 or more", federated_rounds)
        expect(steps >= 0, "aggregator.steps", "0 or more", steps)
        expect(0 <= alpha <= 1, "aggregator.alpha", "from 0 to 1", alpha)
        self.federated_rounds, self.steps, self.alpha = federated_rounds, steps, alpha
        self._alone: list[str] = []  # clients that have the last common model

    def routes(self) -> list[Route]:
        return [*shared("extractor.*"), *personal("*")]

    def exchanges(self, round: int) -> Sequence[str]:
        if round == 0:
            return ()
        return ("train",) if round <= self.federated_rounds else ("personal",)

    # ----------------------------------------------------------------------------------------------- server half
    def download(self, client: str, round: int, exchange: str | None) -> Payload | None:
        return None if client in self._alone else super().download(client, round, exchange)

    def check_upload(self, client: str, upload: Payload, round: int, exchange: str) -> None:
        """Weights; nothing where nothing is to be sent."""
        if exchange == "train":
            self.check_shared(client, upload)

    def sums_suffice(self, round: int, exchange: str) -> bool:
        return exchange == "train"

    def aggregate(self, uploads: Mapping[str, Payload], round: int, exchange: str) -> Mapping[str, Tensor]:
        if exchange == "train":
            return super().aggregate(uploads, round, exchange)
        self._alone = sorted({*self._alone, *uploads})
        return {}

    def summary(self) -> dict[str, Any]:
        return {"alone": self._alone}

    # ----------------------------------------------------------------------------------------------- client half
    def local_update(self, client: Client, round: int, exchange: str) -> None:
        module = expect_kind(client.module, AdaFGLModel, "model", "flgraph.models.AdaFGL")
        rounds = client.door.job.rounds
        if round == 1 and self.federated_rounds >= rounds:
            have = f"a run of {rounds} has none, and is FedAvg"
            warnings.warn(f"AdaFGL's clients go on alone after round {self.federated_rounds}; {have}.", stacklevel=2)
        if exchange == "personal" and module.knowledge is None:
            homophily = self.homophily(client.data)
            client.report("train/homophily", homophily)
            soft = torch.cat(client.predict().batches).float()
            data: Any = client.data
            module.use_knowledge(Knowledge(data.graph.nodes, soft.to(module.device), homophily))
            client.swap_optimizers({})
        super().local_update(client, round, exchange)

    def upload(self, client: Client, round: int, exchange: str) -> Payload | None:
        return super().upload(client, round, exchange) if exchange == "train" else None

    def homophily(self, data: Any) -> float:
        """How far a client's labels can be told from its neighbours'; half of the training nodes are drawn for it.

        Args:
            data: with ``graph``, a :class:`~flgraph.data.NodeGraph`, and ``train``.
        """
        graph, train = data.graph, data.train
        order = torch.randperm(train.numel()).to(train.device)
        known, held = train[order[: train.numel() // 2]], train[order[train.numel() // 2 :]]
        start = torch.full((graph.num_nodes, graph.num_classes), 1 / graph.num_classes, device=train.device)
        start[known] = F.one_hot(graph.y[known], graph.num_classes).float()
        spread = spread_labels(gcn_matrix(graph.adj), start, known, self.steps, self.alpha)
        return float((spread[held].argmax(dim=1) == graph.y[held]).float().mean())
