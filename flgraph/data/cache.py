"""Results that take a while to compute, kept on disk as named tensors."""

from __future__ import annotations

import hashlib
import os
import uuid
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

FORMAT_VERSION = 1
"""Part of every key: raising it makes all earlier files unreachable."""

_warned = False


def cache_folder() -> Path:
    """Where cached files lie: ``$FLGRAPH_CACHE``, else ``~/.cache/flgraph``."""
    return Path(os.environ.get("FLGRAPH_CACHE") or "~/.cache/flgraph").expanduser()


ROOT = "data.root` or `FLGRAPH_DATA"
"""What says where data is, in messages."""


def data_folders(root: str | Path | None) -> list[Path]:
    """Where data is looked for: in ``root``, or else ``$FLGRAPH_DATA``, if one is named, and in the cache folder."""
    chosen = root or os.environ.get("FLGRAPH_DATA")
    return [*([Path(chosen).expanduser()] if chosen else []), cache_folder()]


def content_key(*parts: object) -> str:
    """A key that changes whenever any of ``parts`` does.

    Args:
        parts: tensors (type, shape and bytes count), ``None``, bool, int, float, str, bytes, paths, and lists, tuples
            and mappings of these. Types count: ``1``, ``1.0``, ``True`` and ``"1"`` are four keys.

    Returns:
        64 hexadecimal digits (sha256).

    Raises:
        TypeError: a part is of another type, whose content cannot be told from its ``repr``.
    """
    digest = hashlib.sha256()
    _feed(digest, ("flgraph", FORMAT_VERSION, parts))
    return digest.hexdigest()


def cached(key: str, compute: Callable[[], Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The tensors stored under ``key``, or those of ``compute()``, which are then stored.

    A file that is truncated or damaged is computed again and replaced. Files appear under their name only when
    complete, so several processes may share a folder. Where the folder cannot be written, nothing is stored, and the
    first such case of a process says so in a warning.

    Args:
        key: what :func:`content_key` returned; must cover all that ``compute`` depends on.
        compute: makes the tensors; called only when they are not stored.

    Returns:
        The tensors by name, on the CPU when they come from disk.
    """
    path = cache_folder() / f"{key}.safetensors"
    stored = _load(path)
    if stored is not None:
        return stored
    tensors = dict(compute())
    try:
        _store(path, tensors)
    except (OSError, SafetensorError) as error:
        _warn_once(path.parent, error)
    return tensors


def _feed(digest: hashlib._Hash, part: object) -> None:
    """Adds ``part`` with its type and length, so that no two different sequences of parts give the same bytes."""
    if isinstance(part, Tensor):
        _feed(digest, ("tensor", str(part.dtype), tuple(part.shape)))
        digest.update(_bytes(part))
    elif isinstance(part, Mapping):
        items = sorted(part.items(), key=lambda item: str(item[0]))
        digest.update(f"mapping {len(items)};".encode())
        for item in items:
            _feed(digest, item)
    elif isinstance(part, (list, tuple)):
        digest.update(f"sequence {len(part)};".encode())
        for item in part:
            _feed(digest, item)
    elif part is None or isinstance(part, (bool, int, float, str, bytes, Path)):
        data = part if isinstance(part, bytes) else str(part).encode()
        # All paths are one type here: which class `Path` makes depends on the platform.
        kind = "Path" if isinstance(part, Path) else type(part).__name__
        digest.update(f"{kind} {len(data)};".encode() + data)
    else:
        raise TypeError(f"Expected `parts` to be tensors or plain values but got {type(part).__name__}.")


def _bytes(tensor: Tensor) -> memoryview:
    if tensor.numel() == 0:  # may have strides that no view accepts
        return memoryview(b"")
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    return content_key({name: tensors[name] for name in tensors})


def _load(path: Path) -> dict[str, Tensor] | None:
    """The tensors in ``path``; ``None`` where there is no such file or its content is not what was stored."""
    try:
        with safe_open(path, framework="pt") as file:
            checksum = (file.metadata() or {}).get("checksum")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (OSError, SafetensorError):
        return None
    # safetensors notices truncation only; a flipped bit would otherwise become somebody's wrong result.
    return tensors if checksum == _checksum(tensors) else None


def _store(path: Path, tensors: Mapping[str, Tensor]) -> None:
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    seen: set[int] = set()
    for name, tensor in plain.items():
        # The format refuses tensors that share memory.
        if tensor.untyped_storage().data_ptr() in seen:
            plain[name] = tensor.clone()
        seen.add(tensor.untyped_storage().data_ptr())
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".part-{uuid.uuid4().hex}.safetensors")
    temporary.touch()
    usual = temporary.stat().st_mode  # safetensors would let nobody else read it, but others may share the folder
    try:
        save_file(plain, temporary, metadata={"checksum": _checksum(plain)})
        temporary.chmod(usual)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _warn_once(folder: Path, error: Exception) -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(f"Nothing is cached, because {folder} cannot be written ({error}).", stacklevel=3)
