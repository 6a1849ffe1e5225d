"""Numbers as whole multiples of a power of two: sums of these are exact, and can be masked."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from flgraph.errors import InputError, expect
from flgraph.federation.aggregation import as_mean_dtype
from flgraph.federation.secure.masks import Row
from flgraph.federation.secure.settings import Layout

_SUM_BITS = 62
"""Sums are below two to the power of this: half of what 64 bits with a sign hold, so that noise is noticed."""


def encode(tensors: Mapping[str, Tensor], weight: float, fraction_bits: int, clients: int, field: str) -> Row:
    """A client's tensors, in the order of their names, times its weight, and the weight at the end.

    Args:
        tensors: of real numbers, by name.
        weight: how much the client counts.
        fraction_bits: see :class:`SecureSums`.
        clients: how many are to be added up; no sum of so many rows can be too large.
        field: see :class:`~flgraph.errors.InputError`.

    Raises:
        InputError: a number is not finite, or too large.
    """
    most = 2.0**_SUM_BITS // clients
    parts = []
    for name, tensor in (*sorted(tensors.items()), ("its weight", torch.ones(()))):
        if tensor.is_complex():
            raise InputError(field, f"of real numbers in `{name}` for secure sums", str(tensor.dtype))
        values = tensor.detach().cpu().double().reshape(-1) * weight * 2.0**fraction_bits
        if values.numel() and not float(values.abs().max()) <= most:  # NaN is not
            limit = most / 2.0**fraction_bits
            wanted = f"of numbers that are, times the client's weight, up to {limit:.4g} in `{name}` for secure sums"
            raise InputError(field, wanted, "others (`secure_sums.fraction_bits` trades range for resolution)")
        parts.append(values.round().numpy().astype(np.int64))
    return np.concatenate(parts).view(np.uint64)


def decode(total: Row, layout: Layout, dtypes: Mapping[str, torch.dtype], fraction_bits: int) -> dict[str, Tensor]:
    """The weighted mean of what was added up, name to tensor.

    Args:
        total: sum of :func:`encode`'s rows.
        layout: of the rows.
        dtypes: of the tensors.
        fraction_bits: as it was encoded.

    Raises:
        InputError: it is no such sum: somebody added something else, or masks did not cancel.
    """
    whole = total.view(np.int64)
    fits = bool(((whole >= -(2**_SUM_BITS)) & (whole <= 2**_SUM_BITS)).all()) and whole[-1] > 0
    expect(fits, "sum of masked uploads", "one of numbers in their range", "others: a client masked something else")
    values = torch.from_numpy(whole / float(whole[-1]))
    means, start = {}, 0
    for name, shape in layout:
        count = int(np.prod(shape))
        mean = values[start : start + count].view(shape)
        means[name] = as_mean_dtype(mean, [torch.empty(0, dtype=dtypes[name])])
        start += count
    return means
