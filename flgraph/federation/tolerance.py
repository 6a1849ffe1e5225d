"""What becomes of a run when clients fail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flgraph.errors import expect


@dataclass(frozen=True)
class Tolerance:
    """What becomes of a run when a client fails, sends what cannot be used, or nothing.

    Args:
        min_clients: clients that must answer, or all that were asked where those are fewer.
        on_bad_upload: ``"end"`` ends the run at the first failure or bad upload; ``"drop"`` leaves the client out of
            the exchange. When ``None``, clients at sites are dropped, and what fails here ends the run.
        strikes: after so many of these a client is left out for the rest of the run; before round 1 after the first.

    Raises:
        InputError: a number is out of range.
    """

    min_clients: int = 1
    on_bad_upload: Literal["drop", "end"] | None = None
    strikes: int = 3

    def __post_init__(self) -> None:
        for name in ("min_clients", "strikes"):
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
            expect(whole, f"trainer.tolerance.{name}", "a whole number of 1 or more", value)
        known = self.on_bad_upload in ("drop", "end", None)
        expect(known, "trainer.tolerance.on_bad_upload", "drop, end or null", self.on_bad_upload)
