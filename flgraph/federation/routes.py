"""Which tensors may leave a client, and under which name they do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Literal, get_args

import torch
from torch import Tensor

from flgraph.errors import InputError, expect, expect_kind
from flgraph.federation.payload import Payload

UploadKind = Literal["weights", "update", "gradient", "data"]
"""What uploaded tensors are: weights, which are relative to the client's last download; what is added to weights, or a
gradient, which are relative to zero; or data, with which no mean or distance means anything."""

OnMismatch = Literal["error", "personal", "owners"]


class RouteKind(StrEnum):
    """What may happen to a tensor of a client's model."""

    SHARED = "shared"  # goes up, comes back aggregated
    COLLECTED = "collected"  # goes up, and the server does with it what the algorithm says
    PERSONAL = "personal"  # never leaves


@dataclass(frozen=True)
class Route:
    """A rule for the parameters and buffers whose ``state_dict`` name matches a pattern; the first match counts.

    Args:
        pattern: as in a shell (``*``, ``?``, ``[...]``), case-sensitive; ``*`` also matches dots.
        kind: what may happen to the matching tensors.
        on_mismatch: for shared tensors that some client lacks or holds in another shape or dtype: ``"error"``,
            ``"personal"`` (they stay with every client), or ``"owners"`` (shared among the clients that have them;
            their shapes must agree).
    """

    pattern: str
    kind: RouteKind
    on_mismatch: OnMismatch = "error"

    def __post_init__(self) -> None:
        known = get_args(OnMismatch)
        expect(self.on_mismatch in known, f"on_mismatch of `{self.pattern}`", " or ".join(known), self.on_mismatch)

    @property
    def may_lack(self) -> bool:
        """Whether a client may have no tensor of this kind, as long as another one does."""
        return self.kind == RouteKind.SHARED and self.on_mismatch == "owners"


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether one of the patterns, which are as a shell has them, matches a name."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def shared(*patterns: str, on_mismatch: OnMismatch = "error") -> list[Route]:
    """Routes for tensors that go up and come back aggregated."""
    return [Route(pattern, RouteKind.SHARED, on_mismatch) for pattern in patterns]


def personal(*patterns: str) -> list[Route]:
    """Routes for tensors that never leave the client."""
    return [Route(pattern, RouteKind.PERSONAL) for pattern in patterns]


def collected(*patterns: str) -> list[Route]:
    """Routes for tensors that go up for the algorithm's own use."""
    return [Route(pattern, RouteKind.COLLECTED) for pattern in patterns]


