"""FedGCN: Yao et al., "FedGCN: Convergence-Communication Tradeoffs in Federated Training of GCNs", NeurIPS 2023."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from flgraph.callbacks.fedavg import FedAvg
from flgraph.errors import expect, expect_kind
from flgraph.federation.client import Client
from flgraph.federation.payload import Payload
from flgraph.federation.received import expect_between, expect_count, expect_tensor
from flgraph.federation.routes import UploadKind
from flgraph.models.nodes.gcn import NeighbourSums, NodeGCN

_SETUP = "setup"
"""Group of the tensors that are no part of the model."""

_MOST_FEATURES = 10_000_000
"""Columns of a client's features."""


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
    a node's features where there is one term only; with degrees of its own choice it can make more of them so. A
    client learns which earlier clients hold its nodes, and the sums of others' features, from which the like can be
    told. The paper encrypts the sums; this is not done here.

    A client that is left out in one of these exchanges is left out of the sums; what it was to count of nodes and
    edges that others hold, too, is counted by nobody.

    Goes with :class:`flgraph.models.NodeGCN` and data that has ``graph``, a :class:`~flgraph.data.NodeGraph` cut from a
    common one, such as :class:`flgraph.data.WholeGraphFederation`.

    Args:
        num_hops: 1 or 2, see above.
        kwargs: see :class:`FedAvg`.
    """

    extra_tensors: ClassVar[Mapping[str, UploadKind]] = {f"{_SETUP}/*": "data"}
    upload_scalars = ("num_samples", "cross_edges", "num_features")
    common_scalars = ("cross_edges", "num_features")

    def __init__(self, num_hops: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        expect(num_hops in (1, 2), "aggregator.num_hops", "1 or 2", num_hops)
        self.num_hops = num_hops
        self._clients: list[str] = []
        self._answers: dict[str, dict[str, Tensor]] = {}  # what each client is sent beside the weights
        self._keys: dict[str, Tensor] = {}  # nodes that each client speaks of, its own first
        self._sizes: dict[str, int] = {}  # how many of them are its own
        self._common: tuple[bool, int] = (False, 0)  # whether clients know edges across; columns of their features
        self._part: _Part | None = None  # the client half's, during the setup

    @property
    def reveals(self) -> str:
        return (
            "The server reads which nodes a client holds and how many edges each of them has, and can work out the "
            "features of single nodes; other clients learn some of both."
        )

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

    def check_upload(self, client: str, upload: Payload, round: int, exchange: str) -> None:
        """Weights; or numbers of nodes, degrees and sparse rows that can be indexed by and sized by."""
        if round:
            return self.check_shared(client, upload)
        field, tensors = f"upload` of client `{client}", upload.group(_SETUP)
        if exchange == "nodes":
            expect_count(upload, "num_features", 1, _MOST_FEATURES, field)
            known = type(upload.scalars.get("cross_edges")) is bool
            expect(known, field, "one with `cross_edges`, true or false", "something else")
            nodes = _numbers(tensors, "nodes", field)
            expect(nodes.numel() > 0, field, "one with nodes", "none")
            return None
        expect(client in self._keys, field, "of a client that told its nodes", "another one's")
        if exchange == "neighbours":
            expect_count(upload, "num_features", self._common[1], self._common[1], field)
            _rows_of(tensors, self._keys[client].numel(), self._common[1], field)
            return None
        own, outside = self._keys[client], _numbers(tensors, "outside", field)
        apart = not bool(torch.isin(outside, own).any())
        expect(apart, field, "one with `outside` of nodes that it does not hold", "one that it holds")
        expect(self._common[0] or not outside.numel(), field, "without nodes of others", "some")
        degree = expect_tensor(tensors, "degree", (own.numel() + outside.numel(),), field, torch.int32)
        # What a client counts for a node comes from nodes that it holds, from each once.
        expect_between(degree, 0, own.numel(), "`degree`", field)

    def sums_suffice(self, round: int, exchange: str) -> bool:
        return round > 0

    def take_mean(self, mean: Mapping[str, Tensor], round: int, exchange: str) -> Mapping[str, Tensor]:
        self._answers = {}
        return mean

    def aggregate(self, uploads: Mapping[str, Payload], round: int, exchange: str) -> Mapping[str, Tensor]:
        if round:
            return super().aggregate(uploads, round, exchange)
        self._answers = {}
        there = {client: uploads[client] for client in self._clients if client in uploads}
        if exchange == "nodes":
            self._take_nodes(there)
        else:
            self._keys = {client: keys for client, keys in self._keys.items() if client in there}
            there = {client: there[client] for client in self._keys}
            if exchange == "degrees":
                self._add_degrees(there)
            else:
                self._add_neighbours(there)
                self._keys = {}
        return {}

    def _take_nodes(self, uploads: Mapping[str, Payload]) -> None:
        for name in self.common_scalars:
            values = {upload.scalars[name] for upload in uploads.values()}
            expect(len(values) <= 1, f"data.{name}", "the same for all clients", sorted(values))
        for upload in uploads.values():
            self._common = (bool(upload.scalars["cross_edges"]), int(upload.scalars["num_features"]))
        self._keys = {client: upload.group(_SETUP)["nodes"] for client, upload in uploads.items()}
        self._sizes = {client: keys.numel() for client, keys in self._keys.items()}
        clients = list(self._keys)
        for number, client in enumerate(clients):
            own = self._keys[client]
            earlier = [torch.isin(own, self._keys[other]) for other in clients[:number]]
            held = torch.stack(earlier, dim=1) if earlier else torch.zeros(own.numel(), 0, dtype=torch.bool)
            self._answers[client] = {"earlier": held}

    def _add_degrees(self, uploads: Mapping[str, Payload]) -> None:
        if not uploads:
            return
        held = torch.cat(list(self._keys.values())).unique()
        for client, upload in uploads.items():
            self._keys[client] = torch.cat([self._keys[client], upload.group(_SETUP)["outside"]])
        positions, count = self._positions()
        total = torch.zeros(count, dtype=torch.int32)
        for client, upload in uploads.items():
            total.index_add_(0, positions[client], upload.group(_SETUP)["degree"])
        for client, keys in self._keys.items():
            # What no client holds has no features to add up; 0 tells the client to leave it out. A node that is held
            # counts itself, unless whose turn it was is gone.
            degree = torch.where(torch.isin(keys, held), total[positions[client]].clamp(min=1), 0)
            self._answers[client] = {"degree": degree}
            self._keys[client] = keys[degree > 0]

    def _add_neighbours(self, uploads: Mapping[str, Payload]) -> None:
        if not uploads:
            return
        positions, count = self._positions()
        columns = self._common[1]
        total = sparse.csr_matrix((count, columns), dtype=np.float64)
        for client, upload in uploads.items():
            place = positions[client].numpy()
            part = _rows_of(upload.group(_SETUP), place.size, columns, f"upload` of client `{client}")
            total = total + _placed(part, place, count)
        for client, position in positions.items():  # their own and, for two hops, their neighbours
            wanted = position if self.num_hops == 2 else position[: self._sizes[client]]
            self._answers[client] = _csr_parts(total[wanted.numpy()])

    def _positions(self) -> tuple[dict[str, Tensor], int]:
        """Where every client's nodes are among all that are spoken of, and how many these are.

        By rank and not by number, so that memory follows from what was sent.
        """
        every, rank = torch.cat(list(self._keys.values())).unique(return_inverse=True)
        parts = rank.split([keys.numel() for keys in self._keys.values()])
        return dict(zip(self._keys, parts, strict=True)), every.numel()

    # ----------------------------------------------------------------------------------------------- client half
    def install(self, client: Client, download: Payload) -> None:
        super().install(client, download)
        answer = download.group(_SETUP)
        if self._part is None or not answer:
            return
        if self._part.awaits == "earlier":
            self._part.count(answer)
        elif self._part.awaits == "degree":
            self._part.scale(answer)
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
        if self._part is None or exchange == "nodes":
            expect_kind(client.module, NodeGCN, "model", "flgraph.models.NodeGCN for FedGCN")
            self._part = _Part(client.data, client.name)
            cross = self._part.cross is not None
            wanted = "1 where clients do not know their edges to nodes of others (`data.cross_edges`)"
            expect(cross or self.num_hops == 1, "aggregator.num_hops", wanted, self.num_hops)
            scalars = {"cross_edges": cross, "num_features": self._part.x.shape[1]}
            return Payload({_SETUP: {"nodes": self._part.nodes.int()}}, scalars)
        awaited = {"degrees": "degree", "neighbours": "sums"}.get(exchange)
        expect(self._part.awaits == awaited, "exchange", f"one that follows on `{self._part.awaits}`", exchange)
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
        self.field, self.awaits = f"download` of client `{client}", "earlier"
        wanted = "graphs cut from a common one for FedGCN, which is FedAvg where clients have no nodes in common,"
        expect(data.graph.is_cut, "data", wanted, "graphs of their own")
        # A sample's nodes are in another order than the sums, and training would not see them.
        sampled = getattr(data, "sampled", False)
        expect(not sampled, "data.sampled", "false for FedGCN, whose sums are of whole graphs,", sampled)
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

    def count(self, answer: Mapping[str, Tensor]) -> None:
        """Finds out which contributions an earlier client makes.

        Args:
            answer: ``earlier``, whether the own nodes are held by each of the clients before ``[N, k]``.
        """
        earlier = expect_tensor(answer, "earlier", (self.nodes.numel(), None), self.field, torch.bool)
        if self.cross is None:  # an edge is known to who holds both ends, and to who holds the source otherwise
            held = torch.zeros(self.source.numel(), dtype=torch.bool)
            for other in earlier.t():  # one by one: there may be many
                held |= other[self.source] & other[self.target]
        else:
            held = earlier.any(dim=1)[self.source]
        self.counted, self.awaits = ~held, "degree"

    def degrees(self) -> dict[str, Tensor]:
        """Number of own contributions to every node, 1 for the node itself included."""
        counts = torch.bincount(self.target[self.counted], minlength=self.nodes.numel() + self.outside.numel())
        return {"outside": self.outside.int(), "degree": counts.int()}

    def scale(self, answer: Mapping[str, Tensor]) -> None:
        """Takes the ``degree`` of every node in the union graph; leaves out what no client holds."""
        own = self.degrees()["degree"]
        degree = expect_tensor(answer, "degree", own.shape, self.field, torch.int32)
        kept = degree > 0
        # A sum over clients is no less than what this one gave; the own nodes are held.
        fits = bool((kept | (degree == 0)).all() and (degree >= own)[kept].all() and kept[: self.nodes.numel()].all())
        expect(fits, self.field, "one with degrees that are sums of clients' counts", "others")
        position = kept.cumsum(0) - 1
        inside = kept[self.target]
        self.target, self.source = position[self.target[inside]], self.source[inside]
        self.counted, self.degree = self.counted[inside], degree[kept].double()
        self.awaits = "sums"

    def sums(self) -> dict[str, Tensor]:
        r"""Sums of :math:`x_j / \sqrt{d_j}` over own contributions, for every node."""
        source = self.source[self.counted]
        own = self._matrix(self.target[self.counted], source, self.degree.rsqrt()[source])
        return _csr_parts(own @ self.x)

    def finish(self, tensors: Mapping[str, Tensor], num_hops: int) -> NeighbourSums:
        """The rows and, for two hops, the matrix that the model takes."""
        scale = self.degree.rsqrt()
        rows = self.degree.numel() if num_hops == 2 else self.nodes.numel()
        total = _rows_of(tensors, rows, self.x.shape[1], self.field)
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


def _rows_of(tensors: Mapping[str, Tensor], rows: int, columns: int, field: str) -> sparse.csr_matrix:
    """What :func:`_csr_parts` made tensors of, in float64.

    Raises:
        InputError: they are no sparse matrix of this shape; scipy would read and write beside its memory.
    """
    rowptr = expect_tensor(tensors, "rowptr", (rows + 1,), field, torch.int32)
    col = expect_tensor(tensors, "col", (None,), field, torch.int32)
    value = expect_tensor(tensors, "value", col.shape, field, torch.float32)
    counts = rowptr.long().diff()  # differences of 32-bit numbers may be beyond what these can say
    whole = int(rowptr[0]) == 0 and int(rowptr[-1]) == col.numel() and bool((counts >= 0).all())
    expect(whole, field, f"one with `rowptr` from 0 to {col.numel()}", "others")
    expect_between(col, 0, columns - 1, "`col`", field)
    row = torch.repeat_interleave(counts, output_size=col.numel())
    ascending = (col.diff() > 0) | (row.diff() > 0)
    expect(bool(ascending.all()), field, "one with columns in ascending order in each row", "others")
    expect(bool(value.isfinite().all()), field, "one with finite `value`", "others")
    return sparse.csr_matrix((value.double().numpy(), col.numpy(), rowptr.numpy()), (rows, columns))


def _placed(part: sparse.csr_matrix, position: NDArray[np.int64], rows: int) -> sparse.csr_matrix:
    """A matrix whose rows ``position`` are those of ``part``; a product would take memory for every column."""
    order = np.argsort(position)
    part, counts = part[order], np.zeros(rows, dtype=np.int64)
    counts[position[order]] = np.diff(part.indptr)
    rowptr = np.concatenate([[0], np.cumsum(counts)])
    return sparse.csr_matrix((part.data, part.indices, rowptr), (rows, part.shape[1]))


def _numbers(tensors: Mapping[str, Tensor], name: str, field: str) -> Tensor:
    """Numbers of nodes, each once."""
    found = expect_tensor(tensors, name, (None,), field, torch.int32)
    expect_between(found, 0, 2**31 - 1, f"`{name}`", field)
    expect(found.unique().numel() == found.numel(), field, f"one with `{name}` of different nodes", "some twice")
    return found


def _torch(rows: sparse.csr_matrix) -> Tensor:
    """The same matrix for products in torch, in float32."""
    rowptr, col, value = _csr_parts(rows).values()
    return torch.sparse_csr_tensor(rowptr, col, value, rows.shape, check_invariants=False)
