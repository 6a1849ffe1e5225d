"""FedPer: Arivazhagan et al., "Federated Learning with Personalization Layers", 2019."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flgraph.callbacks.fedavg import FedAvg
from flgraph.federation.routes import Route, personal, shared


class FedPer(FedAvg):
    """FedAvg on the base layers; the personalization layers stay with the client.

    For graph classification the base layers are the graph convolutions (FedStar, appendix A.2).

    Args:
        base: patterns of the shared tensors' names.
        kwargs: see :class:`FedAvg`.
    """

    def __init__(self, base: Sequence[str] = ("convs.*",), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.base = list(base)
        if self.base == ["convs.*"]:
            self.network = "GNN or NodeGCN"

    def routes(self) -> list[Route]:
        return [*shared(*self.base), *personal("*")]
