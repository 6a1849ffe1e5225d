"""FedAvg and FedProx with schema matching: the baselines of FedHGN (Fu and King, IJCAI 2023, Section 5.1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from flgraph.callbacks.fedprox import FedProx
from flgraph.errors import expect
from flgraph.federation.aggregation import weighted_mean
from flgraph.federation.client import Client
from flgraph.federation.payload import Payload
from flgraph.federation.routes import Route, personal, shared

_RELATION = "relation/"


class SchemaFedAvg(FedProx):
    """Averages each relation's weights over the clients that have a relation of this name; the rest as FedAvg.

    **Names of relations and of the node types they join leave the clients**, which is what FedHGN avoids. Before the
    first round clients send their relations' initial weights, and go on from those of the first client that has each,
    so that all start alike.

    Goes with :class:`flgraph.models.RGCN` without bases (the paper's baselines). With bases, ``rows``
    ``["*.coefficients"]`` and ``common`` ``["convs.*.bases", "convs.*.bias", "classifier.*"]`` are the paper's ablation
    "B+C", and without ``"convs.*.bases"`` it is "C".

    Args:
        mu: weight of the proximal term, see :class:`FedProx`; 0 is FedAvg, the paper's FedProx has 1.
        rows: patterns of the parameters with a row per relation.
        common: patterns of the shared tensors that belong to no relation.
        lacking: how clients count that lack a relation: ``"skip"``, not at all, or ``"as_before"``, with the mean of
            the round before, as in FedHGN's published code, where every client keeps weights for all relations and
            sends back untouched those that its graph lacks. The fewer have a relation, the slower its mean then moves.
        weighting: see :class:`FedAvg`.
        optimizer_state: see :class:`FedAvg`.
    """

    extra_tensors = (_RELATION + "*",)

    def __init__(
        self,
        mu: float = 0.0,
        rows: Sequence[str] = ("convs.*.weight",),
        common: Sequence[str] = ("convs.*.bias", "classifier.*"),
        lacking: Literal["skip", "as_before"] = "skip",
        weighting: Literal["samples", "uniform"] = "samples",
        optimizer_state: Literal["keep", "reset"] = "keep",
    ) -> None:
        super().__init__(mu, weighting, optimizer_state)
        expect(lacking in ("skip", "as_before"), "aggregator.lacking", "skip or as_before", lacking)
        self.rows, self.common, self.lacking = list(rows), list(common), lacking
        self._relations: dict[str, Tensor] = {}  # of the server half: name to weights
        self._held: dict[str, list[str]] = {}  # client to the names it sent

    def routes(self) -> list[Route]:
        return [*personal(*self.rows), *shared(*self.common), *personal("*")]

    def exchanges(self, round: int) -> Sequence[str]:
        return ("train",) if round else ("schema",)

    # ----------------------------------------------------------------------------------------------- server half
    def download(self, client: str, round: int, exchange: str) -> Payload | None:
        own = super().download(client, round, exchange)
        assert own is not None
        return Payload({**own.tensors, **{name: self._relations[name] for name in self._held.get(client, ())}})

    def aggregate(self, uploads: Mapping[str, Payload], round: int, exchange: str) -> None:
        parts = {client: _divide(upload.tensors) for client, upload in uploads.items()}
        for client, (relations, _) in parts.items():
            self._held[client] = list(relations)
        if exchange == "schema":
            for client in self._held:  # the first client's that has it
                self._relations = {**parts[client][0], **self._relations}
            return
        named = {client: Payload(relations) for client, (relations, _) in parts.items()}
        weights = self.client_weights(uploads)
        means = weighted_mean(named, weights)
        if self.lacking == "as_before":
            for name, mean in means.items():
                having = sum(weights[client] for client, (relations, _) in parts.items() if name in relations)
                means[name] = torch.lerp(self._relations[name], mean, having / sum(weights.values()))
        self._relations = {**self._relations, **means}
        common = {client: Payload(rest, uploads[client].scalars) for client, (_, rest) in parts.items()}
        super().aggregate(common, round, exchange)

    def server_state(self) -> Payload:
        held = {f"held/{client}": "\n".join(names) for client, names in self._held.items()}
        return Payload({**super().server_state().tensors, **self._relations}, held)

    def load_server_state(self, state: Payload) -> None:
        self._relations, rest = _divide(state.tensors)
        self._held = {name.removeprefix("held/"): str(names).split("\n") for name, names in state.scalars.items()}
        super().load_server_state(Payload(rest))

    # ----------------------------------------------------------------------------------------------- client half
    def install(self, client: Client, download: Payload) -> None:
        relations, rest = _divide(download.tensors)
        for name, row in _rows_of(client, self.rows):
            if name in relations:
                row.copy_(relations[name])
        super().install(client, Payload(rest))
        if relations:  # the proximal term covers what was received, here all of it
            parameters = dict(client.module.named_parameters())
            kept = {n: p.detach().clone() for n, p in parameters.items() if _matches(n, self.rows)}
            self._center = {**self._center, **kept}

    def local_update(self, client: Client, round: int, exchange: str) -> None:
        if exchange != "schema":
            super().local_update(client, round, exchange)

    def upload(self, client: Client, round: int, exchange: str) -> Payload | None:
        own = super().upload(client, round, exchange)
        assert own is not None
        tensors = {} if exchange == "schema" else own.tensors
        return Payload({**tensors, **{name: row.clone() for name, row in _rows_of(client, self.rows)}}, own.scalars)


@runtime_checkable
class NamedRelations(Protocol):
    """What this needs of a client's data, for example :class:`flgraph.data.HeteroDataModule`."""

    @property
    def weight_rows(self) -> Sequence[Any]:
        """Which relation each row of a layer's weights belongs to: a name, or (source, name, target)."""


def _rows_of(client: Client, patterns: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
    """Name and memory of every relation's weights in every layer."""
    data: Any = client.data
    wanted = f"data with `weight_rows` in client `{client.name}`"
    expect(isinstance(data, NamedRelations), "data", wanted, type(data).__name__)
    for name, parameter in client.module.named_parameters():
        if _matches(name, patterns):
            for relation, row in zip(data.weight_rows, parameter.detach(), strict=True):
                told = relation if isinstance(relation, str) else "|".join(map(str, relation))
                yield f"{_RELATION}{name}/{told}", row


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _divide(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Those of relations, and the others."""
    relations = {name: tensor for name, tensor in tensors.items() if name.startswith(_RELATION)}
    return relations, {name: tensor for name, tensor in tensors.items() if name not in relations}
