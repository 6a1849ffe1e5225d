"""What a client and its door need of an algorithm; :class:`~flgraph.federation.Aggregator` has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol

from flgraph.federation.payload import Payload
from flgraph.federation.routes import Route, UploadKind


class AlgorithmHalf(Protocol):
    """What a client's door needs of its half of an algorithm."""

    upload_kind: UploadKind
    extra_tensors: ClassVar[Mapping[str, UploadKind]]
    initial_weights: Literal["first", "mean", "own"]

    @property
    def upload_scalars(self) -> Sequence[str]:
        """Names of the scalars that it sends."""

    @property
    def reveals(self) -> str:
        """What can be read of single records."""

    def exchanges(self, round: int) -> Sequence[str]:
        """Names of the exchanges of a round."""


class ClientHalf(AlgorithmHalf, Protocol):
    """What a client needs of an algorithm, which is a Lightning callback besides; ``client`` is the client."""

    network: str
    seed: int
    optimizer_state: Literal["keep", "reset"]
    needs_classes: bool
    setup_epochs: int
    further_epochs: int
    reported_scalars: Sequence[str]

    def routes(self) -> list[Route]:
        """What may leave the client."""

    def install(self, client: Any, download: Payload) -> None:
        """Puts a download into the client."""

    def local_update(self, client: Any, round: int, exchange: str) -> None:
        """The client's work."""

    def upload(self, client: Any, round: int, exchange: str) -> Payload | None:
        """What it sends."""

    def client_weight(self, upload: Payload) -> float:
        """How much it counts."""
