"""Clients in one place, and the requests that they answer there: of a process group's leader, or of a server."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor

from flgraph.errors import ClientError, EngineError, InputError, code_of, decode_error, encode_error, expect
from flgraph.federation.budget import SPENDING, Spending
from flgraph.federation.client import Client
from flgraph.federation.messages import Predictions, Request, Turn
from flgraph.federation.payload import Payload, is_name, parsed
from flgraph.federation.policy import NUM_SAMPLES
from flgraph.federation.settings import algorithm_digest
from flgraph.federation.summing import Summing
from flgraph.federation.values import LARGEST_INTEGER
from flgraph.runs.checkpoint import link_or_copy, load_bytes, load_file, reading, save_file, state_bytes, state_name
from flgraph.runs.files import Digest
from flgraph.runs.ledger import DONE, FAILED, SUM, Ledger
from flgraph.runs.ledger_reader import confirmed, read_ledger, spent
from flgraph.runs.site_states import SiteStates

_log = logging.getLogger(__name__)

SUMS = "sum"
"""``sum/NUMBER`` is the piece of an answer with the sum of uploads; clients' names have no slash."""

_LONGEST_HEAD = 2**24
"""Bytes of a message's head, whose objects take some twenty times as much memory."""


# ------------------------------------------------------------------------------------------------------------ messages
@dataclass(frozen=True)
class Message:
    """A request or an answer: a header that JSON can hold, and bytes by name.

    As bytes it is one block: 8 bytes of the head's length, the head (header, and size of each piece), the pieces.
    """

    header: dict[str, Any] = field(default_factory=dict)
    pieces: dict[str, bytes] = field(default_factory=dict)

    def to_bytes(self) -> bytearray:
        """What travels."""
        sizes = {name: len(piece) for name, piece in self.pieces.items()}
        head = json.dumps({"header": self.header, "sizes": sizes}).encode()
        return bytearray().join([len(head).to_bytes(8, "little"), head, *self.pieces.values()])

    @classmethod
    def from_bytes(cls, block: bytes | bytearray | memoryview) -> Message:
        """Reads what :meth:`to_bytes` wrote.

        Raises:
            InputError: ``block`` is something else, or its head is too long.
        """
        view = memoryview(block)
        start = 8 + int.from_bytes(view[:8], "little")
        expect(start <= _LONGEST_HEAD, "message", f"one with a head of at most {_LONGEST_HEAD} bytes", f"{start} bytes")
        try:
            head = parsed(bytes(view[8:start]).decode())
            pieces = {}
            for name, size in head["sizes"].items():
                expect(type(size) is int and size >= 0, "message", "of pieces of a size each", "others")
                pieces[name] = bytes(view[start : start + size])
                start += size
            expect(start == len(view), "message", f"{start} bytes", len(view))
            if not isinstance(head["header"], dict):
                raise TypeError("a header without names")
            return cls(head["header"], pieces)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError("message", "a header and bytes by name", f"{len(view)} bytes of something else") from error

    @property
    def error(self) -> Exception | None:
        """The error that this answer stands for, if it does."""
        return decode_error(self.header["error"]) if "error" in self.header else None


def attempt(work: Callable[[], Message]) -> Message:
    """What ``work`` returns, or the answer that stands for its error."""
    try:
        return work()
    except Exception as error:  # whoever asked must hear of it, whatever it is
        return Message({"error": encode_error(error)})


def run_request(turns: Mapping[str, Turn], *, keep_going: bool, **further: Any) -> Message:
    """The request to run turns, by client; bytes that several of them have in common travel once."""
    pieces: dict[bytes, str] = {}

    def plain(value: Any) -> Any:
        return {"piece": pieces.setdefault(value, str(len(pieces)))} if isinstance(value, bytes) else value

    asked = {name: {key: plain(value) for key, value in vars(turn).items()} for name, turn in turns.items()}
    header = {"do": "run", "turns": asked, "keep_going": keep_going, **further}
    return Message(header, {number: piece for piece, number in pieces.items()})


def turns_of(request: Message) -> dict[str, Turn]:
    """The turns of a :func:`run_request`, whoever may have written it.

    Raises:
        InputError: a round, exchange or split is none: what is noted in a ledger must be readable there.
    """

    def value(plain: Any) -> Any:
        if isinstance(plain, dict):
            return request.pieces[plain["piece"]]
        return tuple(plain) if isinstance(plain, list) else plain

    asked = {name: {key: value(plain) for key, plain in own.items()} for name, own in request.header["turns"].items()}
    for own in asked.values():
        numbered = type(own["round"]) is int and 0 <= own["round"] <= LARGEST_INTEGER
        named = all(isinstance(text, str) and is_name(text) for text in (own["exchange"], *own["splits"]))
        expect(numbered and named, "turns", "of a round, an exchange and splits each", "something else")
    return {name: Turn(**{**own, "request": Request(own["request"])}) for name, own in asked.items()}


