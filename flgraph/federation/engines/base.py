"""Where clients run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flgraph.federation.client import Client, Turn


class ClientError(RuntimeError):
    """A client's turn failed; names the client, the round and the exchange, and keeps the cause."""

    def __init__(self, client: str, turn: Turn, cause: BaseException) -> None:
        super().__init__(
            f"Client `{client}` failed in round {turn.round} ({turn.exchange}): {type(cause).__name__}: {cause}"
        )


class Engine(ABC):
    """Runs the turns of clients, somewhere; algorithms, models and data know nothing of it.

    The trainer calls :meth:`setup` once per run, then :meth:`run` for every exchange. Requests and answers are bytes of
    payloads.
    """

    @abstractmethod
    def setup(self, build: Callable[[str], Client], names: Sequence[str]) -> None:
        """Makes the clients ``names`` with ``build``, wherever they are to live."""

    @abstractmethod
    def run(self, turns: Mapping[str, Turn]) -> dict[str, bytes]:
        """Client to upload for every client in ``turns``.

        Raises:
            ClientError: a client's turn failed.
        """

    @abstractmethod
    def save(self, folder: Path, previous: Path | None) -> None:
        """Writes every client's state to ``folder`` as ``NAME.ckpt``, for :meth:`load`.

        Args:
            folder: an existing folder.
            previous: an earlier such folder; files of clients that did not change since may be linked from there.
        """

    @abstractmethod
    def load(self, folder: Path) -> None:
        """Puts the clients into the states that :meth:`save` wrote."""

    @abstractmethod
    def predict(self) -> Iterator[tuple[str, list[Any]]]:
        """Client and its predictions, a batch at a time, one client after another."""

    @abstractmethod
    def routes(self) -> list[tuple[str, str, str]]:
        """The routing table of the clients, as rows of tensor, shape and route."""

    def parameters(self) -> dict[str, dict[str, int]]:
        """Client to its model's numbers of parameters, ``total`` and ``shared``; nothing of clients elsewhere."""
        return {}

    def teardown(self) -> None:
        """Lets go of whatever :meth:`setup` took."""
