"""Clients that are late, or away for some rounds, to see what a method stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flgraph.errors import expect
from flgraph.federation.callback import FederatedCallback, Run
from flgraph.federation.seeding import derive_seed


class Stragglers(FederatedCallback):
    """Clients that answer too late for a round, and clients that come and go: a round goes on without them.

    ``--trainer.callbacks '[{class_path: Stragglers, init_args: {late: 0.3, away: {north: [[1, 9]]}}}]'`` lets each
    client miss three rounds of ten, and ``north`` join in round 10. Who misses a round is asked nothing in it, neither
    trains nor sends; it gets the newest aggregate when it is back. All clients are evaluated in all rounds. Where all
    that are there and were drawn for the round would be late, the one with the lowest draw is in time.
    ``history.jsonl`` says who took part.

    Args:
        late: probability of each client to miss a round; or client to its own.
        away: client to spans of rounds in which it is not there, first and last one.
        seed: of the draws, with client and round; not the run's seed.

    Raises:
        InputError: an argument cannot be used, a name is none of a client, or in some round no client is there.
    """

    def __init__(
        self,
        late: float | dict[str, float] = 0.0,
        away: dict[str, list[list[int]]] | None = None,
        seed: int = 123,
    ) -> None:
        for share in late.values() if isinstance(late, Mapping) else [late]:
            expect(isinstance(share, int | float) and 0 <= share < 1, "Stragglers.late", "0 or more and below 1", share)
        for spans in (away or {}).values():
            listed = isinstance(spans, Sequence) and all(_is_span(span) for span in spans)
            expect(listed, "Stragglers.away", "lists of rounds from 1, [first, last],", spans)
        self.late, self.away, self.seed = late, dict(away or {}), seed

    def on_federation_start(self, trainer: Run) -> None:
        """Refuses names that no client has."""
        names = trainer.federated_data.clients if trainer.federated_data is not None else []
        named = [*(self.late if isinstance(self.late, Mapping) else ()), *self.away]
        for name in named:
            expect(name in names, "Stragglers", f"about clients among {', '.join(names)}", name)

    def on_round_start(self, trainer: Run) -> None:
        """Decides who misses the round; by its number alone, so that a run that goes on decides the same."""
        assert trainer.federated_data is not None
        number = trainer.current_round
        gone = {name for name, spans in self.away.items() if any(first <= number <= last for first, last in spans)}
        there = [name for name in trainer.federated_data.clients if name not in gone]
        expect(bool(there), "Stragglers.away", "spans that leave a client in each round", f"none in round {number}")
        draws = {name: derive_seed(self.seed, "late", name, number) / 2**63 for name in there}
        late = {name for name in there if draws[name] < self._share(name)}
        drawn = [name for name in trainer.participants if name in there]
        if drawn and late.issuperset(drawn):
            late.discard(min(drawn, key=lambda name: draws[name]))
        trainer.skip(gone | late)

    def _share(self, name: str) -> float:
        return self.late.get(name, 0.0) if isinstance(self.late, Mapping) else self.late


def _is_span(span: Any) -> bool:
    whole = isinstance(span, Sequence) and len(span) == 2 and all(type(number) is int for number in span)
    return whole and 1 <= span[0] <= span[1]
