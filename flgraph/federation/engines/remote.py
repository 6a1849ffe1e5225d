"""Clients that live elsewhere, at sites that answer messages, late or never."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from flgraph.errors import EngineError, InputError, expect
from flgraph.federation.client import Client
from flgraph.federation.engines.base import ClientError, Engine
from flgraph.federation.messages import Predictions, Request, Turn
from flgraph.runs.checkpoint import link_or_copy, load_bytes, load_file, save_file, state_bytes, state_name
from flgraph.runs.site_states import checkpoint_label, client_label, has_state, labels_in_use, point, state_file

Message = Mapping[str, Any]
"""Plain values and bytes by name; whatever carries them needs to know no more."""

_PING = 2.0
"""Seconds in which a site that missed a deadline must say that it is there again."""


class Post(Protocol):
    """Carries messages to sites."""

    def send(self, site: str, message: Message, timeout: float) -> Message | None:
        """The site's answer; ``None`` if it did not come in time.

        Raises:
            EngineError: the federation is over.
        """


class Remote(Engine):
    """Runs clients at sites, with a deadline for every turn.

    A site that misses its deadline is left out of the turn. From time to time it is asked whether it is there, which
    takes two seconds at most, and it takes part again when it is. Each request names the turn that it builds on, so a
    site that finished one too late, or never got it, goes on from the right state (:class:`Host`). Clients' states stay
    at the sites; checkpoints hold where. The first is written before round 1, when all sites are there.

    Args:
        post: carries messages.
        sites: site to what its clients tell of themselves (:attr:`Client.disclosed`), by name.
        deadline: seconds that a site has for its part of an exchange.
        min_clients: clients that must answer, or all that were asked where those are fewer.
        ask_every: seconds between two such questions.

    Raises:
        InputError: two sites have a client of the same name, or a number is out of range.
    """

    def __init__(
        self,
        post: Post,
        sites: Mapping[str, Mapping[str, Mapping[str, Any]]],
        deadline: float = 600.0,
        min_clients: int = 1,
        ask_every: float = 10.0,
    ) -> None:
        expect(deadline > 0, "deadline", "a positive number of seconds", deadline)
        expect(min_clients >= 1, "min_clients", "1 or more", min_clients)
        self.post, self.deadline, self.min_clients, self.ask_every = post, deadline, min_clients, ask_every
        self.site_of: dict[str, str] = {}
        self._about: dict[str, dict[str, Any]] = {}
        for site, clients in sites.items():
            for name, about in clients.items():
                other = self.site_of.setdefault(name, site)
                expect(other == site, "clients", f"of different names, but `{name}` is at {other}, too,", site)
                self._about[name] = dict(about)
        self.absent: set[str] = set()
        """Sites that missed a deadline and have not come back."""
        self._done = dict.fromkeys(self.site_of, 0)  # the last turn of each client that the server knows of
        self._count = 0
        self._asked: dict[str, float] = {}  # when an absent site was last asked

    @property
    def saves_first(self) -> bool:
        return True

    def setup(
        self, build: Callable[[str], Client], names: Sequence[str], release: Callable[[str], None] | None = None
    ) -> None:
        expect(set(names) == set(self.site_of), "data.clients", f"those of the sites, {list(self.site_of)},", names)

    def about(self) -> dict[str, dict[str, Any]]:
        # What leaves a client is known once all have agreed; who does not answer stands by what it told before.
        for reply in self._ask({site: {"kind": "about"} for site in set(self.site_of.values())}).values():
            for name, told in json.loads(reply["about"]).items():
                self._about[name] |= told
        return self._about

    def run(self, turns: Mapping[str, Turn]) -> dict[str, bytes]:
        if not turns:
            return {}
        numbers, requests = {}, dict[str, dict[str, Any]]()
        for name, turn in turns.items():
            self._count += 1
            numbers[name] = self._count
            request = {
                "round": turn.round,
                "exchange": turn.exchange,
                "request": str(turn.request),
                "splits": list(turn.splits),
                "download": turn.download,
                "base": self._done[name],
                "number": self._count,
            }
            requests.setdefault(self.site_of[name], {})[name] = request
        replies = self._ask({site: {"kind": "run", "turns": own} for site, own in requests.items()})
        answers: dict[str, bytes] = {}
        for name, turn in turns.items():
            reply = replies.get(self.site_of[name])
            if reply is None:
                continue
            if "error" in reply:
                _raise(reply, turn)
            answers[name] = reply["uploads"][name]
            self._done[name] = numbers[name]
        needed = len(turns) if next(iter(turns.values())).round == 0 else min(self.min_clients, len(turns))
        if len(answers) < needed:
            missing = ", ".join(name for name in turns if name not in answers)
            raise EngineError(f"Only {len(answers)} of at least {needed} clients answered in time; missing: {missing}.")
        return answers

    def save(self, folder: Path, previous: Path | None) -> None:
        label = checkpoint_label(folder)
        needed = sorted(labels_in_use(folder.parents[1]) | {label})
        messages: dict[str, dict[str, Any]] = {}
        for name, site in self.site_of.items():
            if site not in self.absent:
                message = messages.setdefault(site, {"kind": "save", "label": label, "needed": needed, "bases": {}})
                message["bases"][name] = self._done[name]
        replies = self._ask(messages)
        for site, reply in replies.items():
            if "error" in reply:
                raise EngineError(f"Site `{site}` failed: {reply['error']}")
        for name, site in self.site_of.items():
            if site in replies:
                point(folder, name, site, label)
            elif previous is not None and has_state(previous, name):  # what it saved last is good
                link_or_copy(previous / state_name(name), folder / state_name(name))
                point(folder, name, site, client_label(previous, name))
            else:
                raise EngineError(f"Client `{name}` is absent and was never saved.")

    def load(self, folder: Path) -> set[str]:
        messages: dict[str, dict[str, Any]] = {}
        behind = set()
        for name, site in self.site_of.items():
            message = messages.setdefault(site, {"kind": "load", "labels": {}, "states": {}})
            expect(has_state(folder, name), "ckpt_path", f"a checkpoint of client `{name}`, too,", folder)
            label, whole = client_label(folder, name), folder / state_name(name)
            if whole.is_file():  # of a run that another engine began
                message["states"][name] = whole.read_bytes()
            else:
                message["labels"][name] = label
            if label != checkpoint_label(folder):
                behind.add(name)
        replies = self._ask(messages)
        for site in messages:
            if site not in replies:
                raise EngineError(f"Site `{site}` did not answer in time.")
            if "error" in replies[site]:
                raise InputError(f"Site `{site}`: {replies[site]['error']}.")
        self._done = dict.fromkeys(self.site_of, 0)
        return behind

    def predict(self) -> Iterator[tuple[str, Predictions]]:
        raise InputError("Expected `predict` to be run by each site, where its graphs are, but got a federation.")

    def _ask(self, messages: Mapping[str, Message]) -> dict[str, Message]:
        """Answers of the sites that are there, asked side by side."""

        def ask(site: str) -> Message | None:
            if site in self.absent and not self._is_back(site):
                return None
            return self.post.send(site, messages[site], self.deadline)

        with ThreadPoolExecutor(max(1, len(messages))) as pool:
            replies = dict(zip(messages, pool.map(ask, messages), strict=True))
        there = {site: reply for site, reply in replies.items() if reply is not None and not reply.get("busy")}
        self.absent = (self.absent | set(messages)) - set(there)
        return there

    def _is_back(self, site: str) -> bool:
        if time.monotonic() - self._asked.get(site, -math.inf) < self.ask_every:
            return False
        self._asked[site] = time.monotonic()
        pong = self.post.send(site, {"kind": "ping"}, _PING)
        return pong is not None and not pong.get("busy")


def _of_model(client: Client) -> dict[str, Any]:
    """What may be told of a client's model, and not of its data, which stays what it was."""
    return {key: told for key, told in client.disclosed.items() if key != "data"}


