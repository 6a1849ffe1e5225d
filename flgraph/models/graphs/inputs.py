"""What models read of a batch of graphs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from flgraph.errors import InputError, expect
from flgraph.nn import Adjacency, OneHot


def node_input(batch: Data, name: str, columns: int, dtype: torch.dtype) -> Tensor:
    """Tensor ``name`` of the batch as ``dtype``, after a look at its width.

    Raises:
        InputError: these are no graphs; the batch has no such tensor, or not ``columns`` columns.
    """
    expect_graphs(batch)
    tensor = batch.get(name)
    if tensor is None:
        raise InputError(f"Expected `batch.{name}` to be a tensor of {columns} columns but the batch has none.")
    fits = tensor.dim() == 2 and tensor.size(1) == columns
    expect(fits, f"batch.{name}", f"of shape [nodes, {columns}]", list(tensor.shape))
    rows: Tensor = tensor.to(dtype)
    return rows


def features(batch: Data, columns: int, dtype: torch.dtype) -> Tensor | OneHot:
    """The input ``x``, see :func:`node_input`; one-hots as such, where the batch has not made a tensor of them."""
    unmade = getattr(batch, "unmade", None)
    rows = unmade("x") if unmade else None
    if isinstance(rows, OneHot) and rows.width == columns:
        return rows
    return node_input(batch, "x", columns, dtype)


def neighbours(batch: Data) -> Adjacency:
    """The adjacency that the batch brings along, or a new one of its edges."""
    expect_graphs(batch)
    adj = batch.get("adj")
    return Adjacency.from_edges(batch.edge_index, batch.num_nodes) if adj is None else adj


def graph_of_nodes(batch: Data, device: torch.device) -> tuple[Tensor, int]:
    """The graph of each node ``[N]``, and how many graphs there are; data without a batch vector counts as one."""
    if batch.batch is None:
        return torch.zeros(batch.num_nodes, dtype=torch.long, device=device), 1
    return batch.batch, batch.num_graphs


def expect_graphs(batch: Any) -> None:
    """Raises :class:`InputError` unless a batch is one of graphs, as PyG's and those of ``FlatGraphs`` are."""
    wanted = "one whose batches are graphs, such as flgraph.data.GraphFederation,"
    expect(hasattr(batch, "get"), "data", wanted, f"batches of type {type(batch).__name__}")


def expect_whole_graph(batch: Any, columns: int) -> None:
    """Raises :class:`InputError` unless a batch is a :class:`~flgraph.data.WholeGraph` of ``columns`` features."""
    whole = all(hasattr(batch, name) for name in ("x", "adj", "index"))
    wanted = "one whose batches are whole graphs, such as flgraph.data.WholeGraphFederation,"
    expect(whole, "data", wanted, f"batches of type {type(batch).__name__}")
    fits = batch.x.dim() == 2 and batch.x.size(1) == columns
    expect(fits, "batch.x", f"of shape [nodes, {columns}]", list(batch.x.shape))
