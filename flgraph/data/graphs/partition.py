"""How graphs are assigned to clients: at random, with unequal class shares, or as unequal as wanted."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flgraph.errors import InputError, expect

Counts = NDArray[np.int64]

_TRIES = 1000


def label_emd(one: Tensor, other: Tensor) -> float:
    r"""Distance of two label distributions, :math:`\sum_c |P(c) - Q(c)|`, from 0 to 2.

    Federated learning calls it the earth mover's distance (Hsu et al., ECCV 2020; FCLG, Section IV-A; FedEgo, Eq. 14).

    Args:
        one: shares ``[C]``.
        other: shares ``[C]``.

    Example:
        >>> label_emd(torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0]))
        1.0
    """
    return float((one.double() - other.double()).abs().sum())


def weighted_emd(counts: Tensor) -> float:
    r"""How skewed a partition is: :math:`\sum_i \frac{|S_i|}{|S|} \lVert q_i - p \rVert_1` (FCLG, Section IV-A).

    Args:
        counts: samples of every client and class ``[K, C]``; :math:`q_i` are the shares in a row, :math:`p` those of
            all rows together. A client without samples counts nothing.

    Example:
        >>> weighted_emd(torch.tensor([[10, 0], [0, 10]]))  # a row per client, a column per class
        1.0
    """
    counts = counts.double()
    overall = counts.sum(0) / counts.sum()
    sizes = counts.sum(1)
    own = [size * label_emd(row / size, overall) for row, size in zip(counts, sizes, strict=True) if size]
    return math.fsum(own) / float(counts.sum())


def shards(num_graphs: int, n: int, seed: int) -> list[Tensor]:
    """Assigns ``num_graphs`` graphs at random to ``n`` clients, sizes differing by at most one.

    Returns:
        Graph numbers of each client, int64, ascending; disjoint, and together all.

    Raises:
        InputError: ``n`` is below 1 or above ``num_graphs``, or the seed out of range.

    Example:
        >>> [shard.tolist() for shard in shards(num_graphs=6, n=2, seed=0)]
        [[2, 3, 5], [0, 1, 4]]
    """
    expect(1 <= n <= num_graphs, "n", f"between 1 and the number of graphs, {num_graphs},", n)
    expect(0 <= seed < 2**32, "seed", "between 0 and 2^32 - 1", seed)
    order = np.random.default_rng(seed).permutation(num_graphs)
    return [torch.from_numpy(np.sort(part)) for part in np.array_split(order, n)]


def dirichlet_shards(y: Tensor, n: int, alpha: float, seed: int, min_size: int = 1) -> list[Tensor]:
    """Assigns graphs to ``n`` clients with unequal class shares (Yurochkin et al., ICML 2019, Section 4).

    Of every class, the clients receive shares drawn from a symmetric Dirichlet distribution. The whole draw is repeated
    until every client has ``min_size`` graphs.

    Args:
        y: classes ``[G]``.
        n: number of clients.
        alpha: concentration; small values give clients few classes each, large ones equal shares.
        seed: of the draws.
        min_size: fewest graphs that a client may have.

    Returns:
        Graph numbers of each client, int64, ascending; disjoint, and together all.

    Raises:
        InputError: a number is out of range, or no draw in 1000 gave every client ``min_size`` graphs.

    Example:
        >>> y = torch.arange(60) % 3
        >>> [len(shard) for shard in dirichlet_shards(y, n=3, alpha=0.5, seed=0)]
        [16, 20, 24]
    """
    labels = y.cpu().numpy()
    expect(1 <= n <= labels.size, "n", f"between 1 and the number of samples, {labels.size},", n)
    expect(math.isfinite(alpha) and alpha > 0, "alpha", "a positive number", alpha)
    expect(
        0 <= min_size * n <= labels.size,
        "min_size",
        f"between 0 and {labels.size // n} ({labels.size} samples / {n})",
        min_size,
    )
    expect(0 <= seed < 2**32, "seed", "between 0 and 2^32 - 1", seed)
    rng = np.random.default_rng(seed)
    members = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    for _ in range(_TRIES):
        owner = np.empty(labels.size, dtype=np.int64)
        for graphs in members:
            ends = np.cumsum(rng.dirichlet(np.full(n, alpha)))[:-1] * graphs.size
            owner[rng.permutation(graphs)] = np.searchsorted(ends, np.arange(graphs.size), side="right")
        if np.bincount(owner, minlength=n).min() >= min_size:
            return [torch.from_numpy(np.flatnonzero(owner == client)) for client in range(n)]
    wanted = f"large enough for {n} clients of at least {min_size} samples"
    raise InputError("alpha", wanted, f"{alpha}, with which {_TRIES} draws failed")


def sorted_shards(values: Tensor, n: int, seed: int) -> list[Tensor]:
    """Assigns graphs (or nodes) to ``n`` clients by a number: those of like numbers together, sizes within one.

    The mean feature of a graph makes clients of unlike features, its mean degree clients of unlike structure (feature
    and topology skew of OpenFGL, Li et al., VLDB 2025).

    Args:
        values: a number for each ``[G]`` or ``[G, 1]``; the seed orders equal ones.
        n: number of clients.
        seed: see there.

    Returns:
        Graph numbers of each client, int64, ascending; disjoint, and together all. The first have the lowest values.

    Raises:
        InputError: ``n`` is below 1 or above the number of values, all values are the same, or the seed is out of
            range.

    Example:
        >>> [shard.tolist() for shard in sorted_shards(torch.tensor([3, 0, 2, 1]), n=2, seed=0)]
        [[1, 3], [0, 2]]
    """
    expect(1 <= n <= len(values), "n", f"between 1 and the number of graphs, {len(values)},", n)
    expect(0 <= seed < 2**32, "seed", "between 0 and 2^32 - 1", seed)
    column = values.flatten().cpu().numpy()
    if n > 1 and column.min() == column.max():
        raise InputError("data.partition", "one by what differs", "one by a number that is the same for all")
    order = np.lexsort((np.random.default_rng(seed).permutation(column.size), column))
    return [torch.from_numpy(np.sort(part)) for part in np.array_split(order, n)]


def emd_shards(
    y: Tensor, n: int, emd: float | None, seed: int, tolerance: float = 0.005, min_size: int = 1
) -> list[Tensor]:
    r"""Assigns graphs to ``n`` clients of equal size (within one) whose weighted EMD is a wanted one.

    Sorted by class and cut into ``n`` pieces, clients differ as much as they easily can. Mixing each piece's label
    distribution :math:`x_i` with the overall one, :math:`q_i = (1 - t) p + t x_i`, scales the EMD by exactly ``t``. The
    mixture is rounded to whole graphs, sizes of clients and classes kept; what rounding changed is undone by exchanging
    graphs between two clients. The seed decides whose piece is which, the order of the classes, and the graphs.

    Args:
        y: classes ``[G]``.
        n: number of clients.
        emd: wanted value of :func:`weighted_emd`; ``None`` for shares as equal as whole graphs allow (IID).
        seed: of the draws.
        tolerance: how far the reached value may lie from the wanted one.
        min_size: fewest graphs that a client may have.

    Returns:
        Graph numbers of each client, int64, ascending; disjoint, and together all.

    Raises:
        InputError: a number is out of range, there are too few graphs, or ``emd`` cannot be reached.

    Example:
        >>> y = torch.arange(40) % 2
        >>> skewed = emd_shards(y, n=2, emd=1.0, seed=0)
        >>> [torch.bincount(y[shard]).tolist() for shard in skewed]
        [[20], [0, 20]]
    """
    labels = y.cpu().numpy()
    most = labels.size // max(min_size, 1)
    expect(1 <= n <= most, "num_clients", f"between 1 and {most} ({labels.size} graphs, {min_size} for each)", n)
    expect(0 < tolerance < float("inf"), "tolerance", "a positive, finite number", tolerance)
    expect(0 <= seed < 2**32, "partition_seed", "between 0 and 2^32 - 1", seed)
    expect(emd is None or 0 <= emd <= 2, "emd", "from 0 to 2, or null for equal shares", emd)
    rng = np.random.default_rng(seed)
    _, inverse = np.unique(labels, return_inverse=True)
    counts = _table(np.bincount(inverse), n, emd, tolerance, rng)
    owner = np.empty(labels.size, dtype=np.int64)
    for label, column in enumerate(counts.T):
        members = rng.permutation(np.flatnonzero(inverse == label))
        owner[members] = np.repeat(np.arange(n), column)
    return [torch.from_numpy(np.flatnonzero(owner == client)) for client in range(n)]


def _table(totals: Counts, n: int, emd: float | None, tolerance: float, rng: np.random.Generator) -> Counts:
    """Graphs of each client and class ``[n, C]``."""
    sizes = np.full(n, totals.sum() // n)
    sizes[: totals.sum() % n] += 1
    sizes = rng.permutation(sizes)
    equal = np.outer(sizes, totals / totals.sum())
    if emd is None:
        return _rounded(equal)
    extreme = _pieces(totals, sizes, rng)
    most = _emd(extreme)
    if emd > most + tolerance:
        reach = f"{n} clients of {int(totals.sum())} graphs in {totals.size} classes can reach"
        raise InputError("emd", f"at most {most:.4f}, which {reach},", emd)
    share = min(1.0, emd / most) if most else 0.0
    counts = _adjusted(_rounded((1 - share) * equal + share * extreme), emd)
    reached = _emd(counts)
    if abs(reached - emd) > tolerance:
        nearest = f"{emd}; with {n} clients and {int(totals.sum())} graphs the nearest found is {reached:.4f}"
        raise InputError("emd", f"one that whole graphs can come within {tolerance} of", nearest)
    return counts


def _pieces(totals: Counts, sizes: Counts, rng: np.random.Generator) -> Counts:
    """The graphs sorted by class and cut into pieces of these sizes ``[n, C]``."""
    order = rng.permutation(totals.size)
    piece = np.repeat(np.arange(sizes.size), sizes)
    counts = np.zeros((sizes.size, totals.size), dtype=np.int64)
    np.add.at(counts, (piece, np.repeat(order, totals[order])), 1)
    return counts


def _rounded(table: NDArray[np.float64]) -> Counts:
    """Whole numbers next to a table's, with the same sums of rows and columns: a transport problem."""
    low = np.floor(table + 1e-9)
    rest = np.clip(table - low, 0, 1)
    n, classes = table.shape
    # Each cell is rounded up or not, up rather where more is missing; corners of this polytope are whole numbers.
    rows, columns = np.kron(np.eye(n), np.ones(classes)), np.tile(np.eye(classes), n)
    sums = np.rint(np.concatenate([rest.sum(1), rest.sum(0)]))
    from scipy.optimize import linprog  # takes a second to import

    done = linprog(-rest.ravel(), A_eq=np.vstack([rows, columns]), b_eq=sums, bounds=(0, 1), method="highs-ds")
    assert done.status == 0, done.message
    return (low + np.rint(done.x).reshape(table.shape)).astype(np.int64)


