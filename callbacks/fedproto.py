"""FedProto: Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.nn import functional as F

from flgraph.callbacks.further_loss import AddsLoss
from flgraph.callbacks.prototypes import MOST, Inference, SendsPrototypes, evaluating_client
from flgraph.errors import expect
from flgraph.federation.client import Client
from flgraph.federation.payload import Payload
from flgraph.federation.received import expect_between, expect_count, expect_group, expect_tensor
from flgraph.federation.routes import Route, UploadKind, personal
from flgraph.federation.values import LARGEST_INTEGER
from flgraph.models.classifier import Classifier, labels_of

_NEVER = -1e6
"""The logit of a class without a prototype, if not lower; not infinite, as losses are made of it."""


class FedProto(SendsPrototypes, AddsLoss):
    r"""Clients exchange prototypes, the mean representation of each class, and nothing of their models (Algorithm 1).

    After its training client :math:`i` sends of each class :math:`j` the mean of what its model makes of that class's
    training data before the last layer, without dropout (Eq. 3), and how many they are; the server takes the mean over
    clients by these numbers (Eq. 6). Clients minimise their loss and :math:`\lambda` times

    .. math::
        \frac{1}{BD} \sum_{b=1}^{B} \lVert z_b - \bar C^{(y_b)} \rVert^2,

    over the :math:`B` labelled graphs or nodes of a batch, with :math:`z_b` of :math:`D` columns and :math:`\bar C` the
    prototypes that they were sent; classes without a prototype count as zero. The paper's Eq. 8 has the distance of
    prototypes themselves, which needs all data at every step; this is its published code's loss. Eq. 6 divides by the
    number of clients once more, which would shrink prototypes; its code, and this, do not. Training data is what an
    epoch visits.

    Models may differ but for the columns before their last layer. All clients' classes must be the same ones.

    Goes with every classifier of :mod:`flgraph.models`.

    Args:
        lam: :math:`\lambda`; 0 is local training.
        min_samples: of a class in a client, for its prototype to be sent. That of a single record is the record's
            representation; with 1, as in the paper, sites refuse the algorithm unless their policy names it.
        weighting: ``"samples"`` weighs clients by their records of the class, ``"uniform"`` alike (the published code);
            the numbers then do not leave them. A site's policy rounds each of them.
        inference: who classifies: the model's ``head``, or the nearest of the ``prototypes`` that the client was sent,
            as in the paper; the client's checkpoint used elsewhere has its head only.
        kwargs: see :class:`~flgraph.federation.Aggregator`.
    """

    extra_tensors: ClassVar[Mapping[str, UploadKind]] = {"prototypes/*": "data"}
    upload_scalars: Sequence[str] = ("num_samples", "num_classes", "columns")
    common_scalars = ("num_classes", "columns")
    needs_classes = True
    server_attributes = ("_prototypes", "_found")
    client_attributes = ("_received",)

    def __init__(
        self,
        lam: float = 1.0,
        min_samples: int = 2,
        weighting: Literal["samples", "uniform"] = "samples",
        inference: Inference = "head",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        expect(0 <= lam < float("inf"), "aggregator.lam", "a finite number, 0 or more", lam)
        expect(weighting in ("samples", "uniform"), "aggregator.weighting", "samples or uniform", weighting)
        self.set_prototypes(min_samples, inference)
        self.lam, self.weighting = lam, weighting
        if weighting == "uniform":
            self.upload_scalars = self.common_scalars
        # The server half's, [C, D], and of which classes some client has told.
        self._prototypes, self._found = torch.zeros(0, 0), torch.zeros(0, dtype=torch.bool)

    def routes(self) -> list[Route]:
        return personal("*")

    # ----------------------------------------------------------------------------------------------- server half
    def download(self, client: str, round: int, exchange: str | None) -> Payload | None:
        if not self._found.any():
            return None
        sent = {"prototypes/mean": self._prototypes, "prototypes/found": self._found}
        return self.payload(("prototypes",), lambda: sent)

    def check_upload(self, client: str, upload: Payload, round: int, exchange: str) -> None:
        """A row for each class, and how many records it is of: of each class no more than there are in all."""
        field = f"upload` of client `{client}"
        least, most = (self._prototypes.shape,) * 2 if self._found.numel() else ((1, 1), (MOST, MOST))
        sizes = zip(self.common_scalars, least, most, strict=True)
        shape = [expect_count(upload, name, low, high, field) for name, low, high in sizes]
        sent = upload.group("prototypes")
        expect_group(sent, {"mean": shape, "count": shape[:1]}, field)
        in_all = expect_count(upload, "num_samples", 1, LARGEST_INTEGER, field) if self.weighting == "samples" else 1
        expect_between(sent["count"], 0, in_all, "numbers of records", field)

    def aggregate(self, uploads: Mapping[str, Payload], round: int, exchange: str) -> Mapping[str, Tensor]:
        sent = {client: upload.group("prototypes") for client, upload in uploads.items()}
        if not sent:
            return {}
        first = next(iter(sent.values()))["mean"]
        if not self._found.numel():
            self._prototypes, self._found = torch.zeros_like(first), torch.zeros(len(first), dtype=torch.bool)
        self._prototypes = self._prototypes.clone()  # what was sent may still be on its way
        for number in range(len(self._found)):
            counts = {client: float(own["count"][number]) for client, own in sent.items() if own["count"][number] > 0}
            if counts:
                rows = {client: {"row": sent[client]["mean"][number]} for client in counts}
                self._prototypes[number] = self.combine(rows, counts)["row"]
                self._found[number] = True
        return {}

    # ----------------------------------------------------------------------------------------------- client half
    def install(self, client: Client, download: Payload) -> None:
        """Keeps the prototypes."""
        sent, field = download.group("prototypes"), f"download` of client `{client.name}"
        found = torch.zeros(int(client.data.model_args["num_classes"]), dtype=torch.bool)
        mean = expect_tensor(sent, "mean", (len(found), None), field)
        expect_group(sent, {"mean": mean, "found": found}, field)
        expect(bool(mean.isfinite().all()), field, "one with finite prototypes", "others")
        self._received = {name: tensor.clone() for name, tensor in sent.items()}

    def local_update(self, client: Client, round: int, exchange: str) -> None:
        fits = isinstance(client.module, Classifier)
        expect(fits, "model", "a classifier for FedProto", type(client.module).__name__)
        super().local_update(client, round, exchange)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Moves the prototypes to where the model is."""
        self._received = {name: tensor.to(pl_module.device) for name, tensor in self._received.items()}
        super().on_train_start(trainer, pl_module)

    @property
    def adds_loss(self) -> bool:
        return self.lam > 0 and bool(self._received)

    def further_loss(self, batch: Any, encoded: Tensor) -> Tensor:
        """The distance of representations from the prototypes of their classes."""
        self.check_columns(self._received["mean"], encoded)
        labels = labels_of(batch).view(-1).long()
        toward, found = (self._received[name].index_select(0, labels) for name in ("mean", "found"))
        distance = F.mse_loss(encoded, toward.to(encoded), reduction="none")
        return self.lam * (distance * found.unsqueeze(1)).mean()

    def upload(self, client: Client, round: int, exchange: str) -> Payload | None:
        sums, counts = class_sums(client)
        counts = torch.where(counts >= self.min_samples, counts, 0)
        mean = torch.where(counts.unsqueeze(1) > 0, sums / counts.clamp(min=1).unsqueeze(1), 0)
        if self.weighting == "samples":
            told = torch.tensor([client.door.count(int(count)) if count else 0 for count in counts.tolist()])
        else:
            told = counts.clamp(max=1)
        scalars = {**self.sample_count(client), **dict(zip(self.common_scalars, mean.shape, strict=True))}
        return Payload({"prototypes": {"mean": mean.float(), "count": told.float()}}, scalars)

    def votes(self, module: Classifier[Any], rows: Tensor) -> Tensor:
        """Squared distances from prototypes, negated."""
        means, found = self._received["mean"], self._received["found"]
        self.check_columns(means, rows)
        exact = "donot_use_mm_for_euclid_dist"  # a product loses the difference of long rows that are alike
        distance = torch.cdist(rows, means.to(rows.dtype), compute_mode=exact).square()
        farthest = distance.where(found, 0).amax(dim=1, keepdim=True)
        return torch.where(found, -distance, (-2 * farthest).clamp(max=_NEVER))


def class_sums(client: Client) -> tuple[Tensor, Tensor]:
    """Sums ``[C, D]`` of what a client's model makes of its training data before the last layer, by class, and counts.

    Dropout is off. Both are float64 on the CPU.
    """
    module: Any = client.module
    with evaluating_client(client) as prepared:
        sums, counts = torch.zeros((), dtype=torch.float64), torch.zeros(module.num_classes, dtype=torch.float64)
        for given in client.data.train_dataloader():
            batch = prepared(given)
            of_class = F.one_hot(labels_of(batch).view(-1).long(), module.num_classes).double()
            # A product, since on a GPU sums by index have no order.
            sums = sums + (of_class.t() @ module.represent(batch).double()).cpu()
            counts += of_class.sum(0).cpu()
    return sums, counts
