"""All clients in this process, one after another."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flgraph.errors import ClientError, InputError
from flgraph.federation.client import Client
from flgraph.federation.engines.base import Engine
from flgraph.federation.engines.host import Host
from flgraph.federation.messages import Predictions, Turn
from flgraph.runs.files import Digest


class Sequential(Engine):
    """Runs every turn in this process; the reference that all other engines must equal bit for bit."""

    batch: int | None = 64

    def __init__(self) -> None:
        self.host = Host({})

    @property
    def clients(self) -> dict[str, Client]:
        """The clients in this process, by name."""
        return self.host.clients

    def setup(
        self, build: Callable[[str], Client], names: Sequence[str], release: Callable[[str], None] | None = None
    ) -> None:
        self.host = Host({name: build(name) for name in names}, build, release)

    def run(self, turns: Mapping[str, Turn]) -> Mapping[str, bytes | Exception]:
        answers: dict[str, bytes | Exception] = {}
        for name, turn in turns.items():
            try:
                answers[name] = self.host.turn(name, turn, self.keep_going)
            except (InputError, ClientError) as error:
                if not self.keep_going:
                    raise
                answers[name] = error
        return answers

    def save(self, folder: Path, previous: Path | None) -> Mapping[str, Digest]:
        return self.host.save(folder, previous)

    def load(self, folder: Path) -> Collection[str]:
        self.host.load(folder)
        return ()

    def about(self) -> dict[str, dict[str, Any]]:
        return self.host.about()

    def predict(self) -> Iterator[tuple[str, Predictions]]:
        for name in self.clients:
            yield name, self.host.predict(name)