class Host:
    """Holds the clients of one site and answers a :class:`Remote` engine.

    Every turn has a number, and names that of the turn it builds on. The state before a turn is kept until the server
    has told, by its next request, that it knows of the turn; where the server does not, the client goes back.

    Args:
        clients: by name.
        folder: where their states are saved, for as long as the site exists; those that some checkpoint of the server
            needs, and no others.
    """

    def __init__(self, clients: Mapping[str, Client], folder: Path) -> None:
        self.clients, self.folder = dict(clients), folder
        self._number = dict.fromkeys(self.clients, 0)
        self._before: dict[str, tuple[int, bytes]] = {}
        self._lock = threading.Lock()

    def answer(self, message: Message) -> dict[str, Any]:
        """What to answer; says that it is busy while an earlier request is being worked on."""
        if not self._lock.acquire(blocking=False):
            return {"busy": True}
        try:
            if message["kind"] == "ping":
                return {}
            if message["kind"] == "run":
                return self._run(message["turns"])
            if message["kind"] == "about":
                return {"about": json.dumps({name: _of_model(client) for name, client in self.clients.items()})}
            if message["kind"] == "save":
                return self._save(message["label"], message["bases"], message["needed"])
            expect(message["kind"] == "load", "kind", "ping, about, run, save or load", message["kind"])
            return self._load(message["labels"], message["states"])
        finally:
            self._lock.release()

    def _run(self, turns: Mapping[str, Message]) -> dict[str, Any]:
        uploads = {}
        for name, request in turns.items():
            try:
                self._go_to(name, request["base"])
                self._before[name] = (request["base"], state_bytes(self.clients[name].state()))
                kind = Request(request["request"])
                turn = Turn(request["round"], kind, request["exchange"], request["download"], tuple(request["splits"]))
                uploads[name] = self.clients[name].turn(turn)
                self._number[name] = request["number"]
            except Exception as error:  # the server must hear of it, whatever it is
                given = isinstance(error, InputError)
                told = str(error) if given else f"{type(error).__name__}: {error}"
                return {"error": told, "client": name, "input": given}
        return {"uploads": uploads}

    def _go_to(self, name: str, base: int) -> None:
        """Undoes the last turn if the server does not know of it."""
        if self._number[name] == base:
            return
        number, state = self._before.get(name, (-1, b""))
        if number != base:
            raise EngineError(f"Client `{name}` has no state of turn {base}; it is at turn {self._number[name]}.")
        self.clients[name].load_state(load_bytes(state, f"the state of client `{name}`"))
        self._number[name] = base

    def _save(self, label: str, bases: Mapping[str, int], needed: Sequence[str]) -> dict[str, Any]:
        expect("/" not in label and label not in ("", ".", ".."), "label", "a file name", label)
        for name, base in bases.items():
            self._go_to(name, base)
            whole = state_file(self.folder, name, label)
            whole.parent.mkdir(parents=True, exist_ok=True)
            save_file(self.clients[name].state(), whole)
            for old in whole.parent.glob(f"{label.partition('.')[0]}.*.ckpt"):  # of the same run
                if old.stem not in needed:
                    old.unlink()
        return {}

    def _load(self, labels: Mapping[str, str], states: Mapping[str, bytes]) -> dict[str, Any]:
        for name, label in labels.items():
            if not state_file(self.folder, name, label).is_file():
                return {"error": f"client `{name}` has no saved state {label}", "client": name, "input": True}
        found = {name: load_file(state_file(self.folder, name, label)) for name, label in labels.items()}
        found |= {name: load_bytes(state, f"the state of client `{name}`") for name, state in states.items()}
        for name, state in found.items():
            self.clients[name].load_state(state)
            self._number[name] = 0
            self._before.pop(name, None)
        return {}


def _raise(reply: Message, turn: Turn) -> None:
    if reply["input"]:
        raise InputError(str(reply["error"]))
    raise ClientError(str(reply["client"]), turn, RuntimeError(str(reply["error"])))
