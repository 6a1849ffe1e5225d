"""The round loop and its nouns; knows no algorithm and no data set."""

from flgraph.errors import ClientError, EngineError, PolicyError
from flgraph.federation.aggregation import Combine, Sums, WeightedMean, weighted_mean
from flgraph.federation.aggregator import Aggregator
from flgraph.federation.callback import FederatedCallback
from flgraph.federation.client import Client
from flgraph.federation.engines import Engine, ProcessGroup, Sequential
from flgraph.federation.messages import Predictions, Request, Turn
from flgraph.federation.payload import Payload
from flgraph.federation.policy import Policy
from flgraph.federation.privacy import Privacy
from flgraph.federation.robust import GeometricMedian, Krum, Median, TrimmedMean
from flgraph.federation.routes import Route, RouteKind, collected, personal, shared
from flgraph.federation.secure.settings import SecureSums
from flgraph.federation.tolerance import Tolerance
from flgraph.federation.trainer import FederatedTrainer
from flgraph.federation.transforms import Clip, GaussianNoise, HalfPrecision, Quantise, TopK, Transform

__all__ = [
    "Aggregator",
    "Client",
    "ClientError",
    "Clip",
    "Combine",
    "Engine",
    "EngineError",
    "FederatedCallback",
    "FederatedTrainer",
    "GaussianNoise",
    "GeometricMedian",
    "HalfPrecision",
    "Krum",
    "Median",
    "Payload",
    "Policy",
    "PolicyError",
    "Predictions",
    "Privacy",
    "ProcessGroup",
    "Quantise",
    "Request",
    "Route",
    "RouteKind",
    "SecureSums",
    "Sequential",
    "Sums",
    "Tolerance",
    "TopK",
    "Transform",
    "TrimmedMean",
    "Turn",
    "WeightedMean",
    "collected",
    "personal",
    "shared",
    "weighted_mean",
]
