"""A client's half of a secure sum: what it makes, shares, masks and opens, and what it does not."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hmac import compare_digest

import torch
from torch import Tensor

from flgraph.errors import InputError, PolicyError, brief, expect
from flgraph.federation.messages import Request, Turn
from flgraph.federation.payload import Payload
from flgraph.federation.received import Shape, expect_group
from flgraph.federation.secure.fixed_point import encode
from flgraph.federation.secure.identity import Identity, signed_content
from flgraph.federation.secure.keys import PUBLIC, KeyPair, seal, unseal
from flgraph.federation.secure.masks import add_mask, sign_of
from flgraph.federation.secure.settings import FEWEST, MOST, Layout, SecureSums
from flgraph.federation.secure.shares import SECRET, split
from flgraph.runs.keys import canonical, derive_key

SEALED = 2 * SECRET + 16
"""Bytes of two shares on their way."""

CODE = 32
"""Bytes of what a client says to another of who is in a sum."""


@dataclass
class _Sum:
    """What a client knows of one sum. All of it is drawn afresh, used once, and never written to disk."""

    round: int
    exchange: str
    awaits: Request  # what it may be asked next
    masks: KeyPair
    sealing: KeyPair
    mask_secret: bytes  # from which `masks` derives
    own_secret: bytes  # of the mask that it has in common with nobody
    context: str = ""
    keys: dict[str, bytes] = field(default_factory=dict)
    sites: dict[str, str] = field(default_factory=dict)
    neighbours: list[str] = field(default_factory=list)
    there: list[str] = field(default_factory=list)
    masked: list[str] = field(default_factory=list)
    held: dict[str, bytes] = field(default_factory=dict)

    @property
    def neighbours_there(self) -> list[str]:
        """Those of the neighbours that shared their secrets."""
        there = set(self.there)
        return [name for name in self.neighbours if name in there]


class MaskedUploads:
    """Masks a client's uploads.

    For each exchange the server asks in this order, and a client answers each once: KEYS, SHARES, HOLD, EXCHANGE,
    CONFIRM, UNMASK. The masks follow from keys of this one sum, and from a digest of all that was told of it
    (:meth:`SecureSums.context`, the download): a server that tells two clients different things gets a sum that it
    cannot read. Who is in the sum it tells once the masked uploads are there. Before a client gives the shares that
    open a sum it wants to know that enough of those who hold its own shares were told the same (Bonawitz et al.,
    Figure 4, with codes for signatures, as those two have a key).

    Args:
        client: its name.
        settings: of the run.
        fewest: clients that a sum must be over, of as many sites where these sign, as the site's policy says.
        job: see :meth:`SecureSums.context`.
    """

    def __init__(self, client: str, settings: SecureSums, fewest: int = 0, job: str = "") -> None:
        self.client, self.settings, self.fewest, self.job = client, settings, fewest, job
        self.identity: Identity | None = None
        """With which its site signs, where kits have certificates; clients that no site signs for are refused then."""
        self._sum: _Sum | None = None
        self._begun: set[tuple[int, str]] = set()  # exchanges that it has masked an upload for
        self.confirmed: dict[tuple[int, str], str] = {}
        """Exchanges whose sums it has had opened, and what says whose these were; at a site of earlier jobs, too.
        The same upload in a sum over others would tell what these differ by."""
        self._field = f"request to client `{client}"

    def answer(self, turn: Turn, told: Payload, layout: Layout) -> Payload | None:
        """What to answer to a request about sums.

        Args:
            turn: the request.
            told: what came with it.
            layout: of what the client uploads.

        Raises:
            InputError: it is out of its turn, or would tell more than a sum.
            PolicyError: there are fewer clients than the policy wants.
        """
        expect(not told.scalars.keys() - {"clients", "signers"}, self._field, "of known numbers", "others")
        if turn.request == Request.KEYS:
            return self._make_keys(turn)
        own = self._expected(turn)
        try:
            if turn.request == Request.SHARES:
                return self._share(own, told, layout)
            if turn.request == Request.HOLD:
                self._hold(own, told)
                return None
            return self._confirm(own, told) if turn.request == Request.CONFIRM else self._unmask(own, told)
        except BaseException:
            self._sum = None
            raise

    def _expected(self, turn: Turn) -> _Sum:
        own = self._sum
        if own is None or (own.round, own.exchange, own.awaits) != (turn.round, turn.exchange, turn.request):
            raise InputError(self._field, "the next one of a secure sum", brief(turn.request))
        return own

    def _make_keys(self, turn: Turn) -> Payload:
        self._refuse_again(turn)
        mask_secret, own_secret = secrets.token_bytes(SECRET), secrets.token_bytes(SECRET)
        sealing = KeyPair(secrets.token_bytes(SECRET))
        self._sum = _Sum(
            turn.round, turn.exchange, Request.SHARES, KeyPair(mask_secret), sealing, mask_secret, own_secret
        )
        return Payload({"keys": as_bytes(self._sum.masks.public + sealing.public)})

    def _refuse_again(self, turn: Turn) -> None:
        """The same upload in a sum over other clients would tell what these differ by."""
        again = (turn.round, turn.exchange) in self._begun
        expect(not again, self._field, "for an exchange that it has not been part of", "one that it has")

    def _share(self, own: _Sum, told: Payload, layout: Layout) -> Payload:
        names = str(told.scalars.get("clients", "")).split("\n")
        expect(len(names) <= MOST, self._field, f"with {MOST} clients at most", len(names))
        keys = expect_group(told.tensors, {"keys": (len(names), 2 * PUBLIC)}, self._field, torch.uint8)["keys"]
        own.keys = {name: plain(row) for name, row in zip(names, keys, strict=True)}
        public = own.masks.public + own.sealing.public
        expect(own.keys.get(self.client) == public, self._field, "with its own keys under its name", "others")
        parts = {key[:PUBLIC] for key in own.keys.values()} | {key[PUBLIC:] for key in own.keys.values()}
        each = len(own.keys) == len(names) and len(parts) == 2 * len(names) and names == sorted(names)
        expect(each, self._field, "with clients in order and keys that are all different", "others")
        self._expect_enough(own, names)
        own.context = self.settings.context(self.job, own.round, own.exchange, layout, own.keys)
        own.neighbours = self.settings.neighbours_of(names, own.context)[self.client]
        holders = holders_of(self.client, own.neighbours)
        needed = self.settings.needed(len(holders))
        shares = {
            name: (of_mask, of_own)
            for name, of_mask, of_own in zip(
                holders,
                split(own.mask_secret, needed, len(holders)),
                split(own.own_secret, needed, len(holders)),
                strict=True,
            )
        }
        own.held[self.client] = b"".join(shares[self.client])
        sealed = [seal(self._sealing_key(own, name, self.client), b"".join(shares[name])) for name in own.neighbours]
        own.awaits = Request.HOLD
        answer = {"sealed": as_bytes(b"".join(sealed)).view(-1, SEALED), "commitment": as_bytes(digest(own.own_secret))}
        if self.identity is not None:
            signature = self.identity.sign(signed_content(own.context, self.client))
            answer |= {"certificate": as_bytes(self.identity.certificate), "signature": as_bytes(signature)}
        return Payload(answer)

    def _signers(self, own: _Sum, told: Payload) -> dict[str, str]:
        """Client to the site that signed for it; to itself where nobody signs."""
        if self.identity is None:
            return {name: name for name in own.there}
        places = str(told.scalars.get("signers", "")).split("\n")
        known = {str(place): plain(row).strip() for place, row in enumerate(told.tensors["certificates"])}
        each = len(places) == len(own.there) and set(places) <= known.keys()
        expect(each, self._field, "with a certificate for each client", "others")
        signed = zip(own.there, places, told.tensors["signatures"], strict=True)
        return {
            name: self.identity.check(known[place], plain(signature), signed_content(own.context, name))
            for name, place, signature in signed
        }

    def _hold(self, own: _Sum, told: Payload) -> None:
        own.there = self._who(own, told, list(own.keys))
        there = own.neighbours_there
        shapes: dict[str, Shape] = {"who": (len(own.keys),), "sealed": (len(there), SEALED)}
        if self.identity is not None:
            shapes |= {"signatures": (len(own.there), None), "certificates": (None, None)}
        sealed = expect_group(told.tensors, shapes, self._field, torch.uint8)["sealed"]
        own.sites = self._signers(own, told)
        self._expect_enough(own, own.there)
        holders, present = len(own.neighbours) + 1, len(there) + 1
        enough = present >= self.settings.needed(holders)
        expect(enough, self._field, f"with {self.settings.needed(holders)} or more who hold its shares", present)
        for name, row in zip(there, sealed, strict=True):
            shares = unseal(self._sealing_key(own, name, name), plain(row))
            if shares is not None and len(shares) == 2 * SECRET:  # who shares nothing spoils its own secrets only
                own.held[name] = shares
        own.awaits = Request.EXCHANGE

    def mask(self, turn: Turn, tensors: Mapping[str, Tensor], weight: float, origin: str = "") -> Payload:
        """The upload of an exchange as it travels.

        Args:
            turn: the exchange.
            tensors: to be added up, by name.
            weight: how much the client counts.
            origin: digest of the download that it began with. Were the others sent something that they cannot learn
                from, the server would know their part of the sum (Pasquini et al., CCS 2022).

        Raises:
            InputError: masks were not agreed on, or were used before; or a number is too large.
        """
        self._refuse_again(turn)
        own, self._sum = self._expected(turn), None
        self._begun.add((turn.round, turn.exchange))
        field = f"upload` of client `{self.client}"
        row = encode(tensors, weight, self.settings.fraction_bits, len(own.keys), field)
        add_mask(row, own_mask_key(own.own_secret, self.client, own.context))
        mixed = mask_context(own.context, own.there, origin)
        for name in own.neighbours_there:
            key = own.masks.agree(own.keys[name][:PUBLIC], f"mask/{mixed}")
            add_mask(row, key, sign_of(self.client, name))
        own.awaits, self._sum = Request.CONFIRM, own
        return Payload({"masked": torch.from_numpy(row.view("int64"))})

    def check_ready(self, turn: Turn) -> None:
        """Refuses an exchange for which no masks are agreed on, before any work is done.

        Raises:
            InputError: as :meth:`mask`.
        """
        self._refuse_again(turn)
        self._expected(turn)

    def _confirm(self, own: _Sum, told: Payload) -> Payload:
        """Codes for its neighbours of the one list that it takes for the right one."""
        expect(set(told.tensors) == {"who"}, self._field, "of known tensors", "others")
        own.masked = self._who(own, told, own.there)
        over = f"a sum over {len(own.masked)} clients, {mask_context('', own.masked)}"
        same = self.confirmed.setdefault((own.round, own.exchange), over) == over
        expect(same, self._field, "of a sum over those that it was over before", "others")
        own.awaits = Request.UNMASK
        codes = [self._code(own, name, self.client) for name in own.neighbours_there]
        return Payload({"codes": as_bytes(b"".join(codes)).view(-1, CODE)})

    def _unmask(self, own: _Sum, told: Payload) -> Payload:
        near = own.neighbours_there
        given = expect_group(told.tensors, {"codes": (len(near), CODE)}, self._field, torch.uint8)["codes"]
        same = 1 + sum(
            compare_digest(plain(row), self._code(own, name, name)) for name, row in zip(near, given, strict=True)
        )
        needed = self.settings.needed(len(own.neighbours) + 1)
        wanted = f"of a sum that {needed} or more of those who hold its shares were told of alike"
        expect(same >= needed, self._field, wanted, same)
        masked, there = set(own.masked), set(own.there)
        self._sum = None  # a second one would tell both secrets of a client
        shares = []
        for name in holders_of(self.client, own.neighbours):
            if name in there:
                both = own.held.get(name, bytes(2 * SECRET))
                shares.append(both[SECRET:] if name in masked else both[:SECRET])
        return Payload({"shares": as_bytes(b"".join(shares)).view(-1, SECRET)})

    def _who(self, own: _Sum, told: Payload, among: Sequence[str]) -> list[str]:
        """Clients that are marked with 1, this one among them; enough, and none but those of before."""
        names = list(own.keys)
        who = expect_group(
            {"who": told.tensors.get("who", torch.empty(0))}, {"who": (len(names),)}, self._field, torch.uint8
        )
        marked = [name for name, mark in zip(names, who["who"].tolist(), strict=True) if mark == 1]
        known = set(marked) <= set(among) and self.client in marked
        expect(known, self._field, "of itself and clients that took part so far", "others")
        self._expect_enough(own, marked)
        return marked

    def _expect_enough(self, own: _Sum, clients: Sequence[str]) -> None:
        needed = max(FEWEST, self.settings.needed(len(own.keys)))
        expect(len(clients) >= needed, self._field, f"a sum over {needed} clients or more", len(clients))
        count, what = (
            len({own.sites.get(name, name) for name in clients}),
            "clients" if self.identity is None else "sites",
        )
        if count < self.fewest:
            raise PolicyError(self._field, f"a sum over {self.fewest} {what} or more, as the policy says,", count)

    @staticmethod
    def _code(own: _Sum, other: str, sender: str) -> bytes:
        """What only two clients can make, of the sum that one of them confirms."""
        confirmed = mask_context(own.context, own.masked)
        return own.sealing.agree(own.keys[other][PUBLIC:], f"confirmed/{confirmed}/{sender}")

    @staticmethod
    def _sealing_key(own: _Sum, other: str, sender: str) -> bytes:
        return own.sealing.agree(own.keys[other][PUBLIC:], f"shares/{own.context}/{sender}")


# ---------------------------------------------------------------------------------------------------------- both sides
def holders_of(client: str, neighbours: Sequence[str]) -> list[str]:
    """Who holds shares of a client's secrets, itself among them, in the order of their shares."""
    return sorted([client, *neighbours])


def own_mask_key(secret: bytes, client: str, context: str) -> bytes:
    """Of the mask that a client has in common with nobody."""
    return derive_key(secret, f"secure sums/own mask/{context}/{client}")


def mask_context(context: str, clients: Sequence[str], origin: str = "") -> str:
    """The digest of a sum, of some of its clients, and of what they began with."""
    return digest(canonical([context, sorted(clients), origin])).hex()


def digest(content: bytes) -> bytes:
    """SHA-256."""
    return hashlib.sha256(content).digest()


def as_bytes(content: bytes) -> Tensor:
    """Bytes as a tensor, to travel."""
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def plain(tensor: Tensor) -> bytes:
    """The opposite of :func:`as_bytes`."""
    return tensor.numpy().tobytes()
