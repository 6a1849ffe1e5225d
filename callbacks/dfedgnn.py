"""D-FedGNN: Pei et al., "Decentralized Federated Graph Neural Networks", FTL-IJCAI 2021."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, get_args

import networkx as nx
from torch import Tensor

from flgraph.errors import expect
from flgraph.federation.aggregator import Aggregator
from flgraph.federation.payload import Payload
from flgraph.federation.routes import Route, shared
from flgraph.federation.seeding import derive_seed

TopologyName = Literal["ring", "complete", "star", "random_regular"]


class DFedGNN(Aggregator):
    r"""Averages models over the neighbours in a communication graph, without one model for all.

    After each round client :math:`i` goes on from

    .. math::
        w_i \leftarrow \sum_{j \in \mathcal{N}(i) \cup \{i\}} W_{ij} w_j,

    where :math:`W_{ij} = 1 / (1 + d_i)` (``"uniform"``; :math:`d_i` is the number of neighbours), or
    :math:`W_{ij} = 1 / (1 + \max(d_i, d_j))` and :math:`W_{ii} = 1 - \sum_{j \ne i} W_{ij}` (``"metropolis"``, the
    weights of Metropolis and Hastings, whose columns sum to one as well, so that the mean over all clients stays).
    Every parameter and buffer that all clients hold in the same shape is averaged.

    The server only relays: it keeps the last model that each client sent and does the client's sum for it, so that one
    model goes up and one down per client and round. A client that sat out counts with the last model that it sent, or
    with the common initial one; where there is none, it neither counts nor is sent any before it has sent its own.

    Args:
        topology: who is a neighbour of whom: ``"ring"``, ``"complete"`` or ``"star"`` (its center the first client), in
            the order in which the federation lists its clients; ``"random_regular"``, drawn with the run's seed; or
            pairs of clients' names, or an undirected networkx graph of these. A client that no pair names is alone.
        weights: ``"uniform"`` or ``"metropolis"``.
        degree: neighbours of each client in a ``"random_regular"`` topology.
        kwargs: see :class:`~flgraph.federation.Aggregator`.
    """

    upload_scalars = ()
    server_attributes = ("_clients", "_edges", "_models")

    def __init__(
        self,
        topology: TopologyName | Sequence[Sequence[str]] | nx.Graph = "ring",
        weights: Literal["uniform", "metropolis"] = "uniform",
        degree: int = 2,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        expect(weights in ("uniform", "metropolis"), "aggregator.weights", "uniform or metropolis", weights)
        expect(degree >= 0, "aggregator.degree", "0 or more", degree)
        self.topology = topology if isinstance(topology, str) else _named_pairs(topology)
        names = get_args(TopologyName)
        known = not isinstance(self.topology, str) or self.topology in names
        expect(known, "aggregator.topology", f"one of {', '.join(names)}, or pairs of clients' names", topology)
        self.weights, self.degree = weights, degree
        self._clients: list[str] = []
        self._edges: list[Sequence[str]] = []
        self._models: dict[str, Mapping[str, Tensor]] = {}  # what each client sent last; empty where it has not

    def routes(self) -> list[Route]:
        return shared("*", on_mismatch="personal")

    # ----------------------------------------------------------------------------------------------- server half
    def start(self, initial: Mapping[str, Tensor], clients: Sequence[str]) -> None:
        self._clients = list(clients)
        self._edges = [(i, j) for i, j in self._pairs(self._clients) if i != j]  # a client counts itself anyway
        self._models = {client: initial for client in clients}

    def graph(self) -> nx.Graph:
        """Who is a neighbour of whom, by name."""
        graph = nx.Graph()
        graph.add_nodes_from(self._clients)
        graph.add_edges_from(self._edges)
        return graph

    def _pairs(self, clients: list[str]) -> list[tuple[str, str]]:
        if not isinstance(self.topology, str):
            unknown = sorted({name for pair in self.topology for name in pair} - set(clients))
            expect(not unknown, "aggregator.topology", f"pairs of clients {', '.join(clients)}", ", ".join(unknown))
            return [(i, j) for i, j in self.topology]
        count = len(clients)
        if self.topology == "random_regular":
            fits = self.degree < count and self.degree * count % 2 == 0
            what = f"below {count}, the number of clients, and even where that is odd"
            expect(fits, "aggregator.degree", what, self.degree)
            seed = derive_seed(self.seed, "topology") % 2**32
            drawn = nx.random_regular_graph(self.degree, count, seed)
        else:
            make = {"ring": nx.cycle_graph, "complete": nx.complete_graph, "star": lambda n: nx.star_graph(n - 1)}
            drawn = make[self.topology](count)
        return [(clients[i], clients[j]) for i, j in drawn.edges]

    def mixing(self, client: str) -> dict[str, float]:
        """The client's row of the matrix W, by name; entries of 0, and clients left out for good, are not in it."""
        graph = self.graph()
        graph = graph.subgraph([name for name in graph if name == client or name not in self.excluded])
        degree: Any = graph.degree
        neighbours = sorted(graph[client])
        if self.weights == "uniform":
            # weighted_mean divides by the sum, so that a complete graph gives the very bits of a uniform FedAvg.
            return dict.fromkeys([client, *neighbours], 1.0)
        row = {other: 1 / (1 + max(degree[client], degree[other])) for other in neighbours}
        return {client: 1 - sum(row.values()), **row}

    def download(self, client: str, round: int, exchange: str | None) -> Payload | None:
        if not self._models[client]:
            return None
        row = {other: weight for other, weight in self.mixing(client).items() if self._models[other]}
        key = tuple(f"{other} {weight!r}" for other, weight in sorted(row.items()))
        mix = partial(self.combine, {other: self._models[other] for other in row}, row)
        return self.payload(key, mix)  # in a complete graph all clients get the same

    def aggregate(self, uploads: Mapping[str, Payload], round: int, exchange: str) -> Mapping[str, Tensor]:
        self._models |= {client: upload.group() for client, upload in uploads.items()}
        return {}  # nobody has a model of all

    def summary(self) -> dict[str, Any]:
        return {"topology": sorted(sorted(edge) for edge in self.graph().edges)}


def _named_pairs(topology: Sequence[Sequence[str]] | nx.Graph) -> list[list[str]]:
    """Edges as pairs of names."""
    if isinstance(topology, nx.Graph):
        expect(not topology.is_directed(), "aggregator.topology", "an undirected graph", "a directed one")
        alone = [node for node in topology if not isinstance(node, str)]
        expect(not alone, "aggregator.topology", "a graph whose nodes are clients' names", f"nodes {alone[:5]}")
        # A node without edges is kept as a pair with itself, so that an unknown name is still found out.
        pairs: list[list[str]] = [list(edge) for edge in topology.edges] + [[n, n] for n in nx.isolates(topology)]
    else:
        pairs = [list(pair) for pair in topology]
    for pair in pairs:
        valid = len(pair) == 2 and all(isinstance(name, str) for name in pair)
        expect(valid, "aggregator.topology", "pairs of clients' names", pair)
    return pairs
