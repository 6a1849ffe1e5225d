"""Sites that are objects in this process; bytes and plain values cross between them and a server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from flgraph.federation import FederatedTrainer
from flgraph.federation.engines.host import Message, SiteHost, turns_of
from flgraph.runs.history import read_records

PERSONAL = {"base": ["first.*"]}

SECRETS = {name: bytes([number]) * 32 for number, name in enumerate(("server", "one", "two"))}


class Office:
    """Carries messages to sites in this process; ``rule`` says which answers get lost, or requests with them."""

    def __init__(self, hosts: Mapping[str, SiteHost]) -> None:
        self.hosts = dict(hosts)
        self.rule: Callable[[str, Message], str] = lambda site, message: "deliver"
        self.sent: list[tuple[str, str]] = []
        self.downloads: dict[str, list[bytes | None]] = {}
        self._turn = threading.Lock()  # clients in one process share torch's generator and what Lightning patches

    def send(self, site: str, message: Message, timeout: float) -> Message | None:
        self.sent.append((site, message.header["do"]))
        for name, turn in turns_of(message).items() if message.header["do"] == "run" else ():
            self.downloads.setdefault(name, []).append(turn.download)
        fate = self.rule(site, message)
        if fate == "lose":
            return None
        with self._turn:
            answer = self.hosts[site].answer(Message.from_bytes(message.to_bytes()))
        return Message.from_bytes(answer.to_bytes()) if fate == "deliver" else None


def round_of(message: Message, *, evaluated: bool = False) -> int:
    """The round that a request is about; 0 for what is of none, and for evaluations unless these are meant."""
    turns = list(message.header.get("turns", {}).values())
    return int(turns[0]["round"]) if turns and (turns[0]["request"] == "evaluate") == evaluated else 0


def weights(office: Office) -> dict[str, dict[str, Any]]:
    """Whole states of all clients."""
    return {name: client.state() for host in office.hosts.values() for name, client in host.clients.items()}


def history(trainer: FederatedTrainer) -> list[dict[str, Any]]:
    """The lines of history.jsonl but for the seconds."""
    assert trainer.run_dir is not None
    lines = read_records(trainer.run_dir / "history.jsonl")
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]
