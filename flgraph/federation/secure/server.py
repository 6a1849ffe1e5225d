"""The server's half of a secure sum: it passes on what clients tell each other, and gets the sum."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor

from flgraph.errors import EngineError, InputError, expect
from flgraph.federation.aggregator import Aggregator, needs_only_sums
from flgraph.federation.messages import Request
from flgraph.federation.payload import Payload
from flgraph.federation.received import Shape, expect_group
from flgraph.federation.secure.client import (
    CODE,
    SEALED,
    as_bytes,
    digest,
    holders_of,
    mask_context,
    own_mask_key,
    plain,
)
from flgraph.federation.secure.fixed_point import decode
from flgraph.federation.secure.identity import LONGEST, Authority, signed_content
from flgraph.federation.secure.keys import PUBLIC, KeyPair
from flgraph.federation.secure.masks import Row, add_mask, sign_of
from flgraph.federation.secure.settings import FEWEST, Layout, SecureSums
from flgraph.federation.secure.shares import SECRET, combine
from flgraph.federation.transforms import Transform

Read = Callable[[str, Payload], object]
"""Takes a client's answer, or raises InputError."""

_NOBODY = KeyPair(bytes(SECRET))
"""With whom to try whether a key gives a secret."""

Ask = Callable[[Request, Mapping[str, Payload | None], Read], Sequence[str]]
"""Asks clients, and returns those whose answers were taken; what goes with the request is by client."""


