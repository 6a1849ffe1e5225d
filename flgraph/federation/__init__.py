"""The round loop and its nouns; knows no algorithm and no dataset."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flgraph.errors import EngineError
    from flgraph.federation.aggregator import Aggregator
    from flgraph.federation.callback import FederatedCallback
    from flgraph.federation.client import Client, Predictions, Turn
    from flgraph.federation.engines import ClientError, Engine, ProcessGroup, Sequential
    from flgraph.federation.payload import Payload
    from flgraph.federation.routes import Route, RouteKind, collected, personal, shared
    from flgraph.federation.trainer import FederatedTrainer

__all__ = [
    "Aggregator",
    "Client",
    "ClientError",
    "Engine",
    "EngineError",
    "FederatedCallback",
    "FederatedTrainer",
    "Payload",
    "Predictions",
    "ProcessGroup",
    "Route",
    "RouteKind",
    "Sequential",
    "Turn",
    "collected",
    "personal",
    "shared",
]

_HOMES = {
    "aggregator": ("Aggregator",),
    "callback": ("FederatedCallback",),
    "client": ("Client", "Predictions", "Turn"),
    "engines": ("ClientError", "Engine", "EngineError", "ProcessGroup", "Sequential"),
    "payload": ("Payload",),
    "routes": ("Route", "RouteKind", "collected", "personal", "shared"),
    "trainer": ("FederatedTrainer",),
}


def __getattr__(name: str) -> Any:
    """Imports what is asked for, as the commands that read records and checkpoints need no Lightning."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
