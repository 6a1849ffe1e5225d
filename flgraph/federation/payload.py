"""What travels between client and server."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch
from safetensors import SafetensorError, TensorSpec, serialize
from torch import Tensor, strided

from flgraph.errors import InputError, brief, expect

Scalar = str | int | float | bool

MAX_HEADER = 4 * 2**20
"""Bytes of names, shapes and scalars that are read of what another side sent: some 40,000 tensors. Reading takes 25
times as much memory, so that a few megabytes of names must not become gigabytes."""

_LONGEST_NAME = 500
_DTYPES = frozenset(["F64", "F32", "F16", "BF16", "C64", "I64", "I32", "I16", "I8", "U8", "BOOL"])
_MOST_DIMENSIONS = 16
_LARGEST = 2**40
"""Of a tensor's sizes: those of an empty one take no bytes, and may be anything."""

Tensors = Mapping[str, "Tensor | Tensors"]
"""Names to tensors, or to further names: ``{"control": {"weight": tensor}}``."""


@dataclass(frozen=True, eq=False)  # comparing tensors is no yes or no
class Payload:
    """Named tensors plus plain scalars: the only thing that crosses between client and server, in every engine.

    It serialises to the safetensors format, never to a pickle. A payload cannot be changed after it was made, and what
    comes out of :meth:`from_bytes` shares no memory with what went in.

    The model's tensors have their names in its ``state_dict``. Whatever else travels is in groups, which may nest:
    ``Payload({**weights, "control": variates})`` holds ``control/NAME``, and :meth:`group` takes it apart again.

    Args:
        tensors: name to tensor, of any dtype and shape, zero-dimensional and empty ones included; or to a group of
            such. It is flat afterwards, groups and names joined by ``/``.
        scalars: name to ``str``, ``int``, ``float`` or ``bool``.

    Raises:
        InputError: a value is neither a tensor nor a plain scalar.
    """

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    scalars: Mapping[str, Scalar] = field(default_factory=dict)

    if TYPE_CHECKING:  # what it is made of may nest, what it holds does not

        def __init__(self, tensors: Tensors = ..., scalars: Mapping[str, Scalar] = ...) -> None: ...

    def __post_init__(self) -> None:
        tensors = dict(_flat(self.tensors))
        for name, tensor in tensors.items():
            expect(len(name) <= _LONGEST_NAME, "payload", f"of names of at most {_LONGEST_NAME} letters", len(name))
            expect(name.isprintable(), "payload", "of names that can be printed", name)
            expect(isinstance(tensor, Tensor), f"payload.tensors.{name}", "a tensor", type(tensor).__name__)
        for name, scalar in self.scalars.items():
            plain = type(scalar) in (str, int, float, bool)
            expect(plain, f"payload.scalars.{name}", "a str, int, float or bool", type(scalar).__name__)
        object.__setattr__(self, "tensors", MappingProxyType(tensors))
        object.__setattr__(self, "scalars", MappingProxyType(dict(self.scalars)))

    def group(self, name: str = "") -> dict[str, Tensor]:
        """The tensors of a group by their names in it; those of the model, which are in no group, when it is empty.

        >>> import torch
        >>> payload = Payload({"bias": torch.zeros(1), "control": {"bias": torch.ones(1)}})
        >>> payload.group("control"), list(payload.group())
        ({'bias': tensor([1.])}, ['bias'])
        """
        if not name:
            return {key: tensor for key, tensor in self.tensors.items() if "/" not in key}
        start = f"{name}/"
        return {key.removeprefix(start): tensor for key, tensor in self.tensors.items() if key.startswith(start)}

    def cast(self, dtypes: Mapping[str, torch.dtype]) -> Payload:
        """The same, with its tensors of these names in these types; itself where it has none of them."""
        cast = {name: self.tensors[name].to(dtype) for name, dtype in dtypes.items() if name in self.tensors}
        return Payload({**self.tensors, **cast}, self.scalars) if cast else self

    def __deepcopy__(self, memo: dict[int, Any]) -> Payload:
        return Payload({name: tensor.clone() for name, tensor in self.tensors.items()}, self.scalars)

    def to_bytes(self) -> bytes:
        """The safetensors file: 8 bytes of header length, a JSON header, the tensors' bytes."""
        return self._bytes

    @cached_property
    def _bytes(self) -> bytes:
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.tensors.items()}
        # Not `safetensors.torch.save`: it refuses tied weights, two names for one storage, and takes twice the time.
        parts = {
            name: TensorSpec(
                dtype=str(own.dtype).removeprefix("torch."),
                shape=own.shape,
                data_ptr=own.data_ptr(),
                data_len=own.nbytes,
            )
            for name, own in tensors.items()
        }
        return bytes(serialize(parts, {"scalars": json.dumps(dict(self.scalars))}))

    @classmethod
    def from_bytes(cls, data: bytes, max_header: int = MAX_HEADER) -> Payload:
        """Reads what :meth:`to_bytes` wrote, whoever may have written it.

        Args:
            data: the bytes.
            max_header: bytes of its header at most; more for what was written here, such as a server's checkpoint.

        Raises:
            InputError: ``data`` is not a whole payload; or its header is too long, says something twice, or names a
                type of numbers that no algorithm takes.
        """
        size = int.from_bytes(data[:8], "little")
        expect(size <= max_header, "payload", f"one with a header of at most {max_header} bytes", f"{size} bytes")
        try:
            header = parsed(data[8 : 8 + size].decode())
            scalars = _plain_scalars(parsed(header.pop("__metadata__")["scalars"]))
            for entry in header.values():
                dtype = entry["dtype"]
                if dtype not in _DTYPES:
                    raise InputError("payload", f"of tensors of {', '.join(sorted(_DTYPES))}", brief(dtype))
                if len(entry["shape"]) > _MOST_DIMENSIONS or max(entry["shape"], default=0) > _LARGEST:
                    raise ValueError("a shape of too many dimensions, or of a size above 2^40")
            tensors = safetensors.torch.load(data)
        except InputError:
            raise
        except (SafetensorError, LookupError, AttributeError, ValueError, TypeError, RuntimeError) as error:
            # RuntimeError: RecursionError, and what torch says of shapes.
            found = f"{len(data)} bytes: {type(error).__name__} {brief(error)}"
            raise InputError("payload", "whole safetensors bytes", found) from error
        # safetensors gives them in no order, another one each time.
        return cls({name: tensors[name] for name in sorted(tensors)}, scalars)

    @property
    def digest(self) -> str:
        """SHA-256 of what it holds, in whatever order."""
        ordered = Payload(dict(sorted(self.tensors.items())), dict(sorted(self.scalars.items())))
        return hashlib.sha256(ordered.to_bytes()).hexdigest()

    @property
    def nbytes(self) -> int:
        """Bytes on the wire: those of the tensors, and of a header with names, types, shapes and scalars."""
        return len(self.to_bytes())


