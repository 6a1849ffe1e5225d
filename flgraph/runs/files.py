"""Files of a run: written whole or not at all, in one way for all of them."""

from __future__ import annotations

import hashlib
import json
import math
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from flgraph.errors import InputError

LOCK = ".lock"
"""File in a run's folder that is locked while a process writes there."""

Digest = dict[str, Any]
"""Size (``bytes``) and ``sha256`` of a file."""

_PATIENCE = 3.0
"""Seconds that a process has to end which is about to."""


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Says where it was when something could not be written.

    Raises:
        InputError: the disk is full, or the folder not writable.
    """
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error  # Lightning's TensorBoard logger makes a ValueError of a full disk
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__cause__ or cause.__context__
        if cause is None:
            raise
        raise InputError(str(folder), "writable", cause.strerror or cause) from error


def write_bytes(content: bytes, file: Path, private: bool = False) -> None:
    """Writes a file whole or not at all, also where several processes write it at the same time or the power fails.

    Args:
        content: of the file.
        file: replaced if it is there.
        private: whether nobody but its owner may read it.

    Raises:
        OSError: the disk is full, or the folder not writable; what was there before stays.
    """
    temporary = file.with_name(f".{uuid.uuid4().hex}.writing")  # without the file's name, which may have no room left
    try:
        mode = 0o600 if private else 0o666  # less the umask
        with open(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode), "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def private_folder(folder: Path) -> None:
    """Makes a folder that nobody but its owner may look into, and makes one so that is there."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Inside, no other process writes to the folder of a run; the lock of a process that is killed goes with it.

    Raises:
        InputError: another one does, and goes on doing so for some seconds.
    """
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=_PATIENCE)
    except Timeout as error:  # which is an OSError, too
        alone = "the folder of a run that nobody else writes to"
        raise InputError(str(folder), alone, "one that another process is writing to") from error
    except OSError as error:
        raise InputError(str(folder), "writable", error.strerror or error) from error
    try:
        yield
    finally:
        lock.release()


def write_text(text: str, file: Path) -> None:
    """Writes a text file in UTF-8, with escapes for what that has no letter for; see :func:`write_bytes`."""
    write_bytes(text.encode(errors="backslashreplace"), file)


def write_json(value: Any, file: Path) -> None:
    """Writes JSON that any parser reads (NaN and infinity become null); see :func:`write_bytes`."""
    write_text(json.dumps(finite(value), indent=2) + "\n", file)


def finite(value: Any) -> Any:
    """The value with mappings as dictionaries, other collections as lists, and ``None`` for NaN and infinity."""
    if isinstance(value, Mapping):
        return {str(key): finite(inner) for key, inner in value.items()}
    if isinstance(value, str) or not isinstance(value, Iterable):
        return None if isinstance(value, float) and not math.isfinite(value) else value
    return [finite(inner) for inner in value]


def read_text(file: Path) -> str | None:
    """A text file's content; ``None`` if there is none.

    Raises:
        InputError: the file is not text, or cannot be read.
    """
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(str(file), "a readable text file", error) from error


def digest(file: Path) -> Digest:
    """Size and digest of a file."""
    with open(file, "rb") as stream:
        return {"bytes": file.stat().st_size, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}


def flush(path: Path) -> None:
    """Flushes to disk a file, or which files a folder has."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
