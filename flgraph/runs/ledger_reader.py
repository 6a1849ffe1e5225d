"""Ledgers, read: is the chain whole, what crossed, and does the other side say the same?"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flgraph.errors import InputError, expect
from flgraph.runs.ledger import DONE, FAILED, NOTHING, REPEATED, checked_line


@dataclass(frozen=True)
class Line:
    """A line as it is read, repeated fields included; of a message if it has a ``direction``, else of an ``event``.

    ``run`` is that of the last event ``opened`` which tells one; ``further`` has what only some events tell.
    """

    n: int
    time: str
    hash: str
    previous: str
    event: str = ""
    run: str = ""
    round: int = 0
    client: str = ""
    request: str = ""
    exchange: str = ""
    direction: str = ""
    bytes: int = 0
    sha256: str = ""
    tensors: Mapping[str, str] = field(default_factory=dict)
    scalars: Sequence[str] = ()
    verdict: str = ""
    policy: str = ""
    further: Mapping[str, Any] = field(default_factory=dict)


_TYPES = {name: int for name in ("n", "round", "bytes")} | {"tensors": dict, "scalars": list}
_TYPES |= {name: str for name in Line.__dataclass_fields__ if name not in _TYPES and name != "further"}


def read_ledger(file: Path) -> list[Line]:
    """All lines of a ledger, once its chain has been checked.

    That nothing was cut off at the end, or all hashes made anew, only a copy of the newest hash or the other side's
    ledger can tell: see :func:`compare`.

    Raises:
        InputError: there is no such file, or a line was changed, removed, inserted or moved, or is not what a ledger
            writes; the sentence names the first such line.
    """
    lines: list[Line] = []
    written: dict[str, dict[int, Any]] = {name: {} for name in REPEATED}
    previous, run = NOTHING, ""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise InputError(printable(file), "a readable file", error.strerror or type(error).__name__) from error
    *texts, half = content.split(b"\n")
    if half:
        raise InputError(f"{printable(file)}, line {len(texts) + 1}", "whole", "half a line")
    for number, text in enumerate(texts, start=1):
        where = f"{printable(file)}, line {number}"
        line = checked_line(text, where)
        if (line["previous"], line["n"]) != (previous, number):
            got = "another one: lines were removed, inserted or moved"
            raise InputError(where, "what came after the line before", got)
        previous = line["hash"]
        for name in REPEATED:
            value = line.get(name)
            if type(value) is int:
                expect(value in written[name], f"{where}, {name}", "written out in an earlier line", "none")
                line[name] = written[name][value]
            elif value is not None:
                written[name][number] = value
        for name in _TYPES.keys() & line.keys():
            value = line[name]
            right = type(value) is _TYPES[name] and (not isinstance(value, int) or value >= 0)
            expect(right, f"{where}, {name}", "of a ledger", type(value).__name__)
        for name in ("tensors", "scalars"):
            entries = line.get(name, ())
            entries = entries.values() if isinstance(entries, dict) else entries
            expect(all(isinstance(entry, str) for entry in entries), f"{where}, {name}", "of texts", "others")
        expect(
            line.get("direction", "up") in ("up", "down"), f"{where}, direction", "up or down", line.get("direction")
        )
        needed = ("direction", "client", "request", "round") if "direction" in line else ("event",)
        for name in needed:
            expect(name in line, where, f"with the field {name}", "none")
        run = line.setdefault("run", run) if line.get("event") == "opened" else run
        fields = {name: line.pop(name) for name in _TYPES if name in line}
        lines.append(Line(**{**fields, "run": run}, further=line))
    return lines


def printable(value: object) -> str:
    """As text that a terminal may be given: what the other side chose may hold sequences that steer it."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in str(value))


@dataclass(frozen=True)
class Comparison:
    """What the server's ledger and a site's say of the same clients.

    Attributes:
        clients: that the site's ledger names.
        same: messages that both know.
        differing: the server's line and the site's, of the same place in the run but with other bytes.
        only_server: messages that the site does not know.
        only_site: messages that the server does not know.
    """

    clients: frozenset[str]
    same: int
    differing: list[tuple[Line, Line]]
    only_server: list[Line]
    only_site: list[Line]

    @property
    def agrees(self) -> bool:
        """Whether nothing differs."""
        return not (self.differing or self.only_server or self.only_site)