class MaskedSum:
    """One exchange's sum.

    Args:
        settings: of the run.
        round: of the exchange.
        exchange: its name.
        layout: of the uploads.
        origin: digest of what all clients were sent last.
        job: see :meth:`SecureSums.context`.
        before: whose uploads it must be of, where it was opened before.
        authority: by which a client that no site signs for loses its place; the others refuse it in any case.
    """

    def __init__(
        self,
        settings: SecureSums,
        round: int,
        exchange: str,
        layout: Layout,
        origin: str = "",
        job: str = "",
        before: Collection[str] = (),
        authority: Authority | None = None,
    ) -> None:
        self.settings, self.round, self.exchange, self.layout = settings, round, exchange, layout
        self.origin, self.job, self.before, self.authority = origin, job, set(before), authority
        self.signed: dict[str, tuple[bytes, bytes]] = {}
        self.size = sum(int(np.prod(shape)) for _, shape in layout) + 1
        self.keys: dict[str, bytes] = {}
        self._parts: set[bytes] = set()
        self.context = ""
        self.neighbours: dict[str, list[str]] = {}
        self.commitments: dict[str, bytes] = {}
        self.sealed: dict[str, dict[str, bytes]] = {}
        self.there: list[str] = []
        self.masked: list[str] = []
        self.codes: dict[str, dict[str, bytes]] = {}
        self.total: Row = np.zeros(self.size, dtype=np.uint64)
        self.shares: dict[str, dict[int, bytes]] = {}

    def run(self, clients: Sequence[str], ask: Ask) -> list[str]:
        """Asks clients until :attr:`total` is the sum of their rows; returns whose are in it.

        Raises:
            EngineError: too few have stayed.
        """
        self._tell_keys(self._enough(ask(Request.KEYS, dict.fromkeys(clients), self.take_keys), len(clients)))
        keys = Payload(
            {"keys": as_bytes(b"".join(self.keys.values())).view(-1, 2 * PUBLIC)}, {"clients": "\n".join(self.keys)}
        )
        count = len(self.keys)
        there = self._enough(ask(Request.SHARES, dict.fromkeys(self.keys, keys), self.take_sealed), count)
        self.there = there
        ready = self._enough(ask(Request.HOLD, {name: self.relay(name) for name in there}, self._only), count)
        self.masked = self._enough(ask(Request.EXCHANGE, dict.fromkeys(ready), self.take_masked), count)
        if self.before - set(self.masked):
            missing = ", ".join(f"`{name}`" for name in sorted(self.before - set(self.masked)))
            raise EngineError(
                f"The sum of round {self.round} ({self.exchange}) was opened before the run was stopped, and {missing} "
                f"is not there now: over the others it would tell what was theirs."
            )
        who = Payload({"who": self._marks(self.masked)})
        confirmed = self._enough(ask(Request.CONFIRM, dict.fromkeys(self.masked, who), self.take_confirmed), count)
        told = {name: self.relay_confirmed(name) for name in confirmed}
        self._enough(ask(Request.UNMASK, told, self.take_shares), count)
        self.unmask()
        return self.masked

    def _enough(self, left: Sequence[str], of: int) -> list[str]:
        needed = max(FEWEST, self.settings.needed(of))
        if len(left) < needed:
            raise EngineError(
                f"Only {len(left)} of at least {needed} clients stayed for the secure sum of round {self.round} "
                f"({self.exchange}), and fewer do not open it."
            )
        return list(left)

    def take_keys(self, client: str, answer: Payload) -> None:
        """The public keys of a client; such that the others would refuse cost it its own place only."""
        key = plain(self._only(client, answer, keys=(2 * PUBLIC,))["keys"])
        parts = [key[:PUBLIC], key[PUBLIC:]]
        new = len({*parts, *self._parts}) == 2 + len(self._parts)
        expect(new, f"keys of client `{client}", "its own", "another client's, or one twice")
        for part in parts:
            _NOBODY.agree(part, "check")
        self._parts |= set(parts)
        self.keys[client] = key

    def _tell_keys(self, clients: Sequence[str]) -> None:
        self.keys = {name: self.keys[name] for name in sorted(clients)}
        self.context = self.settings.context(self.job, self.round, self.exchange, self.layout, self.keys)
        self.neighbours = self.settings.neighbours_of(list(self.keys), self.context)

    @property
    def mixed(self) -> str:
        """The digest from which masks derive."""
        return mask_context(self.context, self.there, self.origin)

    def take_sealed(self, client: str, answer: Payload) -> None:
        """A client's shares for its neighbours, which only these can read."""
        own = self.neighbours[client]
        signs: dict[str, Shape] = {"certificate": (None,), "signature": (None,)} if len(answer.tensors) > 2 else {}
        shapes: dict[str, Shape] = {"sealed": (len(own), SEALED), "commitment": (32,), **signs}
        found = self._only(client, answer, torch.uint8, **shapes)
        certificate, signature = (plain(found[name]) for name in signs) if signs else (b"", b"")
        few = len(certificate) <= LONGEST and len(signature) <= LONGEST
        expect(few, f"signature of client `{client}", f"of {LONGEST} bytes or fewer", "more")
        if self.authority is not None:
            self.authority.check(certificate, signature, signed_content(self.context, client))
        self.signed[client], self.commitments[client] = (certificate, signature), plain(found["commitment"])
        for name, row in zip(own, found["sealed"], strict=True):
            self.sealed.setdefault(name, {})[client] = plain(row)

    @cached_property
    def _signers(self) -> Payload:
        """Who signed for the clients that are there, if somebody did."""
        signed = [self.signed[name] for name in self.there]
        if not any(certificate for certificate, _ in signed):
            return Payload()
        distinct = list(dict.fromkeys(certificate for certificate, _ in signed))
        places = "\n".join(str(distinct.index(certificate)) for certificate, _ in signed)
        rows = {"signatures": [signature for _, signature in signed], "certificates": distinct}
        return Payload({name: _padded(own) for name, own in rows.items()}, {"signers": places})

    def relay(self, client: str) -> Payload:
        """What its neighbours have sealed for a client, and who is there."""
        rows = [self.sealed[client][name] for name in self._near(client)]
        told = {"who": self._marks(self.there), "sealed": as_bytes(b"".join(rows)).view(-1, SEALED)}
        return Payload({**told, **self._signers.tensors}, self._signers.scalars)

    def take_masked(self, client: str, answer: Payload) -> None:
        """Adds a client's masked upload."""
        masked = self._only(client, answer, torch.int64, masked=(self.size,))["masked"]
        self.total += masked.numpy().view(np.uint64)

    def take_confirmed(self, client: str, answer: Payload) -> None:
        """A client's codes for its neighbours, by which these know that it was told the same list."""
        near = self._near(client)
        codes = self._only(client, answer, codes=(len(near), CODE))["codes"]
        for name, row in zip(near, codes, strict=True):
            self.codes.setdefault(name, {})[client] = plain(row)

    def relay_confirmed(self, client: str) -> Payload:
        """The codes of its neighbours for a client; none of those who did not confirm."""
        own = self.codes.get(client, {})
        rows = [own.get(name, bytes(CODE)) for name in self._near(client)]
        return Payload({"codes": as_bytes(b"".join(rows)).view(-1, CODE)})

    def _near(self, client: str) -> list[str]:
        there = set(self.there)
        return [name for name in self.neighbours[client] if name in there]

    def take_shares(self, client: str, answer: Payload) -> None:
        """A client's shares of one secret of each of its neighbours."""
        there = set(self.there)
        of = [name for name in holders_of(client, self.neighbours[client]) if name in there]
        shares = self._only(client, answer, shares=(len(of), SECRET))["shares"]
        for name, row in zip(of, shares, strict=True):
            share = plain(row)
            if any(share):
                number = holders_of(name, self.neighbours[name]).index(client) + 1
                self.shares.setdefault(name, {})[number] = share

    def unmask(self) -> None:
        """Takes from the total what masks are left in it.

        Raises:
            EngineError: a secret cannot be put together.
        """
        masked, mixed = set(self.masked), self.mixed
        for name in self.there:
            if name in masked:
                secret = self._secret(name, partial(self._is_committed, name))
                add_mask(self.total, own_mask_key(secret, name, self.context), -1)
                continue
            left = [other for other in self.neighbours[name] if other in masked]
            if not left:
                continue
            pair = KeyPair(self._secret(name, partial(self._is_of_key, name)))
            for other in left:
                key = pair.agree(self.keys[other][:PUBLIC], f"mask/{mixed}")
                add_mask(self.total, key, -sign_of(other, name))

    def _is_committed(self, client: str, secret: bytes) -> bool:
        return digest(secret) == self.commitments[client]

    def _is_of_key(self, client: str, secret: bytes) -> bool:
        return KeyPair(secret).public == self.keys[client][:PUBLIC]

    def _secret(self, client: str, is_right: Callable[[bytes], bool]) -> bytes:
        needed, found = self.settings.needed(len(self.neighbours[client]) + 1), self.shares.get(client, {})
        secret = combine(found, needed, is_right)
        if secret is None:
            raise EngineError(
                f"The mask of client `{client}` cannot be taken from the sum of round {self.round} ({self.exchange}): "
                f"{len(found)} shares of its secret came, and {needed} right ones are needed."
            )
        return secret

    @property
    def weight(self) -> float:
        """Of all uploads together, as they were masked."""
        return float(self.total.view(np.int64)[-1]) / 2.0**self.settings.fraction_bits

    def mean(self, dtypes: Mapping[str, torch.dtype]) -> dict[str, Tensor]:
        """The weighted mean of the uploads, name to tensor.

        Raises:
            EngineError: what was added up were no uploads.
        """
        try:
            return decode(self.total, self.layout, dtypes, self.settings.fraction_bits)
        except InputError as error:
            raise EngineError(f"{error} It is that of round {self.round} ({self.exchange}).") from error

    def _marks(self, clients: Sequence[str]) -> Tensor:
        marked = set(clients)
        return torch.tensor([name in marked for name in self.keys], dtype=torch.uint8)

    @staticmethod
    def _only(client: str, answer: Payload, kind: torch.dtype = torch.uint8, **shapes: Shape) -> Mapping[str, Tensor]:
        field = f"answer` of client `{client}"
        expect(not answer.scalars, field, "without scalars", f"{len(answer.scalars)}")
        return expect_group(answer.tensors, shapes, field, kind)


