"""Secure sums: masks cancel to the last bit, the server finds no client's value, and clients refuse to tell more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from flgraph.errors import EngineError, InputError
from flgraph.federation import (
    Payload,
    PolicyError,
    Request,
    SecureSums,
    Turn,
)
from flgraph.federation.secure.client import MaskedUploads, as_bytes, own_mask_key, plain
from flgraph.federation.secure.fixed_point import decode, encode
from flgraph.federation.secure.keys import KeyPair, seal, unseal
from flgraph.federation.secure.masks import add_mask
from flgraph.federation.secure.server import MaskedSum
from flgraph.federation.secure.shares import combine, split

LAYOUT = [("b", ()), ("w", (3, 2))]
DTYPES = {"b": torch.float64, "w": torch.float64}


class Clients:
    """Clients with given tensors and weights, and a server that sees all that crosses."""

    def __init__(
        self,
        count: int,
        settings: SecureSums | None = None,
        values: Callable[[int], Mapping[str, Tensor]] | None = None,
    ) -> None:
        self.settings = settings or SecureSums()
        self.names = [f"c{number}" for number in range(count)]
        draw = torch.Generator().manual_seed(count)
        self.tensors = {
            name: {"b": torch.randn((), generator=draw).double(), "w": torch.randn(3, 2, generator=draw).double()}
            for name in self.names
        }
        self.weights = {name: float(number + 1) for number, name in enumerate(self.names)}
        self.halves = {name: MaskedUploads(name, self.settings) for name in self.names}
        self.gone: dict[Request, Sequence[str]] = {}  # who does not answer, from which request on
        self.altered: Callable[[str, Request, Payload | None], Payload | None] = lambda name, request, told: told
        self.seen: dict[tuple[str, Request], Payload] = {}
        self.sum = MaskedSum(self.settings, 1, "train", LAYOUT)

    def answer(self, name: str, request: Request, told: Payload | None = None) -> Payload | None:
        turn = Turn(1, request, "train")
        if request == Request.EXCHANGE:
            return self.halves[name].mask(turn, self.tensors[name], self.weights[name])
        return self.halves[name].answer(turn, told or Payload(), LAYOUT)

    def ask(
        self, request: Request, told: Mapping[str, Payload | None], read: Callable[[str, Payload], Any]
    ) -> list[str]:
        there = []
        for name, sent in told.items():
            if name in self.gone.get(request, ()):
                continue
            answer = self.answer(name, request, self.altered(name, request, sent)) or Payload()
            self.seen[name, request] = answer
            read(name, answer)
            there.append(name)
        return there

    def run(self) -> dict[str, Tensor]:
        self.used = self.sum.run(self.names, self.ask)
        return self.sum.mean(DTYPES)

    def expected(self, used: Sequence[str]) -> np.ndarray[Any, Any]:
        """The sum of what these send, in Python's integers."""
        bits = self.settings.fraction_bits
        rows = [encode(self.tensors[name], self.weights[name], bits, len(self.names), "x") for name in used]
        total = [sum(int(value) for value in column) % 2**64 for column in zip(*rows, strict=True)]
        return np.array(total, dtype=np.uint64)


# ------------------------------------------------------------------------------------------------------------ the parts
def test_two_make_the_same_key_and_nobody_else() -> None:
    one, two, three = (KeyPair(bytes([number]) * 16) for number in range(3))
    assert one.agree(two.public, "x") == two.agree(one.public, "x")
    assert len({one.agree(two.public, "x"), one.agree(two.public, "y"), three.agree(two.public, "x")}) == 3
    sealed = seal(b"k" * 32, b"shares")
    assert unseal(b"k" * 32, sealed) == b"shares"
    assert unseal(b"l" * 32, sealed) is unseal(b"k" * 32, sealed[:-1] + b"\0") is None


@pytest.mark.parametrize("public", [bytes(32), b"\1" + bytes(31), (2**255 - 19).to_bytes(32, "little")])
def test_keys_of_small_order_are_refused(public: bytes) -> None:
    with pytest.raises(InputError, match="`public key` to be a point of large order"):
        KeyPair(b"1" * 16).agree(public, "x")


