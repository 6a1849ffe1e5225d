"""The ledger: what crossed between a server and a client, a line per message, each line chained to the one before."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from io import FileIO
from pathlib import Path
from typing import Any

from filelock import FileLock

from flgraph.errors import InputError, expect
from flgraph.runs.files import flush, writing

LEDGER = "ledger.jsonl"
"""Its name in a run's folder."""

SUM = "sum"
"""The event that uploads came added up: their lines have the digests that they had before."""

ASKED = "asked"
"""The event that a client is asked for an upload with noise: it counts, whether the server gets to note it or not."""

FAILED = "failed"
"""The event that a client's turn failed, in the ledger of its site."""

DONE = "done"
"""The event that a client has done a turn that it answers nothing to, there, too."""

NOTHING = "0" * 64
"""What the first line has for the hash of the line before."""

REPEATED = ("tensors", "scalars", "policy")
"""Fields that are written out once: later lines have the number of the line that has the same."""

_HASH = b',"hash":"'
_LONGEST, _MOST, _KEPT = 300, 1000, 64
"""Characters of a text, entries of a list, and values of a repeated field that are remembered: the other side chooses
names, and must not fill the disk or the memory with them."""


class Ledger:
    """Notes messages, in memory until there is a file; a line is written as soon as it is added.

    A file only grows. Half a line at its end, left by a process that was killed, is moved to ``FILE.half``. Several
    processes may write to one file.

    Args:
        file: where to go on; see :meth:`open`.

    Attributes:
        head: hash of the newest line in the file.
    """

    def __init__(self, file: Path | None = None) -> None:
        self.head = NOTHING
        self._stream: FileIO | None = None
        self._lines = self._size = 0
        self._alone_now = self._only = False
        self._waiting: list[dict[str, Any]] = []
        self._written: dict[str, dict[bytes, int]] = {name: {} for name in REPEATED}
        self._digests: dict[int, tuple[bytes, str]] = {}
        if file is not None:
            self.open(file)

    def open(self, file: Path, alone: bool = False) -> None:
        """Goes on in a file, with what was kept in memory; what is in the file stays.

        Args:
            file: where to go on.
            alone: whether lines that somebody else adds from now on are an error of whatever is noted here next.

        Raises:
            InputError: the file cannot be written, or its last line is not what a ledger writes.
        """
        self._only = False
        self.close()
        with writing(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(file.with_name(f".{file.name}.lock"))
            self._file, self.head, self._lines, self._size = file, NOTHING, 0, 0
            self._written = {name: {} for name in REPEATED}
            self._stream = FileIO(file, "a+", opener=lambda path, flags: os.open(path, flags, 0o600))
            os.chmod(file, 0o600)  # also where somebody else made it
            flush(file.parent)
        with self._alone():
            waiting, self._waiting = self._waiting, []
            for entry in waiting:
                self._append(entry)
        self._only = alone

    def add(self, *, data: bytes | None = None, **fields: Any) -> None:
        """Adds a line.

        Args:
            data: the bytes of a message; their number and digest become ``bytes`` and ``sha256``. An empty message has
                no digest. The same object is hashed once until :meth:`flush`.
            fields: of the line; empty ones are left out.

        Raises:
            InputError: the file cannot be written, or got shorter.
        """
        entry: dict[str, Any] = {"time": _now()}
        entry |= {name: _bounded(value) for name, value in fields.items() if value or value == 0}
        if data is not None:
            entry |= {"bytes": len(data)} | ({"sha256": self._digest(data)} if data else {})
        if self._stream is None:
            self._waiting.append(entry)
            return
        with nullcontext() if self._alone_now else self._alone():
            self._append(entry)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Inside, lines are added while nobody else writes: one lock for all of them, instead of one for each."""
        if self._stream is None or self._alone_now:
            yield
            return
        with self._alone():
            self._alone_now = True
            try:
                yield
            finally:
                self._alone_now = False

    def flush(self) -> None:
        """Has the disk keep what was added."""
        self._digests.clear()
        if self._stream is not None:
            with writing(self._file):
                os.fsync(self._stream.fileno())

    def close(self) -> None:
        """Flushes and closes the file; what is added then waits in memory for the next one."""
        self.flush()
        if self._stream is not None:
            self._stream.close()
        self._stream = None

    def _digest(self, data: bytes) -> str:
        known = self._digests.get(id(data))
        if known is None:
            if len(self._digests) >= 8:  # they keep their bytes in memory
                self._digests.clear()
            known = self._digests[id(data)] = data, hashlib.sha256(data).hexdigest()
        return known[1]

    def _alone(self) -> ExitStack:
        """Nobody else writes meanwhile; goes on from the file's last line, whoever wrote it."""
        with ExitStack() as stack:
            stack.enter_context(writing(self._file))
            stack.enter_context(self._lock)
            assert self._stream is not None
            size = os.fstat(self._stream.fileno()).st_size
            expect(size >= self._size, str(self._file), f"{self._size} bytes or more, as it was,", size)
            if size != self._size:
                self._resume(size)
            return stack.pop_all()

    def _resume(self, size: int) -> None:
        """Takes number and hash of the last line, reading from the end; half a line is moved away."""
        assert self._stream is not None
        start, tail = size, b""
        while start and tail.count(b"\n") < 2:  # before the last whole line, and after it
            step = min(start, max(4096, len(tail)))
            start -= step
            self._stream.seek(start)
            tail = self._stream.read(step) + tail
        whole, _, half = tail.rpartition(b"\n")
        last: dict[str, Any] = {"n": 0, "hash": NOTHING}
        if whole:
            last = checked_line(whole.rpartition(b"\n")[2], f"{self._file}, last line")
        own = not self._only or last["hash"] == self.head  # what is behind it is half a line of its own
        expect(own, str(self._file), "written by the newest job of a run only", "an older one")
        self._lines, self.head, self._size = last["n"], last["hash"], size - len(half)
        if half:
            with open(f"{self._file}.half", "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as stream:
                stream.write(half + b"\n")
                os.fsync(stream.fileno())
            self._stream.truncate(self._size)
            told = {"event": "repaired", "bytes": len(half), "sha256": hashlib.sha256(half).hexdigest()}
            self._append({"time": _now(), **told})

    def _append(self, entry: Mapping[str, Any]) -> None:
        assert self._stream is not None
        number = self._lines + 1
        line = {"n": number, **entry, "previous": self.head}
        for name in REPEATED:
            if name in entry:
                key = hashlib.sha256(json.dumps(entry[name]).encode()).digest()
                known = self._written[name]
                if key in known:
                    line[name] = known[key]
                else:
                    if len(known) >= _KEPT:
                        known.clear()
                    known[key] = number
        body = json.dumps(line, separators=(",", ":")).encode()
        digest = hashlib.sha256(body).hexdigest()
        text = body[:-1] + _HASH + digest.encode() + b'"}\n'
        rest = memoryview(text)
        while (
            rest
        ):  # a full disk takes a part first, and says what it lacks at the next; half a line is moved away later
            rest = rest[self._stream.write(rest) :]
        self._lines, self.head, self._size = number, digest, self._size + len(text)


def checked_line(text: bytes, where: str) -> dict[str, Any]:
    """A line without its end, as it was written.

    Raises:
        InputError: its hash is that of another one, or it is none; the sentence says ``where``.
    """
    body, _, rest = text.rpartition(_HASH)
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        line = None
    if not isinstance(line, dict):
        raise InputError(where, "a JSON object", f"{len(text)} bytes that are none")
    told = {name: line.get(name) for name in ("n", "time", "previous", "hash")}
    for name, value in told.items():
        expect(value is not None, where, f"with the field {name}", "none")
    if rest != f'{hashlib.sha256(body + b"}").hexdigest()}"}}'.encode() or type(line["n"]) is not int:
        raise InputError(where, "what its hash was made of", "something else: it was changed")
    return line


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _bounded(value: Any) -> Any:
    """Something that JSON has, of a bounded length."""
    if isinstance(value, Mapping | list | tuple):
        kept = list(value)[:_MOST]
        more = [f"{len(value) - _MOST} more"] if len(value) > _MOST else []
        if isinstance(value, Mapping):
            return {_bounded(str(key)): _bounded(value[key]) for key in kept} | dict.fromkeys(more, "")
        return [*map(_bounded, kept), *more]
    if isinstance(value, int | float) and math.isfinite(value):
        return value
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"
