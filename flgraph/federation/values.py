"""What may be in messages from another side: numbers that can be computed with, and texts of a bounded length."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from flgraph.errors import expect
from flgraph.federation.payload import Scalar, is_name

_LARGEST = 1e18
"""Beyond this, squares overflow in float32."""

LARGEST_INTEGER = 2**53
"""Means are taken in float64, which holds no larger ones exactly."""

OUTLIER = 1000.0
"""How many times the median client's largest value (or 1) a client's may be, where three or more sent a tensor."""

_LONGEST_TEXT = 10_000

FORM = re.compile(r"(scalar|\d{1,15}(x\d{1,15}){0,15}) [a-z]{1,10}\d{0,3}")
"""Shape and type of a tensor, in words."""


def are_forms(told: Any) -> bool:
    """Whether these are names of tensors, and of each what :func:`~flgraph.federation.routes.form_of` may write."""
    return isinstance(told, dict) and all(
        isinstance(form, str) and FORM.fullmatch(form) and is_name(name) for name, form in told.items()
    )


def alike(form: str, other: str) -> bool:
    """Whether two forms have the same shape and dtype, or both a floating-point one: each owner has a precision."""
    (shape, dtype), (other_shape, other_dtype) = form.split(), other.split()
    return shape == other_shape and (dtype == other_dtype or all("float" in kind for kind in (dtype, other_dtype)))


def largest_values(tensors: Mapping[str, Tensor], field: str) -> dict[str, float]:
    """The largest magnitude in every floating-point tensor.

    Raises:
        InputError: a value is not finite, or so large that squares of it are not; or a whole number is beyond 53 bits.
    """
    for name, tensor in tensors.items():
        if tensor.dtype in (torch.int64, torch.uint64) and tensor.numel():
            low, high = (int(value) for value in tensor.aminmax())
            most = max(-low, high)
            expect(most <= LARGEST_INTEGER, field, f"up to {LARGEST_INTEGER} in `{name[:60]}`", most)
    floats = {name: tensor.detach() for name, tensor in tensors.items() if tensor.is_floating_point()}
    floats |= {name: torch.view_as_real(tensor) for name, tensor in tensors.items() if tensor.is_complex()}
    largest: dict[str, float] = {}
    for name, tensor in floats.items():
        if tensor.numel():
            # Not the largest of `abs`, which is a tensor as large as the first and takes ten times as long.
            value = largest[name] = max(abs(float(bound)) for bound in tensor.aminmax())  # both NaN where a number is
            expect(value <= _LARGEST, field, f"finite and up to {_LARGEST:g} in `{name[:60]}`", value)  # NaN is not
    return largest


def expect_plain(value: Scalar, field: str) -> None:
    """Refuses a scalar that is a long text, not finite, or beyond 64 bits."""
    if isinstance(value, str):
        expect(len(value) <= _LONGEST_TEXT, field, f"of texts of {_LONGEST_TEXT} characters or fewer", len(value))
    else:
        expect(abs(value) <= 2**63, field, "of finite scalars", value)  # NaN is not