def is_name(text: str) -> bool:
    """Whether a tensor or a scalar may be called so."""
    return len(text) <= _LONGEST_NAME and text.isprintable()


def parsed(text: str) -> dict[str, Any]:
    """An object of JSON; one that says something twice is none, since two readers may differ about it."""
    found = json.loads(text, object_pairs_hook=_unique)
    if not isinstance(found, dict):
        raise TypeError("something without names")
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name twice")
    return found


def _plain_scalars(scalars: dict[str, Any]) -> dict[str, Scalar]:
    for name, value in scalars.items():
        name.encode()  # half of a surrogate pair is a letter in JSON, and in no file
        if isinstance(value, str):
            value.encode()
        elif type(value) not in (int, float, bool) or (type(value) is int and value.bit_length() > 128):
            raise ValueError("a scalar that is no str, float, bool, or int of 128 bits")
        if len(name) > _LONGEST_NAME:
            raise ValueError("a scalar with too long a name")
    return scalars


def pack(value: Any) -> Payload:
    """Nested dictionaries (with names as keys), lists and tuples of tensors and plain values as a payload.

    For checkpoints.

    Raises:
        InputError: something in it is of another kind.

    >>> import torch
    >>> unpack(pack({"models": [{"w": torch.ones(1)}], "rounds": 3}))
    {'models': [{'w': tensor([1.])}], 'rounds': 3}
    """
    tensors: dict[str, Tensor] = {}

    def plain(part: Any, where: str) -> Any:
        if isinstance(part, Tensor):
            expect(part.layout == strided, where, "a dense tensor", part.layout)
            tensors[str(len(tensors))] = part
            return {_TENSOR: str(len(tensors) - 1)}
        if isinstance(part, Mapping):
            for key in part:  # JSON would make names of numbers
                expect(isinstance(key, str), where, "a dictionary with names as keys", f"the key {key!r}")
            return {f"{_MARK * key.startswith(_MARK)}{key}": plain(v, f"{where}.{key}") for key, v in part.items()}
        if isinstance(part, list | tuple):
            items = [plain(inner, f"{where}[{number}]") for number, inner in enumerate(part)]
            return {_TUPLE: items} if isinstance(part, tuple) else items
        plain_value = part is None or isinstance(part, Scalar)
        expect(plain_value, where, "a tensor, a plain value, or dictionaries and lists of these", type(part).__name__)
        return part

    return Payload(tensors, {_TENSOR: json.dumps(plain(value, "state"))})


def unpack(payload: Payload) -> Any:
    """What :func:`pack` packed."""

    def whole(part: Any) -> Any:
        if isinstance(part, dict):
            if _TUPLE in part:
                return tuple(whole(inner) for inner in part[_TUPLE])
            key = part.get(_TENSOR)
            found = {name.removeprefix(_MARK): whole(inner) for name, inner in part.items() if key is None}
            return found if key is None else payload.tensors[key]
        return [whole(inner) for inner in part] if isinstance(part, list) else part

    return whole(json.loads(str(payload.scalars[_TENSOR])))


_MARK = "$"
"""Keys of others that begin with it get another one: clients choose names of metrics."""

_TENSOR, _TUPLE = f"{_MARK}tensor", f"{_MARK}tuple"


def _flat(tensors: Mapping[str, Any], group: str = "") -> Iterator[tuple[str, Tensor]]:
    for name, value in tensors.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{group}{name}/")
        else:
            yield f"{group}{name}", value
