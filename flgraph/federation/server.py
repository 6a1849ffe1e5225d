"""The server's side of the loop: whom to ask, what to send, what to do with the answers."""

from __future__ import annotations

import copy
import logging
import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from operator import index
from typing import Any, Literal, TypeVar

from torch import Tensor

from flgraph.errors import ClientError, EngineError, InputError, expect, expect_kind
from flgraph.federation.aggregation import weighted_mean
from flgraph.federation.aggregator import Aggregator, needs_only_sums
from flgraph.federation.door import ServerDoor
from flgraph.federation.engines import Engine
from flgraph.federation.messages import Request, Turn, note_message
from flgraph.federation.payload import Payload, pack, unpack
from flgraph.federation.privacy import Account
from flgraph.federation.routes import agree
from flgraph.federation.secure.identity import Authority
from flgraph.federation.secure.server import MaskedSum, Read, layout_of
from flgraph.federation.secure.settings import SecureSums
from flgraph.federation.seeding import derive_seed, seed_all
from flgraph.federation.summing import Group, Seen, Summing
from flgraph.federation.tolerance import Tolerance
from flgraph.federation.transforms import Draw, GaussianNoise, Pipeline, Transform, draw_key
from flgraph.runs.history import Metrics, RoundRecord
from flgraph.runs.ledger import ASKED, SUM, Ledger

T = TypeVar("T")

_log = logging.getLogger(__name__)


class _TooFewError(ClientError):
    """Too few clients are left of those that were asked."""


def clients_per_round(clients: int, fraction: float) -> int:
    """How many of ``clients`` are drawn for a round: this ``fraction``, and one at least."""
    return max(1, round(fraction * clients))


