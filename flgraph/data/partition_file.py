"""Partitions in files: which nodes, or graphs, are whose, and what each client uses them for.

A file is an ``.npz`` of integer arrays, or a ``.json`` of an object of lists, with one array for each client and use,
clients counted from 0::

    nodes_0  train_0  val_0  test_0      (graphs_0 instead of nodes_0 for graphs)
    nodes_1  train_1  val_1  test_1

Numbers are those of the whole data, in the order of its reader. ``nodes_0`` must hold ``train_0``, ``val_0`` and
``test_0``; all but the training ones may be left out. Also known are ``query_0`` (nodes of query sets),
``global_test`` (nodes of the global test graph), ``names`` (of the clients) and ``num_nodes`` (of the whole data, for a
check that it is the same).

Or, where the data itself says whose each row is, a file holds ``keys`` alone, a whole number or a text for every node
or graph: all with the same key are a client's, which is called so. The splits are then drawn by ``fractions``.
"""

from __future__ import annotations

import inspect
import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pytorch_lightning.utilities import rank_zero_warn
from torch import Tensor

from flgraph.data.cache import content_key, data_folders
from flgraph.data.splits import split_client
from flgraph.errors import InputError, expect, first_line

Unit = Literal["nodes", "graphs"]

USES = ("train", "val", "test", "query")
"""What a client may use its nodes or graphs for."""

_SUFFIXES = (".npz", ".json")
_MOST_BYTES = 2**31


@dataclass(frozen=True)
class SavedPartition:
    """What a partition file holds.

    Attributes:
        unit: what is assigned.
        names: of the clients.
        clients: of each client, ``unit`` and each of :data:`USES` to numbers ``[n]`` int64, the first of them
            ascending; ``unit`` only where splits are to be drawn.
        global_test: nodes of the global test graph, ascending.
        total: how many nodes the whole data has; ``None`` where the file does not say.
    """

    unit: Unit
    names: list[str]
    clients: list[dict[str, Tensor]]
    global_test: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    total: int | None = None

    @property
    def digest(self) -> str:
        """What two files have in common that assign the same, 16 hexadecimal digits."""
        return content_key("partition", self.unit, self.names, self.clients, self.global_test)[:16]

    def of(self, name: str) -> dict[str, Tensor]:
        """A client's numbers."""
        return self.clients[self.names.index(name)]

    def split(self, y: Tensor, fractions: Sequence[float], seed: int) -> list[dict[str, Tensor]]:
        """The clients with their splits, drawn where the file has none (:func:`~flgraph.data.stratified_split`).

        Args:
            y: classes of all nodes or graphs.
            fractions: shares of training, validation and test.
            seed: of the draws.

        Raises:
            InputError: a client has too few.
        """
        return [self.split_of(name, y, fractions, seed) for name in self.names]

    def split_of(self, name: str, y: Tensor, fractions: Sequence[float], seed: int) -> dict[str, Tensor]:
        """One client's, see :meth:`split`."""
        own = self.of(name)
        if len(own) > 1:
            return own
        index = own[self.unit]
        parts = split_client(y[index], fractions, seed, name, alike=True)
        return {**own, **{use: index[part] for use, part in zip(USES, parts, strict=False)}}

    def to_bytes(self) -> bytes:
        """The content of an ``.npz`` file."""
        arrays: dict[str, Any] = {"names": np.array(self.names)}
        if self.total is not None:
            arrays[f"num_{self.unit}"] = np.array(self.total)
        if self.global_test.numel():
            arrays["global_test"] = self.global_test.numpy()
        for number, client in enumerate(self.clients):
            arrays |= {f"{use}_{number}": part.numpy() for use, part in client.items() if part.numel()}
        stream = io.BytesIO()
        np.savez_compressed(stream, **arrays)
        return stream.getvalue()

    def check_range(self, count: int, what: str) -> None:
        """Refuses numbers that data of this size does not have.

        Args:
            count: how many nodes or graphs there are.
            what: name of the data.

        Raises:
            InputError: a number is too high, or the file says that it is of data of another size.
        """
        wanted = f"a partition of {count} {self.unit}, as {what} has,"
        expect(self.total in (None, count), "data.partition", wanted, self.total)
        parts = [*(client[self.unit] for client in self.clients), self.global_test]
        highest = max(int(part.max()) for part in parts if part.numel())
        expect(highest < count, "data.partition", f"{self.unit} 0 to {count - 1} of {what}", highest)


def is_partition_file(partition: str) -> bool:
    """Whether what was given for a partition is the name of a file."""
    return partition.lower().endswith(_SUFFIXES)


