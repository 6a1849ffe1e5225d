"""The server's side of the loop: whom to ask, what to send, what to do with the answers."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any, Literal

from flgraph.errors import EngineError
from flgraph.federation.aggregation import weighted_mean
from flgraph.federation.aggregator import Aggregator
from flgraph.federation.client import AGREE, DESCRIBE, EVALUATE, FORM, KEEP, SWAP, Turn
from flgraph.federation.engines import Engine
from flgraph.federation.payload import Payload
from flgraph.federation.routes import agree
from flgraph.federation.seeding import derive_seed
from flgraph.runs.history import Metrics, RoundRecord

EvaluatedModel = Literal["aggregated", "trained"]
"""Which model of a client is evaluated after a round."""
InitialWeights = Literal["first", "mean"]
"""Which values shared tensors begin with."""


class Server:
    """Runs exchanges between an algorithm's server half and the clients of an engine.

    Args:
        aggregator: the server half.
        engine: holds the clients.
        clients: their names.
        seed: the run's seed; decides which clients take part in which round.
        client_fraction: share of the clients that take part in a round.
        evaluate_model: which model of a client is evaluated, see :class:`FederatedTrainer`.
        initial_weights: which values shared tensors begin with, see there.
    """

    def __init__(
        self,
        aggregator: Aggregator,
        engine: Engine,
        clients: Sequence[str],
        *,
        seed: int,
        client_fraction: float,
        evaluate_model: EvaluatedModel = "aggregated",
        initial_weights: InitialWeights = "first",
    ) -> None:
        self.aggregator, self.engine, self.clients = aggregator, engine, list(clients)
        self.seed, self.client_fraction, self.evaluate_model = seed, client_fraction, evaluate_model
        self.initial_weights = initial_weights
        aggregator.seed = seed
        self.version = 0  # how often the aggregator changed what it has to give
        self.installed: dict[str, int] = {}  # which version each client has
        self.setup_record = RoundRecord(0)
        self.retired: set[str] = set()
        """Clients that take part in no more rounds; they are evaluated all the same."""

    def begin(self) -> None:
        """Agrees on what is shared and collects the initial values.

        Clients tell names and shapes of the tensors that their routes would share, nothing of the others. All start
        with the same value of each shared tensor: that of the first client that holds it, or the mean over all that do.
        """
        record = self.setup_record = RoundRecord(0)
        answers = self._ask({name: Turn(0, DESCRIBE) for name in self.clients}, record)
        signatures = {
            name: {key.removeprefix(FORM): str(form) for key, form in answer.scalars.items()}
            for name, answer in answers.items()
        }
        agreed = agree(signatures, self.aggregator.routes())
        self.aggregator.holders = agreed
        asked: set[str] = set()
        turns = {}
        for name in self.clients:
            wanted = [tensor for tensor in agreed[name] if tensor not in asked and self.aggregator.wants_initial]
            if self.initial_weights == "first":
                asked.update(wanted)
            terms = Payload(scalars={"shared": "\n".join(agreed[name]), "initial": "\n".join(wanted)})
            turns[name] = Turn(0, AGREE, terms.to_bytes())
            record.bytes_down += terms.nbytes
        own = self._ask(turns, record)
        if self.initial_weights == "mean":
            initial = weighted_mean(own, dict.fromkeys(own, 1.0))
        else:
            initial = {name: tensor for answer in own.values() for name, tensor in answer.tensors.items()}
        self.aggregator.start(initial, self.clients)
        self.version += 1

    def prepare(self, tell: Callable[[str, int, int], None]) -> None:
        """Runs the exchanges of round 0 and sends what is to send.

        Args:
            tell: called before each exchange with its name, its number from 1, and how many there are.
        """
        exchanges = self.aggregator.exchanges(0)
        for number, exchange in enumerate(exchanges, start=1):
            tell(exchange, number, len(exchanges))
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

        What was exchanged in round 0 is always installed.
        """
        install = number == 0 or self.evaluate_model == "aggregated"
        downloads = {name: self._download(name, number, EVALUATE, record) if install else None for name in self.clients}
        turns = {name: Turn(number, EVALUATE, downloads[name], splits) for name in self.clients}
        if not splits:
            turns = {name: turn for name, turn in turns.items() if turn.download is not None}
        answers = {name: Payload.from_bytes(answer) for name, answer in self._run(turns).items()}
        record.metric_bytes += sum(answer.nbytes for answer in answers.values())
        return {name: {key: float(value) for key, value in answer.scalars.items()} for name, answer in answers.items()}

    def keep(self, clients: Sequence[str], number: int) -> None:
        """Lets clients keep a copy of their models (:meth:`Client.keep`).

        Raises:
            EngineError: a client does not answer in time; its models would not be those that its metrics are of.
        """
        self._tell(KEEP, clients, number)

    def swap(self, clients: Sequence[str], number: int) -> None:
        """Lets clients exchange their models and the copies that they kept (:meth:`Client.swap`).

        Raises:
            EngineError: as :meth:`keep`.
        """
        self._tell(SWAP, clients, number)

    def _tell(self, exchange: str, clients: Sequence[str], number: int) -> None:
        answers = self.engine.run({name: Turn(number, exchange) for name in clients})
        missing = ", ".join(f"`{name}`" for name in clients if name not in answers)
        if missing:
            raise EngineError(f"Not all clients answered in time in round {number} ({exchange}); missing: {missing}.")

    def _exchange(self, number: int, exchange: str, clients: Sequence[str], record: RoundRecord) -> list[str]:
        """Returns who took part: an engine may leave out clients that do not answer in time."""
        turns = {name: Turn(number, exchange, self._download(name, number, exchange, record)) for name in clients}
        uploads = self._ask(turns, record)
        self.aggregator.aggregate(uploads, number, exchange)
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

    def _download(self, name: str, number: int, exchange: str, record: RoundRecord) -> bytes | None:
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
        own = self.aggregator.server_state()
        holders = self.aggregator.holders
        kinds = list(dict.fromkeys(tuple(names) for names in holders.values()))  # most often there is one
        which = {name: kinds.index(tuple(names)) for name, names in holders.items()}
        held = {"kinds": kinds, "which": which}
        loop = {"version": self.version, "installed": self.installed, "holders": held, **further}
        setup = {"bytes_up": self.setup_record.bytes_up, "bytes_down": self.setup_record.bytes_down}
        scalars = {"loop": json.dumps({**loop, "setup": setup}), "aggregator": json.dumps(dict(own.scalars))}
        return Payload(own.tensors, scalars).to_bytes()

    def load_state(self, data: bytes) -> dict[str, Any]:
        """Puts back what :meth:`state` wrote; returns what was passed as ``further`` (among the rest)."""
        payload = Payload.from_bytes(data)
        loop: dict[str, Any] = json.loads(str(payload.scalars["loop"]))
        self.version, self.installed = loop["version"], loop["installed"]
        kinds = loop["holders"]["kinds"]
        self.aggregator.holders = {name: kinds[number] for name, number in loop["holders"]["which"].items()}
        order = {name: place for place, name in enumerate(self.aggregator.holders)}
        self.clients.sort(key=order.__getitem__)  # which are drawn for a round depends on it
        self.setup_record = RoundRecord(0, **loop["setup"])
        self.aggregator.load_server_state(Payload(payload.tensors, json.loads(str(payload.scalars["aggregator"]))))
        return loop
