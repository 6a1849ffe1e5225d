"""What algorithms ask of tensors and scalars that another side wrote, before they index, size or read by them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from flgraph.errors import InputError, brief
from flgraph.federation.payload import Payload

Shape = Sequence[int | None]
"""Sizes; ``None`` for any."""

Kind = torch.dtype | Literal["float"]


def expect_tensor(tensors: Mapping[str, Tensor], name: str, shape: Shape, field: str, kind: Kind = "float") -> Tensor:
    """The tensor of a name.

    Args:
        tensors: what was received.
        name: of the tensor.
        shape: that it must have.
        field: see :class:`~flgraph.errors.InputError`.
        kind: its type; ``"float"`` for any type of real floating-point numbers.

    Raises:
        InputError: there is none, or it is of another shape or type.
    """
    tensor = tensors.get(name)
    sizes = "x".join("n" if size is None else str(size) for size in shape) or "scalar"
    wanted = f"one with `{brief(name)}` of {kind} {sizes}"
    if tensor is None:
        raise InputError(field, wanted, "none")
    typed = tensor.is_floating_point() if kind == "float" else tensor.dtype == kind
    fits = len(shape) == tensor.dim() and all(n in (None, m) for n, m in zip(shape, tensor.shape, strict=True))
    if not (typed and fits):
        raise InputError(field, wanted, f"{tensor.dtype} {brief(list(tensor.shape))}")
    return tensor


def expect_group(
    tensors: Mapping[str, Tensor], shapes: Mapping[str, Shape | Tensor], field: str, kind: Kind = "float"
) -> Mapping[str, Tensor]:
    """Tensors that must have these names, neither more nor fewer.

    Args:
        tensors: what was received.
        shapes: name to shape; or to a tensor, whose shape and type it must have.
        field: see :class:`~flgraph.errors.InputError`.
        kind: see :func:`expect_tensor`.

    Raises:
        InputError: they have not, or are of another shape or type.
    """
    for name in tensors:
        if name not in shapes:
            raise InputError(field, "without what was not asked for", f"`{brief(name)}`")
    for name, form in shapes.items():
        if isinstance(form, Tensor):
            expect_tensor(tensors, name, form.shape, field, form.dtype)
        else:
            expect_tensor(tensors, name, form, field, kind)
    return tensors


def expect_between(tensor: Tensor, low: float, high: float, what: str, field: str) -> None:
    """Refuses values outside of a range, and such that are no numbers.

    Raises:
        InputError: there is one; which is not told.
    """
    if not bool(((tensor >= low) & (tensor <= high)).all()):
        raise InputError(field, f"one with {what} from {low} to {high}", "others")


def expect_count(payload: Payload, name: str, low: int, high: int, field: str) -> int:
    """The whole number of a name.

    Raises:
        InputError: there is none, or it is out of range.
    """
    value = payload.scalars.get(name)
    if type(value) is not int or not low <= value <= high:
        raise InputError(field, f"one with `{name}` from {low} to {high}", brief(value))
    return value
