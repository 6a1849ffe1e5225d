"""A server that does not keep to the protocol of secure sums, and a client that does not: what they get."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from offices import Office

from flgraph.callbacks import FedAvg
from flgraph.cli.main import main
from flgraph.errors import ClientError, EngineError, InputError
from flgraph.federation import (
    GaussianNoise,
    Payload,
    Policy,
    PolicyError,
    Request,
    SecureSums,
    Sequential,
    Turn,
)
from flgraph.federation.engines.host import Message, SiteHost, run_request
from flgraph.federation.engines.remote import Remote
from flgraph.federation.secure.client import MaskedUploads, holders_of, own_mask_key
from flgraph.federation.secure.identity import Authority, Identity
from flgraph.federation.secure.keys import PUBLIC, KeyPair
from flgraph.federation.secure.masks import Row, add_mask, sign_of
from flgraph.federation.secure.server import MaskedSum
from flgraph.federation.secure.shares import combine
from flgraph.runs.checkpoint import load_bytes, state_bytes

LAYOUT = [("w", (5,))]
Lists = Callable[[str], Sequence[str]]


class Cheat:
    """Clients whose uploads a server has, masked, as the protocol says; what comes then is the server's own."""

    def __init__(self, count: int, settings: SecureSums) -> None:
        self.names = [f"c{number:03d}" for number in range(count)]
        self.settings = settings
        self.halves = {name: MaskedUploads(name, settings) for name in self.names}
        self.uploads = {name: {"w": torch.full((5,), float(n))} for n, name in enumerate(self.names)}
        self.rows: dict[str, Row] = {}
        self.sum = MaskedSum(settings, 1, "train", LAYOUT)
        self.refused: dict[str, str] = {}
        self.told: dict[str, set[str]] = {}
        with pytest.raises(BegunError):
            self.sum.run(self.names, self._ask)

    def _ask(self, request: Request, told: Mapping[str, Payload | None], read: Any) -> list[str]:
        for name, sent in told.items():
            if request == Request.EXCHANGE:
                turn = Turn(1, request, "train")
                answer = self.halves[name].mask(turn, self.uploads[name], 1.0)
                self.rows[name] = answer.tensors["masked"].numpy().view(np.uint64).copy()
            else:
                answer = self.answer(name, request, sent) or Payload()
            read(name, answer)
        if request == Request.EXCHANGE:
            raise BegunError
        return list(told)

    def answer(self, name: str, request: Request, told: Payload | None = None) -> Payload | None:
        return self.halves[name].answer(Turn(1, request, "train"), told or Payload(), LAYOUT)

    def open_by(self, lists: Lists) -> None:
        """Tells each client a list of its own of who is in the sum, and keeps the shares that it gives."""
        self.sum.masked = list(self.names)
        confirmed = []
        for name in self.names:
            marks = self.told[name] = set(lists(name))
            who = Payload({"who": torch.tensor([own in marks for own in self.sum.keys], dtype=torch.uint8)})
            try:
                self.sum.take_confirmed(name, self.answer(name, Request.CONFIRM, who))
                confirmed.append(name)
            except InputError as refusal:
                self.refused[name] = str(refusal)
        for name in confirmed:
            try:
                self.sum.take_shares(name, self.answer(name, Request.UNMASK, self.sum.relay_confirmed(name)))
            except InputError as refusal:
                self.refused[name] = str(refusal)

    def secret(self, name: str, own: bool) -> bytes | None:
        """One of a client's two secrets, if the shares that the server has are enough."""
        holders = holders_of(name, self.sum.neighbours[name])
        found = {n: s for n, s in self.sum.shares.get(name, {}).items() if (name in self.told[holders[n - 1]]) == own}
        right = partial(self.sum._is_committed if own else self.sum._is_of_key, name)
        return combine(found, self.settings.needed(len(holders)), right)

    def left_of(self, target: str) -> tuple[Row, list[str]]:
        """A masked upload without the masks that the server could take from it, and with whom it shares what is left.

        The client itself is among these where the mask that it has in common with nobody is left.
        """
        row, left, seen = self.rows[target].copy(), [], self.sum
        own = self.secret(target, True)
        if own is None:
            left.append(target)
        else:
            add_mask(row, own_mask_key(own, target, seen.context), -1)
        for other in seen.neighbours[target]:
            secret = self.secret(other, False)
            if secret is None:
                left.append(other)
                continue
            key = KeyPair(secret).agree(seen.keys[target][:PUBLIC], f"mask/{seen.mixed}")
            add_mask(row, key, -sign_of(target, other))
        return row, left

    def readable(self, target: str) -> set[str]:
        """Clients of the smallest sum with this one's upload that the server can read; none where there is none."""
        found, waiting = {target}, [target]
        while waiting:
            one = waiting.pop()
            left = self.left_of(one)[1]
            if one in left:  # the mask that it has in common with nobody
                return set()
            waiting += set(left) - found
            found |= set(left)
        return found


