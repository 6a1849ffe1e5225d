"""A site that does not keep to anything: what Python imports first in its processes (``sitecustomize``).

In each round its client sends something else that is bad; see ``WAYS``.
"""

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import PathFinder

CLIENT = "ladders"
WAYS = (
    "not a number",
    "cut short",
    "another shape",
    "what nobody asked for",
    "samples out of thin air",
    "an error",
    "no message at all",
    "values a million times too large",
    "in the name of others",
    "metrics of text",
)
"""What it does in round 1, 2 and so on."""


def spoil(module):
    """Has the site's answers changed."""
    import torch

    from flgraph.federation.engines.host import Message
    from flgraph.federation.payload import Payload

    honest = module.Site.answer

    def change(way, upload):
        payload = Payload.from_bytes(upload)
        tensors, scalars = dict(payload.tensors), dict(payload.scalars)
        first = next(iter(tensors))
        if way in ("not a number", "metrics of text"):
            tensors[first] = torch.full_like(tensors[first], float("nan"))
        elif way == "another shape":
            tensors[first] = torch.zeros(3, 3, 3)
        elif way == "what nobody asked for":
            tensors["feature.secret"] = torch.zeros(3)
        elif way == "samples out of thin air":
            scalars["num_samples"] = 10**18
        elif way == "values a million times too large":
            tensors = {name: tensor + 1e9 for name, tensor in tensors.items()}
        data = Payload(tensors, scalars).to_bytes()
        return data[: len(data) // 2] if way == "cut short" else data

    def answer(self, request):
        given = honest(self, request)
        turns = request.header.get("turns", {})
        turn = turns.get(CLIENT, {})
        number = turn.get("round", 0)
        if not 1 <= number <= len(WAYS):
            return given
        way = WAYS[number - 1]
        if turn["request"] == "evaluate":
            if way != "metrics of text":
                return given
            return Message({**given.header}, {CLIENT: Payload(scalars={"val/accuracy": "a" * 1000}).to_bytes()})
        if way == "an error":
            return Message({"error": "failed"})
        if way == "no message at all":
            return Nonsense()
        pieces = {name: change(way, upload) for name, upload in given.pieces.items()}
        if way == "in the name of others":
            pieces = {"trees": pieces[CLIENT], "rings": pieces[CLIENT]}
        return Message(given.header, pieces)

    module.Site.answer = answer


class Nonsense:
    """Bytes that are no message."""

    header, pieces = {}, {}

    def to_bytes(self):
        return b"\xff" * 1000


class Spoiled(Loader):
    """Loads a module and changes it."""

    def __init__(self, loader):
        self._loader = loader

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        self._loader.exec_module(module)
        spoil(module)


class Finder(MetaPathFinder):
    """Finds the one module that is to be changed."""

    def find_spec(self, name, path=None, target=None):
        if name != "flgraph.flare.run":
            return None
        spec = PathFinder.find_spec(name, path, target)
        spec.loader = Spoiled(spec.loader)
        return spec


if __name__ == "sitecustomize":
    sys.meta_path.insert(0, Finder())