def test_shares_and_a_liar_among_those_who_hold_them() -> None:
    secret = bytes(range(16))
    shares = dict(enumerate(split(secret, 3, 5), start=1))
    right = secret.__eq__
    assert combine({n: shares[n] for n in (5, 1, 3)}, 3, right) == secret
    assert combine({n: shares[n] for n in (1, 2)}, 3, right) is None
    assert combine({**shares, 2: bytes(16)}, 3, right) == secret
    assert combine({1: shares[1], 2: bytes(16), 3: shares[3]}, 3, right) is None


def test_fixed_point_against_fractions() -> None:
    tensors = {
        "b": torch.tensor(-0.3, dtype=torch.float64),
        "w": torch.tensor([[1.5, 0.0], [2**-31, -7.0], [1e-3, 9.0]]),
    }
    row = encode(tensors, 3.0, 30, 4, "x").view(np.int64)
    all_numbers = [*tensors["b"].reshape(-1).tolist(), *tensors["w"].double().reshape(-1).tolist(), 1.0]
    assert row.tolist() == [round(3 * number * 2**30) for number in all_numbers]
    found = decode(row.view(np.uint64), LAYOUT, {"b": torch.float64, "w": torch.float32}, 30)
    assert found["w"].dtype == torch.float32
    for name, tensor in tensors.items():
        assert float((found[name].double() - tensor.double()).abs().max()) <= 2**-31 / 3 + 2**-24 * 9


def test_the_range_is_used_and_not_left() -> None:
    """As many clients as there are with the largest numbers that are let through: the sum is still right."""
    most = 2.0**62 / 4 / 2**30
    row = encode({"w": torch.tensor([most, -most], dtype=torch.float64)}, 1.0, 30, 4, "x")
    total = row * np.uint64(4)
    found = decode(total, [("w", (2,))], {"w": torch.float64}, 30)
    assert found["w"].tolist() == [most, -most]
    for value in (np.nextafter(most, np.inf), float("nan"), float("-inf")):
        with pytest.raises(InputError, match=r"`x` to be of numbers that are, .*, up to 1\.074e") as e:
            encode({"w": torch.tensor([value], dtype=torch.float64)}, 1.0, 30, 4, "x")
        assert str(value) not in str(e.value)


def test_neighbours_in_a_circle() -> None:
    names = [f"c{number}" for number in range(11)]
    found = SecureSums(neighbours=4).neighbours_of(names, "context")
    assert all(len(own) == 4 and name not in own for name, own in found.items())
    assert all(name in found[other] for name, own in found.items() for other in own)
    assert found != SecureSums(neighbours=4).neighbours_of(names, "other")
    assert SecureSums(neighbours=10).neighbours_of(names, "")["c0"] == names[1:]


# --------------------------------------------------------------------------------------------------------- the protocol
@pytest.mark.parametrize("settings", [SecureSums(), SecureSums(0.55, neighbours=6), SecureSums(fraction_bits=20)])
@pytest.mark.parametrize(
    "gone",
    [
        {},
        {Request.KEYS: ["c1"]},
        {Request.SHARES: ["c1"]},
        {Request.HOLD: ["c1"]},
        {Request.EXCHANGE: ["c1"]},
        {Request.CONFIRM: ["c1"]},
        {Request.UNMASK: ["c1"]},
        {Request.KEYS: ["c0"], Request.EXCHANGE: ["c4"], Request.UNMASK: ["c7"]},
    ],
    ids=lambda gone: "-".join(map(str, gone)) or "none",
)
def test_masks_cancel_to_the_last_bit(settings: SecureSums, gone: dict[Request, list[str]]) -> None:
    """Whoever drops out before masking or after it; the sum is of those who masked."""
    clients = Clients(9, settings)
    clients.gone = gone
    mean = clients.run()
    after = (Request.CONFIRM, Request.UNMASK)
    before = [name for request in list(gone) if request not in after for name in gone[request]]
    assert clients.used == [name for name in clients.names if name not in before]
    expected = clients.expected(clients.used)
    keyed = 9 - len(gone.get(Request.KEYS, ()))
    assert keyed == len(clients.sum.keys)
    assert np.array_equal(clients.sum.total, expected)
    weights = [clients.weights[name] for name in clients.used]
    exact = sum(clients.tensors[name]["w"] * clients.weights[name] for name in clients.used) / sum(weights)
    assert float((mean["w"] - exact).abs().max()) <= 2.0 ** -(settings.fraction_bits + 1) * len(weights) / sum(weights)