class BegunError(Exception):
    pass


def test_an_honest_list_is_opened() -> None:
    cheat = Cheat(10, SecureSums(neighbours=4))
    cheat.open_by(lambda name: cheat.names)
    assert not cheat.refused
    total = sum(cheat.left_of(name)[0] for name in cheat.names)
    assert all(name not in cheat.left_of(name)[1] for name in cheat.names)
    assert total[:5].tolist() == [45 * 2**30] * 5


@pytest.mark.parametrize("neighbours", [4, 6, 10])
def test_no_lists_that_differ_open_one_client_upload(neighbours: int) -> None:
    """To most clients all neighbours of one are gone; to each of these it is there, and the others are gone.

    So each of the neighbours gives its share of the one's own mask, and the others theirs of the neighbours' keys.
    """
    cheat = Cheat(40, SecureSums(neighbours=neighbours))
    target = cheat.names[7]
    near = set(cheat.sum.neighbours[target])
    cheat.open_by(lambda name: [own for own in cheat.names if own not in near - {name}])
    assert cheat.readable(target) != {target}
    assert any("who hold its shares were told of alike" in sentence for sentence in cheat.refused.values())


def test_no_lists_that_differ_open_a_sum_over_fewer_clients_than_each_names() -> None:
    """Of ten clients each list names seven; shares for four that some lists do not name open a sum over six."""
    cheat = Cheat(10, SecureSums())
    gone, told = cheat.names[:4], {name: set(cheat.names) for name in cheat.names}
    for name in gone * 7:  # seven clients hear of each that it is gone, three at most by one list
        takers = sorted((own for own in cheat.names if own != name and name in told[own]), key=lambda o: -len(told[o]))
        told[takers[0]].remove(name)
    assert min(map(len, told.values())) >= 7
    cheat.open_by(lambda name: sorted(told[name]))
    assert not 0 < len(cheat.readable(cheat.names[9])) < 7
    assert cheat.refused


def test_no_list_cuts_the_circle_in_two() -> None:
    """With a share of 0.55 three of five gave the keys of two clients side by side: two more, beyond, stood alone."""
    cheat = Cheat(60, SecureSums(0.55, neighbours=4))
    context = cheat.sum.context
    circle = sorted(cheat.names, key=lambda name: hashlib.sha256(f"{context}/{name}".encode()).digest())
    gone = {*circle[:2], *circle[4:6]}
    cheat.open_by(lambda name: [own for own in cheat.names if own not in gone])
    assert not 0 < len(cheat.readable(circle[2])) < 30