# --------------------------------------------------------------------------------------------------------------- hosts
class Host:
    """Holds clients of one owner, and answers requests for them.

    Args:
        clients: by name.
        build: makes a client that moves here.
        release: lets go of what was loaded for a client that moves elsewhere.
        during: entered for the time of each turn, with the end of a sentence that says which it is.
    """

    def __init__(
        self,
        clients: Mapping[str, Client],
        build: Callable[[str], Client] | None = None,
        release: Callable[[str], None] | None = None,
        during: Callable[[str], AbstractContextManager[None]] = lambda turn: nullcontext(),
    ) -> None:
        self.clients = dict(clients)
        self._build, self._release, self._during = build, release, during

    def answer(self, request: Message) -> Message:
        """What to answer; an error is an answer, too."""
        return attempt(lambda: self._answer(request))

    def _answer(self, request: Message) -> Message:
        header = request.header
        match header["do"]:
            case "run":
                return self._run(request)
            case "about":
                return Message({"about": self.about()})
            case "save":
                previous = header["previous"] and Path(header["previous"])
                return Message({"digests": self.save(Path(header["folder"]), previous)})
            case "load":
                self.load(Path(header["folder"]))
            case "predict":
                return Message(pieces={"predictions": state_bytes(vars(self.predict(header["client"])))})
            case "give":  # to another process
                state = state_bytes(self.clients.pop(header["client"]).state())
                if self._release is not None:
                    self._release(header["client"])
                return Message(pieces={"state": state})
            case "take":
                assert self._build is not None
                client = self.clients[header["client"]] = self._build(header["client"])
                client.load_state(load_bytes(request.pieces["state"], f"the state of client `{header['client']}`"))
            case other:
                raise InputError("do", "run, about, save, load, predict, give or take", other)
        return Message()

    def _run(self, request: Message) -> Message:
        """Answers by client, and the errors of those that failed: of the first one only, unless it is to keep going."""
        answers: dict[str, bytes] = {}
        summing: Summing | None = None
        seconds: dict[str, float] = {}
        errors: dict[str, Any] = {}
        counts = request.header.get("counts")
        for name, turn in turns_of(request).items():
            began = time.perf_counter()
            try:
                with self._during(f"in round {turn.round} ({turn.name}) of client `{name}`"):
                    answer = self.turn(name, turn, request.header["keep_going"])
                summing = summing or Summing(self.clients[name].aggregator)
                if counts is None or not self._added(summing, name, answer, counts.get(name)):
                    answers[name] = answer
            except Exception as error:
                errors[name] = encode_error(error)
                if not request.header["keep_going"]:
                    break
            seconds[name] = time.perf_counter() - began
        groups = [] if summing is None else list(summing.groups.values())
        sums = {f"{SUMS}/{number}": group.sums.to_payload().to_bytes() for number, group in enumerate(groups)}
        told = {"groups": [group.told() for group in groups]} if groups else {}
        return Message({"seconds": seconds, "errors": errors, **told}, {**answers, **sums})

    def _added(self, summing: Summing, name: str, answer: bytes, count: int | None) -> bool:
        """Adds an upload to others; not if there is something about it, which the server is to see itself."""
        client = self.clients[name]
        try:
            upload = Payload.from_bytes(answer)
            usual = upload.scalars.keys() == {*client.aggregator.upload_scalars}
            if not usual or upload.scalars.get(NUM_SAMPLES) != count:
                return False
            summing.add(name, upload, client.routing.sent, answer)
        except InputError:
            return False
        return summing.held.pop(name, None) is None

    def turn(self, name: str, turn: Turn, keep_going: bool = False) -> bytes:
        """A client's upload.

        Args:
            name: the client's.
            turn: the request.
            keep_going: whether the run goes on if it fails: the client is then as it was before.

        Raises:
            ClientError: the turn failed.
            InputError: because of something that the user gave.
        """
        client = self.clients[name]
        before = apply_to_collection(client.state(), Tensor, torch.clone) if keep_going else None
        try:
            return client.turn(turn)
        except Exception as error:
            if before is not None:
                client.load_state(before)
            if isinstance(error, InputError):
                raise
            raise ClientError.in_turn(name, turn.round, turn.name, error) from error

    def about(self) -> dict[str, dict[str, Any]]:
        """What clients tell of themselves, by name."""
        return {name: client.about for name, client in self.clients.items()}

    def predict(self, name: str) -> Predictions:
        """A client's predictions."""
        return self.clients[name].predict()

    def save(self, folder: Path, previous: Path | None) -> dict[str, Digest]:
        """See :meth:`Engine.save`."""
        digests = {}
        for name, client in self.clients.items():
            file = folder / state_name(name)
            if previous is None or client.changed or not link_or_copy(previous / file.name, file):
                digests[file.name] = save_file(client.state(), file)
            client.changed = False
        return digests

    def load(self, folder: Path) -> None:
        """See :meth:`Engine.load`; raises InputError if a client's state is not there, or broken."""
        for name, client in self.clients.items():
            file = folder / state_name(name)
            there = "a checkpoint with the state of every client (`flgraph flare gather` fetches those of sites)"
            expect(file.is_file(), "ckpt_path", there, f"none of `{name}` in {folder}")
            with reading(str(file)):
                client.load_state(load_file(file))
            client.changed = False


