"""Atomic checkpoints: a folder per round that is either whole or not there."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from flgraph.errors import InputError
from flgraph.runs.files import digest, flush_folder, write_bytes
from flgraph.runs.results import version_of

MANIFEST = "manifest.json"
CLIENTS = "clients"
SERVER = "server.safetensors"
_ROUND = "round-"
_ROUND_NAME = rf"{_ROUND}([0-9]{{5}}|[1-9][0-9]{{5,}})"  # and no other, such as that of somebody's copy
_TEMPORARY = ".writing-"
_LEAVING = ".removing-"


class CheckpointStore:
    """The ``checkpoints`` folder of a run.

    A checkpoint is the folder ``round-00037`` with ``server.safetensors``, ``clients/NAME.ckpt`` and
    ``manifest.json``, which holds the size and SHA-256 of every file and the settings a run must share to continue
    from it. It is written under another name, flushed to disk, and renamed; so a process killed at any moment leaves
    only whole checkpoints. ``last`` and ``best`` are links to the newest checkpoint and to that of the best validation
    round; on file systems without links, files with their names.

    Args:
        folder: the ``checkpoints`` folder; made when first written to.
        keep: how many of the newest checkpoints stay (the best round's stays as well).
    """

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder, self.keep = folder, keep

    # ------------------------------------------------------------------------------------------------------ writing
    def save(
        self,
        round: int,
        server: bytes,
        write_clients: Callable[[Path, Path | None], None],
        settings: Mapping[str, Any],
        best_round: int | None = None,
    ) -> Path:
        """Writes the checkpoint of a round.

        Args:
            round: the number of whole rounds it stands for.
            server: the server's state.
            write_clients: called with the folder to write client files to, and that of the previous checkpoint.
            settings: what a run must share to continue from here.
            best_round: the best validation round so far, whose checkpoint is kept.

        Raises:
            InputError: the disk is full or not writable; earlier checkpoints are untouched.
        """
        target, temporary = self.path(round), self.folder / f"{_TEMPORARY}{round:05d}"
        previous = self.last()
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            (temporary / CLIENTS).mkdir(parents=True)
            write_clients(temporary / CLIENTS, previous / CLIENTS if previous else None)
            write_bytes(server, temporary / SERVER)
            files = {str(file.relative_to(temporary)): digest(file) for file in sorted(temporary.rglob("*.*"))}
            manifest = {"round": round, "settings": settings, "files": files}
            write_bytes(json.dumps(manifest, indent=1).encode(), temporary / MANIFEST)
            flush_folder(temporary / CLIENTS)
            flush_folder(temporary)
            self._remove(target)
            os.replace(temporary, target)
            flush_folder(self.folder)
            self._link("last", target)
            if best_round is not None and self.path(best_round).exists():
                self._link("best", self.path(best_round))
            else:
                (self.folder / "best").unlink(missing_ok=True)
            self._prune(best_round)
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            hint = "; earlier checkpoints are whole, continue with --ckpt_path last" if previous else ""
            expected = f"writable for the checkpoint of round {round}"
            raise InputError(str(self.folder), expected, f"{error.strerror or error}{hint}") from error
        return target

    def _link(self, name: str, target: Path) -> None:
        temporary = self.folder / f".{name}"
        temporary.unlink(missing_ok=True)
        try:
            temporary.symlink_to(target.name)
        except OSError:  # not on every file system
            temporary.write_text(target.name)
        os.replace(temporary, self.folder / name)

    def _prune(self, best_round: int | None) -> None:
        for old in self.rounds()[: -self.keep]:
            if old != best_round:
                self._remove(self.path(old))

    def _remove(self, checkpoint: Path) -> None:
        """Removes a checkpoint, if it is there, such that one half removed does not pass for a whole one."""
        leaving = self.folder / f"{_LEAVING}{checkpoint.name}"
        shutil.rmtree(leaving, ignore_errors=True)
        if checkpoint.exists():
            os.replace(checkpoint, leaving)
            shutil.rmtree(leaving)

    # ------------------------------------------------------------------------------------------------------ reading
    def path(self, round: int) -> Path:
        """Folder of a round's checkpoint."""
        return self.folder / f"{_ROUND}{round:05d}"

    def rounds(self) -> list[int]:
        """Rounds with a checkpoint, ascending."""
        found = (re.fullmatch(_ROUND_NAME, path.name) for path in self.folder.glob(f"{_ROUND}*") if path.is_dir())
        return sorted(int(name[1]) for name in found if name)

    def last(self) -> Path | None:
        """The newest checkpoint."""
        rounds = self.rounds()
        return self.path(rounds[-1]) if rounds else None

    def best(self) -> Path | None:
        """The checkpoint of the best validation round."""
        link = self.folder / "best"
        found = self.folder / link.read_text() if link.is_file() else link
        return found if found.is_dir() else None

    def discard_after(self, round: int) -> None:
        """Removes checkpoints of later rounds, which a run that continues from ``round`` will write again.

        What a killed process left half written or half removed goes as well.
        """
        for later in reversed(self.rounds()):
            if later > round:
                self._remove(self.path(later))
        for leftover in (*self.folder.glob(f"{_TEMPORARY}*"), *self.folder.glob(f"{_LEAVING}*")):
            shutil.rmtree(leftover)
        self._link("last", self.path(round))
        if self.best() is None:
            (self.folder / "best").unlink(missing_ok=True)


def find_checkpoint(ckpt_path: str, runs: Path) -> Path:
    """The checkpoint folder that ``ckpt_path`` stands for.

    Args:
        ckpt_path: ``last`` or ``best`` of the newest run in ``runs`` that has a checkpoint; or a run folder, a
            ``checkpoints`` folder, or one checkpoint's folder.
        runs: where the versions of a run lie, ``root/name``.

    Raises:
        InputError: there is none.
    """
    if ckpt_path in ("last", "best"):
        folders = sorted(runs.glob("version_*"), key=_version, reverse=True)
        for folder in folders:
            store = CheckpointStore(folder / "checkpoints")
            # Not by the link `last`, which a killed process may have left behind the newest checkpoint.
            last = store.last()
            found = last if ckpt_path == "last" else store.best()
            if found is not None:
                return found.resolve()
            if last is not None:  # an older run's best is another run's
                break
        none = " (a run has none without validation, or where its clients went back to another round)"
        why = none if ckpt_path == "best" and folders else ""
        raise InputError("ckpt_path", f"the {ckpt_path} checkpoint under {runs}", f"none{why}")
    path = Path(ckpt_path)
    for candidate in (path, CheckpointStore(path).last(), CheckpointStore(path / "checkpoints").last()):
        if candidate is not None and (candidate / MANIFEST).is_file():
            return candidate.resolve()
    what = "nothing" if not path.exists() else "a file" if path.is_file() else "a folder without one"
    raise InputError("ckpt_path", "last, best, or the folder of a run or checkpoint", f"{path}, which is {what}")


def read_manifest(checkpoint: Path) -> dict[str, Any]:
    """The manifest of a checkpoint, after checking that every file is there, whole and unchanged.

    Raises:
        InputError: a file is missing, cut short or altered; names an older checkpoint that could be used instead.
    """
    try:
        manifest: dict[str, Any] = json.loads((checkpoint / MANIFEST).read_text())
        files = dict(manifest["files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(str(checkpoint / MANIFEST), "a whole manifest", f"{error}{_older(checkpoint)}") from error
    for name, expected in files.items():
        file = checkpoint / name
        if not file.is_file():
            raise InputError(str(checkpoint), f"a checkpoint with {name}", f"none{_older(checkpoint)}")
        size = file.stat().st_size
        if size != expected["bytes"] or digest(file) != expected:
            got = f"{size} bytes" + (" of other content" if size == expected["bytes"] else "")
            raise InputError(str(file), f"whole ({expected['bytes']} bytes)", f"{got}{_older(checkpoint)}")
    return manifest


# ------------------------------------------------------------------------------------------------------------- files
def state_name(client: str) -> str:
    """File name of a client's state in a checkpoint."""
    return f"{client}.ckpt"


def save_file(state: Mapping[str, Any], file: Path) -> None:
    """``torch.save``, flushed to disk."""
    write_bytes(_buffer(state), file)  # torch's writer turns an error of the disk into one of its own


def state_bytes(state: Mapping[str, Any]) -> bytes:
    """What :func:`save_file` writes."""
    return bytes(_buffer(state))


def _buffer(state: Mapping[str, Any]) -> memoryview:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getbuffer()


def readable(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of ``values`` that :func:`load_file` takes back: functions and other objects would bar the whole file."""
    return {name: value for name, value in values.items() if _is_readable(value)}


def _is_readable(value: Any) -> bool:
    if value is None or type(value) in (bool, int, float, str):
        return True
    buffer = io.BytesIO()
    try:
        torch.save(value, buffer)
        torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
    except Exception:  # whatever it is that the object does not like
        return False
    return True


def load_file(file: Path) -> dict[str, Any]:
    """``torch.load`` on the CPU, of tensors and plain values only.

    Raises:
        InputError: the file holds something else or is broken.
    """
    return _load(file, str(file), "a client's checkpoint")


def load_bytes(data: bytes, what: str) -> dict[str, Any]:
    """As :func:`load_file`, from what :func:`state_bytes` returned; ``what`` names it in the error."""
    return _load(io.BytesIO(data), what, "tensors and plain values")


def _load(source: Path | io.BytesIO, field: str, expected: str) -> dict[str, Any]:
    try:
        state: dict[str, Any] = torch.load(source, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a broken file
        raise InputError(field, expected, f"{type(error).__name__}: {error}") from error
    return state


def link_or_copy(source: Path, target: Path) -> bool:
    """Hard-links ``target`` to ``source`` (copies where there are no links); False if there is no source."""
    if not source.is_file():
        return False
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
    return True


def _version(folder: Path) -> int:
    number = version_of(folder)
    return -1 if number is None else number


def _older(checkpoint: Path) -> str:
    """Names an older whole checkpoint beside a broken one."""
    store = CheckpointStore(checkpoint.parent)
    for round in reversed(store.rounds()):
        path = store.path(round)
        if path != checkpoint and path.name < checkpoint.name and (path / MANIFEST).is_file():
            return f"; an older checkpoint is there: continue with --ckpt_path {path}"
    return ""
