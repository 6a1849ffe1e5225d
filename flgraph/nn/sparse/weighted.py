"""Weighted neighbourhood sums."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flgraph.nn.sparse.adjacency import Adjacency
from flgraph.nn.sparse.csr import csr


class WeightedAdjacency(Adjacency):
    """An adjacency matrix with weights, for example of a diffused graph; layers use it like any other.

    Entries lie on a pattern that is its own transpose (an entry may be 0), so one list of senders serves the matrix and
    its transpose, which the gradient needs.

    Args:
        rowptr: ``[N + 1]``; the senders of node ``i`` are ``col[rowptr[i]:rowptr[i + 1]]``.
        col: ``[E]``.
        weight: ``[E]``; ``adj.sum(x)[i]`` adds ``weight[e] * x[col[e]]`` over the entries ``e`` of row ``i``.
        transposed_weight: ``[E]``, the weights of the transpose at the same places; ``weight`` where the matrix is
            symmetric.
    """

    weighted = True

    def __init__(self, rowptr: Tensor, col: Tensor, weight: Tensor, transposed_weight: Tensor | None = None) -> None:
        super().__init__(rowptr, col)
        self.weight, self.transposed_weight = weight, weight if transposed_weight is None else transposed_weight

    def matrix(self, dtype: torch.dtype, transpose: bool = False, scale: Tensor | None = None) -> Tensor:
        """See :meth:`Adjacency.matrix`; without ``scale``, since layers normalise unweighted adjacencies only."""
        assert scale is None
        key = (dtype, transpose, False)
        if key not in self._matrices:
            values = (self.transposed_weight if transpose else self.weight).to(dtype)
            self._matrices[key] = csr(self.rowptr, self.col, values, self.num_nodes)
        return self._matrices[key]

    def to(self, device: torch.device | str, **kwargs: Any) -> WeightedAdjacency:
        """The same matrix on another device."""
        if self.col.device == torch.device(device):
            return self
        parts = (self.rowptr, self.col, self.weight, self.transposed_weight)
        return WeightedAdjacency(*(tensor.to(device, **kwargs) for tensor in parts))
