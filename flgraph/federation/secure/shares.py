"""Shares of a secret, of which some are enough to know it and fewer tell nothing (Shamir, 1979)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from Crypto.Protocol.SecretSharing import Shamir

SECRET = 16
"""Bytes of a secret, and of a share of it."""


def split(secret: bytes, needed: int, count: int) -> list[bytes]:
    """Shares of a secret, for holders 1 to ``count``."""
    return [share for _, share in Shamir.split(needed, count, secret)]


def combine(shares: Mapping[int, bytes], needed: int, is_right: Callable[[bytes], bool]) -> bytes | None:
    """The secret, also where a holder gave another share than it got; ``None`` if no ``needed`` in a row are right.

    Args:
        shares: number of a holder to its share.
        needed: as when it was split.
        is_right: whether a secret is the one.
    """
    held = list(shares.items())
    for first in range(len(held)):
        secret = Shamir.combine((held[first:] + held[:first])[:needed])
        if is_right(secret):
            return secret
        if len(held) == needed:
            break
    return None
