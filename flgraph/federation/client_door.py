"""A client's door: what it is asked is checked there, and what it answers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence

from flgraph.errors import InputError, PolicyError, shown
from flgraph.federation.budget import AddsNoise, Event, Spending
from flgraph.federation.halves import AlgorithmHalf
from flgraph.federation.messages import ABOUT_SUMS, Request, Turn, note_message
from flgraph.federation.payload import Payload, Scalar
from flgraph.federation.policy import NUM_SAMPLES, Job, Policy
from flgraph.federation.routes import RouteKind, RoutingTable, form_of, matches
from flgraph.federation.secure.settings import SecureSums
from flgraph.federation.values import alike, expect_plain, largest_values
from flgraph.runs.ledger import Ledger

_FIRST_ROUNDS = 100
"""So many rounds are looked at beforehand for the exchanges that they have."""


class ClientDoor:
    """Decides what a client does for a server, and what it answers.

    Args:
        routing: what the algorithm may take, and the client's name.
        aggregator: its client half.
        policy: what the site allows; all that the algorithm's routes name when ``None``.
        rounds: of the run.
        local_epochs: of an exchange.
        num_samples: training samples of the client.
        secure_sums: how uploads are masked, if they are.
        noise: what adds noise before anything leaves the client.
        leave: patterns of tensors that transforms leave as they are.

    Raises:
        PolicyError: the policy does not let the client take part.
    """

    def __init__(
        self,
        routing: RoutingTable,
        aggregator: AlgorithmHalf,
        policy: Policy | None,
        rounds: int,
        local_epochs: int,
        num_samples: int,
        secure_sums: SecureSums | None = None,
        noise: Sequence[AddsNoise] = (),
        leave: Sequence[str] = (),
    ) -> None:
        self.routing, self.aggregator, self.policy = routing, aggregator, policy
        self.ledger: Ledger | None = None
        """Where every message is noted, at a site."""
        self.spent: Counter[str] = Counter()
        """What the client has answered in this run: ``turns``, ``evaluations`` and ``bytes``."""
        self.spending = Spending()
        """What noise has cost the client; a site keeps it in a file."""
        self._noise = noise
        kind = type(aggregator)
        exchanges = [aggregator.exchanges(number) for number in range(min(rounds, _FIRST_ROUNDS) + 1)]
        self.job = Job(
            algorithm=kind.__name__,
            own=kind.__module__.startswith("flgraph."),
            reveals=aggregator.reveals,
            tensors=[
                *routing.names(RouteKind.SHARED),
                *routing.names(RouteKind.COLLECTED),
                *routing.extra,
            ],
            scalars=tuple(aggregator.upload_scalars),
            exchanges=list(dict.fromkeys(name for names in exchanges for name in names)),
            num_exchanges=len(exchanges[0]) + rounds * max(map(len, exchanges[1:]), default=0),
            rounds=rounds,
            local_epochs=local_epochs,
            num_samples=num_samples,
            noise=min((own.multiplier for own in noise), default=None),
            uncovered=[name for own in noise for name in own.uncovered(aggregator, leave)],
            masks=secure_sums is not None,
            neighbours=None if secure_sums is None else secure_sums.neighbours,
        )
        self.begun = False
        """Whether the client has worked: what it says of its initial weights would be more than that now."""
        for refusal in policy.refusals(self.job) if policy is not None else ():
            raise refusal

    # ------------------------------------------------------------------------------------------------------ coming in
    def admit(self, turn: Turn) -> Payload | None:
        """The download of a request that the client may work on.

        Raises:
            PolicyError: the site's policy does not allow for it.
            InputError: the download cannot be used.
        """
        download = None
        try:
            self._carry(turn.download or b"")
            self._count(turn)
            agreeing = turn.request in (Request.DESCRIBE, Request.AGREE)
            if agreeing and (self.begun or turn.round != 0):
                raise InputError("request", "one of the time after the first exchange", f"{turn.request}")
            self.begun = self.begun or turn.request == Request.EXCHANGE
            download = None if turn.download is None else Payload.from_bytes(turn.download)
            if download is not None:
                self._check(turn, download)
        except InputError as error:
            self._note("down", turn, turn.download or b"", download, verdict=f"refused: {error.field}")
            raise
        if turn.download is not None:
            self._note("down", turn, turn.download, download, verdict="accepted")
        return download

    def _count(self, turn: Turn) -> None:
        evaluation = turn.request == Request.EVALUATE
        what = "evaluations" if evaluation else "turns"
        self.spent[what] += turn.request not in ABOUT_SUMS  # which come to nothing without an exchange
        if self.policy is None:
            return
        most = self.policy.most_evaluations(self.job) if evaluation else self.policy.most_turns(self.job)
        if self.spent[what] > most:
            raise PolicyError(what, f"at most {most} in a run, as the policy says,", self.spent[what])
        if type(turn.round) is not int or not 0 <= turn.round <= self.job.rounds:
            raise PolicyError("round", f"from 0 to {self.job.rounds}, as the job says,", shown(turn.round))
        known = self.aggregator.exchanges(turn.round)
        allowed = matches(turn.exchange, self.policy.exchanges)
        exchange = turn.request == Request.EXCHANGE or turn.request in ABOUT_SUMS
        if exchange and not (turn.exchange in known and allowed):
            raise PolicyError("exchange", f"of those of round {turn.round} and the policy", shown(turn.exchange))
        for own in self._noise if turn.request == Request.EXCHANGE else ():
            if own.unit == "client":  # before the work: who asks again gets other noise, and so counts again
                self.spend(Event(own.unit, own.multiplier, 1.0), 1)

    def _check(self, turn: Turn, download: Payload) -> None:
        field = f"download` of client `{self.routing.client}"
        if turn.request == Request.AGREE or turn.request in ABOUT_SUMS:
            return
        shared = set(self.routing.shared)
        for name, tensor in download.group().items():
            if name not in shared:
                raise InputError(field, "one of tensors that it shares", f"{shown(name)}, which it does not")
            row = self.routing.rows[name]
            if not alike(form_of(tensor), row.form):
                raise InputError(field, f"one with `{name}` of {row.form}", form_of(tensor))
        largest_values(download.tensors, field)
        for value in download.scalars.values():
            expect_plain(value, field)

    def spend(self, event: Event, times: int) -> None:
        """Counts noise that is about to hide something.

        Args:
            event: its kind.
            times: how often.

        Raises:
            PolicyError: it would cost more than the policy allows, over all runs of a site.
        """
        if self.policy is not None:
            self.spending.add(event, times, self.policy.delta, self.policy.max_epsilon)

    def check_epochs(self, epochs: int) -> None:
        """Refuses to train for longer than the policy allows, whatever asks for it.

        Raises:
            PolicyError: names the limit.
        """
        most = epochs if self.policy is None else self.policy.local_epochs
        if epochs > most:
            raise PolicyError("epochs of an exchange", f"{most} or fewer, as the policy says,", epochs)

    # ------------------------------------------------------------------------------------------------------ going out
    def count(self, samples: int) -> int:
        """A number of samples as it is told."""
        return samples if self.policy is None else self.policy.count(samples)

    @property
    def tells_samples(self) -> bool:
        """Whether the number of training samples may be told as it is: where the algorithm is told it, too."""
        return self.job.asks_samples and (self.policy is None or self.policy.num_samples == 1)

    def describe(self, turn: Turn) -> bytes:
        """Forms of the tensors that the routes let out, and how many samples there are if the algorithm needs it."""
        collected = {name: self.routing.rows[name].form for name in self.routing.names(RouteKind.COLLECTED)}
        scalars: dict[str, Scalar] = {
            RouteKind.SHARED.value: json.dumps(self.routing.signature()),
            **({RouteKind.COLLECTED.value: json.dumps(collected)} if collected else {}),
        }
        if self.job.asks_samples:
            scalars[NUM_SAMPLES] = self.count(self.job.num_samples)
        return self._send(turn, Payload(scalars=scalars))

    def upload(self, turn: Turn, answer: Payload, coded: bool = False) -> bytes:
        """An answer with tensors, if routes and policy name all that it holds.

        Args:
            turn: the request.
            answer: as it travels.
            coded: whether transforms gave its tensors other shapes.

        Raises:
            InputError: they do not.
        """
        self._check_upload(answer, coded)
        return self._send(turn, answer)

    def masked(self, turn: Turn, answer: Payload, masked: Payload) -> bytes:
        """An upload that travels masked, if routes and policy would let it out as it is; raises as :meth:`upload`."""
        self._check_upload(answer)
        return self._send(turn, masked, "masked")

    def _check_upload(self, answer: Payload, coded: bool = False) -> None:
        self.routing.check_upload(answer, coded)
        for refusal in self.policy.kept(answer.tensors) if self.policy is not None else ():
            raise refusal

    def about_sums(self, turn: Turn, answer: Payload | None, note: str = "") -> bytes:
        """An answer of the framework's own, by which masks are agreed on; ``note`` goes into the ledger."""
        return b"" if answer is None else self._send(turn, answer, note)

    def metrics(self, turn: Turn, metrics: Mapping[str, float]) -> bytes:
        """An answer with those metrics that may be told."""
        told: dict[str, Scalar] = dict(metrics)
        note = ""
        if self.policy is not None:
            told = self.policy.tell(metrics, self.job.num_samples)
            changed = [name for name in told if told[name] != metrics[name] and metrics[name] == metrics[name]]
            note = f"{len(metrics) - len(told)} withheld, {len(changed)} rounded"
        return self._send(turn, Payload(scalars=told), note)

    def _send(self, turn: Turn, answer: Payload, note: str = "") -> bytes:
        data = answer.to_bytes()
        self._carry(data)
        self._note("up", turn, data, answer, policy=note)
        return data

    def _carry(self, data: bytes) -> None:
        """Counts what is about to be sent, or came."""
        self.spent["bytes"] += len(data)
        if self.policy is not None and self.spent["bytes"] > self.policy.megabytes * 1e6:
            raise PolicyError("megabytes", f"at most {self.policy.megabytes:g} in a run, as the policy says,", "more")

    def _note(
        self, direction: str, turn: Turn, data: bytes, payload: Payload | None, verdict: str = "", policy: str = ""
    ) -> None:
        note_message(self.ledger, direction, self.routing.client, turn, data, payload, verdict, policy)