def read_partition(path: str, unit: Unit, root: str | Path | None = None) -> SavedPartition:
    """Reads a partition file.

    Args:
        path: as it is, or below the folders where data lies.
        unit: what it is of.
        root: where data lies; ``FLGRAPH_DATA`` when ``None``.

    Raises:
        InputError: there is no such file, or it does not hold a partition.
    """
    content = _content(find_partition(path, root))
    if "keys" in content:
        return _by_keys(content, unit, path)
    clients: list[dict[str, Tensor]] = []
    while f"{unit}_{len(clients)}" in content:
        clients.append(_client(content, unit, len(clients), path))
    expect(len(clients) > 0, f"partition {path}", f"one with `{unit}_0`, those of the first client,", "none")
    named = content.pop("names", [])
    listed = isinstance(named, list | np.ndarray) and all(isinstance(name, str | int | np.integer) for name in named)
    expect(listed, f"partition {path}", "`names` as a list of texts", type(named).__name__)
    names = [str(name) for name in named] or [f"client-{i + 1}" for i in range(len(clients))]
    wanted = f"{len(clients)} different names, one for each client"
    expect(len(set(names)) == len(names) == len(clients), f"partition {path}", wanted, len(set(names)))
    rest = _numbers(content, "global_test", path).sort().values
    total = content.pop(f"num_{unit}", None)
    whole = total is None or (np.ndim(total) == 0 and np.issubdtype(np.asarray(total).dtype, np.integer))
    expect(whole, f"partition {path}", f"`num_{unit}` as a whole number", type(total).__name__)
    expect(not content, f"partition {path}", "one with fields that are known", next(iter(content), None))
    parts = [client[unit] for client in clients]
    apart = not torch.isin(rest, torch.cat(parts)).any()
    expect(bool(apart), f"partition {path}", "one whose `global_test` holds no client's nodes", "some of them")
    return SavedPartition(unit, names, clients, rest, None if total is None else int(total))


def find_partition(path: str, root: str | Path | None = None) -> Path:
    """Where a partition file lies, see :func:`read_partition`.

    Raises:
        InputError: there is none.
    """
    found = [file for file in (Path(path), *(folder / path for folder in data_folders(root))) if file.is_file()]
    expect(bool(found), "data.partition", "a file of partitions that exists", path)
    return found[0]


def _content(file: Path) -> dict[str, Any]:
    try:
        if file.suffix.lower() == ".json":
            content = json.loads(file.read_bytes())
            expect(isinstance(content, dict), str(file), "a JSON object", type(content).__name__)
            return dict(content)
        with np.load(io.BytesIO(file.read_bytes()), allow_pickle=False) as archive:
            if sum(entry.file_size for entry in archive.zip.infolist()) > _MOST_BYTES:
                raise ValueError("it is too large")
            return {name: archive[name] for name in archive.files}
    except InputError:
        raise
    except Exception as error:  # an archive may be damaged in as many ways as there are
        raise InputError(str(file), "a partition, .npz or .json,", first_line(error)) from error


def _by_keys(content: dict[str, Any], unit: Unit, path: str) -> SavedPartition:
    try:
        keys = np.asarray(content.pop("keys"))
    except ValueError as error:
        raise InputError(f"partition {path}", "`keys` as a list", "nested lists") from error
    plain = keys.ndim == 1 and keys.size > 0 and (np.issubdtype(keys.dtype, np.integer) or keys.dtype.kind == "U")
    expect(plain, f"partition {path}", "`keys` as whole numbers or texts", f"{keys.dtype} {list(keys.shape)}")
    expect(not content, f"partition {path}", "one with nothing but `keys`", next(iter(content), None))
    names, owner = np.unique(keys, return_inverse=True)
    clients: list[dict[str, Tensor]] = [
        {unit: torch.from_numpy(np.flatnonzero(owner == number))} for number in range(len(names))
    ]
    return SavedPartition(unit, [str(name) for name in names], clients, total=len(keys))


def _client(content: dict[str, Any], unit: Unit, number: int, path: str) -> dict[str, Tensor]:
    """One client's numbers, taken out of the file's content."""
    own = _numbers(content, f"{unit}_{number}", path).sort().values
    parts = {use: _numbers(content, f"{use}_{number}", path) for use in USES}
    for use, part in parts.items():
        inside = bool(torch.isin(part, own).all())
        expect(inside, f"partition {path}", f"`{use}_{number}` among `{unit}_{number}`", "some that are not")
    learns = parts["train"].numel() > 0
    expect(learns, f"partition {path}", f"`train_{number}` with at least one of the {unit}", "none")
    for use in ("val", "test"):
        if both := int(torch.isin(parts[use], parts["train"]).sum()):
            rank_zero_warn(f"{both} {unit} of `{use}_{number}` in partition {path} are trained on, too.")
    return {unit: own, **parts}


def _numbers(content: dict[str, Any], name: str, path: str) -> Tensor:
    given, field_name = content.pop(name, []), f"partition {path}"
    try:
        array = np.asarray(given)
    except ValueError as error:
        raise InputError(field_name, f"`{name}` as a list of whole numbers", "nested lists") from error
    listed = array.ndim == 1 and (array.size == 0 or np.issubdtype(array.dtype, np.integer))
    expect(listed, field_name, f"`{name}` as a list of whole numbers", f"{array.dtype} {list(array.shape)}")
    numbers = torch.from_numpy(array.astype(np.int64))
    different = numbers.numel() == numbers.unique().numel() and not bool((numbers < 0).any())
    expect(different, field_name, f"`{name}` of different numbers from 0", "others")
    return numbers


def warn_of_count(kind: type, name: str, given: int, count: int) -> None:
    """Warns of a number of clients that a file with another one makes no use of.

    Args:
        kind: the class of the federation.
        name: of its argument; a default says nothing, and is not warned of.
        given: its value.
        count: number of clients in the file.
    """
    if given not in (inspect.signature(kind).parameters[name].default, count):
        rank_zero_warn(f"`data.{name}: {given}` has no effect: the partition file has {count} clients.")


def file_title(path: str) -> str:
    """The name of a partition file as a part of a run's name."""
    return re.sub(r"[^\w.]+", "-", Path(path).stem)
