"""Local training: the baseline in which nothing is exchanged."""

from __future__ import annotations

from typing import Literal

from flgraph.federation.aggregator import Aggregator
from flgraph.federation.client import Client
from flgraph.federation.payload import Payload
from flgraph.federation.routes import Route, personal


class Local(Aggregator):
    """Every client trains alone; nothing is sent in either direction but its metrics.

    Args:
        optimizer_state: see :class:`~flgraph.federation.Aggregator`.
    """

    upload_scalars = ()

    def __init__(self, optimizer_state: Literal["keep", "reset"] = "keep") -> None:
        super().__init__(optimizer_state)

    def routes(self) -> list[Route]:
        return personal("*")

    def upload(self, client: Client, round: int, exchange: str) -> Payload | None:
        return None
