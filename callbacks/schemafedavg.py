"""FedAvg and FedProx with schema matching: the baselines of FedHGN (Fu and King, IJCAI 2023, Section 5.1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

from torch import Tensor

from flgraph.callbacks.fedprox import FedProx
from flgraph.errors import brief, expect
from flgraph.federation.client import Client
from flgraph.federation.payload import Payload
from flgraph.federation.received import expect_group, expect_tensor
from flgraph.federation.routes import Route, UploadKind, matches, personal, shared

_RELATIONS = "relations"
_MOST_RELATIONS = 10_000


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
        kwargs: see :class:`FedAvg`.
    """

    network = "RGCN without bases"
    extra_tensors: ClassVar[Mapping[str, UploadKind]] = {f"{_RELATIONS}/*": "weights"}
    server_attributes = ("_relations", "_names")

    def __init__(
        self,
        mu: float = 0.0,
        rows: Sequence[str] = ("convs.*.weight",),
        common: Sequence[str] = ("convs.*.bias", "classifier.*"),
        **kwargs: Any,
    ) -> None:
        super().__init__(mu, **kwargs)
        self.rows, self.common = list(rows), list(common)
        self._relations: dict[str, Tensor] = {}  # of the server half: name to weights
        self._names: dict[str, list[str]] = {}  # client to the names that it sent before the first round

    def routes(self) -> list[Route]:
        return [*personal(*self.rows), *shared(*self.common), *personal("*")]

    @property
    def reveals(self) -> str:
        return "The server reads the names of a client's relations and of the node types that they join."

    def exchanges(self, round: int) -> Sequence[str]:
        return ("train",) if round else ("schema",)

    # ----------------------------------------------------------------------------------------------- server half
    def download(self, client: str, round: int, exchange: str | None) -> Payload | None:
        common = super().download(client, round, exchange)
        relations = {name: self._relations[name] for name in self._names.get(client, ())}
        return Payload({**(common.tensors if common else {}), _RELATIONS: relations})

    def check_upload(self, client: str, upload: Payload, round: int, exchange: str) -> None:
        """A schema of plain names; later weights, and those of the very relations that the client named in it."""
        field, relations = f"upload` of client `{client}", upload.group(_RELATIONS)
        self.check_samples(client, upload)
        if round:
            self.check_shared(client, upload)
            names = self._names.get(client, ())
            expect_group(relations, {name: self._relations[name].shape for name in names}, field)
            return
        expect(len(relations) <= _MOST_RELATIONS, field, f"of at most {_MOST_RELATIONS} relations", len(relations))
        for name, row in relations.items():
            parameter, _, relation = name.partition("/")
            plain = matches(parameter, self.rows) and bool(relation) and name.isprintable()
            expect(plain, field, f"of relations of {', '.join(self.rows)}, with names to print", brief(repr(name)))
            expect_tensor(relations, name, (None,) * row.dim(), field)

    def aggregate(self, uploads: Mapping[str, Payload], round: int, exchange: str) -> Mapping[str, Tensor]:
        relations = {client: upload.group(_RELATIONS) for client, upload in uploads.items()}
        if exchange == "schema":
            self._take_schema(relations)
            return {}
        self._relations |= self.relation_means(relations, self.client_weights(uploads))
        return super().aggregate(uploads, round, exchange)

    def _take_schema(self, relations: Mapping[str, Mapping[str, Tensor]]) -> None:
        """The first weights of each relation are those of the first client that has it in the shape that most have.

        Where as many have another one, it is the shape that more rows of the same parameter have. Whoever sent another
        one is left out of the relation, and cannot take it from the others.
        """
        forms = [(name, row.shape) for own in relations.values() for name, row in own.items()]
        alike = Counter(forms)
        beside = Counter((name.partition("/")[0], form) for name, form in forms)
        common: dict[str, Any] = {}
        for name, form in sorted(
            reversed(list(alike)), key=lambda row: (alike[row], beside[row[0].partition("/")[0], row[1]])
        ):
            common[name] = form
        for client, own in relations.items():
            fitting = {name: row for name, row in own.items() if row.shape == common[name]}
            self._names[client] = list(fitting)
            self._relations = {**fitting, **self._relations}

    def relation_means(
        self, relations: Mapping[str, Mapping[str, Tensor]], weights: Mapping[str, float]
    ) -> dict[str, Tensor]:
        """The new weights of relations, of those clients that have them.

        Args:
            relations: client to a relation's name to its weights.
            weights: how much each client counts.
        """
        return self.combine(relations, weights)

    # ----------------------------------------------------------------------------------------------- client half
    def install(self, client: Client, download: Payload) -> None:
        relations = download.group(_RELATIONS)
        rows = {name: row for name, row in _rows_of(client, self.rows) if name in relations}
        expect_group(relations, {name: row.shape for name, row in rows.items()}, f"download` of client `{client.name}")
        for name, row in rows.items():
            row.copy_(relations[name])
        super().install(client, download)

    def center(self, client: Client) -> dict[str, Tensor]:
        """What was received, here all rows: before it trains a client has what it was sent."""
        rows = {name: p.detach().clone() for name, p in _with_rows(client, self.rows)}
        return {**super().center(client), **rows}

    def local_update(self, client: Client, round: int, exchange: str) -> None:
        if exchange != "schema":
            super().local_update(client, round, exchange)

    def upload(self, client: Client, round: int, exchange: str) -> Payload | None:
        own = super().upload(client, round, exchange)
        assert own is not None
        tensors = {} if exchange == "schema" else own.tensors
        relations = {name: row.clone() for name, row in _rows_of(client, self.rows)}
        return Payload({**tensors, _RELATIONS: relations}, own.scalars)


@runtime_checkable
class NamedRelations(Protocol):
    """What this needs of a client's data, for example :class:`flgraph.data.HeteroDataModule`."""

    @property
    def weight_rows(self) -> Sequence[Any]:
        """Which relation each row of a layer's weights belongs to: a name, or (source, name, target)."""


def _with_rows(client: Client, patterns: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
    """The parameters that have a row per relation, but those that ``trainer.personal`` keeps."""
    for name, parameter in client.module.named_parameters():
        if matches(name, patterns) and not matches(name, client.routing.first):
            yield name, parameter


def _rows_of(client: Client, patterns: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
    """Name and memory of every relation's weights in every layer."""
    data: Any = client.data
    wanted = f"data with `weight_rows` in client `{client.name}`"
    expect(isinstance(data, NamedRelations), "data", wanted, type(data).__name__)
    for name, parameter in _with_rows(client, patterns):
        for relation, row in zip(data.weight_rows, parameter.detach(), strict=True):
            yield f"{name}/{relation if isinstance(relation, str) else '|'.join(map(str, relation))}", row
