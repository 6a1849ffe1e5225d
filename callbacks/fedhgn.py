"""FedHGN: Fu and King, "FedHGN: A Federated Framework for Heterogeneous Graph Neural Networks", IJCAI 2023."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pytorch_lightning as pl
import torch
from torch import Tensor

from flgraph.callbacks.fedavg import FedAvg
from flgraph.callbacks.gradients import add_gradient, stepped
from flgraph.errors import expect
from flgraph.federation.client import Client
from flgraph.federation.payload import Payload
from flgraph.federation.received import expect_group
from flgraph.federation.routes import Route, UploadKind, matches, personal, shared
from flgraph.nn import at_least_float32

_MOST_ROWS = 10_000
"""Of a layer, that a client sends; it receives at most a hundred times as many."""

_COEFFICIENTS, _BASES = ".coefficients", ".bases"


class FedHGN(FedAvg):
    r"""Averages bases and schema-free weights, and aligns coefficients with those of others, whose they are unknown.

    Weights that belong to a relation are sums of bases, :math:`\mathbf{W}_r = \sum_b \beta_{rb} \mathbf{V}_b` (Eq. 2).
    Bases and weights of no relation are averaged. Coefficients stay; besides, each client sends their rows, sorted by
    their values, the server pools the rows of all clients, and sends every client those of the others, sorted likewise.
    (The paper shuffles. An order by values tells no more, and needs no random numbers that others might draw again.)
    Clients minimise (Eq. 3)

    .. math::
        L_{\mathrm{task}} + \lambda \sum_r \min_{r^{\prime}} \lVert \beta_r - \beta_{r^{\prime}} \rVert^2,

    the minimum being over all rows received for the same layer; where a layer has coefficients of node types and of
    edge types, each kind has rows of its own. As in the published code a row of zeros stands for
    those who have not sent any yet; who takes no part in a round (``client_fraction``) is present with the rows of its
    last one. The gradient :math:`2 \lambda (\beta_r - \beta_{r^{\ast}})` is added before
    every optimizer step, which is what automatic differentiation of the sum gives; the logged loss is the task's alone.

    What the server can infer: how many relations (and node types, where these have coefficients) a client has, from the
    number of rows, and whether a row of one round continues one of the last. Names, counts per name and the order of
    relations are in no payload. A client learns how many relations all others have together.

    Goes with :class:`flgraph.models.RGCN`, :class:`flgraph.models.HeteroGAT` and every other model whose parameters of
    types are pairs ``PLACE.coefficients``, a row per type, and ``PLACE.bases``. What ``bases`` does not name stays with
    the client: for ``HeteroGAT`` it is to name ``convs.*.attention``, too (``configs/method/fedhgn_gat.yaml``).

    Args:
        alignment: :math:`\lambda`; with 0 nothing is sent of the coefficients (the paper's ablation "B").
        bases: patterns of the shared tensors.
        kwargs: see :class:`FedAvg`.
    """

    network = "RGCN with bases"
    extra_tensors: ClassVar[Mapping[str, UploadKind]] = {"rows/*": "data"}
    server_attributes = ("_rows",)

    def __init__(
        self,
        alignment: float = 0.5,
        bases: Sequence[str] = ("convs.*.bases", "convs.*.bias", "classifier.*"),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        expect(0 <= alignment < float("inf"), "aggregator.alignment", "a finite number, 0 or more", alignment)
        self.alignment, self.bases = alignment, list(bases)
        self._rows: dict[str, dict[str, Tensor]] = {}  # server half: client to layer to the rows it sent last
        self._received: dict[str, Tensor] = {}  # client half, while it trains: layer to the rows of other clients

    def routes(self) -> list[Route]:
        return [*personal(f"*{_COEFFICIENTS}", "embedding.*"), *shared(*self.bases), *personal("*")]

    # ----------------------------------------------------------------------------------------------- server half
    def download(self, client: str, round: int, exchange: str | None) -> Payload | None:
        weights = super().download(client, round, exchange)
        if weights is None or not self.alignment:
            return weights
        return Payload({**weights.tensors, "rows": self._rows_for(client)})

    def check_upload(self, client: str, upload: Payload, round: int, exchange: str) -> None:
        """Weights, and rows of coefficients for each layer whose bases the client shares."""
        self.check_shared(client, upload)
        layers = {n: self.shared[n] for n in self.owners.get(client, ()) if n.endswith(_BASES) and n in self.shared}
        shapes = {name.removesuffix(_BASES): (None, bases.size(0)) for name, bases in layers.items()}
        _expect_rows(upload.group("rows"), shapes if self.alignment else {}, _MOST_ROWS, f"upload` of client `{client}")

    def aggregate(self, uploads: Mapping[str, Payload], round: int, exchange: str) -> Mapping[str, Tensor]:
        self._rows |= {client: upload.group("rows") for client, upload in uploads.items()}
        return super().aggregate(uploads, round, exchange)

    def _rows_for(self, client: str) -> dict[str, Tensor]:
        """The rows of all other clients, layer by layer."""
        result = {}
        present = self.owners.keys() - {client, *self.excluded}
        for name, bases in self.shared.items():
            if not name.endswith(_BASES):
                continue
            layer = name.removesuffix(_BASES)
            others = [self._rows[other] for other in sorted(self._rows) if other in present]
            sent = [rows[layer] for rows in others if layer in rows]
            silent = len(sent) < len(present)
            result[layer] = by_value(torch.cat([*sent, bases.new_zeros(int(silent), bases.size(0))]))
        return result

    # ----------------------------------------------------------------------------------------------- client half
    def local_update(self, client: Client, round: int, exchange: str) -> None:
        """Local training with the alignment term."""
        self._received = client.last_download.group("rows")
        own = {name: parameter for name, parameter in client.module.named_parameters() if name.endswith(_COEFFICIENTS)}
        shapes = {n.removesuffix(_COEFFICIENTS): (None, coefficients.size(1)) for n, coefficients in own.items()}
        shapes = {layer: shapes[layer] for layer in shapes if layer in self._received}  # others' bases may be their own
        _expect_rows(self._received, shapes, 100 * _MOST_ROWS, f"download` of client `{client.name}")
        super().local_update(client, round, exchange)
        self._received = {}

    def upload(self, client: Client, round: int, exchange: str) -> Payload | None:
        own = super().upload(client, round, exchange)
        assert own is not None
        if not self.alignment:
            return own
        rows = {}
        for name, parameter in client.module.named_parameters():
            if name.endswith(_COEFFICIENTS):
                layer = name.removesuffix(_COEFFICIENTS)
                if layer + _BASES in client.routing.shared:  # or else they are of bases that nobody else has
                    kept = matches(name, client.routing.first)  # by `trainer.personal`
                    rows[layer] = by_value(parameter.detach()[: 0 if kept else None])
        wanted = f"one with coefficients (`*{_COEFFICIENTS}`) of shared bases for FedHGN"
        expect(bool(rows), "model", wanted, type(client.module).__name__)
        return Payload({**own.tensors, "rows": rows}, own.scalars)

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Adds the gradient of the alignment term."""
        stepping = stepped(pl_module, optimizer)
        for layer, rows in self._received.items():
            coefficients = stepping.get(layer + _COEFFICIENTS)
            if coefficients is None or not rows.numel():
                continue
            others = rows.to(coefficients)
            distances = torch.cdist(at_least_float32(coefficients.detach()), at_least_float32(others))
            nearest = others[distances.argmin(dim=1)]
            add_gradient(coefficients, 2 * self.alignment * (coefficients.detach() - nearest))


def _expect_rows(
    rows: Mapping[str, Tensor], shapes: Mapping[str, tuple[int | None, int]], most: int, field: str
) -> None:
    expect_group(rows, shapes, field)
    for layer, tensor in rows.items():
        expect(len(tensor) <= most, field, f"of at most {most} rows of `{layer}`", len(tensor))


def by_value(rows: Tensor) -> Tensor:
    """Rows ``[n, B]`` sorted by their first value, then their second, and so on: nothing is left of their order."""
    values = rows.detach().double().cpu().numpy()
    return rows[torch.from_numpy(np.lexsort(values.T[::-1])).to(rows.device)] if rows.size(1) else rows
