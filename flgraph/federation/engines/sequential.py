"""All clients in this process, one after another."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flgraph.errors import InputError, expect
from flgraph.federation.client import Client
from flgraph.federation.engines.base import ClientError, Engine
from flgraph.federation.messages import Predictions, Turn
from flgraph.runs.checkpoint import link_or_copy, load_file, save_file, state_name


class Sequential(Engine):
    """Runs every turn in this process; the reference that all other engines must equal bit for bit."""

    def __init__(self) -> None:
        self.clients: dict[str, Client] = {}

    def setup(
        self, build: Callable[[str], Client], names: Sequence[str], release: Callable[[str], None] | None = None
    ) -> None:
        self.clients = {name: build(name) for name in names}

    def run(self, turns: Mapping[str, Turn]) -> dict[str, bytes]:
        return {name: self._turn(name, turn) for name, turn in turns.items()}

    def _turn(self, name: str, turn: Turn) -> bytes:
        try:
            return self.clients[name].turn(turn)
        except (InputError, KeyboardInterrupt):
            raise
        except Exception as error:
            raise ClientError(name, turn, error) from error

    def save(self, folder: Path, previous: Path | None) -> None:
        for name, client in self.clients.items():
            file = folder / state_name(name)
            if previous is None or client.changed or not link_or_copy(previous / file.name, file):
                save_file(client.state(), file)
            client.changed = False

    def load(self, folder: Path) -> Collection[str]:
        for name, client in self.clients.items():
            file = folder / state_name(name)
            there = "a checkpoint with the state of every client (`flgraph flare gather` fetches those of sites)"
            expect(file.is_file(), "ckpt_path", there, f"none of `{name}` in {folder}")
            client.load_state(load_file(file))
            client.changed = False
        return ()

    def about(self) -> dict[str, dict[str, Any]]:
        return {name: client.about for name, client in self.clients.items()}

    def predict(self) -> Iterator[tuple[str, Predictions]]:
        for name, client in self.clients.items():
            yield name, client.predict()
