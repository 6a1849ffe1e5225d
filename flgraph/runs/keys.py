"""Keys that derive from a secret, and signatures of what is written with them."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF


def derive_key(secret: bytes, purpose: str) -> bytes:
    """A key of 32 bytes for one purpose (HKDF with SHA-256); none tells anything of the secret or of another one."""
    return HKDF(hashes.SHA256(), 32, salt=None, info=f"flgraph/{purpose}".encode()).derive(secret)


def canonical(value: Any) -> bytes:
    """Plain values as JSON, the same bytes for the same values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def signature(key: bytes, head: bytes, content: bytes = b"") -> str:
    """HMAC-SHA256 over two parts, the first one with its length, as hexadecimal digits."""
    made = hmac.new(key, len(head).to_bytes(8, "little") + head, hashlib.sha256)
    made.update(content)
    return made.hexdigest()


def is_signed(given: Any, key: bytes, head: bytes, content: bytes = b"") -> bool:
    """Whether ``given`` is their :func:`signature`."""
    own = signature(key, head, content)
    return isinstance(given, str) and hmac.compare_digest(given.encode(), own.encode())