class SiteHost(Host):
    """Holds the clients of a site, and answers a server of another owner, whose requests may come twice or never.

    Every turn has a number, and names that of the turn it builds on. The state before a turn is kept until the server's
    next request says that it knows of the turn; where the server does not, the client goes back.

    States of clients, their predictions, texts of errors and times never leave the site.

    Args:
        clients: by name.
        folder: where their states are saved, for as long as the site exists; those that some checkpoint of the server
            needs, and no others.
        run: the run's name; states of another run, or written under another algorithm or routes, are not loaded.
        key: the site's secret, from which the keys of its states and digests derive.
        encryption: the secret with which states are encrypted; they are not when ``None``.
        accept_states: whether the server may hand over states, of a run that began elsewhere.

    Raises:
        InputError: the run's name is none, see :func:`~flgraph.runs.site_states.check_run_name`.
    """

    def __init__(
        self,
        clients: Mapping[str, Client],
        folder: Path,
        run: str,
        key: bytes,
        encryption: bytes | None = None,
        accept_states: bool = False,
    ) -> None:
        super().__init__(clients)
        self.key, self.accept_states = key, accept_states
        self.states = SiteStates(folder, run, key, encryption)
        self._algorithm = {
            name: algorithm_digest(
                own.aggregator, own.routing, own.transforms.transforms, own.masked and own.masked.settings
            )
            for name, own in self.clients.items()
        }
        self._number = dict.fromkeys(self.clients, 0)
        self._before: dict[str, tuple[int, bytes]] = {}
        self._newest: dict[str, int] = {}  # the number of the last request for each client
        self._bases, self._numbers = dict[str, int](), dict[str, int]()  # of the request that is worked on
        for name, client in self.clients.items():  # of all runs: no server can begin anew
            client.door.spending = Spending(folder / name / SPENDING)
        self._lock = threading.Lock()
        self._ledger = Ledger()

    def note_in(self, file: Path) -> None:
        """Notes every message in a ledger, with which the policy's limits go on where an earlier job ended.

        A job that goes on beside a newer one of the same run is answered nothing any more.

        Raises:
            InputError: the ledger was changed, or says that the run was begun with another algorithm, whose states this
                one would replace.
        """
        lines = read_ledger(file) if file.is_file() else []
        algorithms = sorted(set(self._algorithm.values()))
        begun = next((line.further.get("algorithms") for line in lines if line.event == "opened"), algorithms)
        expect(begun == algorithms, "run", "of the algorithm and routes that it was begun with", "others")
        before = spent(lines)
        self._ledger.open(file, alone=True)
        self._ledger.add(event="opened", run=self.states.run, algorithms=algorithms)
        for name, client in self.clients.items():
            client.door.ledger = self._ledger
            client.door.spent.update(before.get(name, {}))
            if client.masked is not None:
                client.masked.confirmed.update(confirmed(line for line in lines if line.client == name))

    def answer(self, request: Message) -> Message:
        """What to answer; says that it is busy while an earlier request is being worked on."""
        if not self._lock.acquire(blocking=False):
            return Message({"busy": True})
        try:
            answer = coded(super().answer(request))
            self._ledger.flush()
            return answer
        finally:
            self._lock.release()

    def _answer(self, request: Message) -> Message:
        header = request.header
        match header["do"]:
            case "ping":
                pass
            case "about":  # of the models; of the data all was said at the beginning
                about = {name: client.disclosed(self.key) for name, client in self.clients.items()}
                return Message({"about": {n: {k: v for k, v in a.items() if k != "data"} for n, a in about.items()}})
            case "run":
                self._bases, self._numbers = header["bases"], header["numbers"]
                answer = self._run(request)
                del answer.header["seconds"]
                for number, told in enumerate(answer.header.get("groups", ())):
                    self._ledger.add(event=SUM, clients=len(told), data=answer.pieces[f"{SUMS}/{number}"])
                return answer
            case "save":
                self._save_as(header["label"], header["bases"], header["needed"], header["number"])
            case "load":
                self._load_labels(header["labels"], request.pieces)
            case other:
                raise InputError("do", "ping, about, run, save or load", other)
        return Message()

    def turn(self, name: str, turn: Turn, keep_going: bool = False) -> bytes:
        base, number = self._bases[name], self._numbers[name]
        self._expect_newest(name, number)
        self._go_to(name, base)
        before = state_bytes(self.clients[name].state())
        self._before[name] = (base, before)
        del self._number[name]  # half done, it has none: nothing goes on from there
        try:
            upload = super().turn(name, turn, keep_going=False)  # what was before is kept here
        except (Exception, SystemExit) as error:  # who asks again asks of what was before
            self._ledger.add(event=FAILED, client=name, round=turn.round, request=str(turn.request))
            self._go_to(name, base)
            if isinstance(error, SystemExit):  # of somebody's class
                raise ClientError.in_turn(name, turn.round, turn.name, error) from error
            raise
        self._number[name] = number
        if not upload:  # which leaves no line of its own
            self._ledger.add(event=DONE, client=name, round=turn.round, request=str(turn.request))
        return upload

    def _expect_newest(self, name: str, number: int) -> None:
        """Refuses what was asked before something else, which undoes the turn that the server goes on from."""
        newest = self._newest.get(name, 0)
        expect(number >= newest, "number", f"that of a request after number {newest} of client `{name}`", number)
        self._newest[name] = number

    def _go_to(self, name: str, base: int) -> None:
        """Undoes the last turn if the server does not know of it, or it was not done."""
        if name in self._number and self._number[name] == base:
            return
        number, state = self._before.get(name, (-1, b""))
        if number != base:
            raise EngineError(f"Client `{name}` has no state of turn {base}; it is at turn {self._number.get(name)}.")
        self.clients[name].load_state(load_bytes(state, f"the state of client `{name}`"))
        self._number[name] = base

    def _save_as(self, label: str, bases: Mapping[str, int], needed: Sequence[str], number: int) -> None:
        """Saves clients as they were after the turns ``bases``; removes states of the same run not ``needed``."""
        for name, base in bases.items():
            self._expect_here(name)
            self._expect_newest(name, number)
            self._go_to(name, base)
            self.states.save(name, label, self._algorithm[name], state_bytes(self.clients[name].state()))
            self.states.keep_only(name, {label, *needed})

    def _load_labels(self, labels: Mapping[str, str], given: Mapping[str, bytes]) -> None:
        """Puts clients into states that were saved here, or are given."""
        for name in (*labels, *given):
            self._expect_here(name)
        allowed = self.accept_states or not given
        expect(allowed, "ckpt_path", "a checkpoint of sites, as this one accepts no states", "one with states in it")
        states = {
            **given,
            **{name: self.states.load(name, label, self._algorithm[name]) for name, label in labels.items()},
        }
        found = {name: load_bytes(state, f"the state of client `{name}`") for name, state in states.items()}
        for name, state in found.items():
            with reading(f"the state of client `{name}`"):
                self.clients[name].load_state(state)
            self.clients[name].door.begun = True
            self._number[name] = 0
            self._before.pop(name, None)
            self._newest.pop(name, None)

    def _expect_here(self, name: str) -> None:
        expect(name in self.clients, "client", "one of this site's", name)


def coded(answer: Message) -> Message:
    """The answer as it may leave a site: errors as codes, while the site's log has their sentences and tracebacks."""

    def code(encoded: Any) -> str:
        if isinstance(encoded, str):
            return encoded
        _log.error("%s", encoded["trace"])
        return code_of(encoded)

    header = dict(answer.header)
    if "error" in header:
        header["error"] = code(header["error"])
    if "errors" in header:
        header["errors"] = {name: code(encoded) for name, encoded in header["errors"].items()}
    return Message(header, answer.pieces)
