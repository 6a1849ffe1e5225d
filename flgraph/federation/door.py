"""The server's door: what clients send is checked there before it is used."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from flgraph.errors import InputError, expect, shown
from flgraph.federation.payload import Payload, Scalar
from flgraph.federation.policy import NUM_SAMPLES
from flgraph.federation.routes import Route, RouteKind, UploadKind, form_of
from flgraph.federation.routes import personal as make_personal
from flgraph.federation.summing import Group, Seen, forms_of
from flgraph.federation.transforms import Pipeline
from flgraph.federation.values import (
    LARGEST_INTEGER,
    OUTLIER,
    alike,
    are_forms,
    expect_plain,
    largest_values,
)
from flgraph.runs.history import SAMPLES

if TYPE_CHECKING:
    from flgraph.federation.aggregator import Aggregator

_LARGEST_INITIAL = 1e4
"""Weights that were just drawn are far below; everybody begins with those of one client, who could be anybody."""

_LARGEST_METRIC = 1e100
"""So that sums of squares over many clients are finite."""

_MOST_METRICS = 1000


class ServerDoor:
    """Holds what clients send against what was agreed; whatever passes can be aggregated.

    Args:
        aggregator: the server half.
        personal: patterns of tensors that stay with clients, whatever the algorithm's routes say.
        transforms: what clients did to uploads; undone here.
        masked: whether uploads come masked, numbers of samples among them.
    """

    def __init__(
        self,
        aggregator: Aggregator,
        personal: Sequence[str] = (),
        transforms: Pipeline | None = None,
        masked: bool = False,
    ) -> None:
        self.aggregator, self.personal, self.masked = aggregator, personal, masked
        self.transforms = transforms or Pipeline((), aggregator)
        self.sent: dict[str, bytes] = {}
        """Client to its last download, where uploads are relative to it for transforms."""
        self.read: dict[str, Payload] = {}
        """Client to its last answer, as far as it could be read."""
        self.forms: dict[str, dict[str, str]] = {}
        """Client to the tensors of its model that it may send, and their forms."""
        self.counts: dict[str, int] = {}
        """Client to the number of training samples that it told at the start, where it tells it."""

    # --------------------------------------------------------------------------------------------- before round 1
    def describe(self, client: str, answer: bytes) -> dict[str, str]:
        """What a client tells of its model and itself, once; returns the forms of what it would share."""
        field = f"description` of client `{client}"
        payload = self.plain(client, answer)
        known = {RouteKind.SHARED, RouteKind.COLLECTED, NUM_SAMPLES}
        expect(set(payload.scalars) <= known, field, "of known fields", "others")
        expect(not payload.tensors, field, "without tensors", f"{len(payload.tensors)}")
        shared = self._forms(payload.scalars.get(RouteKind.SHARED), field, RouteKind.SHARED)
        collected = self._forms(payload.scalars.get(RouteKind.COLLECTED, "{}"), field, RouteKind.COLLECTED)
        count = payload.scalars.get(NUM_SAMPLES)
        if NUM_SAMPLES in self.aggregator.upload_scalars and not self.masked:
            whole = isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= LARGEST_INTEGER
            expect(whole, field, f"with a whole number as {NUM_SAMPLES}", count)
            self.counts[client] = int(count or 0)
        self.forms[client] = {**shared, **collected}
        return shared

    def differing(self, described: Mapping[str, Mapping[str, str]]) -> dict[str, InputError]:
        """Clients that cannot share what more than half of the others do, where the routes want it of all, and why."""
        refused: dict[str, InputError] = {}
        for name in {name: None for forms in described.values() for name in forms}:
            route = self._route(name)
            if route is None or route.on_mismatch == "personal":
                continue
            owners = (
                described if route.on_mismatch == "error" else [c for c, forms in described.items() if name in forms]
            )
            found = {client: described[client].get(name, "none") for client in owners}
            usual, count = Counter(found.values()).most_common(1)[0]
            for client, form in found.items() if 2 * count > len(found) else ():
                if form != usual:
                    wanted = f"with `{name}` of {usual}, as of most clients,"
                    refused[client] = InputError(f"description` of client `{client}", wanted, shown(form))
        return refused

    def agree(self, client: str, described: Mapping[str, str], agreed: Sequence[str]) -> None:
        """Takes note of what a client shares of what it would share."""
        left = described.keys() - set(agreed)
        self.forms[client] = {name: form for name, form in self.forms[client].items() if name not in left}

    def initial(self, client: str, answer: bytes, wanted: Sequence[str]) -> dict[str, Tensor]:
        """A client's initial values of the tensors that it was asked for."""
        field = f"initial weights of client `{client}"
        payload = self.plain(client, answer)
        exact = set(payload.tensors) == set(wanted) and not payload.scalars
        expect(exact, field, "those that it was asked for", "others")
        self._check_forms(client, payload, field)
        for name, value in largest_values(payload.tensors, field).items():
            expect(value <= _LARGEST_INITIAL, field, f"up to {_LARGEST_INITIAL:g} in `{name}`", value)
        return dict(payload.tensors)

    # ----------------------------------------------------------------------------------------------- in every round
    def upload(self, client: str, answer: bytes, round: int, exchange: str) -> Payload:
        """An upload of an exchange that holds nothing but what was agreed, and all that the algorithm needs.

        Raises:
            InputError: it does not.
        """
        field = f"upload` of client `{client}"
        payload = self.plain(client, answer)
        if self.transforms and answer:  # a client without an upload codes nothing
            forms = self.forms.get(client, {})
            payload = self.transforms.decode(payload, self.reference(client), forms, round == 0, field)
        largest_values(payload.tensors, field)
        self.check(client, payload, round, exchange)
        return payload

    def check(self, client: str, payload: Payload, round: int, exchange: str) -> None:
        """Refuses an upload for what it holds, whatever its numbers are.

        Raises:
            InputError: it holds something else than was agreed, or lacks what the algorithm needs.
        """
        field = f"upload` of client `{client}"
        self._check_forms(client, payload, field)
        for name, value in payload.scalars.items():
            if name not in self.aggregator.upload_scalars:
                raise InputError(field, "of declared scalars", shown(name))
            expect_plain(value, field)
        told, count = self.counts.get(client), payload.scalars.get(NUM_SAMPLES)
        same = count is None or (type(count) is int and count == told)
        expect(same, field, f"of {told} samples, as at the start", count)
        self.aggregator.check_upload(client, payload, round, exchange)

    def check_group(self, group: Group, round: int, exchange: str) -> None:
        """Refuses a sum of uploads for what is told of these, and where it cannot be theirs.

        Its weight must be what those clients weigh, and their mean no larger than the largest of their values.

        Raises:
            InputError: names what is wrong.
        """
        weights = []
        for client, seen in group.clients.items():
            field, forms = f"upload` of client `{client}", self.forms.get(client, {})
            for name, form in seen.forms.items():
                expect(alike(form, forms.get(name, "none none")), field, f"of {forms.get(name)} in `{name[:60]}`", form)
            upload = seen.blank()
            self.check(client, upload, round, exchange)
            weights.append(self.aggregator.client_weight(upload))
        expect(group.sums.weights <= {math.fsum(weights)}, "sum", f"of weight {math.fsum(weights):g}", "another")
        if not any(weights) and not group.sums.vanishes:
            raise InputError("sum", "of nothing, as its weights are 0,", "numbers")
        tensors = group.sums.mean() if any(weights) else {}
        for name, value in largest_values(tensors, "sum").items():
            most = max(seen.largest.get(name, 0.0) for seen in group.clients.values())
            expect(value <= most * (1 + 1e-9), "sum", f"of a mean up to {most:g} in `{name[:60]}`", value)

    def reference(self, client: str) -> Payload:
        """What a client was sent last, if transforms need it."""
        return _parsed(self.sent[client]) if client in self.sent else Payload()

    def compare(self, uploads: Mapping[str, Payload | Seen]) -> dict[str, InputError]:
        """Clients whose uploads, each fit for itself, do not go with the others', and why."""
        seen = {client: own if isinstance(own, Seen) else Seen.of(own) for client, own in uploads.items()}
        refused = self._incomplete(seen)
        for name in self.aggregator.common_scalars:
            values = {client: own.scalars[name] for client, own in seen.items() if name in own.scalars}
            usual = Counter(values.values()).most_common(1)[0][0] if values else None
            for client, value in values.items():
                if value != usual:
                    what = f"{name}` of client `{client}"
                    refused[client] = InputError(what, f"{shown(usual)}, as of most clients,", shown(value))
        if len(seen) < 3:
            return refused
        largest: dict[str, dict[str, float]] = {}
        for client, own in seen.items():
            for name, value in {**own.largest, **own.numbers}.items():
                largest.setdefault(name, {})[client] = value
        for name, of in largest.items():
            most = OUTLIER * max(1.0, statistics.median(of.values()))
            for client, value in of.items() if len(of) >= 3 else ():
                if value > most:
                    field = f"upload` of client `{client}"
                    refused.setdefault(client, InputError(field, f"of values up to {most:g} in `{name}`", value))
        return refused

    def usual_types(self, uploads: Mapping[str, Payload | Seen]) -> dict[str, torch.dtype]:
        """The floating-point type that most have for a tensor which came in several: each owner has a precision."""
        found: dict[str, Counter[str]] = {}
        for own in uploads.values():
            for name, form in (own.forms if isinstance(own, Seen) else forms_of(own)).items():
                found.setdefault(name, Counter())[form.split()[1]] += 1
        usual: dict[str, torch.dtype] = {}
        for name, kinds in found.items():
            if len(kinds) > 1 and all("float" in kind for kind in kinds):
                if name in self.aggregator.shared:  # has a say, too
                    kinds[form_of(self.aggregator.shared[name]).split()[1]] += 1
                usual[name] = getattr(torch, kinds.most_common(1)[0][0])
        return usual

    def _incomplete(self, uploads: Mapping[str, Seen]) -> dict[str, InputError]:
        """Clients that lack what more than half of those send that could send it, too."""
        refused: dict[str, InputError] = {}
        senders: dict[str, set[str]] = {}
        for client, upload in uploads.items():
            for name in upload.names:
                senders.setdefault(name, set()).add(client)
        tensors = {name for forms in self.forms.values() for name in forms}
        for name, sent in senders.items():
            could = {client for client in uploads if name not in tensors or name in self.forms.get(client, {})}
            if 2 * len(sent & could) > len(could):
                for client in could - sent:
                    refused[client] = InputError(f"upload` of client `{client}", f"with `{name}`", "none")
        return refused

    def metrics(self, client: str, answer: bytes) -> dict[str, float]:
        """What a client tells of an evaluation; NaN is an answer."""
        field = f"metrics` of client `{client}"
        payload = self.plain(client, answer)
        few = not payload.tensors and len(payload.scalars) <= _MOST_METRICS
        expect(few, field, f"{_MOST_METRICS} numbers or fewer", f"{len(payload.scalars)}, or tensors")
        for name, value in payload.scalars.items():
            number = (isinstance(value, int | float) and abs(value) <= _LARGEST_METRIC) or value != value
            if name.rpartition("/")[2] == SAMPLES:
                number = isinstance(value, int | float) and 0 <= value <= LARGEST_INTEGER
            named = 0 < len(name) <= 200 and name.isprintable()
            if not (number and named):
                raise InputError(field, "numbers by name", f"{type(value).__name__} as {shown(name)}")
        return {name: float(value) for name, value in payload.scalars.items()}

    def plain(self, client: str, answer: bytes) -> Payload:
        """An answer as it can be read, checked for nothing else; kept in :attr:`read`."""
        payload = self.read[client] = Payload.from_bytes(answer) if answer else Payload()
        return payload

    def _check_forms(self, client: str, payload: Payload, field: str) -> None:
        forms = self.forms.get(client, {})
        for name, tensor in payload.tensors.items():
            found = form_of(tensor)
            if name in forms:
                if not alike(found, forms[name]):
                    raise InputError(field, f"one with `{name}` of {forms[name]}", found)
                continue
            kind = self._extra(name)
            if kind is None or not name.isprintable():
                raise InputError(field, "of what the routes name", shown(name))
            own = forms.get(name.partition("/")[2]) if kind != "data" else None
            if own is not None and found.split()[0] != own.split()[0]:
                raise InputError(field, f"one with `{name}` of {own.split()[0]}", found)

    def _extra(self, name: str) -> UploadKind | None:
        """What a tensor is that is no part of the model."""
        return next((kind for p, kind in self.aggregator.extra_tensors.items() if fnmatchcase(name, p)), None)

    def _route(self, name: str) -> Route | None:
        routes = [*make_personal(*self.personal), *self.aggregator.routes()]
        return next((route for route in routes if fnmatchcase(name, route.pattern)), None)

    def _forms(self, text: Scalar | None, field: str, kind: RouteKind) -> dict[str, str]:
        """Names and forms of tensors, as :meth:`ClientDoor.describe` wrote them."""
        try:
            forms = json.loads(text) if isinstance(text, str) else None
        except (ValueError, RecursionError):
            forms = None
        expect(are_forms(forms), field, "names and forms of tensors", "something else")
        assert isinstance(forms, dict)
        for name in forms:
            route = self._route(name)
            if route is None or route.kind != kind or "/" in name:
                raise InputError(field, f"of tensors that are {kind}", shown(name))
        return forms

    # ------------------------------------------------------------------------------------------------- persistence
    def state(self) -> dict[str, Any]:
        """What was told at the start; forms that clients have in common once."""
        groups = list({json.dumps(forms): forms for forms in self.forms.values()}.values())
        return {
            "groups": groups,
            "of": {client: groups.index(forms) for client, forms in self.forms.items()},
            "counts": self.counts,
            **({"sent": _grouped(self.sent)} if self.sent else {}),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Puts back what :meth:`state` returned."""
        self.forms = {client: state["groups"][number] for client, number in state["of"].items()}
        self.counts = dict(state["counts"])
        sent = state.get("sent", {"groups": [], "of": {}})
        downloads = [tensor.numpy().tobytes() for tensor in sent["groups"]]
        self.sent = {client: downloads[number] for client, number in sent["of"].items()}


@lru_cache(maxsize=16)
def _parsed(data: bytes) -> Payload:
    return Payload.from_bytes(data, max_header=len(data))


def _grouped(sent: Mapping[str, bytes]) -> dict[str, Any]:
    """Downloads that clients have in common once."""
    groups = list(dict.fromkeys(sent.values()))
    numbers = {data: number for number, data in enumerate(groups)}
    return {
        "groups": [torch.frombuffer(bytearray(data), dtype=torch.uint8) for data in groups],
        "of": {client: numbers[data] for client, data in sent.items()},
    }
