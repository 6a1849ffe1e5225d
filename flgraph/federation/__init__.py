"""The round loop and its nouns; knows no algorithm and no dataset."""

from flgraph.federation.aggregator import Aggregator
from flgraph.federation.callback import FederatedCallback
from flgraph.federation.client import Client, Predictions, Turn
from flgraph.federation.engines import ClientError, Engine, EngineError, ProcessGroup, Sequential
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
