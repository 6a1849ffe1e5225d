"""Local training: the baseline in which nothing is exchanged."""

from __future__ import annotations

from collections.abc import Mapping

from flgraph.federation.aggregator import Aggregator
from flgraph.federation.client import Client
from flgraph.federation.payload import Payload
from flgraph.federation.routes import Route, personal


class Local(Aggregator):
    """Every client trains alone; nothing is sent in either direction but its metrics.

    Args:
        optimizer_state: whether clients keep their optimizers' state over rounds.
    """

    upload_scalars = ()

    def routes(self) -> list[Route]:
        return personal("*")

    # ----------------------------------------------------------------------------------------------- server half
    def download(self, client: str, round: int, exchange: str) -> Payload | None:
        return None

    def aggregate(self, uploads: Mapping[str, Payload], round: int, exchange: str) -> None:
        return None

    # ----------------------------------------------------------------------------------------------- client half
    def upload(self, client: Client, round: int, exchange: str) -> Payload | None:
        return None