# ----------------------------------------------------------------------------- what clients are sent, and when again
class Unlike(Sequential):
    """Sends all but one client a model that learns nothing, so that their part of a sum is known."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.found = way, 0

    def run(self, turns: Mapping[str, Turn]) -> Mapping[str, bytes | Exception]:
        turn = next(iter(turns.values()))
        if turn.round == 2 and turn.request == Request.EXCHANGE:
            for name in turns.keys() - {"A"}:
                self.spoil(name)
        return super().run(turns)

    def spoil(self, name: str) -> None:
        client = self.host.clients[name]
        newest = client.last_download
        dead = Payload({name: torch.zeros_like(tensor) for name, tensor in newest.tensors.items()}).to_bytes()
        self.host.turn(name, Turn(1, Request.EVALUATE, download=dead))
        if self.way == "by a copy":  # the newest comes last, and the dead model is put back
            self.host.turn(name, Turn(1, Request.SNAPSHOT))
            self.host.turn(name, Turn(1, Request.EVALUATE, download=newest.to_bytes()))
            self.host.turn(name, Turn(1, Request.RESTORE))
        if self.way == "by a state":
            self.host.turn(name, Turn(1, Request.SNAPSHOT))
            self.host.turn(name, Turn(1, Request.EVALUATE, download=newest.to_bytes()))
            self.host.turn(name, Turn(1, Request.RESTORE))
            client.load_state(load_bytes(state_bytes(client.state()), "state"))
        learned = client.shared_tensors()
        if self.way == "by what came last":  # the model is put back, and what algorithms and transforms go by is not
            client.load_shared(newest.tensors)
            self.host.turn(name, Turn(1, Request.EVALUATE, download=newest.to_bytes()))
            self.host.turn(name, Turn(1, Request.SNAPSHOT))
            self.host.turn(name, Turn(1, Request.EVALUATE, download=dead))
            self.host.turn(name, Turn(1, Request.RESTORE))
            learned = client.last_download.tensors
        self.found += not any(bool(tensor.any()) for tensor in learned.values())


@pytest.mark.parametrize("way", ["by a download", "by a copy", "by a state", "by what came last"])
def test_who_is_sent_another_model_than_the_others_spoils_the_sum(
    way: str, federate: Any, toy_federation: Any, toy_module: Any
) -> None:
    """Pasquini et al., "Eluding Secure Aggregation in Federated Learning via Model Inconsistency", CCS 2022."""
    engine = Unlike(way)
    trainer = federate(FedAvg("uniform"), rounds=2, engine=engine, secure_sums=SecureSums())
    with pytest.raises(EngineError, match="a client masked something else"):
        trainer.fit(toy_module(), toy_federation(6, 6, 6, 6))
    assert engine.found == 3


def test_clients_of_other_jobs_are_not_added_up() -> None:
    """Others that were told to learn nothing are none to be hidden among."""
    names = ["a", "b", "c", "d"]
    halves = {name: MaskedUploads(name, SecureSums(), job="one" if name == "a" else "other") for name in names}
    total = MaskedSum(SecureSums(), 1, "train", LAYOUT, job="other")

    def ask(request: Request, told: Mapping[str, Payload | None], read: Any) -> list[str]:
        there = []
        for name, sent in told.items():
            turn = Turn(1, request, "train")
            try:
                if request == Request.EXCHANGE:
                    answer: Payload | None = halves[name].mask(turn, {"w": torch.ones(5)}, 1.0)
                else:
                    answer = halves[name].answer(turn, sent or Payload(), LAYOUT)
            except InputError:
                continue
            read(name, answer or Payload())
            there.append(name)
        return there

    with pytest.raises(EngineError, match="The mask of client `a` cannot be taken from the sum"):
        total.run(names, ask)


class Sites:
    """A client at each of four sites in this process, whose jobs can be begun anew; one may be gone."""

    def __init__(self, folder: Path, federate: Any, model: Any, data: Any) -> None:
        self.folder, self.federate, self.model, self.data = folder, federate, model, data
        self.gone = self.lose = ""

    def open(self, rounds: int = 2) -> Any:
        """A job of the run; the server's trainer for it."""
        arguments = {"rounds": rounds, "secure_sums": SecureSums(), "name": "run"}
        self.hosts = {}
        for number, name in enumerate("ABCD"):
            here = self.federate(FedAvg("uniform"), enable_checkpointing=False, **arguments)
            clients = here.host(self.model, self.data, [name])
            self.hosts[name] = SiteHost(clients, self.folder / name, "run", bytes([number]) * 32)
            self.hosts[name].note_in(self.folder / f"{name}.jsonl")
        about = {n: {n: host.clients[n].disclosed(host.key)} for n, host in self.hosts.items()}
        office = Office(self.hosts)
        office.rule = self._fate
        return self.federate(
            FedAvg("uniform"), engine=Remote(office, about, 60.0, 0.0), keep_checkpoints=9, **arguments
        )

    def _fate(self, site: str, message: Message) -> str:
        turn = message.header.get("turns", {}).get(site, {"round": 0, "request": ""})
        gone = turn["request"] == Request.EXCHANGE and site == self.gone
        return "lose" if turn["round"] == 2 and (gone or turn["request"] == self.lose) else "deliver"


@pytest.fixture
def sites(tmp_path: Path, federate: Any, toy_federation: Any, toy_module: Any) -> Sites:
    return Sites(tmp_path / "sites", federate, toy_module(), toy_federation(6, 6, 6, 6))


