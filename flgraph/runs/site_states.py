"""States of clients at sites: what a server knows of where they are, and how a site keeps them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from flgraph.errors import InputError, expect
from flgraph.runs.checkpoint import CLIENTS, state_name
from flgraph.runs.files import flush, private_folder, write_bytes, write_text
from flgraph.runs.keys import canonical, derive_key, is_signed, signature

_NONCE = 12
"""Bytes of AES-GCM's nonce, in front of what is encrypted."""


def check_run_name(name: object, field: str) -> None:
    """Refuses what cannot be the name of a run of several sites.

    Raises:
        InputError: it is none; ``field`` says where it is from.
    """
    plain = isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9_-]{1,100}", name) is not None
    expect(plain, field, "a name of 1 to 100 letters (a to z), digits, - and _", name)


# ---------------------------------------------------------------------------------------------------- at the server


@dataclass(frozen=True)
class Location:
    """Where the state of a client is: at which site, and under which label."""

    site: str
    label: str


def write_location(folder: Path, client: str, location: Location) -> None:
    """Writes down where a client's state is; ``folder`` is the clients' of a checkpoint."""
    write_text(json.dumps(asdict(location)), folder / f"{client}.json")


def read_locations(folder: Path) -> dict[str, Location]:
    """Where the clients' states of a checkpoint are, as far as they are at sites.

    Raises:
        InputError: a file says something else.
    """
    return {file.stem: _location(file) for file in sorted(folder.glob("*.json"))}


def _location(file: Path) -> Location:
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        found = None
    known = isinstance(found, dict) and all(isinstance(found.get(key), str) for key in ("site", "label"))
    expect(known, str(file), "the place of a client's state, with `site` and `label`,", "something else")
    return Location(found["site"], found["label"])


def labels_in_use(checkpoints: Path) -> set[str]:
    """Labels of all states that the checkpoints of a run name."""
    folders = checkpoints.glob(f"*/{CLIENTS}")
    return {location.label for folder in folders for location in read_locations(folder).values()}


def is_complete(folder: Path) -> bool:
    """Whether all sites were there when a checkpoint was written; ``folder`` is that of its clients."""
    return all(location.label == checkpoint_label(folder) for location in read_locations(folder).values())


def checkpoint_label(folder: Path) -> str:
    """What the states of a checkpoint are called: run, version and round; ``folder`` is that of its clients."""
    checkpoint, version = folder.parent, folder.parents[2]
    return f"{version.parent.name}.{version.name}.{checkpoint.name.rpartition('-')[2]}"


# ------------------------------------------------------------------------------------------------------- at a site
def state_file(folder: Path, client: str, label: str) -> Path:
    """Where a site keeps a client's state of that label; ``folder`` is that of the site's clients."""
    return folder / client / state_name(label)


def can_read(folder: Path, encryption: bytes) -> bool:
    """Whether an encrypted state of a site can be read with the key that derives from ``encryption``, or there is none.

    A client whose state cannot be read would lose its place in the run.
    """
    cipher, seen = _cipher(encryption), False
    for file in folder.glob("*/*.ckpt"):
        with suppress(OSError, ValueError, TypeError, KeyError, RecursionError, InvalidTag):
            signed = json.loads(file.with_suffix(".json").read_bytes())
            if signed["encrypted"]:
                seen = True
                _decrypted(cipher, file.read_bytes(), {key: own for key, own in signed.items() if key != "hmac"})
                return True
    return not seen


def _cipher(encryption: bytes) -> AESGCM:
    return AESGCM(derive_key(encryption, "states encrypted"))


def _decrypted(cipher: AESGCM, state: bytes, binding: Mapping[str, Any]) -> bytes:
    return cipher.decrypt(state[:_NONCE], state[_NONCE:], canonical(binding))


