"""FedStar: Tan et al., "Federated Learning on Non-IID Graphs via Structural Knowledge Sharing", AAAI 2023."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flgraph.callbacks.fedavg import FedAvg
from flgraph.federation.routes import Route, personal, shared


class FedStar(FedAvg):
    """Shares the structure encoder and nothing else (Algorithm 1, Eq. 9).

    The feature encoder, the layers after it and the classifier are trained by each client alone and never leave it.
    Goes with :class:`flgraph.models.FedStar`, the feature-structure decoupled GNN.

    Args:
        structure: patterns of the structure encoder's tensors.
        kwargs: see :class:`FedAvg`.
    """

    network = "FedStar"

    def __init__(self, structure: Sequence[str] = ("structure.*",), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.structure = list(structure)

    def routes(self) -> list[Route]:
        return [*shared(*self.structure), *personal("*")]
