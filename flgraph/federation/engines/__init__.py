"""Engines: where clients run."""

from flgraph.errors import ClientError, EngineError
from flgraph.federation.engines.base import Engine
from flgraph.federation.engines.distributed.engine import ProcessGroup
from flgraph.federation.engines.sequential import Sequential

__all__ = ["ClientError", "Engine", "EngineError", "ProcessGroup", "Sequential"]
