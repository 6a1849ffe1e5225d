"""Clients that live elsewhere, at sites that answer messages, late or never."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from flgraph.errors import UNREADABLE, EngineError, InputError, expect, from_code
from flgraph.federation.client import Client
from flgraph.federation.data import is_file_name
from flgraph.federation.engines.base import Engine
from flgraph.federation.engines.host import SUMS, Message, run_request
from flgraph.federation.messages import Predictions, Turn
from flgraph.federation.summing import Group
from flgraph.federation.values import LARGEST_INTEGER
from flgraph.runs.checkpoint import link_or_copy, state_name
from flgraph.runs.files import Digest
from flgraph.runs.site_states import Location, checkpoint_label, labels_in_use, read_locations, write_location

_MOST_CLIENTS = 1000
"""Of one site: each costs the server memory, and has a say."""

_PING = 2.0
"""Seconds in which a site that missed a deadline must say that it is there again."""


class SiteTransport(Protocol):
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
    site that finished one too late, or never got it, goes on from the right state
    (:class:`~flgraph.federation.engines.host.SiteHost`). Clients' states stay at the sites; checkpoints hold where.
    The first is written before round 1, when all sites are there.

    Args:
        transport: carries messages.
        sites: site to what its clients tell of themselves (:attr:`Client.disclosed`), by name.
        deadline: seconds that a site has for its part of an exchange.
        ask_every: seconds between two such questions.

    Raises:
        InputError: two sites have a client of the same name, a name or what a site tells of a client cannot be used, or
            a number is out of range.
    """

    trusted = False

    def __init__(
        self,
        transport: SiteTransport,
        sites: Mapping[str, Mapping[str, Mapping[str, Any]]],
        deadline: float = 600.0,
        ask_every: float = 10.0,
    ) -> None:
        expect(deadline > 0, "deadline", "a positive number of seconds", deadline)
        expect(ask_every >= 0, "ask_every", "a number of seconds, 0 or more,", ask_every)
        self.transport, self.deadline, self.ask_every = transport, deadline, ask_every
        self.site_of: dict[str, str] = {}
        self._about: dict[str, dict[str, Any]] = {}
        for site, clients in sites.items():
            for name, about in checked_about(site, clients).items():
                other = self.site_of.setdefault(name, site)
                expect(other == site, "clients", f"of different names, but `{name}` is at {other}, too,", site)
                self._about[name] = about
        self._left_out: set[str] = set()
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

    def leave_out(self, clients: Collection[str]) -> None:
        self._left_out |= set(clients)

    @property
    def _there(self) -> dict[str, str]:
        """Site of every client that is not left out."""
        return {name: site for name, site in self.site_of.items() if name not in self._left_out}

    def about(self) -> dict[str, dict[str, Any]]:
        # What leaves a client is known once all have agreed; who does not answer stands by what it said before.
        for site, answer in self._ask(dict.fromkeys(self._there.values(), Message({"do": "about"}))).items():
            try:
                told = {} if isinstance(answer, Exception) else checked_about(site, answer.header.get("about"))
            except InputError:
                continue
            for name, about in told.items():
                if self.site_of.get(name) == site:
                    self._about[name] |= about
        return self._about

    def run(self, turns: Mapping[str, Turn]) -> Mapping[str, bytes | Exception]:
        return self._run(turns, {})[0]

    def run_summed(
        self, turns: Mapping[str, Turn], counts: Mapping[str, int]
    ) -> tuple[Mapping[str, bytes | Exception], list[Group]]:
        return self._run(turns, {"counts": dict(counts)})

    def _run(
        self, turns: Mapping[str, Turn], wanted: Mapping[str, Any]
    ) -> tuple[dict[str, bytes | Exception], list[Group]]:
        numbers = {name: number for number, name in enumerate(turns, self._count + 1)}
        self._count += len(turns)
        shares: dict[str, dict[str, Turn]] = {}
        for name, turn in turns.items():
            shares.setdefault(self.site_of[name], {})[name] = turn
        requests = {}
        for site, share in shares.items():
            bases = {name: self._done[name] for name in share}
            further = {"bases": bases, "numbers": {name: numbers[name] for name in share}}
            if len(share) > 1 and wanted:  # one upload is no shorter as a sum
                further["counts"] = {name: wanted["counts"].get(name) for name in share}
            requests[site] = run_request(share, keep_going=self.keep_going, **further)
        answers = self._ask(requests)
        asked = [site for site in shares if "counts" in requests[site].header]
        groups = [group for site in asked for group in summed(site, answers.get(site), shares[site])]
        added = {name for group in groups for name in group.clients}
        self._done |= {name: numbers[name] for name in added}
        found: dict[str, bytes | Exception] = {}
        for name in turns:
            answer = answers.get(self.site_of[name])
            if name in added:
                continue
            if isinstance(answer, Exception):
                found[name] = answer
            elif answer is not None and name in answer.pieces:
                found[name] = answer.pieces[name]
                self._done[name] = numbers[name]
            elif answer is not None:
                errors = answer.header.get("errors")
                code = errors.get(name, UNREADABLE) if isinstance(errors, dict) else UNREADABLE
                found[name] = from_code(code, f"client `{name}` at site `{self.site_of[name]}`")
        if not self.keep_going:
            self._raise_first(found)
        return found, groups

    def save(self, folder: Path, previous: Path | None) -> Mapping[str, Digest]:
        label = checkpoint_label(folder)
        needed = sorted(labels_in_use(folder.parents[1]) | {label})
        requests: dict[str, Message] = {}
        for name, site in self._there.items():
            if site not in self.absent:
                request = Message({"do": "save", "label": label, "needed": needed, "bases": {}, "number": self._count})
                requests.setdefault(site, request).header["bases"][name] = self._done[name]
        answers = self._ask(requests)
        if not self.keep_going:
            self._raise_first(answers)
        there = {site for site, answer in answers.items() if isinstance(answer, Message)}
        before = {} if previous is None else read_locations(previous)
        for name, site in self._there.items():
            if site in there:
                write_location(folder, name, Location(site, label))
                continue
            # What it saved last is good; or what another engine wrote, before the run came here.
            copied = previous is not None and link_or_copy(previous / state_name(name), folder / state_name(name))
            if previous is not None and (copied or name in before):
                write_location(folder, name, before.get(name, Location(site, checkpoint_label(previous))))
            elif site not in answers:
                raise EngineError(f"Client `{name}` is absent and was never saved.")
            # Who cannot save has no place in what goes on from here.
        return {}

    def load(self, folder: Path) -> set[str]:
        locations = read_locations(folder)
        requests: dict[str, Message] = {}
        behind = set()
        for name, site in self._there.items():
            file, location = folder / state_name(name), locations.get(name)
            if location is None and not file.is_file() and self.keep_going and locations:
                self._left_out.add(name)
                continue
            expect(
                file.is_file() or location is not None, "ckpt_path", f"a checkpoint of client `{name}`, too,", folder
            )
            request = requests.setdefault(site, Message({"do": "load", "labels": {}}))
            if file.is_file():  # of a run that another engine began
                request.pieces[name] = file.read_bytes()
            elif location is not None:
                request.header["labels"][name] = location.label
            if location is not None and location.label != checkpoint_label(folder):
                behind.add(name)
        answers = self._ask(requests)
        if not self.keep_going:
            self._raise_first(answers)
        for site in requests:
            if site not in answers:
                raise EngineError(f"Site `{site}` did not answer in time.")
        unable = {name for name, site in self._there.items() if isinstance(answers[site], Exception)}
        self.unable = unable | self._left_out
        self._done = dict.fromkeys(self.site_of, 0)
        return behind

    def predict(self) -> Iterator[tuple[str, Predictions]]:
        raise InputError("predict", "run by each site, where its graphs are,", "a federation")

    def _ask(self, requests: Mapping[str, Message]) -> dict[str, Message | Exception]:
        """Answers of the sites that are there, asked side by side; errors of those that refused or failed."""
        if not requests:
            return {}

        def ask(site: str) -> Message | None:
            if site in self.absent and not self._is_back(site):
                return None
            return self.transport.send(site, requests[site], self.deadline)

        with ThreadPoolExecutor(len(requests)) as pool:
            answers = dict(zip(requests, pool.map(ask, requests), strict=True))
        there = {site: answer for site, answer in answers.items() if answer is not None and "busy" not in answer.header}
        self.absent = (self.absent | set(requests)) - set(there)
        return {site: site_error(site, answer) or answer for site, answer in there.items()}

    @staticmethod
    def _raise_first(answers: Mapping[str, Any]) -> None:
        for answer in answers.values():
            if isinstance(answer, Exception):
                raise answer

    def _is_back(self, site: str) -> bool:
        if time.monotonic() - self._asked.get(site, -math.inf) < self.ask_every:
            return False
        self._asked[site] = time.monotonic()
        answer = self.transport.send(site, Message({"do": "ping"}), _PING)
        return answer is not None and "busy" not in answer.header


