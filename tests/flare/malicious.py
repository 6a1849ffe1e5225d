"""A site that does not keep to anything: what Python imports first in its processes (``sitecustomize``).

In each round its client sends something else that is bad; see ``WAYS``. Once it asks another site as if it were the
server.
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


def ask_another(module):
    """Has the site ask another one for an upload and metrics, in round 2, and note what comes."""
    from pathlib import Path

    from nvflare.apis.shareable import Shareable

    from flgraph.federation.engines.host import Message, run_request
    from flgraph.federation.messages import Request, Turn

    honest = module.SiteExecutor._answer

    def answer(self, topic, request, fl_ctx):
        turn = Message.from_bytes(request[module.BODY]).header.get("turns", {}).get(CLIENT, {})
        if turn.get("round") == 2 and turn.get("request") == "exchange":
            engine = fl_ctx.get_engine()
            file = Path(engine.get_workspace().get_root_dir()) / "stolen.txt"
            for asked in (Turn(2, Request.EXCHANGE, "train"), Turn(2, Request.EVALUATE, splits=("val",))):
                message = run_request({"trees": asked}, keep_going=True, bases={"trees": 5}, numbers={"trees": 10**6})
                theirs = Shareable()
                theirs[module.BODY] = bytes(message.to_bytes())
                reply = engine.send_aux_request(["north"], topic, theirs, 10.0, fl_ctx).get("north")
                with open(file, "a") as stream:
                    stream.write(f"{reply.get_return_code()}, {'more' if module.BODY in reply else 'no more'}\n")
        return honest(self, topic, request, fl_ctx)

    module.SiteExecutor._answer = answer


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

    def __init__(self, loader, change):
        self._loader, self._change = loader, change

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        self._loader.exec_module(module)
        self._change(module)


class Finder(MetaPathFinder):
    """Finds the modules that are to be changed."""

    def find_spec(self, name, path=None, target=None):
        change = {"flgraph.flare.run": spoil, "flgraph.flare.executor": ask_another}.get(name)
        if change is None:
            return None
        spec = PathFinder.find_spec(name, path, target)
        spec.loader = Spoiled(spec.loader, change)
        return spec


if __name__ == "sitecustomize":
    sys.meta_path.insert(0, Finder())
