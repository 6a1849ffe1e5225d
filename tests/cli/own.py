"""Classes of somebody who uses the command line."""

from __future__ import annotations

from flgraph.models import GNN


class Needing(GNN):
    """Cannot be made without its width."""

    def __init__(self, width: int) -> None:
        super().__init__(hidden_channels=width)
