"""What a client of a site has spent of its privacy, over all runs: kept by the site, whatever a server says."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, get_args, runtime_checkable

from filelock import FileLock

from flgraph.errors import PolicyError, expect
from flgraph.federation.accountant import spent, spent_on_records
from flgraph.federation.halves import AlgorithmHalf
from flgraph.runs.files import flush, private_folder, write_bytes

SPENDING = "privacy.json"
"""The file of a client of a site in which it is kept, beside the client's states."""

Unit = Literal["client", "record"]
"""What noise hides: all of a client's data, or one of its graphs."""


@runtime_checkable
class AddsNoise(Protocol):
    """A transform or a callback with noise."""

    unit: Unit
    multiplier: float

    @property
    def local(self) -> bool:
        """Whether it is there before anything leaves the client."""

    def uncovered(self, half: AlgorithmHalf, leave: Sequence[str]) -> list[str]:
        """What of uploads it does not cover.

        Args:
            half: of the algorithm.
            leave: patterns of tensors that the run's transforms, any of them, leave as they are.
        """


@dataclass(frozen=True, order=True)
class Event:
    """A Gaussian mechanism.

    Args:
        unit: what it hides.
        multiplier: standard deviation of its noise in units of the norm to which is clipped.
        sample_rate: the chance of each record to be drawn; 1 for a whole client.
    """

    unit: Unit
    multiplier: float
    sample_rate: float


class Spending:
    """Counts mechanisms before they are applied.

    A turn that is asked for again counts again, and so does what was lost with a crash. Jobs at the same time may share
    a file.

    Args:
        file: where it is kept; in memory when ``None``.

    Raises:
        InputError: the file holds something else.
    """

    def __init__(self, file: Path | None = None) -> None:
        self.file = file
        self.events: Counter[Event] = Counter() if file is None else _read(file)

    def add(self, event: Event, times: int, delta: float, most: float | None) -> None:
        """Counts so many mechanisms that are about to be applied.

        Args:
            event: of this kind.
            times: how many.
            delta: see :class:`~flgraph.federation.privacy.Privacy`.
            most: the largest epsilon that they may come to with all before them.

        Raises:
            PolicyError: they would come to more, or are of another unit than those before; they do not count then.
        """
        with self._alone():
            after = self.events + Counter({event: times})
            others = {own.unit for own in after} - {event.unit}
            if most is not None and others:  # of noise of both kinds the sum is not known
                wanted = f"noise that hides a {''.join(others)}, as what was spent before under `max_epsilon`,"
                raise PolicyError("privacy", wanted, f"noise that hides a {event.unit}")
            if most is not None and (cost := _epsilon(after, event.unit, delta)) > most:
                wanted = f"of at most epsilon {most:g} in all, as the policy says,"
                raise PolicyError("privacy", wanted, f"{cost:.4g} with this request")
            self.events = after
            if self.file is not None:
                rows = [[e.unit, e.multiplier, e.sample_rate, n] for e, n in sorted(after.items())]
                write_bytes(json.dumps(rows).encode(), self.file, private=True)
                flush(self.file.parent)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Within, no other job writes to the file, and what others wrote is known."""
        if self.file is None:
            yield
            return
        private_folder(self.file.parent)
        with FileLock(f"{self.file}.lock"):
            self.events = _read(self.file)
            yield

    def epsilon(self, unit: Unit, delta: float) -> float:
        """What was spent."""
        return _epsilon(self.events, unit, delta)


def _read(file: Path) -> Counter[Event]:
    try:
        rows = json.loads(file.read_bytes()) if os.path.lexists(file) else []
        found = Counter({Event(unit, float(noise), float(rate)): int(times) for unit, noise, rate, times in rows})
        whole = all(own.unit in get_args(Unit) and own.multiplier > 0 < n for own, n in found.items())
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        found, whole = Counter(), False
    expect(whole, str(file), "what this site wrote, or not there where nothing was spent,", "something else")
    return found


def _epsilon(events: Counter[Event], unit: Unit, delta: float) -> float:
    own = {event: times for event, times in events.items() if event.unit == unit}
    if unit == "record":
        return spent_on_records(tuple(sorted((e.multiplier, e.sample_rate, times) for e, times in own.items())), delta)
    # Gaussian mechanisms one after another are one: the squares of their inverse multipliers add up.
    total = math.fsum(times / event.multiplier**2 for event, times in own.items())
    return spent(1 / math.sqrt(total), 1, ((1, 1),), delta) if total else 0.0
