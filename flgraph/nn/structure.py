"""Structure embeddings: what a node's surroundings look like, without its features (FedStar)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch
from torch import Tensor

from flgraph.errors import expect
from flgraph.nn.linear import OneHot
from flgraph.nn.sparse.adjacency import gather_ranges, offsets

StructureKind = Literal["rwse+dse", "dse", "rwse", "ones"]

_BUDGET = 1_000_000
"""Elements of the tensors that a batch of graphs works on. At 4 MB each they stay in the processor's caches; with
64 MB, DD takes five times as long."""

_LARGEST = 16_000_000
"""Elements of the largest dense matrix of a single graph."""

_DENSE_GAIN = 40
"""How much cheaper an operation of a dense product is than one of a sparse product (measured on DD, CPU)."""


def structure_embedding(
    edge_index: Tensor,
    node_ptr: Tensor,
    edge_ptr: Tensor,
    kind: StructureKind = "rwse+dse",
    dse_dim: int = 16,
    rwse_dim: int = 16,
) -> Tensor:
    """Random-walk and degree embedding of every node (Tan et al., "FedStar", AAAI 2023, Section 4.1).

    Args:
        edge_index: ``[2, E]`` integers, nodes numbered within their graph; the edges of graph ``g`` are the columns
            ``edge_ptr[g]:edge_ptr[g + 1]``.
        node_ptr: ``[G + 1]``.
        edge_ptr: ``[G + 1]``.
        kind: ``"rwse+dse"`` (both, the random walk first), ``"dse"`` (degrees), ``"rwse"`` (random walk), or ``"ones"``
            (no structure: all ones, as wide as both together; the paper's Table 3 without either).
        dse_dim: columns of the degree embedding.
        rwse_dim: columns of the random-walk embedding, which is its number of steps.

    Returns:
        ``[N, K]`` float32, rows in the order of the nodes; ``K`` is ``rwse_dim + dse_dim``, or the one width of a
        single kind.

    Raises:
        InputError: ``kind`` is none of the four, or a width is below 1.

    Example:
        >>> edge_index = torch.tensor([[0, 1], [1, 0]])  # one graph, two nodes, one edge
        >>> structure_embedding(edge_index, torch.tensor([0, 2]), torch.tensor([0, 2]), dse_dim=2, rwse_dim=2)
        tensor([[0., 1., 1., 0.],
                [0., 1., 1., 0.]])
    """
    expect(kind in get_args(StructureKind), "kind", f"one of {', '.join(get_args(StructureKind))}", kind)
    num_nodes = int(node_ptr[-1])
    if kind == "ones":
        return torch.ones(num_nodes, rwse_dim + dse_dim, device=edge_index.device)
    parts = []
    if kind in ("rwse", "rwse+dse"):
        parts.append(random_walk_return(edge_index, node_ptr, edge_ptr, rwse_dim))
    if kind in ("dse", "rwse+dse"):
        shift = torch.repeat_interleave(node_ptr[:-1], edge_ptr.diff(), output_size=edge_index.size(1))
        degree = torch.bincount(edge_index[0] + shift, minlength=num_nodes)
        parts.append(degree_one_hot(degree, dse_dim))
    return torch.cat(parts, dim=1)


def degree_one_hot(degree: Tensor, dim: int) -> Tensor:
    """One-hot degrees (FedStar, Equation 5), clipped to ``1..dim``.

    Column ``min(max(d, 1), dim) - 1`` is one: degrees above ``dim`` share the last column, and an isolated node counts
    as degree 1, which is the rule of the paper's published code.

    Args:
        degree: ``[N]`` integers.
        dim: number of columns.

    Returns:
        ``[N, dim]`` float32.

    Raises:
        InputError: ``dim`` is below 1.

    Example:
        >>> degree_one_hot(torch.tensor([0, 1, 9]), dim=3)
        tensor([[1., 0., 0.],
                [1., 0., 0.],
                [0., 0., 1.]])
    """
    expect(dim >= 1, "dse_dim", "1 or more", dim)
    column = degree.long().clamp(1, dim) - 1
    return OneHot(column, dim)()


def random_walk_return(edge_index: Tensor, node_ptr: Tensor, edge_ptr: Tensor, dim: int) -> Tensor:
    r"""Probabilities that a random walk is back after 1 to ``dim`` steps (FedStar, Equation 6).

    Column ``k - 1`` is the diagonal of :math:`(A D^{-1})^k`, where ``A[i, j]`` is 1 if there is an edge from ``i`` to
    ``j`` (however often it is listed) and ``D`` holds the column sums of ``A``; columns whose sum is 0 count as 0, so
    isolated nodes get zeros.

    Graphs of similar size are computed together: small or dense ones as padded dense matrices, large sparse ones as
    sparse times dense products, a block of columns at a time.

    Args:
        edge_index: ``[2, E]`` integers, nodes numbered within their graph, grouped by graph.
        node_ptr: ``[G + 1]``.
        edge_ptr: ``[G + 1]``.
        dim: number of steps.

    Returns:
        ``[N, dim]`` float32.

    Raises:
        InputError: ``dim`` is below 1.

    Example:
        >>> edge_index = torch.tensor([[0, 1], [1, 0]])  # one graph, two nodes, one edge
        >>> random_walk_return(edge_index, torch.tensor([0, 2]), torch.tensor([0, 2]), dim=2)
        tensor([[0., 1.],
                [0., 1.]])
    """
    expect(dim >= 1, "rwse_dim", "1 or more", dim)
    result = torch.zeros(int(node_ptr[-1]), dim, device=edge_index.device)
    sizes, counts = node_ptr.diff(), edge_ptr.diff()
    # A walk needs an edge; all that follows may take every graph to have one, and hence a node.
    with_edges = counts > 0
    # Dense costs size^3, sparse size * edges * steps, in operations that are slower; steps are halved in both.
    dense = (sizes * sizes <= _DENSE_GAIN * counts) & (sizes * sizes <= _LARGEST)
    with one_thread():
        for chosen, returns in ((with_edges & dense, _dense_returns), (with_edges & ~dense, _sparse_returns)):
            numbers = chosen.nonzero().view(-1)
            for index in _buckets(numbers, sizes[numbers]):
                size = int(sizes[index].max())
                edges = gather_ranges(edge_ptr, index)[0]
                graph = torch.repeat_interleave(torch.arange(index.numel(), device=index.device), counts[index])
                source, target = edge_index.index_select(1, edges).long()
                padded = returns(graph, source, target, index.numel(), size, dim)
                real = torch.arange(size, device=index.device) < sizes[index].unsqueeze(1)
                result[gather_ranges(node_ptr, index)[0]] = padded[real]
    return result


@contextmanager
def one_thread() -> Iterator[None]:
    """Limits torch to one CPU thread, for many small operations.

    Threads that wait for each other after each of them gain little, and cost 20 times the time where another process
    keeps the cores busy. Also, the same bits come out whatever the number of threads.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _buckets(numbers: Tensor, sizes: Tensor) -> Iterator[Tensor]:
    """Splits graphs into groups of similar size whose padded square matrices stay within the budget (or are single)."""
    order = sizes.argsort(stable=True)
    listed = sizes[order].tolist()
    start = 0
    for end in range(1, len(listed) + 1):
        # Padding may cost at most a quarter in size (twice in time); tiny graphs are cheap at any padding.
        full = end < len(listed) and (end + 1 - start) * listed[end] ** 2 > _BUDGET
        if end == len(listed) or full or listed[end] > 1.25 * listed[start] + 4:
            yield numbers[order[start:end]]
            start = end


def _dense_returns(graph: Tensor, source: Tensor, target: Tensor, num_graphs: int, size: int, dim: int) -> Tensor:
    """Returns of a bucket ``[num_graphs, size, dim]`` by batched dense products."""
    a = torch.zeros(num_graphs, size, size, device=graph.device)
    a.view(-1)[(graph * size + source) * size + target] = 1.0
    scale = a.sum(dim=1)
    symmetric = torch.equal(a, a.transpose(1, 2))
    if symmetric:
        scale = _inverse(scale).sqrt_()
        a *= scale.unsqueeze(2)
        a *= scale.unsqueeze(1)
    else:
        a *= _inverse(scale).unsqueeze(1)
    columns = torch.arange(size, device=graph.device)
    return _diagonals(a, lambda power: torch.bmm(a, power), columns, dim, symmetric)


def _sparse_returns(graph: Tensor, source: Tensor, target: Tensor, num_graphs: int, size: int, dim: int) -> Tensor:
    """Returns of a bucket ``[num_graphs, size, dim]`` by products of its block-diagonal matrix with blocks of columns.

    Column ``j`` of a block belongs to node ``j`` of *every* graph of the bucket: the graphs do not touch each other, so
    one dense column serves them all.
    """
    keys = torch.unique((graph * size + source) * size + target)
    row, target = keys // size, keys % size
    column = row - row % size + target
    total = num_graphs * size
    in_degree = torch.bincount(column, minlength=total).float()
    symmetric = torch.equal(keys, (column * size + row % size).sort().values)
    if symmetric:
        scale = _inverse(in_degree).sqrt_()
        value = scale[row] * scale[column]
    else:
        value = _inverse(in_degree)[column]
    row_ptr = offsets(torch.bincount(row, minlength=total))
    matrix = torch.sparse_csr_tensor(row_ptr, column, value, (total, total), check_invariants=False)

    def step(power: Tensor) -> Tensor:
        return (matrix @ power.view(total, -1)).view(num_graphs, size, -1)

    width = max(1, min(size, _BUDGET // total))
    blocks = []
    for start in range(0, size, width):
        columns = torch.arange(start, min(start + width, size), device=graph.device)
        first = torch.zeros(num_graphs, size, columns.numel(), device=graph.device)
        inside = (target >= start) & (target < start + width)
        first.view(total, -1)[row[inside], target[inside] - start] = value[inside]
        blocks.append(_diagonals(first, step, columns, dim, symmetric))
    return torch.cat(blocks, dim=1)


def _diagonals(first: Tensor, step: Callable[[Tensor], Tensor], columns: Tensor, dim: int, symmetric: bool) -> Tensor:
    """Diagonals of the powers 1 to ``dim`` of ``P``, for some of its columns.

    For symmetric ``P``, ``diag(P^(a + b))`` is the column sum of ``P^a * P^b``, so powers up to ``dim / 2`` will do.
    An undirected graph's ``A D^-1`` is similar to the symmetric ``D^-1/2 A D^-1/2`` through a diagonal matrix, hence
    has the same diagonals.

    Args:
        first: the columns of ``P``, ``[B, n, C]``.
        step: multiplies such a tensor by ``P`` from the left.
        columns: which columns they are, ``[C]``.
        dim: the highest power.
        symmetric: whether ``P`` is.

    Returns:
        ``[B, C, dim]``.
    """
    column = torch.arange(columns.numel(), device=columns.device)
    power = first
    found = [power[:, columns, column]]
    while len(found) < dim:
        if not symmetric:
            power = step(power)
            found.append(power[:, columns, column])
            continue
        found.append(power.square().sum(dim=1))
        if len(found) < dim:
            following = step(power)
            found.append((power * following).sum(dim=1))
            power = following
    return torch.stack(found[:dim], dim=2)


def _inverse(degree: Tensor) -> Tensor:
    """``1 / degree``, and 0 where ``degree`` is 0."""
    return torch.where(degree > 0, degree.reciprocal(), degree)
