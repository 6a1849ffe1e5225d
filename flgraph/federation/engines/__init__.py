"""Engines: where clients run."""

from flgraph.federation.engines.base import ClientError, Engine
from flgraph.federation.engines.sequential import Sequential

__all__ = ["ClientError", "Engine", "Sequential"]