def first_round(trainer: Any) -> str:
    return str(trainer.run_dir / "checkpoints" / "round-00001")


def test_a_round_that_was_summed_is_summed_again_over_the_same_clients_only(
    sites: Sites, monkeypatch: pytest.MonkeyPatch, assert_same: Any
) -> None:
    """The difference of the two sums would be the upload of who is missing: it is the same bits."""
    trainer = sites.open()
    trainer.fit(sites.model, sites.data)
    whole = trainer.server.aggregator.shared
    again, sites.gone = sites.open(), "D"
    with pytest.raises(EngineError, match="was opened before the run was stopped, and `D` is not there now"):
        again.fit(sites.model, sites.data, ckpt_path=first_round(trainer))
    monkeypatch.setattr(
        "flgraph.federation.loop.lost_sums", lambda lines, after: {}
    )  # of a server that has no scruples
    with pytest.raises(ClientError, match="Only 0 of at least 1 clients answered in time") as e:
        sites.open().fit(sites.model, sites.data, ckpt_path=first_round(trainer))
    assert "`A` (refused)" in str(e.value) or "A (" in str(e.value)
    monkeypatch.undo()
    again, sites.gone = sites.open(), ""
    again.fit(sites.model, sites.data, ckpt_path=first_round(trainer))
    assert_same(again.server.aggregator.shared, whole)


def test_a_round_that_was_not_summed_is_done_again_with_who_is_there(sites: Sites) -> None:
    trainer, sites.lose = sites.open(), "confirm"
    with pytest.raises(EngineError):
        trainer.fit(sites.model, sites.data)
    again, sites.lose, sites.gone = sites.open(), "", "D"
    again.fit(sites.model, sites.data, ckpt_path="last")
    assert again.record.clients == ["A", "B", "C"]


def test_two_jobs_of_a_run_at_once(sites: Sites) -> None:
    """Each would mask the same uploads, for the sums of other clients: a site answers the newest job."""
    trainer = sites.open(rounds=1)
    trainer.fit(sites.model, sites.data)
    older = sites.hosts["A"]
    sites.open(rounds=1)
    request = run_request({"A": Turn(1, Request.KEYS, "train")}, keep_going=True, bases={"A": 0}, numbers={"A": 1})
    request = Message({**request.header, "bases": {"A": older._number["A"]}}, request.pieces)
    sites.hosts["A"].answer(Message({"do": "ping"}))
    assert isinstance(sites.hosts["A"].answer(request), Message)
    assert older.answer(request).header["errors"] == {"A": "refused"}


# ------------------------------------------------------------------------------------------------------ a bad client
@pytest.mark.parametrize("weight", [-2.99, 0.001, 50.0])
def test_noise_does_not_get_smaller_by_the_weight_that_a_bad_client_masks(
    weight: float, federate: Any, toy_federation: Any, toy_module: Any
) -> None:
    """With noise at the server, other clients see the mean: what is left of honest uploads has noise of the deviation.

    The sum is divided by the weights' sum, of which one client can make anything.
    """

    class Odd(FedAvg):
        def client_weight(self, upload: Payload) -> float:
            return weight if getattr(self, "bad", False) else 1.0

    class One(Sequential):
        def run(self, turns: Mapping[str, Turn]) -> Mapping[str, bytes | Exception]:
            self.host.clients["A"].aggregator.bad = True
            return super().run(turns)

    means = []
    for multiplier in (1e-9, 1000.0):
        noise = [GaussianNoise(0.1, multiplier, at="server")]
        trainer = federate(Odd("uniform"), rounds=1, engine=One(), secure_sums=SecureSums(), transforms=noise)
        trainer.fit(toy_module(), toy_federation(6, 6, 6, 6))
        means.append(torch.cat([t.double().flatten() for t in trainer.server.aggregator.shared.values()]))
    assert float((means[1] - means[0]).std()) == pytest.approx(100.0 / (3 + weight), rel=0.4)


def test_sums_that_are_rounded_too_far_for_noise_at_the_server(
    federate: Any, toy_federation: Any, toy_module: Any
) -> None:
    """An update that is rounded after it was clipped is longer than noise allows for."""
    noise = {"transforms": [GaussianNoise(0.1, 1.0, at="server")], "rounds": 1}
    trainer = federate(FedAvg("uniform"), secure_sums=SecureSums(fraction_bits=14), **noise)
    with pytest.raises(InputError, match=r"`trainer.secure_sums.fraction_bits` to be so many that rounding"):
        trainer.fit(toy_module(), toy_federation(6, 6, 6))
    trainer = federate(FedAvg("uniform"), secure_sums=SecureSums(fraction_bits=15), **noise)
    trainer.fit(toy_module(), toy_federation(6, 6, 6))