class Server:
    """Runs exchanges between an algorithm's server half and the clients of an engine.

    Args:
        aggregator: the server half.
        engine: has the clients.
        clients: their names.
        seed: the run's seed; decides which clients take part in which round.
        client_fraction: share of the clients that take part in a round.
        personal: patterns of tensors that stay with clients, whatever the algorithm's routes say.
        transforms: what happens to uploads; copies are made.
        tolerance: what becomes of the run when a client fails.
        secure_sums: how uploads are masked, if they are.
        ledger: where every message is noted; nowhere when ``None``.
    """

    def __init__(
        self,
        aggregator: Aggregator,
        engine: Engine,
        clients: Sequence[str],
        *,
        seed: int,
        client_fraction: float,
        personal: Sequence[str] = (),
        transforms: Sequence[Transform] = (),
        tolerance: Tolerance | None = None,
        secure_sums: SecureSums | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        self.aggregator, self.engine, self.clients = aggregator, engine, list(clients)
        self.seed, self.client_fraction, self.personal = seed, client_fraction, list(personal)
        self.tolerance, self.secure_sums = tolerance or Tolerance(), secure_sums
        engine.keep_going = (self.tolerance.on_bad_upload or ("end" if engine.trusted else "drop")) == "drop"
        aggregator.seed = seed
        self.ledger = ledger
        self.job = ""
        """Digest of what sites were told to do; secure sums are of clients that were told the same."""
        self.authority: Authority | None = None
        """By which sites sign, where they do."""
        self.lost: dict[tuple[int, str], set[str]] = {}
        """Round and exchange of secure sums that were opened before the run was stopped, to whose they were."""
        self._sent: dict[str, Payload] = {}  # what is about to be sent
        self.transforms = Pipeline(copy.deepcopy(list(transforms)), aggregator)
        self.door = ServerDoor(aggregator, self.personal, self.transforms, secure_sums is not None)
        self.account: Account | None = None
        """What the run has cost its clients, where their uploads get noise."""
        self.version = 0  # how often the aggregator changed what it has to give
        self.installed: dict[str, int] = {}  # which version each client has
        self.setup_record = RoundRecord(0)
        self.retired: set[str] = set()
        """Clients that take part in no more rounds; they are evaluated all the same."""
        self.skipped: set[str] = set()
        """Clients that do not take part in the next round."""
        self.strikes: dict[str, int] = {}
        """Client to how often it failed or sent what could not be used."""
        self.excluded: set[str] = set()
        """Clients that are left out for the rest of the run, and asked nothing."""

    @property
    def members(self) -> list[str]:
        """The clients that are not excluded, in the order of the federation."""
        return [name for name in self.clients if name not in self.excluded]

    @property
    def dropped(self) -> dict[str, dict[str, Any]]:
        """Clients that were left out: how often, and whether for the rest of the run."""
        names = sorted({*self.strikes, *self.excluded})
        return {name: {"times": self.strikes.get(name, 0), "excluded": name in self.excluded} for name in names}

    def exclude(self, clients: Collection[str]) -> None:
        """Leaves clients out for the rest of the run."""
        self.excluded |= set(clients)
        self.aggregator.excluded = self.excluded
        self.engine.leave_out(clients)

    def begin(self) -> None:
        """Agrees on what is shared and collects the initial values.

        Clients tell names and shapes of the tensors that their routes would share, nothing of the others.

        Raises:
            InputError: an answer cannot be used, and that is to end the run; or the algorithm's ``start`` keeps nothing
                that its ``download`` could send.
        """
        record = self.setup_record = RoundRecord(0)
        turns = {name: Turn(0, Request.DESCRIBE) for name in self.clients}
        if self.engine.keep_going:
            described = self._ask(turns, record, self.door.describe, self.door.differing)
        else:  # the sentence of `agree` says more
            described = self._ask(turns, record, self.door.describe)
        agreed = agree(described, self.aggregator.routes(), self.personal)
        for name in agreed:
            self.door.agree(name, described[name], agreed[name])
        start, initial = self.aggregator.initial_weights, dict[str, Tensor]()
        own = self._initial(agreed, initial, record)
        while start == "first" and any(set(agreed[name]) - initial.keys() for name in self.members):
            # Who was to send them is left out: the next client's are taken.
            own = self._initial({name: agreed[name] for name in self.members}, initial, record)
        if start == "mean":
            initial = weighted_mean(own, dict.fromkeys(own, 1.0))
        self.aggregator.owners = {name: agreed[name] if name in self.members else [] for name in self.clients}
        self.aggregator.start(initial, self.members)
        lost = initial.keys() - self.aggregator.shared.keys()
        kept = not lost or type(self.aggregator).download is not Aggregator.download
        wanted = "one that keeps what it is given, for downloads (`super().start(initial, clients)`),"
        expect(kept, f"{type(self.aggregator).__name__}.start", wanted, f"none of `{''.join(sorted(lost)[:1])}`")
        if self.secure_sums is not None:
            layout = layout_of(self.aggregator.shared, {name: self.aggregator.owners[name] for name in self.members})
            numbers = sum(math.prod(shape) for _, shape in layout)
            for noise in (own for own in self.transforms.transforms if isinstance(own, GaussianNoise)):
                noise.expect_fine(numbers, self.secure_sums.fraction_bits)
        self.version += 1

    def _initial(
        self, agreed: Mapping[str, Sequence[str]], initial: dict[str, Tensor], record: RoundRecord
    ) -> dict[str, dict[str, Tensor]]:
        """Tells clients what they share, and asks for values that ``initial`` lacks; they are added to it."""
        start, asked = self.aggregator.initial_weights, set(initial)
        wanted: dict[str, list[str]] = {}
        turns: dict[str, Turn] = {}
        for name, names in agreed.items():
            wanted[name] = [tensor for tensor in names if tensor not in asked and start != "own"]
            if start == "first":
                asked.update(wanted[name])
            terms = Payload(scalars={"shared": "\n".join(names), "initial": "\n".join(wanted[name])})
            turns[name] = Turn(0, Request.AGREE, download=self._send(name, terms, record))
        own = self._ask(turns, record, lambda name, answer: self.door.initial(name, answer, wanted[name]))
        for tensors in own.values():
            initial |= tensors
        return own

    def prepare(self, report: Callable[[str, int, int], None]) -> None:
        """Runs the exchanges of round 0 and sends what is to send.

        Args:
            report: called before each exchange with its name, its number from 1, and how many there are.
        """
        exchanges = self.aggregator.exchanges(0)
        for number, exchange in enumerate(exchanges, start=1):
            report(exchange, number, len(exchanges))
            self._exchange(0, exchange, self.members, self.setup_record, len(self.excluded))
        self.evaluate(0, (), self.setup_record)

    def round(self, number: int, record: RoundRecord) -> None:
        """Runs all exchanges of a round with the clients drawn for it.

        Where not all are drawn, an exchange of which too few answers can be used ends the round, and changes nothing.

        Raises:
            ClientError: too few answers can be used, and the next round would be no better.
        """
        record.clients = [name for name in self.participants(number) if name not in self.skipped]
        self.skipped = set()
        drawn = self._drawn(number)
        sit_out = drawn - self.excluded and not record.clients  # all the others: nobody is asked
        missing = 0 if sit_out else len(drawn & self.excluded)
        for exchange in self.aggregator.exchanges(number):
            try:
                record.clients = self._exchange(number, exchange, record.clients, record, missing)
            except _TooFewError as error:
                others = len(self.members) >= self.tolerance.min_clients and self.secure_sums is None
                if not (others and len(self._drawn(number)) < len(self.clients)):
                    raise
                # Who spoils the rounds that it is drawn for runs out of strikes.
                _log.warning("Round %d ends without its mean (%s): %s", number, exchange, error)
                record.clients = []
                self.version += 1  # those who trained go back to the mean
                break
        if self.ledger is not None:
            self.ledger.flush()

    def participants(self, number: int) -> list[str]:
        """The clients of a round, in the order of the federation; depends on the seed and the round alone.

        Those that have retired or are excluded are drawn, too, and left out.
        """
        drawn = self._drawn(number)
        return [name for name in self.members if name in drawn - self.retired]

    def _drawn(self, number: int) -> set[str]:
        count = clients_per_round(len(self.clients), self.client_fraction)
        if count == len(self.clients):
            return set(self.clients)
        return set(random.Random(derive_seed(self.seed, "participants", number)).sample(self.clients, count))

    def evaluate(self, number: int, splits: tuple[str, ...], record: RoundRecord) -> Metrics:
        """Each client's metrics on ``splits``, with what is new installed unless the trained model is to be evaluated.

        What was exchanged in round 0 is always installed. Without splits clients install and measure nothing.
        """
        install = number == 0 or self.aggregator.evaluated_model == "aggregated"
        downloads = {name: self._download(name, number, None, record) if install else None for name in self.members}
        turns = {
            name: Turn(number, Request.EVALUATE, download=download, splits=splits)
            for name, download in downloads.items()
            if splits or download is not None
        }

        found = self._ask(turns, record, self.door.metrics, counted="metric_bytes", missing=len(self.excluded))
        if splits:
            record.silent = [name for name in turns if name not in found and name not in self.excluded]
        return found

    def request(self, request: Request, clients: Collection[str], record: RoundRecord) -> None:
        """Has clients do something that they answer nothing to; who cannot is left out for the rest of the run.

        Raises:
            EngineError: a client does not answer; its model would not be the one that its metrics are of.
        """
        number = record.round
        turns = {name: Turn(number, request) for name in clients if name not in self.excluded}
        answers = self.engine.run(turns)
        for name, turn in turns.items():
            answer = answers.get(name)
            if isinstance(answer, Exception):
                self._strike(name, turn, answer, record, last=True)
        missing = ", ".join(f"`{name}`" for name in turns if answers.get(name) is None)
        if missing:
            raise EngineError(f"Not all clients answered in time in round {number} ({request}); missing: {missing}.")

    def _exchange(
        self, number: int, exchange: str, clients: Sequence[str], record: RoundRecord, missing: int
    ) -> list[str]:
        """Returns who took part; ``missing`` is how many would have been asked, were they not excluded."""
        if self.secure_sums is not None:
            return self._sum(self.secure_sums, number, exchange, clients, record, missing)
        turns = {
            name: Turn(number, Request.EXCHANGE, exchange, self._download(name, number, exchange, record))
            for name in clients
        }
        self._count(number, exchange, turns)
        sums_suffice = needs_only_sums(self.aggregator, number, exchange) and not self.transforms.receives
        summing = Summing(self.aggregator) if sums_suffice else None

        def read(name: str, answer: bytes) -> Payload | Seen:
            upload = self.door.upload(name, answer, number, exchange)
            return upload if summing is None else summing.add(name, upload, self.door.forms.get(name, {}))

        answers = self._ask(turns, record, read, self.door.compare, missing=missing, summing=summing)
        usual = self.door.usual_types(answers)
        uploads = {name: own.cast(usual) for name, own in answers.items() if isinstance(own, Payload)}
        if self.transforms:
            uploads = self._received(uploads, number, exchange)
        seed_all(derive_seed(self.seed, "aggregate", number, exchange))
        if summing is None:
            new = self.aggregator.aggregate(uploads, number, exchange)
        else:
            mean = Payload(summing.total(answers).mean()).cast(usual).tensors
            new = self.aggregator.take_mean(mean, number, exchange)
        self.aggregator.accept(new)
        self.version += 1
        return list(answers)

    def _sum(
        self,
        secure: SecureSums,
        number: int,
        exchange: str,
        clients: Sequence[str],
        record: RoundRecord,
        missing: int,
    ) -> list[str]:
        """The same where uploads are masked: the server gets their weighted mean alone."""
        before = self.lost.get((number, exchange), set())
        clients = [name for name in clients if name in before or not before]
        if not clients:
            return []
        layout = layout_of(self.aggregator.shared, {name: self.aggregator.owners[name] for name in clients})
        newest = self.aggregator.download(clients[0], number, exchange) or Payload()
        origin = self.transforms.accompanied(newest).digest
        masked = MaskedSum(secure, number, exchange, layout, origin, self.job, before, self.authority)

        def ask(request: Request, told: Mapping[str, Payload | None], read: Read) -> list[str]:
            turns = {}
            for name, payload in told.items():
                if request == Request.EXCHANGE:
                    sent = self._download(name, number, exchange, record)
                else:
                    sent = None if payload is None else self._send(name, payload, record)
                turns[name] = Turn(number, request, exchange, sent)
            if request == Request.EXCHANGE:
                self._count(number, exchange, turns)
            gone = missing + len(clients) - len(turns)
            taken = self._ask(
                turns, record, lambda name, answer: read(name, self.door.plain(name, answer)), missing=gone
            )
            return list(taken)

        used = set(masked.run(clients, ask))
        seed_all(derive_seed(self.seed, "aggregate", number, exchange))
        mean = masked.mean({name: self.aggregator.shared[name].dtype for name, _ in layout})
        mean = self.transforms.receive_mean(
            mean, masked.weight, lambda transform: self._draw("", transform, number, exchange)
        )
        self.aggregator.accept(self.aggregator.take_mean(mean, number, exchange))
        self.version += 1
        return [name for name in clients if name in used]

    def _count(self, number: int, exchange: str, clients: Collection[str]) -> None:
        """Counts uploads with noise before they are asked for: some may have come when an exchange breaks off."""
        if self.account is None:
            return
        self.account.count(clients, len(self._drawn(number)) if number else len(self.clients))
        if self.ledger is not None and not self.account.trusted:
            with self.ledger.together():
                for client in clients:
                    self.ledger.add(event=ASKED, client=client, round=number, exchange=exchange)
            self.ledger.flush()

    def _received(self, uploads: Mapping[str, Payload], number: int, exchange: str) -> dict[str, Payload]:
        """Uploads as transforms have them used."""
        references = {name: self.door.reference(name) for name in uploads}
        return self.transforms.receive(
            uploads, references, lambda client, transform: self._draw(client, transform, number, exchange)
        )

    def _draw(self, client: str, transform: Transform, number: int, exchange: str) -> Draw:
        purpose = (self.seed, "server", client, number, exchange, type(transform).__name__)
        return Draw(draw_key(self.engine.trusted or not transform.protects, *purpose))

    def _ask(
        self,
        turns: Mapping[str, Turn],
        record: RoundRecord,
        read: Callable[[str, bytes], T],
        compare: Callable[[Mapping[str, T]], Mapping[str, Exception]] = lambda answers: {},
        counted: Literal["bytes_up", "metric_bytes"] = "bytes_up",
        missing: int = 0,
        summing: Summing | None = None,
    ) -> dict[str, T]:
        """What clients answered, in the order of ``turns``, without those whose answers cannot be used.

        Raises:
            InputError: an answer cannot be used, or a client refused, and that is to end the run.
            ClientError: a client failed, and that is to end the run; or too few are left.
            EngineError: too few answered in time.
        """
        ledger = self.ledger or Ledger()  # one that notes nothing
        with ledger.together():
            for name, turn in turns.items():
                if turn.download is not None:
                    note_message(self.ledger, "down", name, turn, turn.download, self._sent.pop(name))
        found: dict[str, T] = {}
        bad: dict[str, Exception] = {}
        lines: dict[str, Seen] = {}  # what is left of answers
        for part in _parts(turns, self.engine.batch):
            if summing is None or self.transforms:
                answers = self.engine.run(part)
            else:
                answers, groups = self.engine.run_summed(part, self.door.counts)
                self._take(groups, turns, summing, found, bad)
                lines |= {name: seen for group in groups for name, seen in group.clients.items()}
            for name in part:
                answer = answers.get(name)
                if isinstance(answer, bytes):
                    try:
                        found[name] = read(name, answer)
                    except InputError as refused:
                        bad[name] = refused
                elif answer is not None:
                    bad[name] = answer
                if answer:
                    data = answer if isinstance(answer, bytes) else b""
                    lines[name] = Seen.line(self.door.read.pop(name, None), data)
            del answers
        setattr(record, counted, getattr(record, counted) + sum(line.size for line in lines.values()))
        found = {name: found[name] for name in turns if name in found}
        bad |= compare(found)
        if summing is not None:
            bad |= summing.spoilt(bad)
        with ledger.together():
            for name, turn in turns.items():
                if name not in found or name in bad:
                    self.installed.pop(name, None)  # what it has is not known
                verdict = f"dropped: {bad[name]}" if name in bad else "accepted"
                if name in lines:
                    note_message(self.ledger, "up", name, turn, None, lines[name], verdict)
        for name, error in bad.items():
            self._strike(name, turns[name], error, record)
        found = {name: answer for name, answer in found.items() if name not in bad}
        least = min(self.tolerance.min_clients, len(turns) + missing)
        first = any(turn.round == 0 for turn in turns.values())  # all must agree
        needed = max(least, len(turns) - len(bad)) if first else least
        if len(found) < needed:
            absent = [f"{name} ({bad[name]})" if name in bad else name for name in turns if name not in found]
            absent += [f"{name} (left out before)" for name in sorted(self.excluded - set(turns))]
            kind = _TooFewError if bad or self.excluded else EngineError  # what was bad would be so again
            raise kind(
                f"Only {len(found)} of at least {needed} clients answered in time; missing: {', '.join(absent)}."
            )
        return found

    def _take(
        self,
        groups: Sequence[Group],
        turns: Mapping[str, Turn],
        summing: Summing,
        found: dict[str, Any],
        bad: dict[str, Exception],
    ) -> None:
        """Takes what other processes or sites added up, if it can be used."""
        for group in groups:
            turn = turns[next(iter(group.clients))]
            try:
                self.door.check_group(group, turn.round, turn.exchange)
            except InputError as refused:
                bad |= dict.fromkeys(group.clients, refused)
            else:
                found |= group.clients
                summing.take(group)
            if group.where and self.ledger is not None:
                told = {"round": turn.round, "exchange": turn.exchange, "clients": len(group.clients)}
                self.ledger.add(event=SUM, data=group.data, **told, **{"from": group.where})

    def _strike(self, name: str, turn: Turn, error: Exception, record: RoundRecord, last: bool = False) -> None:
        if not self.engine.keep_going:
            raise error.within(f"round {turn.round} ({turn.name})") if type(error) is InputError else error
        record.dropped[name] = str(error)
        self.strikes[name] = self.strikes.get(name, 0) + 1
        if last or turn.round == 0 or self.strikes[name] >= self.tolerance.strikes:
            self.exclude([name])
        rest = ", and for the rest of the run" if name in self.excluded else ""
        _log.warning("Client `%s` is left out of round %d (%s)%s: %s", name, turn.round, turn.name, rest, error)

    def _download(self, name: str, number: int, exchange: str | None, record: RoundRecord) -> bytes | None:
        if self.installed.get(name) == self.version:
            return None
        payload = self.aggregator.download(name, number, exchange)
        self.installed[name] = self.version
        if payload is None:
            return None
        expect_kind(payload, Payload, f"download of {type(self.aggregator).__name__}", "a Payload or None")
        if self.transforms:
            payload = self.transforms.accompanied(payload)
            self.door.sent[name] = payload.to_bytes()
        return self._send(name, payload, record)

    def _send(self, name: str, payload: Payload, record: RoundRecord) -> bytes:
        self._sent[name] = payload
        record.bytes_down += payload.nbytes
        return payload.to_bytes()

    # ------------------------------------------------------------------------------------------------- persistence
    def state(self, further: dict[str, Any]) -> bytes:
        """The server's state and ``further`` plain values as payload bytes."""
        owners = self.aggregator.owners
        groups = list(dict.fromkeys(tuple(names) for names in owners.values()))  # most often there is one
        numbers = {name: groups.index(tuple(names)) for name, names in owners.items()}
        setup = {"bytes_up": self.setup_record.bytes_up, "bytes_down": self.setup_record.bytes_down}
        loop = {"version": self.version, "installed": self.installed, "setup": setup, **further}
        loop |= {"strikes": self.strikes, "excluded": sorted(self.excluded), "door": self.door.state()}
        loop |= {"retired": sorted(self.retired)} if self.retired else {}
        loop |= {} if self.account is None else {"privacy": self.account.state()}
        loop |= {"transforms": state} if (state := self.transforms.state_dict()) else {}
        algorithm = {"shared": self.aggregator.shared, "state": self.aggregator.server_state()}
        return pack({"loop": loop, "owners": {"groups": groups, "of": numbers}, "algorithm": algorithm}).to_bytes()

    def load_state(self, data: bytes) -> dict[str, Any]:
        """Puts back what :meth:`state` wrote; returns what was passed as ``further`` (among the rest)."""
        state = unpack(Payload.from_bytes(data, max_header=len(data)))
        loop: dict[str, Any] = state["loop"]
        self.version, self.installed = index(loop["version"]), dict(loop["installed"])
        self.strikes, self.retired = dict(loop["strikes"]), set(loop.get("retired", ()))
        self.exclude(loop["excluded"])
        self.door.load_state(loop["door"])
        if self.account is not None:
            self.account.load_state(loop["privacy"])
        self.transforms.load_state_dict(loop.get("transforms", {}))
        groups, numbers = state["owners"]["groups"], state["owners"]["of"]
        self.aggregator.owners = {name: groups[number] for name, number in numbers.items()}
        order = {name: position for position, name in enumerate(numbers)}
        for name in self.clients:
            expect(name in order, f"data.{name}", "left out, as when the run began,", "it")
        self.exclude(order.keys() - set(self.clients))  # their site did not open the job
        self.clients.sort(key=order.__getitem__)  # which are drawn for a round depends on it
        self.setup_record = RoundRecord(0, **loop["setup"])
        self.aggregator.accept(state["algorithm"]["shared"])
        self.aggregator.load_server_state(state["algorithm"]["state"])
        return loop


def _parts(turns: Mapping[str, Turn], most: int | None) -> Iterator[Mapping[str, Turn]]:
    """The turns, so many at a time."""
    names = iter(turns)
    while part := {name: turns[name] for name in islice(names, most)}:
        yield part
