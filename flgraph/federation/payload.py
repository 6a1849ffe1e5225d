"""What travels between client and server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from flgraph.errors import InputError

Scalar = str | int | float | bool


@dataclass(frozen=True, eq=False)  # comparing tensors is no yes or no
class Payload:
    """Named tensors plus plain scalars: the only thing that crosses between client and server, in every engine.

    It serialises to the safetensors format, never to a pickle. A payload cannot be changed after it was made, and what
    comes out of :meth:`from_bytes` shares no memory with what went in.

    Args:
        tensors: name to tensor, of any dtype and shape, zero-dimensional and empty ones included.
        scalars: name to ``str``, ``int``, ``float`` or ``bool``.

    Raises:
        InputError: a value is neither a tensor nor a plain scalar.
    """

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    scalars: Mapping[str, Scalar] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, tensor in self.tensors.items():
            if not isinstance(tensor, Tensor):
                raise InputError(f"Expected payload tensor `{name}` to be a tensor but got {type(tensor).__name__}.")
        for name, scalar in self.scalars.items():
            if type(scalar) not in (str, int, float, bool):
                raise InputError(
                    f"Expected payload scalar `{name}` to be a str, int, float or bool but got {type(scalar).__name__}."
                )
        object.__setattr__(self, "tensors", MappingProxyType(dict(self.tensors)))
        object.__setattr__(self, "scalars", MappingProxyType(dict(self.scalars)))

    def __deepcopy__(self, memo: dict[int, Any]) -> Payload:
        return Payload({name: tensor.clone() for name, tensor in self.tensors.items()}, self.scalars)

    def to_bytes(self) -> bytes:
        """The safetensors file: 8 bytes of header length, a JSON header, the tensors' bytes."""
        return self._bytes

    @cached_property
    def _bytes(self) -> bytes:
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.tensors.items()}
        return safetensors.torch.save(_unshared(tensors), {"scalars": json.dumps(dict(self.scalars))})

    @classmethod
    def from_bytes(cls, data: bytes) -> Payload:
        """Reads what :meth:`to_bytes` wrote.

        Raises:
            InputError: ``data`` is not a whole payload.
        """
        try:
            tensors = safetensors.torch.load(data)
            header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
            scalars = json.loads(header["__metadata__"]["scalars"])
            if not isinstance(scalars, dict):
                raise TypeError("its scalars have no names")
        except (SafetensorError, KeyError, ValueError, TypeError, RecursionError) as error:
            raise InputError(
                f"Expected `payload` to be whole safetensors bytes but got {len(data)} bytes: {error}."
            ) from error
        # safetensors gives them in no order, another one each time.
        return cls({name: tensors[name] for name in sorted(tensors)}, scalars)

    @property
    def tensor_nbytes(self) -> int:
        """Bytes of the tensors alone."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors.values())

    @property
    def header_nbytes(self) -> int:
        """Bytes that are not tensor contents: names, dtypes, shapes, scalars."""
        return self.nbytes - self.tensor_nbytes

    @property
    def nbytes(self) -> int:
        """Bytes on the wire: ``tensor_nbytes + header_nbytes``."""
        return len(self.to_bytes())


def _unshared(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tied weights arrive as two names for one storage, which the format refuses: the later ones are copied."""
    seen: set[int] = set()
    result = {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage().data_ptr()
        if storage in seen and tensor.numel():
            tensor = tensor.clone(memory_format=torch.contiguous_format)
        seen.add(storage)
        result[name] = tensor
    return result