def test_too_few_are_left() -> None:
    clients = Clients(6)
    clients.gone = {Request.EXCHANGE: ["c0", "c1", "c2"]}
    with pytest.raises(EngineError, match=r"Only 3 of at least 4 clients stayed for .* round 1 \(train\)"):
        clients.run()
    with pytest.raises(EngineError, match="Only 2 of at least 3 clients"):
        Clients(2).run()


@pytest.mark.parametrize("value", [0.0, 1e5])
def test_what_a_server_sees_is_noise(value: float) -> None:
    """The server takes from each masked upload all that it was given the means to take; what is left tells nothing.

    Uploads of zeros and of the largest numbers look alike: evenly distributed, and without a trace of each other.
    """
    layout, size = [("w", (4000,))], 4001
    halves = {name: MaskedUploads(name, SecureSums()) for name in "abcd"}
    total = MaskedSum(SecureSums(), 1, "train", layout)
    rows: dict[str, Any] = {}

    def ask(request: Request, told: Any, read: Any) -> list[str]:
        there = [name for name in told if not (request == Request.EXCHANGE and name == "d")]
        for name in there:
            turn = Turn(1, request, "train")
            if request == Request.EXCHANGE:
                answer = halves[name].mask(turn, {"w": torch.full((4000,), value)}, 1.0)
                rows[name] = answer.tensors["masked"].numpy().view(np.uint64).copy()
            else:
                answer = halves[name].answer(turn, told[name] or Payload(), layout) or Payload()
            read(name, answer)
        return there

    total.run(list("abcd"), ask)
    dropped = KeyPair(total._secret("d", partial(total._is_of_key, "d")))
    for name, row in rows.items():
        secret = total._secret(name, partial(total._is_committed, name))
        add_mask(row, own_mask_key(secret, name, total.context), -1)
        add_mask(row, dropped.agree(total.keys[name][:32], f"mask/{total.mixed}"), -1)  # all come before d
        assert stats.chisquare(np.bincount(row.view(np.uint8), minlength=256)).pvalue > 1e-4
        assert stats.kstest(row / 2.0**64, "uniform").pvalue > 1e-4
    for one, other in ("ab", "ac", "bc"):
        assert abs(np.corrcoef(rows[one] / 2.0**64, rows[other] / 2.0**64)[0, 1]) < 5 / size**0.5
    assert np.array_equal(rows["a"] + rows["b"] + rows["c"], total.total)  # and nothing more than this is known


def test_nothing_is_sent_twice() -> None:
    """The same uploads in two runs have no number, key, share or code in common."""
    seen = []
    for _ in range(2):
        clients = Clients(4)
        clients.run()
        sent = [tensor for payload in clients.seen.values() for tensor in payload.tensors.values()]
        seen.append({row for tensor in sent for row in np.frombuffer(plain(tensor), "V8").tolist()})
    assert not seen[0] & seen[1]


# ---------------------------------------------------------------------------------------------- a server that cheats
def begun(count: int = 5, until: Request = Request.UNMASK, settings: SecureSums | None = None) -> Clients:
    """Clients that have answered all requests up to one, and not that."""
    clients = Clients(count, settings)
    clients.gone = {until: clients.names}
    with pytest.raises(EngineError):
        clients.run()
    return clients


def who(*marks: int) -> Payload:
    return Payload({"who": torch.tensor(marks, dtype=torch.uint8)})


@pytest.mark.parametrize("request_", [Request.SHARES, Request.HOLD, Request.CONFIRM, Request.UNMASK, Request.EXCHANGE])
def test_requests_out_of_their_turn(request_: Request) -> None:
    clients = Clients(4)
    with pytest.raises(InputError, match="`request to client `c0` to be the next one of a secure sum"):
        clients.answer("c0", request_, who(1, 1, 1, 1))


def test_an_exchange_is_masked_once() -> None:
    """With other clients, the same upload would tell what these differ by."""
    clients = begun()
    for request in (Request.KEYS, Request.EXCHANGE):
        with pytest.raises(InputError, match="for an exchange that it has not been part of"):
            clients.answer("c0", request)


def confirmed(clients: Clients, *marks: int) -> dict[str, Payload]:
    """Clients confirm the same list; what each of those on it is then told of the others."""
    there = [name for name, mark in zip(clients.names, marks, strict=True) if mark]
    for name in there:
        clients.sum.take_confirmed(name, clients.answer(name, Request.CONFIRM, who(*marks)) or Payload())
    return {name: clients.sum.relay_confirmed(name) for name in there}


