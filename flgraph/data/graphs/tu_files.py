"""Where the text files of a TU data set come from: a folder, a zip archive, or the collection's web site."""

from __future__ import annotations

import hashlib
import http.client
import lzma
import os
import tempfile
import urllib.error
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TypeVar

from torch_geometric.data import download_url
from torch_geometric.datasets import TUDataset

from flgraph.data.cache import ROOT, content_key, data_folders
from flgraph.errors import InputError, first_line

T = TypeVar("T")

_CHUNK = 1 << 20
"""Bytes of text read at a time; Python's LZMA reader is ten times slower with 16 MB."""

_MEMBERS = ("A", "graph_indicator", "graph_labels", "node_labels", "node_attributes")
# RuntimeError is what an encrypted archive gives, and an unknown compression one of its kinds.
_READ_ERRORS = (OSError, zipfile.BadZipFile, lzma.LZMAError, zlib.error, EOFError, RuntimeError)


def locate(name: str, root: str | Path | None) -> Path:
    """The zip file, or the folder of text files, of data set ``name``."""
    folders = data_folders(root)
    for base in folders:
        for path in (base / f"{name}.zip", base / "tu" / f"{name}.zip"):
            if path.is_file():
                return path
        for folder in (base / name / "raw", base / name, base / "tu" / name / "raw", base / "tu" / name):
            if (folder / f"{name}_A.txt").is_file():
                return folder
    return _download(name, folders)


def _download(name: str, folders: list[Path]) -> Path:
    """Puts ``NAME.zip`` into the first of ``folders`` that can be written."""
    url = f"{TUDataset.url}/{name}.zip"
    reason: object = "no folder can be written"
    with ExitStack() as stack:
        for base in folders:
            try:
                base.mkdir(parents=True, exist_ok=True)
                # A name of its own until it is complete: an interrupted download must not pass for the data set.
                folder = stack.enter_context(tempfile.TemporaryDirectory(dir=base, prefix=".download-"))
            except OSError as error:
                reason = error
                continue
            try:
                path = download_url(url, folder)
                if zipfile.is_zipfile(path):
                    os.replace(path, base / f"{name}.zip")
                    return base / f"{name}.zip"
                reason = "the answer is not a zip archive"
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    got = f"{name!r}, which is neither in {folders[0]} nor at {url}"
                    raise InputError("name", "a data set of the TU collection", got) from error
                reason = error
            except (OSError, http.client.HTTPException) as error:
                reason = error
            break
    wanted = f"a folder with {name}.zip (from {url}) or {name}/raw/{name}_A.txt and its companions"
    raise InputError(ROOT, wanted, f"{folders[0]}, which has neither, and the download failed ({reason})")


class TUFiles:
    """The text files of one data set, in a zip archive or a folder.

    Args:
        name: of the data set, with which the files' names begin.
        path: the archive or folder.
    """

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path = name, path
        found = self._guarded(self._list)
        self.members = {key: found[f"{name}_{key}.txt"] for key in _MEMBERS if f"{name}_{key}.txt" in found}
        for key in _MEMBERS[:3]:
            self.require(key in self.members, key, "a file", "none")

    def require(self, condition: bool, key: str, expected: str, got: str) -> None:
        """Raises :class:`InputError` about one of the files unless ``condition`` holds."""
        if not condition:
            raise InputError(f"{self.name}_{key}.txt", expected, got, str(self.path))

    def digest(self) -> str:
        """sha256 of the archive, or of the files in the folder."""
        paths = [Path(self.members[key]) for key in sorted(self.members)] if self.path.is_dir() else [self.path]
        parts = []
        for path in paths:
            with path.open("rb") as file:
                parts.append((path.name, hashlib.file_digest(file, "sha256").hexdigest()))
        return content_key(parts)

    def lines(self, key: str) -> Iterator[bytes]:
        """Blocks of whole lines, each ending in a newline; blank lines at the end of the file are left out."""
        with ExitStack() as stack:
            file = self._guarded(lambda: self._open(key, stack))
            rest = b""
            while chunk := self._guarded(lambda: file.read(_CHUNK)):
                rest += chunk
                end = rest.rstrip().rfind(b"\n") + 1  # the last line stays behind, and blank ones after it
                if end:
                    yield rest[:end]
                    rest = rest[end:]
            if rest.strip():
                yield rest.rstrip() + b"\n"

    def _list(self) -> dict[str, str]:
        if self.path.is_dir():
            return {path.name: str(path) for path in self.path.iterdir()}
        with zipfile.ZipFile(self.path) as archive:
            return {member.rpartition("/")[2]: member for member in archive.namelist()}

    def _open(self, key: str, stack: ExitStack) -> IO[bytes]:
        if self.path.is_dir():
            return stack.enter_context(open(self.members[key], "rb"))
        return stack.enter_context(stack.enter_context(zipfile.ZipFile(self.path)).open(self.members[key]))

    def _guarded(self, action: Callable[[], T]) -> T:
        try:
            return action()
        except _READ_ERRORS as error:
            raise InputError(str(self.path), "readable and intact", f"an error: {first_line(error)}") from error