# -------------------------------------------------------------------------------------------------- a site's demands
def test_a_site_that_wants_many_clients_wants_as_many_neighbours(
    federate: Any, toy_federation: Any, toy_module: Any
) -> None:
    """These alone, together with the server, can open its upload."""
    policy = Policy(secure_sums=6, metrics={"*": None})
    run = {"rounds": 1, "policy": policy}
    trainer = federate(FedAvg(), secure_sums=SecureSums(neighbours=4), **run)
    with pytest.raises(PolicyError, match=r"`trainer.secure_sums.neighbours` to be 5 or more, as the policy wants"):
        trainer.fit(toy_module(), toy_federation(*[6] * 7))
    federate(FedAvg(), secure_sums=SecureSums(neighbours=6), **run).fit(toy_module(), toy_federation(*[6] * 8))


# ------------------------------------------------------------------------------------------- who signs clients' keys
class Root:
    """Who provisions: certificates as kits have them."""

    def __init__(self) -> None:
        self.key, self.certificate = self.issue("flgraph", None)

    def issue(self, name: str, issuer: Root | None, days: int = 9, role: str = "") -> tuple[RSAPrivateKey, bytes]:
        key, now = generate_private_key(65537, 2048), datetime.now(UTC)
        person = [x509.NameAttribute(NameOID.UNSTRUCTURED_NAME, role)] if role else []
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name), *person])
        by = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "flgraph")])
        made = x509.CertificateBuilder(by, subject, key.public_key(), x509.random_serial_number())
        made = made.not_valid_before(now - timedelta(days=10)).not_valid_after(now + timedelta(days=days))
        return key, made.sign(issuer.key if issuer else key, SHA256()).public_bytes(Encoding.PEM)

    def identity(self, name: str, **kwargs: Any) -> Identity:
        key, certificate = self.issue(name, self, **kwargs)
        secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return Identity(certificate, secret, self.certificate, ["server"])


@pytest.fixture(scope="module")
def root() -> Root:
    return Root()


def signed_run(
    root: Root,
    signers: Mapping[str, Identity | None],
    fewest: int = 0,
    authority: Authority | None = None,
    told: Callable[[str, Payload], Payload] = lambda name, payload: payload,
    told_at: Request = Request.HOLD,
) -> tuple[MaskedSum, dict[str, str]]:
    """A sum of clients whose keys are signed by whom it says, and who refused."""
    halves = {name: MaskedUploads(name, SecureSums(), fewest, "job") for name in signers}
    for name, half in halves.items():
        half.identity = signers[name]
    total = MaskedSum(SecureSums(), 1, "train", LAYOUT, job="job", authority=authority)
    refused = {}

    def ask(request: Request, told_: Mapping[str, Payload | None], read: Any) -> list[str]:
        there = []
        for name, sent in told_.items():
            turn = Turn(1, request, "train")
            try:
                if request == Request.EXCHANGE:
                    answer: Payload | None = halves[name].mask(turn, {"w": torch.ones(5)}, 1.0)
                else:
                    sent = told(name, sent) if request == told_at and sent else sent
                    answer = halves[name].answer(turn, sent or Payload(), LAYOUT)
                read(name, answer or Payload())
            except InputError as error:
                refused[name] = str(error)
            else:
                there.append(name)
        return there

    try:
        total.run(sorted(signers), ask)
    except EngineError as error:
        refused["the server"] = str(error)
    return total, refused


def test_keys_that_sites_signed(root: Root) -> None:
    north, east = root.identity("north"), root.identity("east")
    authority = Authority(root.certificate)
    total, refused = signed_run(root, {"a": north, "b": north, "c": east, "d": east}, 2, authority)
    assert not refused
    assert total.mean({"w": torch.float64})["w"].tolist() == [1.0] * 5
    _, refused = signed_run(root, {"a": north, "b": north, "c": east, "d": east}, 3, authority)
    assert all("a sum over 3 sites or more, as the policy says, but got 2" in refused[name] for name in "abcd")


