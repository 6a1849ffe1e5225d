"""Clients that live elsewhere, at sites that answer messages, late or never."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from flgraph.errors import ClientError, EngineError, InputError, expect
from flgraph.federation.client import Client
from flgraph.federation.engines.base import Engine
from flgraph.federation.engines.host import Message, run_request
from flgraph.federation.messages import Predictions, Turn
from flgraph.runs.checkpoint import link_or_copy, state_name
from flgraph.runs.site_states import Location, checkpoint_label, labels_in_use, read_locations, write_location

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
        min_clients: clients that must answer, or all that were asked where those are fewer.
        ask_every: seconds between two such questions.

    Raises:
        InputError: two sites have a client of the same name, or a number is out of range.
    """

    def __init__(
        self,
        transport: SiteTransport,
        sites: Mapping[str, Mapping[str, Mapping[str, Any]]],
        deadline: float = 600.0,
        min_clients: int = 1,
        ask_every: float = 10.0,
    ) -> None:
        expect(deadline > 0, "deadline", "a positive number of seconds", deadline)
        expect(min_clients >= 1, "min_clients", "1 or more", min_clients)
        self.transport, self.deadline, self.min_clients, self.ask_every = transport, deadline, min_clients, ask_every
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
        # What leaves a client is known once all have agreed; who does not answer stands by what it said before.
        for site, answer in self._ask(dict.fromkeys(self.site_of.values(), Message({"do": "about"}))).items():
            for name, about in answer.header["about"].items():
                if self.site_of.get(name) == site:
                    self._about[name] |= about
        return self._about

    def run(self, turns: Mapping[str, Turn]) -> dict[str, bytes]:
        if not turns:
            return {}
        numbers = {name: number for number, name in enumerate(turns, self._count + 1)}
        self._count += len(turns)
        shares: dict[str, dict[str, Turn]] = {}
        for name, turn in turns.items():
            shares.setdefault(self.site_of[name], {})[name] = turn
        requests = {}
        for site, share in shares.items():
            bases = {name: self._done[name] for name in share}
            requests[site] = run_request(share, bases=bases, numbers={name: numbers[name] for name in share})
        answers = self._ask(requests)
        uploads: dict[str, bytes] = {}
        for name in turns:
            answer = answers.get(self.site_of[name])
            if answer is not None and name in answer.pieces:
                uploads[name] = answer.pieces[name]
                self._done[name] = numbers[name]
        needed = len(turns) if next(iter(turns.values())).round == 0 else min(self.min_clients, len(turns))
        if len(uploads) < needed:
            missing = ", ".join(name for name in turns if name not in uploads)
            raise EngineError(f"Only {len(uploads)} of at least {needed} clients answered in time; missing: {missing}.")
        return uploads

    def save(self, folder: Path, previous: Path | None) -> None:
        label = checkpoint_label(folder)
        needed = sorted(labels_in_use(folder.parents[1]) | {label})
        requests: dict[str, Message] = {}
        for name, site in self.site_of.items():
            if site not in self.absent:
                request = Message({"do": "save", "label": label, "needed": needed, "bases": {}})
                requests.setdefault(site, request).header["bases"][name] = self._done[name]
        there = self._ask(requests)
        before = {} if previous is None else read_locations(previous)
        for name, site in self.site_of.items():
            if site in there:
                write_location(folder, name, Location(site, label))
                continue
            # What it saved last is good; or what another engine wrote, before the run came here.
            copied = previous is not None and link_or_copy(previous / state_name(name), folder / state_name(name))
            if previous is None or not (copied or name in before):
                raise EngineError(f"Client `{name}` is absent and was never saved.")
            write_location(folder, name, before.get(name, Location(site, checkpoint_label(previous))))

    def load(self, folder: Path) -> set[str]:
        locations = read_locations(folder)
        requests: dict[str, Message] = {}
        behind = set()
        for name, site in self.site_of.items():
            request = requests.setdefault(site, Message({"do": "load", "labels": {}}))
            file, location = folder / state_name(name), locations.get(name)
            expect(
                file.is_file() or location is not None, "ckpt_path", f"a checkpoint of client `{name}`, too,", folder
            )
            if file.is_file():  # of a run that another engine began
                request.pieces[name] = file.read_bytes()
            elif location is not None:
                request.header["labels"][name] = location.label
            if location is not None and location.label != checkpoint_label(folder):
                behind.add(name)
        answers = self._ask(requests)
        for site in requests:
            if site not in answers:
                raise EngineError(f"Site `{site}` did not answer in time.")
        self._done = dict.fromkeys(self.site_of, 0)
        return behind

    def predict(self) -> Iterator[tuple[str, Predictions]]:
        raise InputError("predict", "run by each site, where its graphs are,", "a federation")

    def _ask(self, requests: Mapping[str, Message]) -> dict[str, Message]:
        """Answers of the sites that are there, asked side by side.

        Raises:
            InputError: a site refused something that the user gave.
            ClientError: a client's turn failed, or something else that would fail again.
            EngineError: a site failed otherwise.
        """

        def ask(site: str) -> Message | None:
            if site in self.absent and not self._is_back(site):
                return None
            return self.transport.send(site, requests[site], self.deadline)

        with ThreadPoolExecutor(max(1, len(requests))) as pool:
            answers = dict(zip(requests, pool.map(ask, requests), strict=True))
        there = {site: answer for site, answer in answers.items() if answer is not None and "busy" not in answer.header}
        self.absent = (self.absent | set(requests)) - set(there)
        for site, answer in there.items():
            if (error := answer.error) is not None:
                raise at_site(site, error)
        return there

    def _is_back(self, site: str) -> bool:
        if time.monotonic() - self._asked.get(site, -math.inf) < self.ask_every:
            return False
        self._asked[site] = time.monotonic()
        answer = self.transport.send(site, Message({"do": "ping"}), _PING)
        return answer is not None and "busy" not in answer.header


def at_site(site: str, error: Exception) -> Exception:
    """A site's error as one of the federation's."""
    if isinstance(error, InputError):
        return error.within(f"site `{site}`")
    return error if isinstance(error, ClientError) else EngineError(f"Site `{site}` failed: {error}")
