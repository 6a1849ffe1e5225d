"""Uploads of which only sums are needed: they are added up as they come, and forgotten."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Hashable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from flgraph.errors import EngineError, expect
from flgraph.federation.aggregation import Sums
from flgraph.federation.payload import Payload, Scalar, is_name
from flgraph.federation.policy import NUM_SAMPLES
from flgraph.federation.routes import form_of, parsed_form
from flgraph.federation.values import LARGEST_INTEGER, OUTLIER, are_forms, largest_values

DIGEST = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Seen:
    """What stays known of an upload: all but its numbers.

    Args:
        forms: shapes and types of its tensors.
        scalars: by name.
        largest: the largest magnitude in each of its tensors of floating-point numbers.
        size: bytes that travelled, or would have.
        sha256: of these.
    """

    forms: Mapping[str, str]
    scalars: Mapping[str, Scalar]
    largest: Mapping[str, float]
    size: int = 0
    sha256: str = ""

    @classmethod
    def of(cls, upload: Payload, data: bytes = b"") -> Seen:
        """What is seen of an upload.

        Raises:
            InputError: it has numbers that cannot be added up.
        """
        return replace(cls.line(upload, data), largest=largest_values(upload.tensors, "upload"))

    @classmethod
    def line(cls, upload: Payload | None, data: bytes) -> Seen:
        """What the ledger tells of an answer, which may be one that cannot be read."""
        digest = hashlib.sha256(data).hexdigest() if data else ""
        known = Payload() if upload is None else upload
        return cls(forms_of(known), dict(known.scalars), {}, len(data), digest)

    @property
    def numbers(self) -> dict[str, float]:
        """Magnitudes of scalars, but for the number of samples, which is held against the start."""
        numbers = {name: value for name, value in self.scalars.items() if isinstance(value, int | float)}
        return {name: float(min(abs(value), 1e300)) for name, value in numbers.items() if name != NUM_SAMPLES}

    @property
    def names(self) -> set[str]:
        """Tensors of the model, groups of others, and scalars."""
        return {name.partition("/")[0] + "/*" if "/" in name else name for name in self.forms} | self.scalars.keys()

    @property
    def strikes(self) -> bool:
        """Whether it may turn out to be far from the others' uploads."""
        return max([*self.largest.values(), *self.numbers.values()], default=0.0) > OUTLIER

    def blank(self) -> Payload:
        """An upload that looks the same, but has no numbers: its tensors are on the meta device."""
        forms = {name: parsed_form(form) for name, form in self.forms.items()}
        tensors = {name: torch.empty(sizes, dtype=dtype, device="meta") for name, (sizes, dtype) in forms.items()}
        return Payload(tensors, self.scalars)


def forms_of(upload: Payload | Seen) -> Mapping[str, str]:
    """Shapes and types of its tensors by name, in words."""
    if isinstance(upload, Seen):
        return upload.forms
    return {name: form_of(tensor) for name, tensor in upload.tensors.items()}


@dataclass
class Group:
    """The sum of uploads that differ in numbers only: if one of them does not go with the others', none does."""

    clients: dict[str, Seen] = field(default_factory=dict)
    sums: Sums = field(default_factory=Sums)
    data: bytes = b""
    """As which the sum came from another process."""

    where: str = ""
    """The process or site that sent it."""

    def told(self) -> dict[str, Any]:
        """Its clients, in what JSON can hold."""
        return {client: asdict(seen) for client, seen in self.clients.items()}

    @classmethod
    def of(cls, told: Mapping[str, Any], data: bytes, where: str = "") -> Group:
        """What :meth:`told` and the sums' payload are of, whoever may have written it.

        Raises:
            InputError: it is something else.
        """
        clients = {client: _seen(seen) for client, seen in told.items()}
        expect(bool(clients), "sum", "of clients", "none")
        first = next(iter(clients.values()))
        alike = all(seen.forms == first.forms for seen in clients.values())
        expect(alike and not any("/" in name for name in first.forms), "sum", "of uploads of the same forms", "others")
        return cls(clients, Sums.from_payload(Payload.from_bytes(data), dict(first.forms)), data, where)