@dataclass(frozen=True)
class RoutedTensor:
    """One line of the routing table."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    route: Route

    @property
    def form(self) -> str:
        """Shape and dtype in words, for example ``64x32 float32``; a zero-dimensional shape is ``scalar``."""
        return _form(self.shape, self.dtype)


def form_of(tensor: Tensor) -> str:
    """Shape and dtype of a tensor, as in :attr:`RoutedTensor.form`."""
    return _form(tensor.shape, str(tensor.dtype).removeprefix("torch."))


def parsed_form(form: str) -> tuple[list[int], torch.dtype | None]:
    """The sizes and, if it is known, the type in what :func:`form_of` wrote."""
    shape, dtype = form.split()
    known = getattr(torch, dtype, None)
    sizes = [] if shape == "scalar" else [int(size) for size in shape.split("x")]
    return sizes, known if isinstance(known, torch.dtype) else None


def _form(shape: Sequence[int], dtype: str) -> str:
    return f"{'x'.join(map(str, shape)) or 'scalar'} {dtype}"


class RoutingTable:
    """The routes of one client, and the guard at its door.

    Args:
        routes: rules in order of precedence.
        tensors: the model's ``state_dict``.
        extra: patterns of uploaded tensors that are no part of the model, and what they are (:data:`UploadKind`).
        scalars: names of the scalars that may leave.
        metrics: patterns of the metrics that may leave beside those that the model logs.
        first: patterns of tensors that are personal whatever the rules say.
        own: patterns of tensors that stand for the client's own types, in an order of its own; rules that would share
            them leave them personal.
        client: for error messages.
        network: of the algorithm, the same; see :attr:`Aggregator.network`.

    Attributes:
        first: as given: an algorithm that sends such tensors under other names has to leave them out.

    Raises:
        InputError: a pattern matches nothing, or a tensor is covered by no route.
    """

    def __init__(
        self,
        routes: Sequence[Route],
        tensors: Mapping[str, Tensor],
        *,
        extra: Mapping[str, UploadKind] = MappingProxyType({}),
        scalars: Sequence[str] = (),
        metrics: Sequence[str] = (),
        first: Sequence[str] = (),
        own: Sequence[str] = (),
        client: str = "client",
        network: str = "",
    ) -> None:
        self.client, self.extra, self.scalars, self.metrics = client, dict(extra), tuple(scalars), tuple(metrics)
        self.first = tuple(first)
        expect(isinstance(routes, list | tuple), "routes", "a list of Route", routes)
        routes = [*personal(*first), *(expect_kind(route, Route, "routes", "a list of Route") for route in routes)]
        self.rows: dict[str, RoutedTensor] = {}
        matched: set[str] = set()
        for name, tensor in tensors.items():
            hits = [route for route in routes if fnmatchcase(name, route.pattern)]
            if not hits:
                found = f"{[route.pattern for route in routes]}, none of which matches `{name}`"
                raise InputError("routes", f"those of every tensor of client `{client}`", found)
            expect(isinstance(tensor, Tensor), "model", "one whose state is tensors, without `get_extra_state`,", name)
            matched.add(hits[0].pattern)
            dtype = str(tensor.dtype).removeprefix("torch.")
            kept = hits[0].kind == RouteKind.SHARED and matches(name, own)
            route = Route(hits[0].pattern, RouteKind.PERSONAL) if kept else hits[0]
            stays = route.kind == RouteKind.PERSONAL or "/" not in name
            expect(stays, "model", "one whose tensors that leave have no `/` in their names, as groups have,", name)
            self.rows[name] = RoutedTensor(name, tuple(tensor.shape), dtype, route)
        for position, route in enumerate(routes):
            rest = route.pattern == "*" and position == len(routes) - 1  # "all others" may be none
            if route.pattern not in matched and not route.may_lack and not rest:
                same = [name for name in tensors if fnmatchcase(name, route.pattern)]
                if same and all(matches(name, first) for name in same):
                    continue  # made personal by who runs it, not overlooked by who wrote it
                if route.pattern in first and not same:
                    wanted = f"patterns of tensors of client `{client}`"
                    raise InputError("trainer.personal", wanted, f"`{route.pattern}`, which matches none")
                if network and not same:
                    wanted, found = f"{network}, the network of this algorithm,", f"one without `{route.pattern}`"
                    raise InputError("model", wanted, found)
                found = "routes before it that cover the same" if same else _some(tensors) or "a model without any"
                raise InputError(f"route {route.pattern}", f"that of a tensor of client `{client}`", found)
        self._ties = _tied(tensors)
        self.agree(self.names(RouteKind.SHARED))

    def names(self, kind: RouteKind) -> list[str]:
        """Names routed as ``kind`` by the rules, in the model's order."""
        return [name for name, row in self.rows.items() if row.route.kind == kind]

    def kind(self, name: str) -> RouteKind:
        """What may happen to ``name``, the agreement among clients included."""
        kind = self.rows[name].route.kind
        return RouteKind.PERSONAL if kind == RouteKind.SHARED and name not in self.agreed else kind

    @property
    def shared(self) -> list[str]:
        """Names of shared tensors, after the agreement among clients, in the model's order."""
        return [name for name in self.rows if self.kind(name) == RouteKind.SHARED]

    @property
    def sent(self) -> list[str]:
        """Names of all tensors of the model that may leave, after the agreement among clients."""
        return [name for name in self.rows if self.kind(name) != RouteKind.PERSONAL]

    @property
    def lines(self) -> list[tuple[str, str, str]]:
        """Name, form and kind of all that may leave and of personal tensors, the agreement among clients included."""
        tensors = [(name, row.form, str(self.kind(name))) for name, row in self.rows.items()]
        extra = [(pattern, kind, "extra tensor") for pattern, kind in self.extra.items()]
        scalars = [(name, "", "scalar") for name in self.scalars]
        return [*tensors, *extra, *scalars, *((name, "", "metric") for name in ("what the model logs", *self.metrics))]

    def signature(self) -> dict[str, str]:
        """Name to form of the tensors that the rules would share: all that a client tells of its model."""
        return {name: self.rows[name].form for name in self.names(RouteKind.SHARED)}

    def agree(self, names: Iterable[str]) -> None:
        """Restricts sharing to ``names``, the outcome of :func:`agree`.

        Raises:
            InputError: one of two names of the same tensor would be shared, and the other not.
        """
        self.agreed = frozenset(names) & frozenset(self.names(RouteKind.SHARED))
        for tie in self._ties:
            kinds = {name: self.kind(name) for name in tie}
            found = " and ".join(f"`{name}` {kind}" for name, kind in kinds.items())
            if len(set(kinds.values())) > 1:
                field = f"routes` of client `{self.client}"
                raise InputError(field, "the same for tied tensors, which are one,", found)

    def check_upload(self, payload: Payload, coded: bool = False) -> None:
        """Refuses a payload that holds anything the routes do not name.

        Args:
            payload: the upload.
            coded: whether transforms gave its tensors other shapes.

        Raises:
            InputError: it holds a personal or unknown tensor, one of another shape, or an undeclared scalar.
        """
        field = f"upload` of client `{self.client}"
        for name, tensor in payload.tensors.items():
            if name not in self.rows:
                if not matches(name, self.extra):
                    wanted = "of what the routes or `extra_tensors` name"
                    raise InputError(field, wanted, f"`{name}`, which neither does")
                continue
            if self.kind(name) == RouteKind.PERSONAL:
                raise InputError(field, "without personal tensors", f"`{name}`, whose route is personal")
            shape = tensor.shape if coded else self.rows[name].shape
            expect(tensor.shape == shape, field, f"one with `{name}` of shape {list(shape)}", list(tensor.shape))
        for name in payload.scalars:
            expect(name in self.scalars, field, f"one with scalars among {list(self.scalars)}", name)