def test_masks_are_taken_from_a_sum_once() -> None:
    clients = begun(until=Request.CONFIRM)
    told = confirmed(clients, 1, 1, 1, 1, 1)
    with pytest.raises(InputError, match="the next one of a secure sum"):  # another list
        clients.answer("c1", Request.CONFIRM, who(1, 1, 1, 1, 0))
    first = clients.answer("c0", Request.UNMASK, told["c0"])
    assert first is not None
    assert first.tensors["shares"].shape == (5, 16)
    with pytest.raises(InputError, match="the next one of a secure sum"):  # the other secrets of all but c0 and three
        clients.answer("c0", Request.UNMASK, told["c0"])


def test_of_each_client_one_secret_is_opened() -> None:
    clients = begun(until=Request.CONFIRM)
    told = confirmed(clients, 1, 1, 1, 1, 0)
    held = clients.halves["c1"]._sum
    assert held is not None
    own = clients.answer("c1", Request.UNMASK, told["c1"])
    assert own is not None
    for row, name in zip(own.tensors["shares"], clients.names, strict=True):
        both = held.held[name]
        assert plain(row) == (both[:16] if name == "c4" else both[16:])


@pytest.mark.parametrize("right", [0, 2, 3, 4])
def test_nothing_is_opened_before_enough_others_have_confirmed_the_same(right: int) -> None:
    """Four of five, itself among them; codes of nobody, of others, or made up do not count."""
    clients = begun(until=Request.CONFIRM)
    codes = confirmed(clients, 1, 1, 1, 1, 1)["c0"].tensors["codes"].clone()
    codes[right:] = codes[right:].flip(1)
    if right < 3:
        with pytest.raises(InputError, match=f"of a sum that 4 or more of those .* told of alike but got {right + 1}"):
            clients.answer("c0", Request.UNMASK, Payload({"codes": codes}))
    else:
        assert clients.answer("c0", Request.UNMASK, Payload({"codes": codes})) is not None


@pytest.mark.parametrize(
    ("marks", "sentence"),
    [
        ((0, 1, 1, 1, 1), "of itself and clients that took part so far"),
        ((1, 1, 1, 0, 0), "a sum over 4 clients or more but got 3"),
        ((1, 1, 1), "one with `who` of torch.uint8 5"),
    ],
)
def test_who_is_in_a_sum(marks: tuple[int, ...], sentence: str) -> None:
    clients = begun(until=Request.CONFIRM)
    with pytest.raises(InputError, match=sentence):
        clients.answer("c0", Request.CONFIRM, who(*marks))
    with pytest.raises(InputError, match="the next one"):  # there is no second try
        clients.answer("c0", Request.CONFIRM, who(1, 1, 1, 1, 1))


def test_a_client_that_was_not_there_cannot_be_in_the_sum() -> None:
    clients = Clients(6)
    clients.gone = {Request.SHARES: ["c5"], Request.CONFIRM: clients.names}
    with pytest.raises(EngineError):
        clients.run()
    with pytest.raises(InputError, match="of itself and clients that took part so far"):
        clients.answer("c0", Request.CONFIRM, who(1, 1, 1, 1, 1, 1))


def directory(clients: Clients, change: Callable[[list[str], list[bytes]], None]) -> Payload:
    names, keys = list(clients.sum.keys), list(clients.sum.keys.values())
    change(names, keys)
    return Payload({"keys": as_bytes(b"".join(keys)).view(-1, 64)}, {"clients": "\n".join(names)})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda names, keys: keys.__setitem__(1, keys[0]), "clients in order and keys that are all different"),
        (lambda names, keys: keys.__setitem__(1, keys[1][:32] * 2), "clients in order and keys that are all different"),
        (lambda names, keys: names.__setitem__(1, "c0"), "with its own keys under its name"),
        (lambda names, keys: names.__setitem__(2, "c1"), "clients in order and keys that are all different"),
        (lambda names, keys: keys.__setitem__(0, keys[1]), "with its own keys under its name"),
        (lambda names, keys: (names.pop(0), keys.pop(0)), "with its own keys under its name"),
        (lambda names, keys: keys.__setitem__(1, keys[1][:32] + bytes(32)), "a point of large order"),
        (
            lambda names, keys: [part.__delitem__(slice(2, None)) for part in (names, keys)],
            "a sum over 3 clients or more",
        ),
        (lambda names, keys: names.pop(), "one with `keys`"),
    ],
)
def test_keys_that_cannot_be(change: Any, sentence: str) -> None:
    clients = begun(until=Request.SHARES)
    with pytest.raises(InputError, match=sentence):
        clients.answer("c0", Request.SHARES, directory(clients, change))