@pytest.mark.parametrize("who", ["another root", "an administrator", "an old one", "nobody", "the server"])
def test_keys_that_no_site_signed(who: str, root: Root) -> None:
    """They cost their client its place; and where the server says nothing, the others refuse them."""
    other = {
        "another root": lambda: Root().identity("west"),
        "an administrator": lambda: root.identity("admin", role="project_admin"),
        "an old one": lambda: root.identity("west", days=-1),
        "nobody": lambda: None,
        "the server": lambda: root.identity("server"),
    }[who]()
    signers: dict[str, Identity | None] = {name[0]: root.identity(name) for name in ("north", "east", "south", "far")}
    if who != "the server":
        total, refused = signed_run(root, {**signers, "z": other}, authority=Authority(root.certificate))
        assert list(refused) == ["z"]
        assert "one that a site of the federation signs for" in refused["z"]
        assert total.masked == sorted(signers)
    _, refused = signed_run(root, {**signers, "z": other})
    assert refused.keys() >= set(signers)


@pytest.mark.parametrize("way", ["unsigned", "moved", "other keys"])
def test_a_server_cannot_put_keys_of_its_own_under_names_of_others(way: str, root: Root) -> None:
    signers: dict[str, Identity | None] = {name: root.identity(name) for name in ("a", "b", "c", "d")}

    def told(name: str, payload: Payload) -> Payload:
        if name != "a":
            return payload
        tensors = dict(payload.tensors)
        if way == "unsigned":
            return Payload({key: tensors[key] for key in ("who", "sealed")})
        if way == "moved":
            tensors["signatures"] = tensors["signatures"][[0, 2, 1, 3]]
        else:
            tensors["keys"] = tensors["keys"].clone()
            tensors["keys"][1, :32] = torch.frombuffer(bytearray(KeyPair(b"s" * 16).public), dtype=torch.uint8)
        return Payload(tensors, payload.scalars)

    _, refused = signed_run(root, signers, told=told, told_at=Request.SHARES if way == "other keys" else Request.HOLD)
    sentence = "with a certificate for each client|one with `signatures`|one that a site of the federation signs for"
    assert re.search(sentence, refused["a"])


def test_keys_whose_secrets_a_server_has_do_not_come_again(root: Root) -> None:
    """It gets to know those of clients that were gone; in the same round of a later job these would be its own."""
    signers: dict[str, Identity | None] = {name: root.identity(name) for name in ("a", "b", "c", "d")}
    first, _ = signed_run(root, signers)

    def told(name: str, payload: Payload) -> Payload:
        rows = {place: key for place, key in enumerate(first.keys.values()) if name == "a" and place}
        keys = payload.tensors["keys"].clone()
        for place, key in rows.items():
            keys[place] = torch.frombuffer(bytearray(key), dtype=torch.uint8)
        return Payload({"keys": keys}, payload.scalars)

    second, refused = signed_run(root, signers, told=told, told_at=Request.SHARES)
    assert "one that a site of the federation signs for" in refused["a"]
    assert second.keys != first.keys


def test_kits_have_what_signing_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's certificate and the administrator's are of the same root, and sign no keys."""
    pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'flgraph[flare]'")
    monkeypatch.chdir(tmp_path)
    main(["flare", "provision", "--sites", "north,east"])
    north, east = (Identity.of_kit(Path("kits") / name) for name in ("north", "east"))
    assert north is not None
    assert east is not None
    known = Authority.of_kit(Path("kits/server"))
    assert known is not None
    for authority in (known, east):
        assert authority.check(north.certificate, north.sign(b"x"), b"x") == "north"
        with pytest.raises(InputError, match="one that a site of the federation signs for"):
            authority.check(north.certificate, east.sign(b"x"), b"x")
    others = north._others
    for kit, name in (("server", "server"), ("admin", "client")):
        files = [Path("kits") / kit / "startup" / f"{name}.{end}" for end in ("crt", "key")]
        foreign = Identity(*(file.read_bytes() for file in files), Path("kits/server/startup/rootCA.pem").read_bytes())
        with pytest.raises(InputError, match="one that a site of the federation signs for"):
            north.check(foreign.certificate, foreign.sign(b"x"), b"x")
    assert others == {"localhost"}
    assert Identity.of_kit(tmp_path) is None is Authority.of_kit(tmp_path)
