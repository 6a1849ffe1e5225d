"""Atomic checkpoints: a folder per round that is either whole or not there."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shlex
import shutil
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from flgraph.errors import InputError, expect, first_line
from flgraph.runs.files import Digest, digest, flush
from flgraph.runs.keys import canonical, is_signed, signature
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
    only whole checkpoints, of the last round or of the one before. ``last`` and ``best`` are links to the newest
    checkpoint and to that of the best validation round; on file systems without links, files with their names.

    Args:
        folder: the ``checkpoints`` folder; made when first written to.
        keep: how many of the newest checkpoints stay (the best round's stays as well).
        key: with which manifests are signed, for the run and the round that they are of; they are not when ``None``.
        thread: waits for the disk, while whoever saves goes on; nobody does when ``None``.
    """

    def __init__(self, folder: Path, keep: int = 2, key: bytes | None = None, thread: Executor | None = None) -> None:
        self.folder, self.keep, self.key, self._thread = folder, keep, key, thread
        self._waiting: Future[None] | None = None

    # ------------------------------------------------------------------------------------------------------ writing
    def save(
        self,
        round: int,
        server: bytes,
        write_clients: Callable[[Path, Path | None], Mapping[str, Digest]],
        settings: Mapping[str, Any],
        best_round: int | None = None,
    ) -> Path:
        """Writes the checkpoint of a round, which may be there a little later only; :meth:`wait` waits for it.

        Args:
            round: the number of whole rounds it stands for.
            server: the server's state.
            write_clients: called with the folder to write client files to, and that of the previous checkpoint; tells
                the digests that it knows, by file name.
            settings: what a run must share to continue from here.
            best_round: the best validation round so far, whose checkpoint is kept.

        Raises:
            InputError: the disk is full or not writable, or was for the one before; earlier checkpoints are untouched.
        """
        self.wait()
        target, temporary = self.path(round), self.folder / f"{_TEMPORARY}{round:05d}"
        previous = self.last()

        def work() -> None:
            with self._only_whole(round, temporary, previous):
                names = [str(file.relative_to(temporary)) for file in sorted(temporary.rglob("*.*"))]
                written = {f"{CLIENTS}/{name}": own for name, own in known.items()}
                others = [name for name in names if name not in written]
                linked = {} if previous is None else _linked(temporary, previous, others)
                digests = written | linked
                files = {name: digests.get(name) or digest(temporary / name) for name in names}
                manifest: dict[str, Any] = {"round": round, "settings": settings, "files": files}
                if self.key is not None:
                    manifest["hmac"] = signature(self.key, _signed(manifest, target))
                (temporary / MANIFEST).write_text(json.dumps(manifest))
                for name in (*(name for name in files if name not in linked), MANIFEST, CLIENTS, "."):
                    flush(temporary / name)
                self._remove(target)
                os.replace(temporary, target)
                flush(self.folder)
                self._link("last", target)
                if best_round is not None and self.path(best_round).exists():
                    self._link("best", self.path(best_round))
                else:
                    self._unlink("best")
                self._prune(best_round)

        with self._only_whole(round, temporary, previous):
            shutil.rmtree(temporary, ignore_errors=True)
            (temporary / CLIENTS).mkdir(parents=True)
            known = write_clients(temporary / CLIENTS, previous / CLIENTS if previous else None)
            (temporary / SERVER).write_bytes(server)
        if self._thread is None:
            work()
        else:
            self._waiting = self._thread.submit(work)
        return target

    def wait(self) -> None:
        """Waits until the last checkpoint is there; raises InputError if it could not be written."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.result()

    @contextmanager
    def _only_whole(self, round: int, temporary: Path, previous: Path | None) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            folder = shlex.quote(str(self.folder.parent))
            hint = f"; earlier checkpoints are whole, continue with --ckpt_path {folder}" if previous else ""
            expected = f"writable for the checkpoint of round {round}"
            raise InputError(str(self.folder), expected, f"{error.strerror or error}{hint}") from error

    def _link(self, name: str, target: Path) -> None:
        temporary = self.folder / f".{name}"
        temporary.unlink(missing_ok=True)
        try:
            temporary.symlink_to(target.name)
        except OSError:  # not on every file system
            temporary.write_text(target.name)
        if self._is_copy(name):
            self._unlink(name)
        os.replace(temporary, self.folder / name)

    def _unlink(self, name: str) -> None:
        if self._is_copy(name):
            self._remove(self.folder / name)
        (self.folder / name).unlink(missing_ok=True)

    def _is_copy(self, name: str) -> bool:
        """Whether a link became a folder, as it does where a run is copied with its links followed."""
        return (self.folder / name).is_dir() and not (self.folder / name).is_symlink()

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
        return self.linked("best")

    def linked(self, name: str) -> Path | None:
        """The checkpoint that ``last`` or ``best`` stands for, one of this folder."""
        link = self.folder / name
        if link.is_symlink():
            target = os.readlink(link)
        elif self._is_copy(name):
            number = _content(link).get("round")
            target = self.path(number).name if isinstance(number, int) else ""
        else:
            target = link.read_text(errors="replace") if link.is_file() else ""
        found = self.folder / target
        return found if re.fullmatch(_ROUND_NAME, target) and found.is_dir() else None

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
            self._unlink("best")


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
                if folder != folders[0]:
                    told = f"{folders[0]} has no checkpoint yet: taken is the {ckpt_path} one of {folder}."
                    warnings.warn(told, stacklevel=2)
                return found.resolve()
            if last is not None:  # an older run's best is another run's
                break
        none = " (a run has none without validation, or where its clients went back to another round)"
        why = none if ckpt_path == "best" and folders else ""
        raise InputError("ckpt_path", f"the {ckpt_path} checkpoint under {runs}", f"none{why}")
    expect(isinstance(ckpt_path, str | Path), "ckpt_path", "last, best, or a folder", ckpt_path)
    path = Path(ckpt_path)
    link = CheckpointStore(path.parent).linked(path.name) if path.name in ("last", "best") else None
    for candidate in (link, path, CheckpointStore(path).last(), CheckpointStore(path / "checkpoints").last()):
        if candidate is not None and (candidate / MANIFEST).is_file():
            return candidate.resolve()
    what = "nothing" if not path.exists() else "a file" if path.is_file() else "a folder without one"
    raise InputError("ckpt_path", "last, best, or the folder of a run or checkpoint", f"{path}, which is {what}")


def read_manifest(checkpoint: Path, key: bytes | None = None) -> dict[str, Any]:
    """The manifest of a checkpoint, after checking that every file is there, whole and unchanged.

    Args:
        checkpoint: its folder.
        key: with which it must be signed, for the run and the round of its folder; not checked when ``None``.

    Raises:
        InputError: a file is missing, cut short or altered; names an older checkpoint that could be used instead. Or
            the manifest has no signature, or one of another key, run or round.
    """
    manifest, field = _content(checkpoint), str(checkpoint / MANIFEST)
    if broken := _broken(manifest):
        raise InputError(field, "a whole manifest", f"{broken}{_older(checkpoint)}")
    if key is not None and not is_signed(manifest.get("hmac"), key, _signed(manifest, checkpoint)):
        what = "signed by this server for this run and round (`flgraph flare adopt` brings a run here)"
        raise InputError(field, what, "one that is not")
    there = {str(file.relative_to(checkpoint)) for file in checkpoint.rglob("*") if file.is_file()} - {MANIFEST}
    if key is not None and (further := there - manifest["files"].keys()):
        raise InputError(str(checkpoint), "a checkpoint of the files that its manifest names", f"also {min(further)}")
    for name, expected in manifest["files"].items():
        file = checkpoint / name
        if not file.is_file():
            raise InputError(str(checkpoint), f"a checkpoint with {name}", f"none{_older(checkpoint)}")
        size = file.stat().st_size
        if size != expected["bytes"] or digest(file) != expected:
            got = f"{size} bytes" + (" of other content" if size == expected["bytes"] else "")
            raise InputError(str(file), f"whole ({expected['bytes']} bytes)", f"{got}{_older(checkpoint)}")
    return manifest


def _content(checkpoint: Path) -> dict[str, Any]:
    """What the manifest says; empty if it cannot be read as a mapping."""
    try:
        found = json.loads((checkpoint / MANIFEST).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _broken(manifest: Mapping[str, Any]) -> str:
    """What is wrong with a manifest; empty if nothing is."""
    for name, kind in {"round": int, "settings": dict, "files": dict}.items():
        if not isinstance(manifest.get(name), kind):
            return f"one without `{name}`"
    files = manifest["files"]
    for name in (SERVER, *files):
        own = files.get(name)
        inside = ".." not in Path(name).parts and not Path(name).is_absolute()
        if not (inside and isinstance(own, dict) and isinstance(own.get("bytes"), int) and "sha256" in own):
            return f"one without size and SHA-256 of {name}"
    return ""


def _signed(manifest: Mapping[str, Any], checkpoint: Path) -> bytes:
    """What a manifest's signature is of: where the run, its version and the round are, and all the manifest says."""
    place = [*checkpoint.parent.resolve().parts[-3:], checkpoint.resolve().name]
    content = json.loads(json.dumps({key: value for key, value in manifest.items() if key != "hmac"}))
    return canonical([place, content])


