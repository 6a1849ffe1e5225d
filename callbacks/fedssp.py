"""FedSSP: Tan et al., "Federated Graph Learning with Spectral Knowledge and Personalized Preference", NeurIPS 2024."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import pytorch_lightning as pl
import torch
from torch import Tensor

from flgraph.callbacks.fedavg import FedAvg
from flgraph.callbacks.further_loss import AddsLoss
from flgraph.errors import expect, expect_kind
from flgraph.federation.client import Client
from flgraph.federation.payload import Payload
from flgraph.federation.received import expect_count, expect_group
from flgraph.federation.routes import Route, UploadKind, personal, shared
from flgraph.models.graphs.fedssp import FedSSP as Model

_MOST = 100_000


class FedSSP(AddsLoss, FedAvg):
    r"""What makes filters of eigenvalues is shared; representations are held near the mean of all, and preferences not.

    Clients share the encoder of eigenvalues and the network that makes filters (without running statistics); features,
    attention, messages and the classifier stay with them. In training a client follows the mean of its representations,
    :math:`m \leftarrow (1 - \mu) m + \mu \frac{1}{B} \sum_b h_b` over the batches of a turn (from 0), and adds

    .. math::
        \tau \frac{1}{2D} \lVert m - \bar m \rVert^2

    to its loss, where :math:`\bar m` is the mean of what the clients of the last round sent as :math:`m`. The
    classifier gets :math:`h` plus the client's preference, a vector that is learned.

    In the published code :math:`m` begins anew in each batch, so that all it tells is of the last one; here in each
    turn, as in DBE (Zhang et al., NeurIPS 2023), whose terms these are.

    Goes with :class:`flgraph.models.FedSSP`.

    Args:
        tau: :math:`\tau`.
        momentum: :math:`\mu`.
        weighting: see :class:`FedAvg`; ``"uniform"`` as in the published code.
        kwargs: see :class:`FedAvg`.
    """

    network = "FedSSP"
    extra_tensors: ClassVar[Mapping[str, UploadKind]] = {"consensus/mean": "data"}
    upload_scalars = ("num_samples", "columns")
    common_scalars = ("columns",)
    server_attributes: Sequence[str] = ("_consensus",)
    client_attributes = ("_consensus",)

    def __init__(
        self,
        tau: float = 100.0,
        momentum: float = 0.5,
        weighting: Literal["samples", "uniform"] = "uniform",
        **kwargs: Any,
    ) -> None:
        super().__init__(weighting=weighting, **kwargs)
        expect(0 <= tau < float("inf"), "aggregator.tau", "a finite number, 0 or more", tau)
        expect(0 < momentum <= 1, "aggregator.momentum", "above 0 and at most 1", momentum)
        self.tau, self.momentum = tau, momentum
        self._consensus: Tensor | None = None  # the server half's, and what the client half was sent
        self._mean: Tensor | None = None  # in a turn

    def routes(self) -> list[Route]:
        return [
            *personal("filters.*.running_*", "filters.*.num_batches_tracked"),
            *shared("eigen.*", "filters.*"),
            *personal("*"),
        ]

    @property
    def reveals(self) -> str:
        return (
            "The server gets a mean of representations in which the last batch counts most, and that may be one graph."
        )

    # ----------------------------------------------------------------------------------------------- server half
    def download(self, client: str, round: int, exchange: str | None) -> Payload | None:
        names = tuple(name for name in self.owners[client] if name in self.shared)
        sent = {} if self._consensus is None else {"consensus/mean": self._consensus}
        return self.payload(names, lambda: {**{name: self.shared[name] for name in names}, **sent})

    def check_upload(self, client: str, upload: Payload, round: int, exchange: str) -> None:
        """Weights, and a mean of representations."""
        self.check_shared(client, upload)
        field = f"upload` of client `{client}"
        columns = expect_count(upload, "columns", 1, _MOST, field)
        form = (columns,) if self._consensus is None else self._consensus.shape
        expect_group(upload.group("consensus"), {"mean": form}, field, torch.float32)

    def aggregate(self, uploads: Mapping[str, Payload], round: int, exchange: str) -> Mapping[str, Tensor]:
        if uploads:
            told = {client: upload.group("consensus") for client, upload in uploads.items()}
            self._consensus = self.combine(told, self.client_weights(uploads))["mean"]
        return super().aggregate(uploads, round, exchange)

    # ----------------------------------------------------------------------------------------------- client half
    def install(self, client: Client, download: Payload) -> None:
        """Weights go into the model; the mean of all is kept."""
        super().install(client, download)
        sent, field = download.group("consensus"), f"download` of client `{client.name}"
        if sent:
            expect_group(sent, {"mean": _of(client).preference.shape}, field)
            expect(bool(sent["mean"].isfinite().all()), field, "one with a finite mean", "another")
            self._consensus = sent["mean"].clone()

    def local_update(self, client: Client, round: int, exchange: str) -> None:
        self._mean = torch.zeros_like(_of(client).preference.detach())
        super().local_update(client, round, exchange)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Moves what is followed to where the model is."""
        assert self._mean is not None
        self._mean = self._mean.to(pl_module.device)
        self._consensus = None if self._consensus is None else self._consensus.to(pl_module.device)
        super().on_train_start(trainer, pl_module)

    def further_loss(self, batch: Any, encoded: Tensor) -> Tensor:
        """The distance of the mean that is followed from that of all."""
        assert self._mean is not None
        mean = (1 - self.momentum) * self._mean + self.momentum * encoded.mean(dim=0)
        self._mean = mean.detach()
        if self._consensus is None:
            return encoded.new_zeros(())
        return self.tau * 0.5 * (mean - self._consensus).square().mean()

    def upload(self, client: Client, round: int, exchange: str) -> Payload | None:
        own, mean = super().upload(client, round, exchange), self._mean
        assert own is not None
        assert mean is not None
        told = {"consensus/mean": mean.float().cpu()}
        return Payload({**own.tensors, **told}, {**own.scalars, "columns": mean.numel()})


def _of(client: Client) -> Model:
    return expect_kind(client.module, Model, "model", "flgraph.models.FedSSP")
