"""Who signs for clients: sites, by the certificates of their kits, so that a server cannot invent any."""

from __future__ import annotations

import json
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.padding import MGF1, PSS
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import NameOID

from flgraph.errors import InputError, expect
from flgraph.runs.keys import canonical

LONGEST = 4096
"""Bytes of a certificate."""

_SHA = hashes.SHA256()
_PADDING = PSS(MGF1(_SHA), _SHA.digest_size)


def signed_content(context: str, client: str) -> bytes:
    """What a site signs: that a client is part of a sum, in whose context are all keys.

    So a signature is as new as the keys of whoever checks it. Keys signed alone could come again, in a round that is
    done again after a server got to know their secrets.
    """
    return canonical(["flgraph secure sums", context, client])


class Authority:
    """Checks that a site has signed: one with a certificate of the federation's root, as its kit has it.

    Args:
        root: the certificate, in PEM.
        others: names in certificates of the root's that are no sites': the server's.
    """

    def __init__(self, root: bytes, others: Collection[str] = ()) -> None:
        self._root, self._others = x509.load_pem_x509_certificate(root), set(others)
        self._known: dict[bytes, tuple[str, RSAPublicKey]] = {}

    @classmethod
    def of_kit(cls, kit: Path) -> Authority | None:
        """That of a server's start-up kit; ``None`` where there is none."""
        root = kit / "startup" / "rootCA.pem"
        return cls(root.read_bytes()) if root.is_file() else None

    def check(self, certificate: bytes, signature: bytes, content: bytes) -> str:
        """The name of the site that signed.

        Raises:
            InputError: nobody did who is a site.
        """
        try:
            if certificate not in self._known:
                self._known[certificate] = self._site(certificate)
            name, key = self._known[certificate]
            key.verify(signature[: key.key_size // 8], content, _PADDING, _SHA)  # what is behind it filled a row
        except (ValueError, TypeError, InvalidSignature, IndexError) as error:
            raise InputError("client", "one that a site of the federation signs for", "another") from error
        return name

    def _site(self, certificate: bytes) -> tuple[str, RSAPublicKey]:
        own = x509.load_pem_x509_certificate(certificate)
        own.verify_directly_issued_by(self._root)
        name = str(own.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
        key, now = own.public_key(), datetime.now(UTC)
        in_time = own.not_valid_before_utc <= now <= own.not_valid_after_utc
        person = own.subject.get_attributes_for_oid(NameOID.UNSTRUCTURED_NAME)  # FLARE's, for an administrator's role
        if not in_time or person or name in self._others or not isinstance(key, RSAPublicKey):
            raise ValueError("not of a site")
        return name, key


class Identity(Authority):
    """A site's own: signs for its clients, and checks the others.

    Args:
        certificate: the site's, in PEM.
        key: its private key.
        root: see :class:`Authority`.
        others: see there.

    Raises:
        InputError: the key is none of RSA, or the kit does not name the server.
    """

    def __init__(self, certificate: bytes, key: bytes, root: bytes, others: Collection[str] = ()) -> None:
        super().__init__(root, others)
        loaded = load_pem_private_key(key, None)
        expect(isinstance(loaded, RSAPrivateKey), "client.key", "a key of RSA", type(loaded).__name__)
        assert isinstance(loaded, RSAPrivateKey)
        self.certificate, self._key = certificate.strip(), loaded

    @classmethod
    def of_kit(cls, kit: Path) -> Identity | None:
        """That of a site's start-up kit; ``None`` where it has no certificates."""
        files = [kit / "startup" / name for name in ("client.crt", "client.key", "rootCA.pem", "fed_client.json")]
        if not all(file.is_file() for file in files):
            return None
        certificate, key, root, told = (file.read_bytes() for file in files)
        servers = {server.get("identity", "") for server in json.loads(told)["servers"]}
        expect("" not in servers, str(files[-1]), "one that says which certificate is the server's", "none")
        return cls(certificate, key, root, servers)

    def sign(self, content: bytes) -> bytes:
        """A signature that :meth:`check` knows."""
        return self._key.sign(content, _PADDING, _SHA)