class SiteStates:
    """The states of clients that a site keeps for one run.

    A state is a Lightning checkpoint, ``CLIENT/LABEL.ckpt``. Beside it, ``CLIENT/LABEL.json`` says what it is of, with
    a signature over both that only this site can make. So a server has it loaded where it came from, or not at all.

    Args:
        folder: that of the site's clients.
        run: the run's name; labels begin with it and a dot.
        secret: of the site, from which its keys derive.
        encryption: the secret with which states are encrypted; they are not when ``None``.

    Raises:
        InputError: the name is none, see :func:`check_run_name`.
    """

    def __init__(self, folder: Path, run: str, secret: bytes, encryption: bytes | None = None) -> None:
        check_run_name(run, "run")
        self.folder, self.run, self._key = folder, run, derive_key(secret, "states")
        self._cipher = None if encryption is None else _cipher(encryption)

    def save(self, client: str, label: str, algorithm: str, state: bytes) -> None:
        """Writes a state.

        Args:
            client: its name, which is one of a folder.
            label: of the state; one that is there is replaced.
            algorithm: digest of what the client's tensors are subject to.
            state: a checkpoint's bytes.

        Raises:
            InputError: the label is not one of this run.
        """
        file, binding = self._file(client, label), self._binding(client, label, algorithm)
        binding["encrypted"] = self._cipher is not None
        if self._cipher is not None:
            nonce = os.urandom(_NONCE)
            state = nonce + self._cipher.encrypt(nonce, state, canonical(binding))
        private_folder(self.folder)
        private_folder(file.parent)
        # Whoever is stopped between the two leaves a signature of another state, which does not pass.
        write_bytes(state, file, private=True)
        signed = {**binding, "hmac": signature(self._key, canonical(binding), state)}
        write_bytes(json.dumps(signed, indent=1).encode(), file.with_suffix(".json"), private=True)
        flush(file.parent)

    def load(self, client: str, label: str, algorithm: str | None = None) -> bytes:
        """The bytes of a state.

        Args:
            client: see :meth:`save`.
            label: see there.
            algorithm: what it must have been saved with; anything when ``None``.

        Raises:
            InputError: it is not there, was altered, or is one of something else. Nothing of the site is told.
        """
        file, whose = self._file(client, label), f"whose state of client `{client}`"
        try:
            state, told = file.read_bytes(), file.with_suffix(".json").read_bytes()
        except OSError as error:
            raise InputError("ckpt_path", f"a checkpoint {whose} is at its site, with a signature", label) from error
        try:
            signed = json.loads(told)
        except (ValueError, RecursionError):
            signed = None
        binding = {key: own for key, own in signed.items() if key != "hmac"} if isinstance(signed, dict) else {}
        given = signed.get("hmac") if isinstance(signed, dict) else None
        own = f"a checkpoint {whose} this site wrote"
        expect(is_signed(given, self._key, canonical(binding), state), "ckpt_path", own, "one that was altered")
        wanted = {**self._binding(client, label, algorithm or ""), "encrypted": binding.get("encrypted")}
        if algorithm is None:
            wanted["algorithm"] = binding.get("algorithm", "")
        expect(binding == wanted, "ckpt_path", f"{own} for this run, algorithm and routes", "one of others")
        if not binding["encrypted"]:
            return state
        if self._cipher is None:
            raise InputError("encrypt", "true at this site, whose states are encrypted", "false")
        try:
            return _decrypted(self._cipher, state, binding)
        except InvalidTag as error:
            raise InputError("ckpt_path", f"a checkpoint {whose} the site has the key for", "another key") from error

    def has(self, client: str, label: str) -> bool:
        """Whether there is a state of that label; what is in it is seen when it is loaded."""
        return self._file(client, label).is_file()

    def keep_only(self, client: str, labels: Collection[str]) -> None:
        """Removes a client's states of this run but for those of ``labels``; they are compared, never a pattern."""
        for file in list((self.folder / client).iterdir()):
            if file.suffix in (".ckpt", ".json") and file.stem.startswith(f"{self.run}.") and file.stem not in labels:
                file.unlink()

    def _binding(self, client: str, label: str, algorithm: str) -> dict[str, Any]:
        return {"run": self.run, "client": client, "label": label, "algorithm": algorithm}

    def _file(self, client: str, label: str) -> Path:
        fits = isinstance(label, str) and re.fullmatch(r"[A-Za-z0-9._-]{1,200}", label) is not None
        own = fits and label.startswith(f"{self.run}.")
        expect(own, "label", f"`{self.run}.` and up to 200 letters, digits, `.`, - and _", label)
        return state_file(self.folder, client, label)