def summed(site: str, answer: Message | Exception | None, asked: Collection[str]) -> list[Group]:
    """What a site added up; nothing where that cannot be read, or is of clients that it was not asked for."""
    told = answer.header.get("groups") if isinstance(answer, Message) else None
    if not isinstance(answer, Message) or not isinstance(told, list) or not all(isinstance(own, dict) for own in told):
        return []
    try:
        groups = [Group.of(own, answer.pieces[f"{SUMS}/{number}"], f"site {site}") for number, own in enumerate(told)]
    except (InputError, KeyError):
        return []
    names = [*answer.pieces, *(name for group in groups for name in group.clients)]
    known = {name for group in groups for name in group.clients} <= set(asked)
    return groups if known and len(set(names)) == len(names) else []


def read_answer(body: Any) -> Message:
    """A site's answer; one that says so where it cannot be read."""
    try:
        return Message.from_bytes(body)
    except (InputError, TypeError):
        return Message({"error": UNREADABLE})


def site_error(site: str, answer: Message) -> Exception | None:
    """The error that a site's answer stands for, if it does."""
    return from_code(answer.header["error"], f"site `{site}`") if "error" in answer.header else None


def checked_about(site: str, told: Any) -> dict[str, dict[str, Any]]:
    """What a site tells of its clients, by name, after a look at every part of it.

    Raises:
        InputError: it is not of the form of :attr:`Client.disclosed`, or there are more than a thousand clients.
    """
    field = f"clients of site `{site}"
    expect(isinstance(told, Mapping) and 0 < len(told) <= _MOST_CLIENTS, field, f"1 to {_MOST_CLIENTS}", _count(told))
    found: dict[str, dict[str, Any]] = {}
    for name, about in told.items():
        named = isinstance(name, str) and len(name) <= 100 and name.isprintable() and is_file_name(name)
        expect(named, field, "names of files, of 100 letters or fewer", "others")
        expect(isinstance(about, Mapping), field, "described by fields", type(about).__name__)
        parts = {key: about[key] for key in ("data", "parameters", "routes") if key in about}
        for key, value in parts.items():
            expect(_PLAUSIBLE[key](value), field, f"described by {key}", "something else")
        found[name] = parts
    return found