def test_who_is_told_of_other_clients_spoils_the_sum_and_tells_nothing() -> None:
    """A server that tells one client other keys than the others cannot read what it gets: it is one bad sum."""
    clients = Clients(5)
    stranger = KeyPair(b"s" * 16)

    def other(name: str, request: Request, told: Payload | None) -> Payload | None:
        if (name, request) != ("c0", Request.SHARES):
            return told
        return directory(clients, lambda names, keys: keys.__setitem__(4, stranger.public + keys[4][32:]))

    clients.altered = other
    with pytest.raises(InputError, match="of a sum that 4 or more of those who hold its shares were told of alike"):
        clients.run()


def test_another_layout_or_resolution_spoils_the_sum() -> None:
    clients = Clients(5)
    clients.halves["c0"] = MaskedUploads("c0", SecureSums(fraction_bits=31))
    with pytest.raises(InputError, match="were told of alike"):
        clients.run()


def test_a_policy_wants_more_clients() -> None:
    clients = Clients(4)
    clients.halves["c2"] = MaskedUploads("c2", SecureSums(), fewest=5)
    with pytest.raises(PolicyError, match="a sum over 5 clients or more, as the policy says, but got 4"):
        clients.run()


# --------------------------------------------------------------------------------------------------- a bad client
@pytest.mark.parametrize("bad", ["twice", "another's", "small order"])
def test_bad_keys_cost_their_client_only(bad: str) -> None:
    clients = Clients(5)
    answers = {name: clients.answer(name, Request.KEYS) for name in clients.names}
    key = plain(answers["c0"].tensors["keys"])  # type: ignore[union-attr]
    clients.sum.take_keys("c0", Payload({"keys": as_bytes(key)}))
    sent = {"twice": bytes([9]) * 64, "another's": b"x" * 32 + key[:32], "small order": b"x" * 32 + bytes(32)}[bad]
    with pytest.raises(InputError):
        clients.sum.take_keys("c1", Payload({"keys": as_bytes(sent)}))
    assert set(clients.sum.keys) == {"c0"}


def test_shares_that_nobody_can_read_spoil_the_secrets_of_who_sent_them() -> None:
    def alter(clients: Clients) -> None:
        seen, take = clients.sum, clients.sum.take_sealed

        def spoilt(name: str, answer: Payload) -> None:
            if name == "c1":
                answer = Payload({**answer.tensors, "sealed": torch.zeros_like(answer.tensors["sealed"])})
            take(name, answer)

        seen.take_sealed = spoilt  # type: ignore[method-assign]

    clients = Clients(5)
    alter(clients)
    with pytest.raises(EngineError, match="The mask of client `c1` cannot be taken from the sum of round 1"):
        clients.run()


def test_how_many_are_needed_by_hand() -> None:
    """More than half of an odd number; 0.56 of 25 are 14, whatever floats make of it."""
    assert SecureSums(0.51).needed(7) == 5
    assert SecureSums(0.56).needed(25) == 14


def test_masks_are_of_one_exchange_of_one_job() -> None:
    told = {"a": b"1"}
    contexts = {
        SecureSums().context(job, round, exchange, [("w", (size,))], told)
        for job, round, exchange, size in (
            *(("job", 1, "train", 2), ("job", 2, "train", 2), ("job", 1, "other", 2)),
            *(("job", 1, "train", 3), ("", 1, "train", 2)),
        )
    }
    assert len(contexts) == 5


def test_complex_numbers_and_sums_out_of_range_are_refused() -> None:
    with pytest.raises(InputError, match="real numbers"):
        encode({"w": torch.ones(1, dtype=torch.complex64)}, 1.0, 30, 3, "f")
    for row in ([1, 0], [-(2**63) + 5, 2**30]):  # no weight, a number below the range
        with pytest.raises(InputError, match="numbers in their range"):
            decode(np.array(row, dtype=np.int64).view(np.uint64), [("w", (1,))], {"w": torch.float32}, 30)