def _seen(told: Mapping[str, Any]) -> Seen:
    """What :meth:`Group.told` says of an upload.

    Raises:
        InputError: it is something else.
    """
    kinds = {"forms": dict, "scalars": dict, "largest": dict, "size": int, "sha256": str}
    fits = isinstance(told, dict) and {name: type(value) for name, value in told.items()} == kinds
    fits = fits and are_forms(told["forms"]) and all(map(is_name, told["scalars"]))
    fits = fits and all(parsed_form(form)[1] is not None for form in told["forms"].values())
    fits = fits and all(isinstance(v, float) and 0 <= v <= OUTLIER for v in told["largest"].values())
    fits = fits and 0 <= told["size"] <= LARGEST_INTEGER and DIGEST.fullmatch(told["sha256"]) is not None
    expect(fits, "sum", "told of with what was seen of each upload", "something else")
    seen = Seen(**told)
    numbers = {name for name, form in seen.forms.items() if "float" in form or "complex" in form}
    expect(seen.largest.keys() <= numbers, "sum", "told of with the largest values of its tensors", "others")
    return seen


class Summing:
    """Adds uploads up, and holds those that may still turn out to be far from the others'.

    Nothing has to be taken out of a sum again. An upload is refused for what it lacks or says other than most, which
    those of its group do as well, so that the whole group is left out; or for values far above the others'.

    Args:
        aggregator: one of the halves; says what uploads weigh.
    """

    def __init__(self, aggregator: Any) -> None:
        self._aggregator = aggregator
        self.groups: dict[Hashable, Group] = {}
        self.held: dict[str, Payload] = {}

    def add(self, client: str, upload: Payload, could: Collection[str], data: bytes = b"") -> Seen:
        """Adds an upload; or holds it, if there is something about it.

        Args:
            client: whose it is.
            upload: that was checked.
            could: names of the tensors of the model that the client may send.
            data: as which it travelled.

        Raises:
            InputError: it cannot be added up.
        """
        seen = Seen.of(upload, data)
        if seen.strikes:
            self.held[client] = upload
            return seen
        common = tuple(seen.scalars.get(name) for name in self._aggregator.common_scalars)
        key = (tuple(sorted(seen.forms.items())), tuple(sorted(seen.scalars)), common, frozenset(could))
        group = self.groups.setdefault(key, Group())
        group.sums.add(upload.group(), self._aggregator.client_weight(upload), client)
        group.clients[client] = seen
        return seen

    def take(self, group: Group) -> None:
        """Takes what was added up elsewhere."""
        self.groups[len(self.groups)] = group

    def spoilt(self, bad: Mapping[str, Exception]) -> dict[str, Exception]:
        """Clients whose uploads were added up with one of those in ``bad``, and the error of that one."""
        found: dict[str, Exception] = {}
        for group in self.groups.values():
            errors = [error for client, error in bad.items() if client in group.clients]
            if errors:
                found |= {client: errors[0] for client in group.clients if client not in bad}
        return found

    def total(self, accepted: Collection[str]) -> Sums:
        """The sums over these clients.

        Raises:
            EngineError: an upload among others that were added up elsewhere is not to be used.
        """
        total = Sums()
        for group in self.groups.values():
            there = group.clients.keys() & set(accepted)
            if there and there != group.clients.keys():
                left = ", ".join(f"`{client}`" for client in sorted(group.clients.keys() - there))
                raise EngineError(f"The uploads of {left} cannot be used, and were added up with others.")
            if there:
                total.merge(group.sums)
        for client, upload in self.held.items():
            if client in accepted:
                total.add(upload.group(), self._aggregator.client_weight(upload), client)
        return total