def _padded(rows: Sequence[bytes]) -> Tensor:
    """Bytes as rows of one length, with line feeds behind."""
    size = max(map(len, rows))
    return as_bytes(b"".join(row.ljust(size, b"\n") for row in rows)).view(-1, size)


def check_round(clients: int) -> None:
    """Refuses rounds of so few clients that no sum is opened.

    Raises:
        InputError: says how many take part in a round.
    """
    wanted = f"null, or {FEWEST} clients or more in each round (`trainer.client_fraction`),"
    expect(clients >= FEWEST, "trainer.secure_sums", wanted, clients)


def check_method(aggregator: Aggregator, transforms: Sequence[Transform], rounds: int) -> None:
    """Refuses an algorithm whose server needs more than weighted sums, and transforms that code uploads.

    Raises:
        InputError: names it, and says why.
    """
    field = "trainer.secure_sums"
    known = aggregator.initial_weights != "own"
    expect(
        known, field, f"null with {type(aggregator).__name__}, whose server does not know what is shared", "a section"
    )
    for round in range(rounds + 1):
        for exchange in aggregator.exchanges(round):
            if not needs_only_sums(aggregator, round, exchange):
                kind, how = type(aggregator).__name__, type(aggregator.combine).__name__
                wanted = (
                    f"null with {kind} (combine: {how}), whose server needs single uploads in exchange `{exchange}`,"
                )
                raise InputError(field, wanted, "a section")
    same = type(aggregator).download is Aggregator.download
    wanted = f"null with {type(aggregator).__name__}, whose clients are sent different downloads,"
    expect(same, field, wanted, "a section")
    for transform in transforms:
        if getattr(transform, "quantile", None) is not None:
            raise InputError(field, "null with a Clip whose bound follows single uploads,", "a section")
        if transform.codes:
            wanted = f"null with {type(transform).__name__}, whose codes cannot be added up,"
            raise InputError(field, wanted, "a section")


def layout_of(shared: Mapping[str, Tensor], owners: Mapping[str, Sequence[str]]) -> Layout:
    """Names and shapes of what clients upload.

    Args:
        shared: the server's newest tensors.
        owners: client to the names of the tensors that it shares.

    Raises:
        InputError: clients share different tensors: a sum over few of them tells of each.
    """
    names = sorted(next(iter(owners.values()), ()))
    expect(bool(names), "trainer.secure_sums", "null where clients share nothing", "a section")
    for client, own in owners.items():
        field, wanted = (
            "trainer.secure_sums",
            "null where clients share different tensors (`trainer.personal` keeps some)",
        )
        expect(sorted(own) == names, field, wanted, f"a section, and client `{client}` shares others")
    return [(name, tuple(shared[name].shape)) for name in names]
