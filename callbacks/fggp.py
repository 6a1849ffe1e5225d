"""FGGP: Wan et al., "Federated Graph Learning under Domain Shift with Generalizable Prototypes", AAAI 2024."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from flgraph.callbacks.fedavg import FedAvg
from flgraph.callbacks.prototypes import MOST, Inference, SendsPrototypes, evaluating_client
from flgraph.errors import expect, expect_kind
from flgraph.federation.client import Client
from flgraph.federation.payload import Payload
from flgraph.federation.received import expect_between, expect_count, expect_group, expect_tensor
from flgraph.federation.routes import UploadKind
from flgraph.models.classifier import Classifier
from flgraph.models.nodes import fggp
from flgraph.nn.distillation import nearest_graph
from flgraph.nn.prototypes import class_means, first_neighbour_clusters, nearest_vote

_HEAD = "convs.1.bias"


class FGGP(SendsPrototypes, FedAvg):
    r"""FedAvg of a GCN that learns from a second view of its graph; prototypes of all clients classify.

    Before a client trains, the common model says which nodes are alike: each is joined with the ``neighbours`` nearest
    by the angle between representations. Of the graph with these edges, which count both ways, the model draws its
    views (:class:`flgraph.models.FGGP`). After that the client sends weights and prototypes: of each class the mean of
    what the model makes of its nodes before the last layer, without dropout, weighed by how sure it is. Nodes without a
    label take the class that the model gives them, those with one count 1.

    The server averages weights, and of each class clusters the prototypes by
    :func:`~flgraph.nn.prototypes.first_neighbour_clusters`. It keeps the clusters' means, the newest ``memory`` times
    the number of classes, and sends them. A node's class is voted on by the ``k`` nearest,

    .. math::
        p(c) \propto \sum_{j \in \mathrm{kNN}, y_j = c} \exp(\cos(z, p_j) / \tau).

    The formulas are those of the published code, whose numbers differ between data sets; defaults are its own. There
    the memory begins with random rows of the first class, and here empty; nearest nodes are found every 10 to 50
    rounds, and here in each, as in OpenFGL's code. In that the head classifies.

    Goes with :class:`flgraph.models.FGGP` and data such as :class:`flgraph.data.WholeGraphFederation`.

    Args:
        neighbours: that each node is joined with.
        k: prototypes that vote.
        temperature: :math:`\tau`.
        memory: prototypes that the server keeps, for each class.
        min_samples: nodes of a class in a client, for its prototype to be sent; see :class:`FedProto`.
        inference: who classifies: ``prototypes``, as in the paper, or the model's ``head``; the client's checkpoint
            used elsewhere has its head only.
        kwargs: see :class:`FedAvg`.
    """

    extra_tensors: ClassVar[Mapping[str, UploadKind]] = {"prototypes/*": "data"}
    upload_scalars = ("num_samples", "num_classes", "columns")
    common_scalars = ("num_classes", "columns")
    needs_classes = True
    server_attributes: Sequence[str] = ("_memory",)
    client_attributes = ("_received",)

    def __init__(
        self,
        neighbours: int = 3,
        k: int = 30,
        temperature: float = 0.1,
        memory: int = 10,
        min_samples: int = 2,
        inference: Inference = "prototypes",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.set_prototypes(min_samples, inference)
        for name, count in {"neighbours": neighbours, "k": k, "memory": memory}.items():
            expect(count >= 1, f"aggregator.{name}", "1 or more", count)
        expect(0 < temperature < float("inf"), "aggregator.temperature", "a positive, finite number", temperature)
        self.neighbours, self.k, self.temperature, self.memory = neighbours, k, temperature, memory
        self._memory: dict[str, Tensor] = {}  # the server half's, as it is sent

    # ----------------------------------------------------------------------------------------------- server half
    def download(self, client: str, round: int, exchange: str | None) -> Payload | None:
        names = tuple(name for name in self.owners[client] if name in self.shared)
        sent = {f"prototypes/{name}": tensor for name, tensor in self._memory.items()}
        return self.payload(names, lambda: {**{name: self.shared[name] for name in names}, **sent})

    def check_upload(self, client: str, upload: Payload, round: int, exchange: str) -> None:
        """Weights, and a row for each class."""
        self.check_shared(client, upload)
        field = f"upload` of client `{client}"
        classes, columns = (expect_count(upload, name, 1, MOST, field) for name in self.common_scalars)
        if self._memory:
            known = self._memory["mean"].size(1)
            expect(columns == known, field, f"one with `columns` of {known}", columns)
        head = self.shared.get(_HEAD)  # all may share it, whatever a single client says
        if head is not None:
            expect(head.numel() == classes, field, f"one with `num_classes` of {head.numel()}", classes)
        sent = upload.group("prototypes")
        expect_group(sent, {"mean": (classes, columns), "found": (classes,)}, field)
        expect_between(sent["found"], 0, 1, "whether a class is there", field)

    def aggregate(self, uploads: Mapping[str, Payload], round: int, exchange: str) -> Mapping[str, Tensor]:
        means = super().aggregate(uploads, round, exchange)
        sent = {client: uploads[client].group("prototypes") for client in sorted(uploads)}
        rows, classes = [], []
        total = max((own["found"].numel() for own in sent.values()), default=0)
        for number in range(total):
            own = {client: group["mean"][number] for client, group in sent.items() if group["found"][number] > 0}
            if own:
                found = first_neighbour_clusters(torch.stack(list(own.values())))
                for cluster in range(int(found.max()) + 1):
                    members = {
                        client: {"row": row}
                        for at, (client, row) in zip(found.tolist(), own.items(), strict=True)
                        if at == cluster
                    }
                    rows.append(self.combine(members, dict.fromkeys(members, 1.0))["row"])
                    classes.append(number)
        if rows:
            new = {"mean": torch.stack(rows), "class": torch.tensor(classes)}
            old = self._memory or {name: tensor[:0] for name, tensor in new.items()}
            self._memory = {name: torch.cat([old[name], new[name]])[-self.memory * total :] for name in new}
        return means

    def log_scalars(self) -> Mapping[str, float]:
        return {"prototypes": float(len(self._memory["mean"]))} if self._memory else {}

    # ----------------------------------------------------------------------------------------------- client half
    def install(self, client: Client, download: Payload) -> None:
        """Weights go into the model; prototypes are kept."""
        super().install(client, download)
        sent, field = download.group("prototypes"), f"download` of client `{client.name}"
        if not sent:
            return
        rows = expect_tensor(sent, "mean", (None, None), field)
        classes = expect_tensor(sent, "class", (len(rows),), field, torch.int64)
        expect_group(sent, {"mean": rows, "class": classes}, field)
        expect(len(rows) > 0 and bool(rows.isfinite().all()), field, "one with finite prototypes", "others")
        expect_between(classes, 0, int(client.data.model_args["num_classes"]) - 1, "classes of prototypes", field)
        self._received = {name: tensor.clone() for name, tensor in sent.items()}

    def local_update(self, client: Client, round: int, exchange: str) -> None:
        """Joins nodes that are alike, and trains on views of that."""
        module, data = expect_kind(client.module, fggp.FGGP, "model", "flgraph.models.FGGP"), client.data
        fits = hasattr(data, "graph") and isinstance(getattr(data, "train", None), Tensor)
        expect(fits, "data", "of nodes, such as flgraph.data.WholeGraphFederation,", type(data).__name__)
        graph: Any = data.graph  # type: ignore[attr-defined]
        with evaluating_client(client) as prepared:
            batch = prepared(graph.batch(torch.arange(graph.num_nodes)))
            rows = module.represent(batch)
        alike = nearest_graph(rows.cpu(), min(self.neighbours + 1, graph.num_nodes))
        edges = torch.eye(graph.num_nodes)
        for adj in (alike, batch.adj.to("cpu")):
            edges[adj.row, adj.col] = edges[adj.col, adj.row] = 1.0
        module.use_view(edges.to(module.device))
        super().local_update(client, round, exchange)
        module.use_view(None)

    def upload(self, client: Client, round: int, exchange: str) -> Payload | None:
        own = super().upload(client, round, exchange)
        assert own is not None
        mean, found = self.prototypes(client)
        scalars = {**own.scalars, **dict(zip(self.common_scalars, mean.shape, strict=True))}
        return Payload({**own.tensors, "prototypes": {"mean": mean, "found": found}}, scalars)

    def prototypes(self, client: Client) -> tuple[Tensor, Tensor]:
        """Means of representations by class ``[C, D]``, and of which classes there are enough nodes ``[C]``."""
        module, data = client.module, client.data
        assert isinstance(module, fggp.FGGP)
        graph, train = data.graph, data.train  # type: ignore[attr-defined]
        with evaluating_client(client) as prepared:
            batch = prepared(graph.batch(torch.arange(graph.num_nodes)))
            encoded = module.encode(batch)
            sure, guessed = module.head(encoded, batch).double().softmax(dim=1).cpu().max(dim=1)
        train = train.cpu()
        guessed[train], sure[train] = graph.y.cpu()[train], 1.0
        found = torch.bincount(guessed, minlength=module.num_classes) >= self.min_samples
        mean = class_means(encoded.double().cpu(), guessed, sure, module.num_classes)
        return torch.where(found.unsqueeze(1), mean, 0.0).float(), found.float()

    def votes(self, module: Classifier[Any], rows: Tensor) -> Tensor:
        """Logarithms of the shares of votes, to which 1e-5 is added as in the published code."""
        means, classes = self._received["mean"].to(rows), self._received["class"].to(rows.device)
        self.check_columns(means, rows)
        shares = nearest_vote(rows, means, classes, module.num_classes, self.k, self.temperature)
        return (shares + 1e-5).log()
