"""Sums of floating-point numbers without rounding errors."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Row = NDArray[np.float64]

_BITS = 40
"""Of a limb: the powers of two between two units."""

_OFFSET = -24
"""Exponent of unit 0: numbers from 1e-12 to 1e4 of 24 bits take two limbs."""

_MOST = 2 ** (53 - _BITS - 1)
"""So many numbers of at most ``2^(_BITS - 1)`` units add up to whole multiples of the unit that float64 still holds."""

_LARGEST = 2.0**900
_LEVELS = -27, 23
"""Lowest and highest unit that numbers up to this have."""


class ExactSum:
    """A sum of rows of float64 numbers that is rounded once, when it is asked for.

    Each number is cut at fixed powers of two into limbs, whole multiples of a unit each, by adding and subtracting a
    large constant (Rump, Ogita and Oishi, "Accurate Floating-Point Summation Part I", SIAM J. Sci. Comput. 2008,
    Algorithm 3.2). Limbs of the same unit are then added up in float64 without rounding; before they could get too
    large, what is above is carried into the next one. Order and grouping of the rows leave no trace in the result.

    Args:
        size: numbers in a row.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.limbs: dict[int, Row] = {}
        """Number of the unit, ``2^(40 number - 24)``, to sums of multiples of it."""
        self.count = 0
        """How many limbs of up to ``2^39`` units may have been added up in each of them."""

    def add(self, row: Row) -> bool:
        """Adds a row, which is used up.

        Returns:
            False, and nothing is added, if a number is not finite or above 1e270.
        """
        largest = max(float(row.max()), -float(row.min())) if row.size else 0.0
        if not largest <= _LARGEST:  # NaN is not
            return False
        self._make_room(1)
        level = _level(largest)
        limb = np.empty_like(row)
        left = bool(largest)
        while left:
            np.add(row, _constant(level), out=limb)
            limb -= _constant(level)
            row -= limb
            self._add_limb(level, limb)
            level -= 1
            left = bool(row.any())
        return True

    def merge(self, other: ExactSum) -> None:
        """Adds what another one has added up."""
        self._make_room(other.count)
        for level, limb in other.limbs.items():
            self._add_limb(level, limb)

    def take(self, level: int, limb: Row) -> bool:
        """Adds a limb of :meth:`carried` of another one; or nothing, and returns False, if it is none."""
        known = _LEVELS[0] <= level <= _LEVELS[1] and limb.shape == (self.size,)
        if not known or not np.abs(limb).max(initial=0.0) <= math.ldexp(1.0, _BITS * (level + 1) + _OFFSET):
            return False
        if not np.array_equal((limb + _constant(level)) - _constant(level), limb):  # whole multiples of the unit
            return False
        self._make_room(2)
        self._add_limb(level, limb)
        return True

    def carried(self) -> dict[int, Row]:
        """The limbs, none of which is above ``2^40`` units."""
        self._carry()
        return self.limbs

    def rounded(self) -> Row:
        """The sum, rounded to the nearest float64."""
        self._carry()
        limbs = [self.limbs[level] for level in sorted(self.limbs)] or [np.zeros(self.size)]
        high, low = limbs[0].copy(), None
        for limb in limbs[1:-1]:  # it is nothing, or larger than all that come before
            high, rest = _two_sum(limb, high)
            low = rest if low is None else _odd_sum(rest, low)
        if low is None:
            return high + limbs[-1] if limbs[1:] else high
        high, rest = _two_sum(limbs[-1], high)
        total: Row = high + _odd_sum(rest, low)
        return total

    def _make_room(self, count: int) -> None:
        if self.count + count > _MOST:
            self._carry()
        self.count += count

    def _add_limb(self, level: int, limb: Row) -> None:
        if level in self.limbs:
            self.limbs[level] += limb
        else:
            self.limbs[level] = limb.copy()

    def _carry(self) -> None:
        """Leaves at most half of the next unit in every limb."""
        level = min(self.limbs, default=0)
        while level <= max(self.limbs, default=-1):
            if level in self.limbs:
                above = self.limbs[level] + _constant(level + 1)
                above -= _constant(level + 1)
                if above.any():
                    self.limbs[level] -= above
                    self._add_limb(level + 1, above)
            level += 1
        self.count = 1


def _level(largest: float) -> int:
    """The lowest unit of which numbers up to ``largest`` are at most ``2^(_BITS - 1)`` multiples."""
    return -((_BITS - 1 + _OFFSET - math.frexp(largest)[1]) // _BITS)


def _constant(level: int) -> float:
    """Whatever is added to it is rounded to multiples of the unit."""
    return math.ldexp(1.5, _BITS * level + _OFFSET + 52)


def _two_sum(a: Row, b: Row) -> tuple[Row, Row]:
    """The rounded sum, and what rounding took away (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _odd_sum(a: Row, b: Row) -> Row:
    """The sum, rounded to odd where it is not exact, so that rounding it again is rounding once.

    Boldo and Melquiond, "Emulation of FMA and Correctly Rounded Sums", IEEE Trans. Comput. 2008.
    """
    total, rest = _two_sum(a, b)
    even = (rest != 0) & (total.view(np.int64) & 1 == 0)
    odd: Row = np.where(even, np.nextafter(total, np.copysign(np.inf, rest)), total)
    return odd