def _count(told: Any) -> str:
    return str(len(told)) if isinstance(told, Mapping) else type(told).__name__


def _is_setting(value: Any, depth: int = 20) -> bool:
    """Plain values, a few of them, by short names, one in another at most so deep."""
    if depth == 0:
        return False
    within = partial(_is_setting, depth=depth - 1)
    if isinstance(value, Mapping):
        named = all(len(key) <= 100 and key.isprintable() for key in value)
        return len(value) <= 100 and named and all(map(within, value.values()))
    if isinstance(value, list):
        return len(value) <= 100 and all(map(within, value))
    if isinstance(value, int | float):
        return abs(value) <= LARGEST_INTEGER  # NaN is not, which equals no checkpoint's
    return value is None or (isinstance(value, str) and len(value) <= 1000 and value.isprintable())


_PLAUSIBLE: dict[str, Callable[[Any], bool]] = {
    "data": lambda value: isinstance(value, Mapping) and _is_setting(value),
    "parameters": lambda value: (
        isinstance(value, Mapping)
        and len(value) <= 10
        and all(
            len(key) <= 100 and type(count) is int and 0 <= count <= LARGEST_INTEGER for key, count in value.items()
        )
    ),
    "routes": lambda value: (
        isinstance(value, list)
        and len(value) <= 100_000
        and all(isinstance(line, list | tuple) and len(line) == 3 for line in value)
        and all(isinstance(part, str) and len(part) <= 500 and part.isprintable() for line in value for part in line)
    ),
}
