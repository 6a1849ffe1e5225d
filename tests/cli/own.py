"""Classes of somebody who uses the command line."""

from __future__ import annotations

from flgraph.callbacks import FedAvg
from flgraph.models import GNN


class Untyped(FedAvg):
    """Does not say what its rate is."""

    def __init__(self, rate) -> None:  # type: ignore[no-untyped-def]
        super().__init__()
        self.rate = rate


class Needing(GNN):
    """Cannot be made without its width."""

    def __init__(self, width: int) -> None:
        super().__init__(hidden_channels=width)
