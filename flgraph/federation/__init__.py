"""The round loop and its nouns; knows no algorithm and no dataset."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flgraph.errors import EngineError
    from flgraph.federation.aggregation import Combine, WeightedMean, weighted_mean
    from flgraph.federation.aggregator import Aggregator
    from flgraph.federation.callback import FederatedCallback
    from flgraph.federation.client import Client
    from flgraph.federation.engines import ClientError, Engine, ProcessGroup, Sequential
    from flgraph.federation.messages import Predictions, Request, Turn
    from flgraph.federation.payload import Payload
    from flgraph.federation.routes import Route, RouteKind, collected, personal, shared
    from flgraph.federation.trainer import FederatedTrainer

__all__ = [
    "Aggregator",
    "Client",
    "ClientError",
    "Combine",
    "Engine",
    "EngineError",
    "FederatedCallback",
    "FederatedTrainer",
    "Payload",
    "Predictions",
    "ProcessGroup",
    "Request",
    "Route",
    "RouteKind",
    "Sequential",
    "Turn",
    "WeightedMean",
    "collected",
    "personal",
    "shared",
    "weighted_mean",
]

_HOMES = {
    "aggregation": ("Combine", "WeightedMean", "weighted_mean"),
    "aggregator": ("Aggregator",),
    "callback": ("FederatedCallback",),
    "client": ("Client",),
    "engines": ("ClientError", "Engine", "EngineError", "ProcessGroup", "Sequential"),
    "messages": ("Predictions", "Request", "Turn"),
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
