"""GCFL+: Xie et al., "Federated Graph Classification over Non-IID Graphs", NeurIPS 2021."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flgraph.callbacks.gcfl import GCFL
from flgraph.errors import expect
from flgraph.federation.payload import Payload


class GCFLPlus(GCFL):
    """GCFL that compares clients by the history of their updates' lengths instead of one noisy direction.

    The server keeps the norms of every client's last updates. When a cluster is due to split, its members are compared
    by dynamic time warping of these sequences; an edge of the graph that is cut weighs the largest distance in the
    cluster minus the members' own. A cluster whose members have no full sequence yet is not split, and after a split
    all sequences begin anew.

    Args:
        sequence_length: number of norms that are compared.
        kwargs: see :class:`GCFL`.
    """

    server_attributes = (*GCFL.server_attributes, "_sequences")

    def __init__(self, sequence_length: int = 5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        expect(sequence_length >= 1, "aggregator.sequence_length", "1 or more", sequence_length)
        self.sequence_length = sequence_length
        self._sequences: dict[str, list[float]] = {}
        self._has_split = False

    # ----------------------------------------------------------------------------------------------- server half
    def start(self, initial: Mapping[str, Tensor], clients: Sequence[str]) -> None:
        super().start(initial, clients)
        self._sequences = {client: [] for client in clients}

    def aggregate(self, uploads: Mapping[str, Payload], round: int, exchange: str) -> Mapping[str, Tensor]:
        self._has_split = False
        none = super().aggregate(uploads, round, exchange)
        if self._has_split:
            self._sequences = {client: [] for client in self._sequences}
        return none

    def _take_updates(self, uploads: Mapping[str, Payload]) -> None:
        super()._take_updates(uploads)
        for client in uploads:
            sequence = [*self._sequences[client], float(self._updates[client].norm())]
            self._sequences[client] = sequence[-self.sequence_length :]

    def _should_split(self, number: int, round: int) -> bool:
        full = all(len(self._sequences[client]) == self.sequence_length for client in self._active(number))
        return super()._should_split(number, round) and full

    def _split(self, number: int, round: int) -> None:
        super()._split(number, round)
        self._has_split = True

    def similarity(self, clients: Sequence[str]) -> Tensor:
        sequences = [np.array(self._sequences[client]) for client in clients]
        distances = torch.tensor([[dtw_distance(a, b) for b in sequences] for a in sequences], dtype=torch.float64)
        return distances.max() - distances


def dtw_distance(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    r"""Dynamic time warping (Sakoe and Chiba, 1978) of two sequences of numbers.

    :math:`\sqrt{\min_p \sum_{(i, j) \in p} (a_i - b_j)^2}` over all paths :math:`p` from ``(1, 1)`` to the ends in
    steps of ``(1, 0)``, ``(0, 1)`` and ``(1, 1)``.

    Args:
        a: ``[n]``, not empty.
        b: ``[m]``, not empty.
    """
    cost = np.full((a.size + 1, b.size + 1), np.inf)
    cost[0, 0] = 0.0
    for i in range(a.size):
        for j in range(b.size):
            cheapest = min(cost[i, j], cost[i, j + 1], cost[i + 1, j])
            cost[i + 1, j + 1] = (a[i] - b[j]) ** 2 + cheapest
    return float(np.sqrt(cost[-1, -1]))