def _adjusted(counts: Counts, emd: float) -> Counts:
    """Exchanges graphs of two classes between two clients, each time the best exchange, while the EMD comes nearer."""
    while True:
        sizes, total = counts.sum(1, keepdims=True), counts.sum()
        overall = counts.sum(0) / total
        now = np.abs(counts / sizes - overall)
        more = (np.abs((counts + 1) / sizes - overall) - now) * sizes / total
        less = (np.abs((counts - 1) / sizes - overall) - now) * sizes / total
        less[counts == 0] = np.inf
        give = less[:, :, None] + more[:, None, :]  # [client, class given, class taken]
        give[:, np.eye(counts.shape[1], dtype=bool)] = np.inf
        change = give[:, None] + give.transpose(0, 2, 1)[None]
        change[np.eye(len(counts), dtype=bool)] = np.inf
        gap = np.abs(_emd(counts) + change - emd)
        gap[~np.isfinite(gap)] = np.inf
        best = gap.argmin()
        if gap.flat[best] >= abs(_emd(counts) - emd) - 1e-9:
            return counts
        i, j, c, d = np.unravel_index(best, gap.shape)
        counts[i, c] -= 1
        counts[i, d] += 1
        counts[j, d] -= 1
        counts[j, c] += 1


def _emd(counts: Counts) -> float:
    return weighted_emd(torch.from_numpy(counts))
