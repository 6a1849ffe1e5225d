"""Which tensors may leave a client, and under which name they do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Literal

from torch import Tensor

from flgraph.errors import InputError
from flgraph.federation.payload import Payload


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
        mismatch: for shared tensors that some client lacks or holds in another shape or dtype: ``"error"``,
            ``"personal"`` (they stay with every client), or ``"holders"`` (shared among the clients that hold them;
            their shapes must agree).
    """

    pattern: str
    kind: RouteKind
    mismatch: Literal["error", "personal", "holders"] = "error"

    @property
    def may_lack(self) -> bool:
        """Whether a client may have no tensor of this kind, as long as another one does."""
        return self.kind == RouteKind.SHARED and self.mismatch == "holders"


def shared(*patterns: str, mismatch: Literal["error", "personal", "holders"] = "error") -> list[Route]:
    """Routes for tensors that go up and come back aggregated."""
    return [Route(pattern, RouteKind.SHARED, mismatch) for pattern in patterns]


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
        return f"{'x'.join(map(str, self.shape)) or 'scalar'} {self.dtype}"


class RoutingTable:
    """The routes of one client, and the guard at its door.

    Args:
        routes: rules in order of precedence.
        tensors: the model's ``state_dict``.
        extra: patterns of uploaded tensors that are no part of the model (gradients, mashed ego-graphs, ...).
        scalars: names of the scalars that may leave.
        client: for error messages.

    Raises:
        InputError: a pattern matches nothing, or a tensor is covered by no route.
    """

    def __init__(
        self,
        routes: Sequence[Route],
        tensors: Mapping[str, Tensor],
        *,
        extra: Sequence[str] = (),
        scalars: Iterable[str] = (),
        client: str = "client",
    ) -> None:
        self.client, self.extra, self.scalars = client, tuple(extra), frozenset(scalars)
        self.rows: dict[str, RoutedTensor] = {}
        matched: set[str] = set()
        for name, tensor in tensors.items():
            hits = [route for route in routes if fnmatchcase(name, route.pattern)]
            if not hits:
                raise InputError(
                    f"Expected the routes to cover every tensor but `{name}` of client `{client}` matches none of "
                    f"{[route.pattern for route in routes]}."
                )
            matched.add(hits[0].pattern)
            dtype = str(tensor.dtype).removeprefix("torch.")
            self.rows[name] = RoutedTensor(name, tuple(tensor.shape), dtype, hits[0])
        for position, route in enumerate(routes):
            rest = route.pattern == "*" and position == len(routes) - 1  # "all others" may be none
            if route.pattern not in matched and not route.may_lack and not rest:
                hidden = any(fnmatchcase(name, route.pattern) for name in tensors)
                found = f"it matches none of {_some(tensors)}" if tensors else "its model has none"
                found = "routes before it cover all that it matches" if hidden else found
                raise InputError(
                    f"Expected route pattern `{route.pattern}` to match a tensor of client `{client}` but {found}."
                )
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
    def lines(self) -> list[tuple[str, str, str]]:
        """Name, form and kind of every tensor, the agreement among clients included."""
        return [(name, row.form, str(self.kind(name))) for name, row in self.rows.items()]

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
            if len(set(kinds.values())) > 1:
                told = " and ".join(f"`{name}` is {kind}" for name, kind in kinds.items())
                raise InputError(
                    f"Expected tied tensors of client `{self.client}` to have the same route but {told}; they are one."
                )

    def check_upload(self, payload: Payload) -> None:
        """Refuses a payload that holds anything the routes do not name.

        Raises:
            InputError: it holds a personal or unknown tensor, one of another shape, or an undeclared scalar.
        """
        for name, tensor in payload.tensors.items():
            if name in self.rows:
                row, kind = self.rows[name], self.kind(name)
                if kind == RouteKind.PERSONAL:
                    raise InputError(f"Client `{self.client}` refused to upload `{name}`: its route is personal.")
                if tuple(tensor.shape) != row.shape:
                    raise InputError(
                        f"Client `{self.client}` refused to upload `{name}`: expected shape {list(row.shape)} but got "
                        f"{list(tensor.shape)}."
                    )
            elif not any(fnmatchcase(name, pattern) for pattern in self.extra):
                raise InputError(f"Client `{self.client}` refused to upload `{name}`: no route names it.")
        for name in payload.scalars:
            if name not in self.scalars:
                raise InputError(f"Client `{self.client}` refused to upload scalar `{name}`: no route names it.")


def agree(signatures: Mapping[str, Mapping[str, str]], routes: Sequence[Route]) -> dict[str, list[str]]:
    """Which tensors each client shares, from what all of them told of their models.

    Args:
        signatures: client to :meth:`RoutingTable.signature`.
        routes: the same rules that the clients applied.

    Returns:
        Client to the names that it shares.

    Raises:
        InputError: clients hold a tensor in different forms (or some lack it) and its route does not allow for that; or
            nobody has what a route expects of some.
    """
    agreed: dict[str, list[str]] = {client: [] for client in signatures}
    names = {name: None for signature in signatures.values() for name in signature}
    for route in routes:
        if route.may_lack and not any(fnmatchcase(name, route.pattern) for name in names):
            raise InputError(
                f"Expected route pattern `{route.pattern}` to match a shared tensor of some client but it matches none "
                f"of {_some(names)}."
            )
    for name in names:
        route = next(route for route in routes if fnmatchcase(name, route.pattern))
        holders = [client for client, signature in signatures.items() if name in signature]
        forms = {signatures[client][name]: client for client in reversed(holders)}
        lacking = [client for client in signatures if name not in signatures[client]]
        if len(forms) > 1 or (lacking and route.mismatch != "holders"):
            if route.mismatch == "personal":
                continue
            told = [f"`{client}` holds {form}" for form, client in forms.items()]
            told += [f"`{client}` has none" for client in lacking[:1]]
            raise InputError(f"Expected shared `{name}` to be the same in all clients but {' and '.join(told)}.")
        for client in holders:
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
