"""Keys of a client for one sum, and what two clients do with them."""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from flgraph.errors import InputError
from flgraph.runs.keys import derive_key

PUBLIC = 32
"""Bytes of a public key."""

_NONCE = bytes(12)
"""Each key seals one message."""


class KeyPair:
    """Of X25519.

    Args:
        seed: 16 bytes, from which the private key derives.
    """

    def __init__(self, seed: bytes) -> None:
        self._private = X25519PrivateKey.from_private_bytes(derive_key(seed, "secure sums/private key"))
        self.public = self._private.public_key().public_bytes_raw()

    def agree(self, public: bytes, purpose: str) -> bytes:
        """A key of 32 bytes that only the owners of the two private keys can make.

        Raises:
            InputError: the other key is of small order, so that everybody could.
        """
        try:
            secret = self._private.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError as error:
            raise InputError("public key", "a point of large order", "one that gives no secret") from error
        return derive_key(secret, f"secure sums/{purpose}")


def seal(key: bytes, content: bytes) -> bytes:
    """Encrypts and authenticates the one message of a key."""
    return ChaCha20Poly1305(key).encrypt(_NONCE, content, None)


def unseal(key: bytes, sealed: bytes) -> bytes | None:
    """The message; ``None`` if it was altered, or sealed with another key."""
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, sealed, None)
    except InvalidTag:
        return None
