"""A server that asks a site whatever it likes."""

from __future__ import annotations

import json

import torch

from flgraph.federation import Client, Payload, Request, Turn
from flgraph.federation.engines.host import Message, SiteHost, run_request

KEY = b"k" * 32
"""The secret of its site."""


class Server:
    """Asks a site whatever it likes, and keeps count of turns as an honest one does."""

    def __init__(self, host: SiteHost) -> None:
        self.host, self.done, self.count = host, dict.fromkeys(host.clients, 0), 0

    def ask(self, turn: Turn, name: str = "A") -> Payload | str:
        """The client's answer, or the code that came in place of it."""
        self.count += 1
        bases, numbers = {name: self.done.get(name, 0)}, {name: self.count}
        answer = self.send(run_request({name: turn}, keep_going=True, bases=bases, numbers=numbers))
        if name not in answer.pieces:
            code = answer.header.get("error") or answer.header["errors"][name]
            assert code in ("policy", "refused", "failed")
            return str(code)
        self.done[name] = self.count
        return Payload.from_bytes(answer.pieces[name]) if answer.pieces[name] else Payload()

    def send(self, message: Message) -> Message:
        answer = self.host.answer(Message.from_bytes(message.to_bytes()))
        return Message.from_bytes(answer.to_bytes())

    def begin(self, name: str = "A") -> dict[str, str]:
        """Agrees on all that the client would share; returns it."""
        described = self.ask(Turn(0, Request.DESCRIBE), name)
        assert isinstance(described, Payload)
        forms: dict[str, str] = json.loads(str(described.scalars["shared"]))
        assert isinstance(self.ask(agreement(*forms), name), Payload)
        return forms

    def weights(self, name: str = "A") -> dict[str, torch.Tensor]:
        return {key: tensor.clone() for key, tensor in self.host.clients[name].module.state_dict().items()}


def agreement(*names: str, initial: tuple[str, ...] = (), round: int = 0) -> Turn:
    terms = Payload(scalars={"shared": "\n".join(names), "initial": "\n".join(initial)})
    return Turn(round, Request.AGREE, download=terms.to_bytes())


def evaluation(round: int = 1, download: bytes | None = None) -> Turn:
    return Turn(round, Request.EVALUATE, download=download, splits=("train", "val", "test"))


def state_of(client: Client) -> bytes:
    from flgraph.runs.checkpoint import state_bytes

    return state_bytes(client.state())