def _linked(folder: Path, previous: Path, names: Sequence[str]) -> dict[str, Digest]:
    """Digests of those files of a new checkpoint, among ``names``, that are also in the previous one."""
    known = _content(previous).get("files", {})
    there = [name for name in names if name in known and (previous / name).exists()]
    return {name: known[name] for name in there if (folder / name).samefile(previous / name)}


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Makes one sentence of what goes wrong with a state, such as one that another version wrote in another form.

    Args:
        what: its file, or whose state it is.

    Raises:
        InputError: it lacks something, or holds something of another kind.
    """
    try:
        yield
    except InputError as error:
        raise error.within(what) from error
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise InputError(what, "a state of this run", f"one with {type(error).__name__}: {error}") from error


# ------------------------------------------------------------------------------------------------------------- files
def state_name(client: str) -> str:
    """File name of a client's state in a checkpoint."""
    return f"{client}.ckpt"


def save_file(state: Mapping[str, Any], file: Path) -> Digest:
    """``torch.save``, not flushed to disk yet.

    Raises:
        OSError: the disk is full or not writable.
    """
    content = state_bytes(state)  # at once: an archive comes in a hundred pieces, each of which would cost as much
    file.write_bytes(content)
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def state_bytes(state: Mapping[str, Any]) -> bytes:
    """What :func:`save_file` writes."""
    buffer = io.BytesIO()
    _save(state, buffer)
    return buffer.getvalue()


