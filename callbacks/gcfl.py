"""GCFL: Xie et al., "Federated Graph Classification over Non-IID Graphs", NeurIPS 2021."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import networkx as nx
import torch
from torch import Tensor

from flgraph.callbacks.fedper import FedPer
from flgraph.errors import expect
from flgraph.federation.payload import Payload


class GCFL(FedPer):
    r"""Clustered averaging: clients whose updates point the same way share a model.

    All clients start in one cluster. In each round the server looks at the updates
    :math:`\Delta w_m = w_m - \bar w_c` of every cluster :math:`c` and splits it in two if

    .. math::
        \left\lVert \frac{1}{|c|} \sum_{m \in c} \Delta w_m \right\rVert < \varepsilon_1 \qquad\text{and}\qquad
        \max_{m \in c} \lVert \Delta w_m \rVert > \varepsilon_2,

    that is, if the cluster as a whole stands still while a member still wants to move. The split is the Stoer-Wagner
    minimum cut of the complete graph over the members whose edges weigh what the updates' cosine similarity is
    (negative ones count as 0, since minimum cuts know no negative weights). Then every cluster is averaged on its own.
    A client that took no part in a round counts with its last update; a cluster with one that never took part stays.
    One that is left out for the rest of the run no longer counts.

    ``results.json`` holds the clusters and every split; TensorBoard the number of clusters, each client's cluster
    (``cluster/CLIENT``), and the two norms of every cluster, from which thresholds can be chosen.

    Args:
        eps1: the mean update of a cluster that is split is shorter than this.
        eps2: the longest update of a cluster that is split is longer than this.
        warmup: rounds before the first split.
        min_clients: clusters with fewer clients are not split.
        base: patterns of the shared tensors' names; the graph convolutions, as in :class:`FedPer`.
        kwargs: see :class:`FedAvg`.
    """

    server_attributes: Sequence[str] = ("_clusters", "_models", "_updates", "_splits", "_norms")

    def __init__(
        self,
        eps1: float = 0.07,
        eps2: float = 0.28,
        warmup: int = 20,
        min_clients: int = 3,
        base: Sequence[str] = ("convs.*",),
        **kwargs: Any,
    ) -> None:
        super().__init__(base, **kwargs)
        expect(0 <= eps1 < math.inf, "aggregator.eps1", "a finite number, 0 or more", eps1)
        expect(0 <= eps2 < math.inf, "aggregator.eps2", "a finite number, 0 or more", eps2)
        expect(warmup >= 0, "aggregator.warmup", "0 or more", warmup)
        expect(min_clients >= 2, "aggregator.min_clients", "2 or more", min_clients)
        self.eps1, self.eps2, self.warmup, self.min_clients = eps1, eps2, warmup, min_clients
        self._clusters: list[list[str]] = []
        self._models: list[Mapping[str, Tensor]] = []  # one per cluster
        self._updates: dict[str, Tensor] = {}
        self._splits: list[dict[str, Any]] = []
        self._norms: dict[str, float] = {}

    # ----------------------------------------------------------------------------------------------- server half
    def start(self, initial: Mapping[str, Tensor], clients: Sequence[str]) -> None:
        self._clusters, self._models = [list(clients)], [initial]

    def download(self, client: str, round: int, exchange: str | None) -> Payload | None:
        cluster = self._cluster_of(client)
        return self.payload((str(cluster),), lambda: self._models[cluster])

    def aggregate(self, uploads: Mapping[str, Payload], round: int, exchange: str) -> Mapping[str, Tensor]:
        self._take_updates(uploads)
        self._norms = {}
        for number in range(len(self._clusters)):
            if self._should_split(number, round):
                self._split(number, round)
        for number, members in enumerate(self._clusters):
            present = {client: uploads[client] for client in members if client in uploads}
            if present:
                tensors = {client: upload.group() for client, upload in present.items()}
                self._models[number] = self.combine(tensors, self.client_weights(present))
        return {}  # nothing is shared by all

    def _take_updates(self, uploads: Mapping[str, Payload]) -> None:
        for client, upload in uploads.items():
            self._updates[client] = _flat(upload.group()) - _flat(self._models[self._cluster_of(client)])

    def _should_split(self, number: int, round: int) -> bool:
        members = self._active(number)
        known = [self._updates[client] for client in members if client in self._updates]
        if not known:
            return False
        updates = torch.stack(known)
        mean, longest = float(updates.mean(0).norm()), float(updates.norm(dim=1).max())
        self._norms |= {f"mean_update_norm/cluster-{number}": mean, f"max_update_norm/cluster-{number}": longest}
        # A client of which nothing is known could not be put on either side.
        may = round > self.warmup and len(known) == len(members) >= self.min_clients
        return may and mean < self.eps1 and longest > self.eps2

    def _split(self, number: int, round: int) -> None:
        members = self._active(number)
        _, second = minimum_cut(members, self.similarity(members))
        first = [client for client in self._clusters[number] if client not in second]
        self._splits.append({"round": round, "cluster": number, "into": [first, second]})
        self._clusters[number] = first
        self._clusters.append(second)
        self._models.append(self._models[number])

    def _active(self, number: int) -> list[str]:
        """The members of a cluster that are still asked."""
        return [client for client in self._clusters[number] if client not in self.excluded]

    def similarity(self, clients: Sequence[str]) -> Tensor:
        """How alike clients are, ``[n, n]`` and not negative: what the minimum cut takes as edge weights."""
        return cosine_similarity([self._updates[client] for client in clients]).clamp(min=0)

    def log_scalars(self) -> dict[str, float]:
        owner = {f"cluster/{client}": float(n) for n, members in enumerate(self._clusters) for client in members}
        return {"clusters": float(len(self._clusters)), **owner, **self._norms}

    def summary(self) -> dict[str, Any]:
        return {"clusters": self._clusters, "splits": self._splits}

    def _cluster_of(self, client: str) -> int:
        return next(number for number, members in enumerate(self._clusters) if client in members)


def cosine_similarity(vectors: Sequence[Tensor]) -> Tensor:
    """Cosine of the angle between any two of ``n`` vectors, ``[n, n]``; 0 for a vector of length 0."""
    rows = torch.stack(list(vectors)).double()
    lengths = rows.norm(dim=1, keepdim=True)
    rows = torch.where(lengths > 0, rows / lengths, torch.zeros_like(rows))
    return rows @ rows.t()


def minimum_cut(names: Sequence[str], weights: Tensor) -> tuple[list[str], list[str]]:
    """Divides names in two so that the weight between the parts is as small as possible (Stoer and Wagner, 1997).

    Args:
        names: two or more.
        weights: symmetric ``[n, n]``, not negative; the diagonal is ignored.

    Returns:
        The two parts in the order of ``names``; the first holds the first name.
    """
    graph = nx.Graph()
    graph.add_weighted_edges_from((i, j, float(weights[i, j])) for i, j in combinations(range(len(names)), 2))
    _, parts = nx.stoer_wagner(graph)
    first, second = sorted(sorted(part) for part in parts)
    return [names[i] for i in first], [names[i] for i in second]


def _flat(tensors: Mapping[str, Tensor]) -> Tensor:
    parts = [tensors[name].flatten().double() for name in sorted(tensors) if tensors[name].is_floating_point()]
    return torch.cat([*parts, torch.zeros(0, dtype=torch.float64)])  # nothing may be shared