def compare(server: Sequence[Line], site: Sequence[Line]) -> Comparison:
    """Matches messages by client, round, request, exchange, direction and digest; one that crossed twice counts twice.

    What has no digest is no message: a request without content, or what a site withheld. Where both ledgers tell of
    which run they are (``run`` of an event ``opened``), the site's lines of other runs are left out.
    """
    runs = {line.run for line in server if line.run}
    site = [line for line in site if line.direction and not (runs and line.run and line.run not in runs)]
    clients = frozenset(line.client for line in site)
    left: defaultdict[tuple[object, ...], list[Line]] = defaultdict(list)
    for line in server:
        if line.sha256 and line.direction and line.client in clients:
            left[*_place(line), line.sha256].append(line)
    same, only_site = 0, list[Line]()
    for line in site:
        if not line.sha256:
            continue
        if found := left[*_place(line), line.sha256]:
            found.pop(0)
            same += 1
        else:
            only_site.append(line)
    waiting: defaultdict[tuple[object, ...], list[Line]] = defaultdict(list)
    for line in sorted((line for lines in left.values() for line in lines), key=lambda line: line.n):
        waiting[_place(line)].append(line)
    differing = [(waiting[_place(line)].pop(0), line) for line in only_site if waiting[_place(line)]]
    paired = {line.n for _, line in differing}
    only_server = sorted((line for lines in waiting.values() for line in lines), key=lambda line: line.n)
    return Comparison(clients, same, differing, only_server, [line for line in only_site if line.n not in paired])


@dataclass
class Total:
    """What one client got or sent of one sort.

    Attributes:
        times: how many messages.
        again: how many of them were a repetition in the same round.
        dropped: how many were not accepted.
        bytes: of all of them.
        tensors: names and forms, as far as they were ever sent.
        scalars: names.
        policies: what the site's policy did, and how often.
    """

    client: str
    direction: str
    request: str
    exchange: str
    times: int = 0
    again: int = 0
    dropped: int = 0
    bytes: int = 0
    tensors: dict[str, str] = field(default_factory=dict)
    scalars: dict[str, None] = field(default_factory=dict)
    policies: Counter[str] = field(default_factory=Counter)


def totals(lines: Iterable[Line]) -> list[Total]:
    """Who got and sent what, and how often, in the order of the first message of each sort."""
    result: dict[tuple[str, ...], Total] = {}
    seen: set[tuple[object, ...]] = set()
    for line in lines:
        if not line.direction:
            continue
        key = (line.client, line.direction, line.request, line.exchange)
        total = result.setdefault(key, Total(*key))
        total.times += 1
        total.again += _place(line) in seen
        seen.add(_place(line))
        total.dropped += line.verdict not in ("", "accepted")
        total.bytes += line.bytes
        total.tensors.update(line.tensors)
        total.scalars.update(dict.fromkeys(line.scalars))
        if line.policy:
            total.policies[line.policy] += 1
    return list(result.values())


def _place(line: Line) -> tuple[object, ...]:
    return line.client, line.round, line.request, line.exchange, line.direction


ABOUT_SUMS = ("keys", "shares", "hold", "confirm", "unmask")
"""Requests by which masks of an exchange are agreed on, and taken from its sum."""


def spent(lines: Iterable[Line]) -> dict[str, Counter[str]]:
    """What clients have done: client to number of ``turns`` and ``evaluations``, and ``bytes`` sent and received.

    A turn that failed counts: that it did is an answer, too.
    """
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for line in lines:
        answered = line.direction == "up" or line.event in (FAILED, DONE)
        if answered and line.request not in ABOUT_SUMS:
            found[line.client]["evaluations" if line.request == "evaluate" else "turns"] += 1
        if answered or line.direction == "down":
            found[line.client]["bytes"] += line.bytes
    return found


def confirmed(lines: Iterable[Line]) -> dict[tuple[int, str], str]:
    """Round and exchange of the secure sums that a client has had opened, and what says whose they were."""
    up = (line for line in lines if line.direction == "up" and line.request == "confirm")
    return {(line.round, line.exchange): line.policy for line in up}


def lost_sums(lines: Iterable[Line], after: int) -> dict[tuple[int, str], set[str]]:
    """Secure sums of rounds that a server has lost: round and exchange to the clients that confirmed these lists.

    Args:
        lines: of the server's ledger.
        after: the last round that is not lost.
    """
    found: dict[tuple[int, str], set[str]] = {}
    job: dict[tuple[int, str], set[str]] = {}
    for line in lines:
        if line.event == "opened":
            job = {}
        if line.direction == "up" and line.round > after and line.verdict == "accepted":
            if line.request == "exchange":
                job.setdefault((line.round, line.exchange), set()).add(line.client)
            elif line.request == "confirm":
                found[line.round, line.exchange] = job.get((line.round, line.exchange), set())
    return found
