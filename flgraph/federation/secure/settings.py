"""What a run says of its secure sums, and what both sides derive from it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flgraph.errors import expect
from flgraph.runs.keys import canonical

FEWEST = 3
"""Clients of a sum: of two, each would know the other's part."""

MOST = 10_000
"""Clients of a sum."""

Layout = Sequence[tuple[str, tuple[int, ...]]]
"""Names and shapes of the tensors in a masked upload, in the order of their names."""


@dataclass(frozen=True)
class SecureSums:
    """Clients mask their uploads so that the server learns the sum and nothing else (Bonawitz et al., CCS 2017).

    Args:
        threshold: share of an exchange's clients that have to stay until its sum is there; the others may drop out.
            Above one half: with fewer, a server could have some of the clients open what the others are not to.
        fraction_bits: numbers, times their client's weight, are sent as multiples of ``2 ** -fraction_bits``; they must
            be below ``2 ** (62 - fraction_bits)`` over the number of clients.
        neighbours: with how many others a client agrees on masks, and shares its secrets; with all when ``None``. Some
            tens do for hundreds of clients and more (Bell et al., CCS 2020).

    Raises:
        InputError: a number is out of range.
    """

    threshold: float = 0.66
    fraction_bits: int = 30
    neighbours: int | None = None

    def __post_init__(self) -> None:
        number = type(self.threshold) in (int, float)
        field = "trainer.secure_sums.threshold"
        expect(number and 0.5 < self.threshold <= 1, field, "above 0.5 and at most 1", self.threshold)
        whole = type(self.fraction_bits) is int and 1 <= self.fraction_bits <= 52
        expect(whole, "trainer.secure_sums.fraction_bits", "a whole number from 1 to 52", self.fraction_bits)
        count = self.neighbours
        even = count is None or (type(count) is int and count >= 4 and count % 2 == 0)
        expect(even, "trainer.secure_sums.neighbours", "an even number of 4 or more, or null", count)

    def summary(self) -> dict[str, Any]:
        """For ``results.json``."""
        return {
            **asdict(self),
            "masks_drawn": "from the operating system; they cancel, so that results can be repeated",
        }

    def needed(self, clients: int) -> int:
        """How many of so many clients have to stay.

        Of a client and its neighbours always one more than half of these and one: so none of a row of clients in the
        circle that is as long as half of the neighbours is opened as gone, and no list cuts the circle into two sums.
        """
        return max(math.ceil(self.threshold * clients - 1e-9), (clients + 1) // 2 + 1)

    def context(self, job: str, round: int, exchange: str, layout: Layout, keys: Mapping[str, bytes]) -> str:
        """A digest of all that the clients of a sum must agree on; masks of those who do not, do not cancel.

        Args:
            job: a digest of what else they were told to do; empty in one process.
            round: of the exchange.
            exchange: its name.
            layout: of the uploads.
            keys: client to public keys.
        """
        told = [[name, key.hex()] for name, key in sorted(keys.items())]
        forms = [[name, list(shape)] for name, shape in layout]
        return hashlib.sha256(canonical([asdict(self), job, round, exchange, forms, told])).hexdigest()

    def neighbours_of(self, clients: Sequence[str], context: str) -> dict[str, list[str]]:
        """Client to the others that it agrees on masks with, in the order of ``clients``.

        With fewer than all, clients stand in a circle whose order depends on all public keys, and each has as many
        neighbours on its left as on its right (Bell et al., Section 3).
        """
        if self.neighbours is None or self.neighbours >= len(clients) - 1:
            return {name: [other for other in clients if other != name] for name in clients}
        circle = sorted(clients, key=lambda name: hashlib.sha256(f"{context}/{name}".encode()).digest())
        place = {name: number for number, name in enumerate(clients)}
        steps = [step for step in range(-self.neighbours // 2, self.neighbours // 2 + 1) if step]
        return {
            name: sorted((circle[(at + step) % len(circle)] for step in steps), key=place.__getitem__)
            for at, name in enumerate(circle)
        }
