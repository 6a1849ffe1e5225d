"""FedGCN: Yao et al., "FedGCN: Convergence-Communication Tradeoffs in Federated Training of GCNs", NeurIPS 2023."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from flgraph.callbacks.fedavg import FedAvg
from flgraph.errors import expect
from flgraph.federation.client import Client
from flgraph.federation.payload import Payload
from flgraph.federation.routes import UploadKind
from flgraph.models.nodes.gcn import NeighbourSums, NodeGCN

_SETUP = "setup"
"""Group of the tensors that are no part of the model."""


class FedGCN(FedAvg):
    r"""FedAvg on a GCN whose neighbourhood sums were completed across clients before the first round.

    In round 0 every client gets, for each of its nodes :math:`i`, the first propagation step of the union graph,

    .. math::
        (\hat{A} X)_i = \frac{1}{\sqrt{d_i}} \sum_{j \in \mathcal{N}(i) \cup \{i\}} \frac{x_j}{\sqrt{d_j}},
        \qquad d_i = 1 + |\mathcal{N}(i)|,

    where the union graph has the nodes of all clients and every edge that a client knows: those between its nodes
    and, where its data has ``cross_edges``, those to nodes that only others hold. With ``num_hops=2`` clients get it
    for these neighbours, too, and :math:`\hat{A}` of their own nodes, so that the second layer is that of the union
    graph as well; with ``num_hops=1`` the second layer uses the client's own graph.

    A sum over clients would count an edge as often as clients hold it. So there are three exchanges:

    - ``"nodes"``: clients tell which nodes they hold, and learn which clients before them (in the order of the
      federation) hold which of these. Everyone then knows whose turn an edge is: the first client's that knows it.
    - ``"degrees"``: clients send, for every node they know of, the number of its edges that are theirs to count, and
      get the sums.
    - ``"neighbours"``: clients send the sums of :math:`x_j / \sqrt{d_j}` over the same edges, from nodes :math:`j` that
      they hold, as sparse rows, and get the sums of these for their own nodes (and the neighbours).

    The server sees all of this in the clear: who holds which nodes, how many edges each has, and the sums, which are
    a node's features where there is one term only. A client learns which earlier clients hold its nodes, and the sums
    of others' features, from which the like can be told. The paper encrypts the sums; this is not done here.

    Goes with :class:`flgraph.models.NodeGCN` and data that has ``graph``, a :class:`~flgraph.data.NodeGraph` cut from a
    common one, such as :class:`flgraph.data.WholeGraphFederation`.

    Args:
        num_hops: 1 or 2, see above.
        kwargs: see :class:`FedAvg`.
    """

    extra_tensors: ClassVar[Mapping[str, UploadKind]] = {f"{_SETUP}/*": "data"}
    upload_scalars = ("num_samples", "cross_edges", "num_features")

    def __init__(self, num_hops: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        expect(num_hops in (1, 2), "aggregator.num_hops", "1 or 2", num_hops)
        self.num_hops = num_hops
        self._clients: list[str] = []
        self._answers: dict[str, dict[str, Tensor]] = {}  # what each client is sent beside the weights
        self._keys: dict[str, Tensor] = {}  # nodes that each client speaks of, its own first
        self._sizes: dict[str, int] = {}  # how many of them are its own
        self._part: _Part | None = None  # the client half's, during the setup

    def exchanges(self, round: int) -> Sequence[str]:
        return ("train",) if round else ("nodes", "degrees", "neighbours")

    # ----------------------------------------------------------------------------------------------- server half
    def start(self, initial: Mapping[str, Tensor], clients: Sequence[str]) -> None:
        super().start(initial, clients)
        self._clients = list(clients)

    def download(self, client: str, round: int, exchange: str | None) -> Payload | None:
        answer = self._answers.get(client, {})
        if round == 0 and exchange is not None:
            return Payload({_SETUP: answer}) if answer else None
        weights = super().download(client, round, exchange)
        return Payload({**(weights.tensors if weights else {}), _SETUP: answer}) if answer else weights

    def aggregate(self, uploads: Mapping[str, Payload], round: int, exchange: str) -> Mapping[str, Tensor]:
        self._answers = {}
        if round:
            return super().aggregate(uploads, round, exchange)
        if exchange == "nodes":
            self._take_nodes(uploads)
        elif exchange == "degrees":
            self._add_degrees(uploads)
        else:
            self._add_neighbours(uploads)
            self._keys = {}
        return {}

    def _take_nodes(self, uploads: Mapping[str, Payload]) -> None:
        for name in ("cross_edges", "num_features"):
            values = {upload.scalars[name] for upload in uploads.values()}
            expect(len(values) == 1, f"data.{name}", "the same for all clients", sorted(values))
        self._keys = {client: uploads[client].group(_SETUP)["nodes"] for client in self._clients}
        self._sizes = {client: keys.numel() for client, keys in self._keys.items()}
        for number, client in enumerate(self._clients):
            own = self._keys[client]
            earlier = [torch.isin(own, self._keys[other]) for other in self._clients[:number]]
            held = torch.stack(earlier, dim=1) if earlier else torch.zeros(own.numel(), 0, dtype=torch.bool)
            self._answers[client] = {"earlier": held}

    def _add_degrees(self, uploads: Mapping[str, Payload]) -> None:
        held = torch.cat(list(self._keys.values())).unique()
        for client in self._clients:
            self._keys[client] = torch.cat([self._keys[client], uploads[client].group(_SETUP)["outside"]])
        total = torch.zeros(self._num_nodes(), dtype=torch.int32)
        for client in self._clients:
            total.index_add_(0, self._keys[client], uploads[client].group(_SETUP)["degree"])
        for client, keys in self._keys.items():
            # What no client holds has no features to add up; 0 tells the client to leave it out.
            degree = torch.where(torch.isin(keys, held), total[keys], 0)
            self._answers[client] = {"degree": degree}
            self._keys[client] = keys[degree > 0]

    def _add_neighbours(self, uploads: Mapping[str, Payload]) -> None:
        columns = int(next(iter(uploads.values())).scalars["num_features"])
        total = sparse.csr_matrix((self._num_nodes(), columns), dtype=np.float64)
        for client in self._clients:
            part, index = _rows_of(uploads[client].group(_SETUP), columns), self._keys[client].numpy()
            size = (total.shape[0], index.size)
            total = total + sparse.csr_matrix((np.ones(index.size), (index, np.arange(index.size))), size) @ part
        for client, keys in self._keys.items():  # their own and, for two hops, their neighbours
            wanted = keys if self.num_hops == 2 else keys[: self._sizes[client]]
            self._answers[client] = _csr_parts(total[wanted.numpy()])

    def _num_nodes(self) -> int:
        return 1 + max(int(keys.max()) for keys in self._keys.values())

    # ----------------------------------------------------------------------------------------------- client half
    def install(self, client: Client, download: Payload) -> None:
        super().install(client, download)
        answer = download.group(_SETUP)
        if self._part is None or not answer:
            return
        if "earlier" in answer:
            self._part.count(answer["earlier"])
        elif "degree" in answer:
            self._part.scale(answer["degree"])
        else:
            assert isinstance(client.module, NodeGCN)
            client.module.use_sums(self._part.finish(answer, self.num_hops))
            self._part = None

    def local_update(self, client: Client, round: int, exchange: str) -> None:
        """Local training; nothing in round 0."""
        if round:
            super().local_update(client, round, exchange)

    def upload(self, client: Client, round: int, exchange: str) -> Payload | None:
        if round:
            return super().upload(client, round, exchange)
        if self._part is None:
            module = client.module
            expect(isinstance(module, NodeGCN), "model", "flgraph.models.NodeGCN for FedGCN", type(module).__name__)
            self._part = _Part(client.data, client.name)
            cross = self._part.cross is not None
            wanted = "1 where clients do not know their edges to nodes of others (`data.cross_edges`)"
            expect(cross or self.num_hops == 1, "aggregator.num_hops", wanted, self.num_hops)
            scalars = {"cross_edges": cross, "num_features": self._part.x.shape[1]}
            return Payload({_SETUP: {"nodes": self._part.nodes.int()}}, scalars)
        if exchange == "degrees":
            return Payload({_SETUP: self._part.degrees()})
        return Payload({_SETUP: self._part.sums()}, {"num_features": self._part.x.shape[1]})


class _Part:
    """A client's part of the setup.

    Args:
        data: with ``graph``, and perhaps ``cross_edges``.
        client: for error messages.
    """

    def __init__(self, data: Any, client: str) -> None:
        graph = data.graph.to("cpu")
        expect(graph.undirected, f"graph of client `{client}`", "undirected for FedGCN", "directed")
        self.nodes: Tensor = graph.nodes
        self.x = _scipy(graph.x)
        cross = getattr(data, "cross_edges", None)
        self.cross: Tensor | None = None if cross is None else cross.cpu()
        n = self.nodes.numel()
        loop = torch.arange(n)
        target, source = torch.cat([graph.edge_index.flip(0), torch.stack([loop, loop])], dim=1)
        if self.cross is None:
            self.outside = self.nodes[:0]
        else:
            self.outside, position = self.cross[1].unique(return_inverse=True)
            target, source = torch.cat([target, n + position]), torch.cat([source, self.cross[0]])
        # Contributions: the features of own node `source` go into the sum of node `target`, own ones coming first.
        self.target, self.source = target, source
        self.counted = torch.ones_like(target, dtype=torch.bool)
        self.degree = torch.zeros(0)

    def count(self, earlier: Tensor) -> None:
        """Finds out which contributions an earlier client makes.

        Args:
            earlier: whether the own nodes are held by each of the clients before ``[N, k]``.
        """
        held = earlier[self.source]
        if self.cross is None:  # an edge is known to who holds both ends, and to who holds the source otherwise
            held = held & earlier[self.target]
        self.counted = ~held.any(dim=1)

    def degrees(self) -> dict[str, Tensor]:
        """Number of own contributions to every node, 1 for the node itself included."""
        counts = torch.bincount(self.target[self.counted], minlength=self.nodes.numel() + self.outside.numel())
        return {"outside": self.outside.int(), "degree": counts.int()}

    def scale(self, degree: Tensor) -> None:
        """Takes the degrees in the union graph; leaves out what no client holds."""
        kept = degree > 0
        position = kept.cumsum(0) - 1
        inside = kept[self.target]
        self.target, self.source = position[self.target[inside]], self.source[inside]
        self.counted, self.degree = self.counted[inside], degree[kept].double()

    def sums(self) -> dict[str, Tensor]:
        r"""Sums of :math:`x_j / \sqrt{d_j}` over own contributions, for every node."""
        source = self.source[self.counted]
        own = self._matrix(self.target[self.counted], source, self.degree.rsqrt()[source])
        return _csr_parts(own @ self.x)

    def finish(self, tensors: Mapping[str, Tensor], num_hops: int) -> NeighbourSums:
        """The rows and, for two hops, the matrix that the model takes."""
        scale = self.degree.rsqrt()
        total = _rows_of(tensors, self.x.shape[1])
        first = sparse.diags(scale[: total.shape[0]].numpy()) @ total
        if num_hops == 1:
            return NeighbourSums(self.nodes, _torch(first))
        # The graph is undirected: what own nodes give to node i is what they take from it.
        given = self._matrix(self.target, self.source, scale[self.target] * scale[self.source])
        return NeighbourSums(self.nodes, _torch(first), _torch(given.T))

    def _matrix(self, row: Tensor, column: Tensor, value: Tensor) -> sparse.csr_matrix:
        size = (self.degree.numel(), self.nodes.numel())
        return sparse.csr_matrix((value.numpy(), (row.numpy(), column.numpy())), size)


# ------------------------------------------------------------------------------------------------------- sparse rows
_PARTS = ("rowptr", "col", "value")


def _scipy(x: Tensor) -> sparse.csr_matrix:
    """Dense or sparse CSR rows, in float64."""
    if x.layout == torch.strided:
        return sparse.csr_matrix(x.double().numpy())
    parts = (x.values().double().numpy(), x.col_indices().numpy(), x.crow_indices().numpy())
    return sparse.csr_matrix(parts, tuple(x.shape))


def _csr_parts(rows: sparse.csr_matrix) -> dict[str, Tensor]:
    """A sparse matrix as tensors: 32-bit indices and float32 values."""
    rows = sparse.csr_matrix(rows)
    rows.sort_indices()
    arrays = (rows.indptr.astype(np.int32), rows.indices.astype(np.int32), rows.data.astype(np.float32))
    return {name: torch.from_numpy(array) for name, array in zip(_PARTS, arrays, strict=True)}


def _rows_of(tensors: Mapping[str, Tensor], columns: int) -> sparse.csr_matrix:
    """What :func:`_csr_parts` made tensors of, in float64."""
    rowptr, col, value = (tensors[name].numpy() for name in _PARTS)
    return sparse.csr_matrix((value.astype(np.float64), col, rowptr), (rowptr.size - 1, columns))


def _torch(rows: sparse.csr_matrix) -> Tensor:
    """The same matrix for products in torch, in float32."""
    rowptr, col, value = _csr_parts(rows).values()
    return torch.sparse_csr_tensor(rowptr, col, value, rows.shape, check_invariants=False)