def agree(
    signatures: Mapping[str, Mapping[str, str]], routes: Sequence[Route], first: Sequence[str] = ()
) -> dict[str, list[str]]:
    """Which tensors each client shares, from what all of them told of their models.

    Args:
        signatures: client to :meth:`RoutingTable.signature`.
        routes: the same rules that the clients applied.
        first: patterns that the clients made personal whatever the rules say.

    Returns:
        Client to the names that it shares.

    Raises:
        InputError: clients hold a tensor in different forms (or some lack it) and its route does not allow for that; or
            nobody has what a route expects of some.
    """
    agreed: dict[str, list[str]] = {client: [] for client in signatures}
    names = {name: None for signature in signatures.values() for name in signature}
    for route in routes:
        made_personal = matches(route.pattern, first)
        if route.may_lack and not made_personal and not any(fnmatchcase(name, route.pattern) for name in names):
            raise InputError(f"route {route.pattern}", "that of a shared tensor of some client", _some(names) or "none")
    for name in names:
        route = next(route for route in routes if fnmatchcase(name, route.pattern))
        owners = [client for client, signature in signatures.items() if name in signature]
        forms = {signatures[client][name]: client for client in reversed(owners)}
        lacking = [client for client in signatures if name not in signatures[client]]
        if len(forms) > 1 or (lacking and route.on_mismatch != "owners"):
            if route.on_mismatch == "personal":
                continue
            found = [f"{form} at `{client}`" for form, client in forms.items()]
            found += [f"none at `{client}`" for client in lacking[:1]]
            raise InputError(name, "the same in all clients, as it is shared,", " and ".join(found))
        for client in owners:
            agreed[client].append(name)
    return agreed


def describe_routes(tables: Iterable[Iterable[tuple[str, str, str]]]) -> list[tuple[str, str, str]]:
    """The routing table of a federation as rows (tensor, shape, route), equal rows of several clients merged.

    Args:
        tables: :attr:`RoutingTable.lines` of every client.
    """
    rows: dict[tuple[str, str], dict[str, int]] = {}
    for table in tables:
        for name, form, kind in table:
            forms = rows.setdefault((name, kind), {})
            forms[form] = forms.get(form, 0) + 1
    return [
        (name, form if len(forms) == 1 else f"{len(forms)} shapes, first {form}", kind)
        for (name, kind), forms in rows.items()
        for form in [next(iter(forms))]
    ]


def _some(names: Iterable[str], limit: int = 12) -> str:
    names = list(names)
    more = f", ... ({len(names)} in all)" if len(names) > limit else ""
    return ", ".join(f"`{name}`" for name in names[:limit]) + more


def _tied(tensors: Mapping[str, Tensor]) -> list[list[str]]:
    """Groups of names that stand for the same memory."""
    groups: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        if tensor.numel():
            groups.setdefault(tensor.untyped_storage().data_ptr(), []).append(name)
    return [names for names in groups.values() if len(names) > 1]