def _save(state: Mapping[str, Any], to: Any) -> None:
    import torch  # takes longer than all that those do who only look at folders

    # Without checksums of the records: manifests and signatures have SHA-256 of the whole, and `torch.load` reads none.
    checks = getattr(torch.serialization, "get_crc32_options", bool)()  # torch 2.4 and 2.5 cannot leave them out
    try:
        if checks:
            torch.serialization.set_crc32_options(False)
        torch.save(state, to)
    finally:
        if checks:
            torch.serialization.set_crc32_options(True)


def readable(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of ``values`` that :func:`load_file` takes back: functions and other objects would bar the whole file."""
    kept = {}
    for name, value in values.items():
        with suppress(InputError):
            kept[name] = storable(value, name)
    return kept


def storable(value: Any, where: str) -> Any:
    """The same state, with Python's numbers for NumPy's, which :func:`load_file` would not take back.

    Args:
        value: tensors and plain values, and mappings and lists of these.
        where: its name, for messages.

    Raises:
        InputError: something in it is of another kind; it would bar the whole file.
    """
    kind = type(value)
    if kind in (dict, OrderedDict, list, tuple):
        named = kind not in (list, tuple)
        items = list(value.items() if named else enumerate(value))
        parts = [(_plain(key), storable(inner, f"{where}.{key}")) for key, inner in items]
        if all(old[0] is new[0] and old[1] is new[1] for old, new in zip(items, parts, strict=True)):
            return value  # with what hangs on it, such as the versions of a module's state
        return kind(parts if named else (inner for _, inner in parts))
    value = _plain(value)
    if not _is_readable(value):
        raise InputError(where, "tensors, plain values, and dictionaries and lists of these", kind.__name__)
    return value


def _plain(value: Any) -> Any:
    """Python's number instead of NumPy's, of the same value."""
    return value.item() if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0 else value


def _is_readable(value: Any) -> bool:
    if type(value) in (type(None), bool, int, float, str):
        return True
    import torch

    if type(value) in (torch.Tensor, torch.nn.Parameter):
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
    import torch

    try:
        state: dict[str, Any] = torch.load(source, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a broken file
        raise InputError(field, expected, f"{type(error).__name__}: {first_line(error)}") from error
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
