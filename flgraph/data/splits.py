"""A client's data divided into training, validation and test."""

from __future__ import annotations

import math
from collections.abc import Sequence
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from flgraph.errors import InputError, expect


def stratified_split(
    y: Tensor, fractions: Sequence[float] = (0.8, 0.1, 0.1), seed: int = 123, client: str = ""
) -> tuple[Tensor, Tensor, Tensor]:
    """Splits samples into training, validation and test sets with equal shares of every class.

    First the training set is drawn, then the rest is divided, each time with
    :func:`sklearn.model_selection.train_test_split` and the same ``seed``: the graphs of every set are those of the
    published code of GCFL and FedStar. A draw that cannot be stratified (a class with one member, or fewer graphs on
    one side than classes) is made without stratifying.

    Args:
        y: classes ``[G]``; or several labels or numbers ``[G, T]``, which nothing is stratified by.
        fractions: training, validation and test; they sum to 1, and a set of fraction 0 is empty.
        seed: of both draws.
        client: where a set has fewer graphs than there are classes, clients of different names draw differently; else
            all clients of a federation could be left with the same class.

    Returns:
        Graph numbers of the three sets, int64, in the order drawn.

    Raises:
        InputError: a fraction or the seed is out of range, fractions do not sum to 1, or a set that should not be
            empty would be.

    Example:
        >>> y = torch.arange(20) % 2
        >>> [len(part) for part in stratified_split(y, fractions=(0.6, 0.2, 0.2))]
        [12, 4, 4]
    """
    shown = list(fractions)
    check_fractions(shown)
    expect(0 <= seed < 2**32, "seed", "between 0 and 2^32 - 1", seed)
    labels = y.cpu().numpy() if y.dim() == 1 else np.arange(len(y))  # each alone in its class
    few = (seed + crc32(client.encode())) % 2**32 if client and y.dim() == 1 else seed
    train, rest = _divide(np.arange(labels.size), labels, shown[0], shown[1] + shown[2], seed, few)
    val, test = _divide(rest, labels, shown[1], shown[2], seed, few)
    for name, part, fraction in zip(("training", "validation", "test"), (train, val, test), shown, strict=True):
        if fraction > 0 and part.size == 0:
            wanted = f"large enough to leave samples for the {name} set"
            raise InputError("fractions", wanted, f"{shown} of {labels.size} samples")
    return torch.from_numpy(train), torch.from_numpy(val), torch.from_numpy(test)


def split_client(
    y: Tensor, fractions: Sequence[float], seed: int, client: str, alike: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """:func:`stratified_split` of a client's data, whose errors name arguments of configurations, and the client.

    Args:
        y: see there.
        fractions: see there.
        seed: see there.
        client: see there.
        alike: whether all clients draw with the same seed, as published code does.

    Raises:
        InputError: see there.
    """
    check_fractions(fractions, "data.fractions")
    try:
        return stratified_split(y, fractions, seed, "" if alike else client)
    except InputError as error:
        raise InputError(f"data.{error.field}", error.expected, error.got, f"client `{client}`") from None


def check_fractions(fractions: Sequence[float], name: str = "fractions") -> None:
    """Refuses what :func:`stratified_split` cannot split by.

    Raises:
        InputError: names the argument.
    """
    shown = list(fractions)
    valid = len(shown) == 3 and shown[0] > 0 and min(shown) >= 0 and math.isclose(sum(shown), 1.0, abs_tol=1e-6)
    expect(valid, name, "three numbers of 0 or more that sum to 1, the first of them positive,", shown)


def fewest_for(fractions: Sequence[float], most: int) -> int:
    """The fewest members that :func:`stratified_split` can cut so that no part with a share stays empty.

    Args:
        fractions: see there.
        most: what to return where it takes more.
    """
    for count in range(1, most):
        kept, rest = _sizes(count, fractions[0], sum(fractions[1:]))
        sizes = (kept, *_sizes(rest, *fractions[1:]))
        if all(size > 0 or share == 0 for size, share in zip(sizes, fractions, strict=True)):
            return count
    return most


def _sizes(count: int, first: float, second: float) -> tuple[int, int]:
    """How many of ``count`` go where, in the ratio ``first : second``; the second part is rounded up."""
    # Sizes as whole numbers: from fractions, scikit-learn refuses some that overlap by a rounding error (0.7 + 0.3).
    share = second / (first + second) if first + second > 0 else 0.0
    held = min(count, math.ceil(share * count - 1e-9))
    return count - held, held


def _divide(
    index: np.ndarray, labels: np.ndarray, first: float, second: float, seed: int, few: int
) -> tuple[np.ndarray, np.ndarray]:
    """Divides ``index`` in the ratio ``first : second``; see :func:`_sizes`. ``few`` is the seed for small parts."""
    kept, held = _sizes(index.size, first, second)
    if held == 0 or kept == 0:
        return (index, index[:0]) if held == 0 else (index[:0], index)
    _, counts = np.unique(labels[index], return_counts=True)
    enough = min(kept, held) >= counts.size
    possible = counts.min() >= 2 and enough
    from sklearn.model_selection import train_test_split  # takes a second to import

    one, other = train_test_split(
        index,
        train_size=kept,
        test_size=held,
        shuffle=True,
        stratify=labels[index] if possible else None,
        random_state=seed if enough else few,
    )
    return one, other


def check_splits(count: int, what: str, name: str, **splits: Tensor) -> None:
    """Refuses splits that are not lists of different numbers.

    They may overlap: what learns without labels may be tested on what it learned from.

    Args:
        count: how many graphs or nodes there are.
        what: ``graph`` or ``node``.
        name: of the data.
        **splits: name to numbers ``[n]``.

    Raises:
        InputError: names the split.
    """
    for field, index in splits.items():
        numbers = isinstance(index, Tensor) and index.dtype == torch.long
        expect(numbers, field, f"{what} numbers, int64", getattr(index, "dtype", type(index).__name__))
        expect(index.dim() == 1, field, "of shape [n]", list(index.shape))
        outside = index[(index < 0) | (index >= count)].tolist()
        expect(not outside, field, f"{what}s 0 to {count - 1} of `{name}`", outside[:5])
        own, times = index.unique(return_counts=True)
        twice = own[times > 1].tolist()
        expect(not twice, field, f"different {what}s of `{name}`", twice[:5])


def split_of(count: int, **splits: Tensor) -> list[str]:
    """The name of the split that each of ``count`` graphs or nodes is in; empty for those in none.

    Args:
        count: how many there are.
        **splits: numbers of those in each, int64; what is in several is in the first.
    """
    names = [""] * count
    for name, index in reversed(splits.items()):
        for number in index.tolist():
            names[number] = name
    return names
