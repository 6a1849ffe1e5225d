"""The server's side of the loop: whom to ask, what to send, what to do with the answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from typing import Any

from flgraph.errors import EngineError
from flgraph.federation.aggregation import weighted_mean
from flgraph.federation.aggregator import Aggregator
from flgraph.federation.engines import Engine
from flgraph.federation.messages import Request, Turn
from flgraph.federation.payload import Payload, pack, unpack
from flgraph.federation.routes import agree
from flgraph.federation.seeding import derive_seed, seed_all
from flgraph.runs.history import Metrics, RoundRecord


class Server:
    """Runs exchanges between an algorithm's server half and the clients of an engine.

    Args:
        aggregator: the server half.
        engine: has the clients.
        clients: their names.
        seed: the run's seed; decides which clients take part in which round.
        client_fraction: share of the clients that take part in a round.
        personal: patterns of tensors that stay with clients, whatever the algorithm's routes say.
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
    ) -> None:
        self.aggregator, self.engine, self.clients = aggregator, engine, list(clients)
        self.seed, self.client_fraction, self.personal = seed, client_fraction, list(personal)
        aggregator.seed = seed
        self.version = 0  # how often the aggregator changed what it has to give
        self.installed: dict[str, int] = {}  # which version each client has
        self.setup_record = RoundRecord(0)
        self.retired: set[str] = set()
        """Clients that take part in no more rounds; they are evaluated all the same."""

    def begin(self) -> None:
        """Agrees on what is shared and collects the initial values.

        Clients tell names and shapes of the tensors that their routes would share, nothing of the others.
        """
        record = self.setup_record = RoundRecord(0)
        answers = self._ask({name: Turn(0, Request.DESCRIBE) for name in self.clients}, record)
        signatures = {
            name: {key: str(form) for key, form in answer.scalars.items()} for name, answer in answers.items()
        }
        agreed = agree(signatures, self.aggregator.routes(), self.personal)
        self.aggregator.owners = agreed
        asked: set[str] = set()
        turns = {}
        start = self.aggregator.initial_weights
        for name in self.clients:
            wanted = [tensor for tensor in agreed[name] if tensor not in asked and start != "own"]
            if start == "first":
                asked.update(wanted)
            terms = Payload(scalars={"shared": "\n".join(agreed[name]), "initial": "\n".join(wanted)})
            turns[name] = Turn(0, Request.AGREE, download=terms.to_bytes())
            record.bytes_down += terms.nbytes
        own = {name: answer.tensors for name, answer in self._ask(turns, record).items()}
        if start == "mean":
            initial = weighted_mean(own, dict.fromkeys(own, 1.0))
        else:
            initial = {name: tensor for tensors in own.values() for name, tensor in tensors.items()}
        self.aggregator.start(initial, self.clients)
        self.version += 1

    def prepare(self, report: Callable[[str, int, int], None]) -> None:
        """Runs the exchanges of round 0 and sends what is to send.

        Args:
            report: called before each exchange with its name, its number from 1, and how many there are.
        """
        exchanges = self.aggregator.exchanges(0)
        for number, exchange in enumerate(exchanges, start=1):
            report(exchange, number, len(exchanges))
            self._exchange(0, exchange, self.clients, self.setup_record)
        self.evaluate(0, (), self.setup_record)

    def round(self, number: int, record: RoundRecord) -> None:
        """Runs all exchanges of a round with the clients drawn for it."""
        record.clients = self.participants(number)
        for exchange in self.aggregator.exchanges(number):
            record.clients = self._exchange(number, exchange, record.clients, record)

    def participants(self, number: int) -> list[str]:
        """The clients of a round, in the order of the federation; depends on the seed and the round alone.

        Those that have retired are drawn, too, and left out.
        """
        count = max(1, round(self.client_fraction * len(self.clients)))
        drawn = set(self.clients)
        if count < len(self.clients):
            drawn = set(random.Random(derive_seed(self.seed, "participants", number)).sample(self.clients, count))
        return [name for name in self.clients if name in drawn - self.retired]

    def evaluate(self, number: int, splits: tuple[str, ...], record: RoundRecord) -> Metrics:
        """Each client's metrics on ``splits``, with what is new installed unless the trained model is to be evaluated.

        What was exchanged in round 0 is always installed. Without splits clients install and measure nothing.
        """
        install = number == 0 or self.aggregator.evaluated_model == "aggregated"
        downloads = {name: self._download(name, number, None, record) if install else None for name in self.clients}
        turns = {
            name: Turn(number, Request.EVALUATE, download=download, splits=splits)
            for name, download in downloads.items()
            if splits or download is not None
        }
        answers = {name: Payload.from_bytes(answer) for name, answer in self._run(turns).items()}
        record.metric_bytes += sum(answer.nbytes for answer in answers.values())
        return {name: {key: float(value) for key, value in answer.scalars.items()} for name, answer in answers.items()}

    def request(self, request: Request, clients: Collection[str], number: int) -> None:
        """Has clients do something that they answer nothing to.

        Raises:
            EngineError: a client does not answer in time; its model would not be the one that its metrics are of.
        """
        answers = self.engine.run({name: Turn(number, request) for name in clients})
        missing = ", ".join(f"`{name}`" for name in clients if name not in answers)
        if missing:
            raise EngineError(f"Not all clients answered in time in round {number} ({request}); missing: {missing}.")

    def _exchange(self, number: int, exchange: str, clients: Sequence[str], record: RoundRecord) -> list[str]:
        """Returns who took part: an engine may leave out clients that do not answer in time."""
        turns = {
            name: Turn(number, Request.EXCHANGE, exchange, self._download(name, number, exchange, record))
            for name in clients
        }
        uploads = self._ask(turns, record)
        seed_all(derive_seed(self.seed, "aggregate", number, exchange))
        self.aggregator.accept(self.aggregator.aggregate(uploads, number, exchange))
        self.version += 1
        return list(uploads)

    def _ask(self, turns: dict[str, Turn], record: RoundRecord) -> dict[str, Payload]:
        answers = self._run(turns)
        record.bytes_up += sum(map(len, answers.values()))
        return {name: Payload.from_bytes(answer) if answer else Payload() for name, answer in answers.items()}

    def _run(self, turns: dict[str, Turn]) -> dict[str, bytes]:
        """Answers in the order of ``turns``; what those have who did not answer is not known."""
        answers = self.engine.run(turns)
        for name in turns:
            if name not in answers:
                self.installed.pop(name, None)
        return {name: answers[name] for name in turns if name in answers}

    def _download(self, name: str, number: int, exchange: str | None, record: RoundRecord) -> bytes | None:
        if self.installed.get(name) == self.version:
            return None
        payload = self.aggregator.download(name, number, exchange)
        self.installed[name] = self.version
        if payload is None:
            return None
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
        algorithm = {"shared": self.aggregator.shared, "state": self.aggregator.server_state()}
        return pack({"loop": loop, "owners": {"groups": groups, "of": numbers}, "algorithm": algorithm}).to_bytes()

    def load_state(self, data: bytes) -> dict[str, Any]:
        """Puts back what :meth:`state` wrote; returns what was passed as ``further`` (among the rest)."""
        state = unpack(Payload.from_bytes(data, max_header=len(data)))
        loop: dict[str, Any] = state["loop"]
        self.version, self.installed = loop["version"], loop["installed"]
        groups, numbers = state["owners"]["groups"], state["owners"]["of"]
        self.aggregator.owners = {name: groups[number] for name, number in numbers.items()}
        order = {name: position for position, name in enumerate(numbers)}
        self.clients.sort(key=order.__getitem__)  # which are drawn for a round depends on it
        self.setup_record = RoundRecord(0, **loop["setup"])
        self.aggregator.accept(state["algorithm"]["shared"])
        self.aggregator.load_server_state(state["algorithm"]["state"])
        return loop
