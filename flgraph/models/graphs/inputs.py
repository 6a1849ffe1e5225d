"""What models read of a batch of graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from flgraph.errors import InputError, expect
from flgraph.nn import Adjacency, OneHot
from flgraph.nn.products import with_room


@runtime_checkable
class LazyStorage(Protocol):
    """A batch's storage that makes some values when they are first read."""

    def unmade(self, key: str) -> Callable[[], Any] | None:
        """What will make the value under ``key``; ``None`` where it is made."""


def node_input(batch: Data, name: str, columns: int, dtype: torch.dtype) -> Tensor:
    """Tensor ``name`` of the batch as ``dtype``, after a look at its width.

    Raises:
        InputError: these are no graphs; the batch has no such tensor, or not ``columns`` columns.
    """
    expect_graphs(batch)
    tensor = batch.get(name)
    if tensor is None or tensor.dim() != 2 or tensor.size(1) != columns:
        got = "none" if tensor is None else list(tensor.shape)
        raise InputError(f"batch.{name}", f"of shape [nodes, {columns}]", got)
    return tensor if tensor.dtype == dtype else with_room(tensor, dtype=dtype).copy_(tensor)


def features(batch: Data, columns: int, dtype: torch.dtype) -> Tensor | OneHot:
    """The input ``x``, see :func:`node_input`; one-hots as such, where the batch has not made a tensor of them."""
    expect_graphs(batch)
    storage = batch.stores[0]
    rows = storage.unmade("x") if isinstance(storage, LazyStorage) else None
    return rows if isinstance(rows, OneHot) and rows.width == columns else node_input(batch, "x", columns, dtype)


def neighbours(batch: Data) -> Adjacency:
    """The adjacency that the batch brings along, or a new one of its edges."""
    expect_graphs(batch)
    adj = batch.get("adj")
    if adj is None and batch.edge_index is None:
        raise InputError("batch.edge_index", "of shape [2, edges]", "none")
    return Adjacency.from_edges(batch.edge_index, batch.num_nodes) if adj is None else adj


def graph_of_nodes(batch: Data, device: torch.device) -> tuple[Tensor, int]:
    """The graph of each node ``[N]``, and how many graphs there are; data without a batch vector counts as one."""
    if batch.batch is None:
        return torch.zeros(batch.num_nodes, dtype=torch.long, device=device), 1
    count = batch.num_graphs if isinstance(batch, Batch) else int(batch.batch.max()) + 1
    return batch.batch, count


def expect_graphs(batch: object) -> None:
    """Raises :class:`InputError` unless a batch is one of graphs, as PyG's and those of ``FlatGraphs`` are."""
    wanted = "one whose batches are graphs, such as flgraph.data.GraphFederation,"
    expect(isinstance(batch, Data), "data", wanted, f"batches of type {type(batch).__name__}")
