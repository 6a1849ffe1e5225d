"""A second set of edges of many graphs: weighted, and stored like the graphs themselves."""

from __future__ import annotations

import torch
from torch import Tensor

from flgraph.nn.sparse.adjacency import gather_ranges, offsets
from flgraph.nn.sparse.weighted import WeightedAdjacency


class WeightedEdges:
    """Weighted matrices of many graphs as concatenated compressed rows, from which batches are gathered.

    Args:
        row_length: ``[N]``, entries in the row of each node.
        col: ``[E]``, column of each entry as a node number within its graph, ascending in every row.
        weight: ``[E]``.
        transposed_weight: ``[E]``, see :class:`~flgraph.nn.WeightedAdjacency`.
        entry_ptr: ``[G + 1]``; graph ``g`` owns the entries ``entry_ptr[g]:entry_ptr[g + 1]``.
    """

    def __init__(
        self, row_length: Tensor, col: Tensor, weight: Tensor, transposed_weight: Tensor, entry_ptr: Tensor
    ) -> None:
        self.row_length, self.col, self.entry_ptr = row_length, col, entry_ptr
        self.weight, self.transposed_weight = weight, transposed_weight

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What it is made of, by argument."""
        names = ("row_length", "col", "weight", "transposed_weight", "entry_ptr")
        return {name: getattr(self, name) for name in names}

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors held."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors.values())

    def select(self, index: Tensor, nodes: Tensor) -> WeightedEdges:
        """Those of the graphs ``index``, whose nodes are ``nodes``."""
        entries, entry_ptr = gather_ranges(self.entry_ptr, index)
        rows = self.row_length.index_select(0, nodes)
        col, weight, back = (part.index_select(0, entries) for part in (self.col, self.weight, self.transposed_weight))
        return WeightedEdges(rows, col, weight, back, entry_ptr)

    def to(self, device: torch.device | str) -> WeightedEdges:
        """The same on another device."""
        return WeightedEdges(**{name: tensor.to(device) for name, tensor in self.tensors.items()})

    def batch(self, index: Tensor, nodes: Tensor, node_ptr: Tensor) -> WeightedAdjacency:
        """Of the graphs ``index`` as one disconnected graph.

        Args:
            index: graph numbers ``[B]``.
            nodes: their nodes ``[n]``.
            node_ptr: where each graph's nodes begin in the batch ``[B + 1]``.
        """
        own = self.select(index, nodes)
        shift = torch.repeat_interleave(node_ptr[:-1], own.entry_ptr.diff(), output_size=own.col.numel())
        rowptr = offsets(own.row_length)
        return WeightedAdjacency(rowptr, own.col.long() + shift, own.weight, own.transposed_weight)
