"""What scripts that time rounds have in common: the clocks, a callback, and a trainer that writes nothing."""

from __future__ import annotations

import time
from typing import Any

from flgraph.federation import FederatedCallback

QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
}
"""Arguments of a federated trainer."""

Times = tuple[float, float]
"""Seconds by the clock, and of this process's processors."""


def clocks() -> Times:
    """What both show now."""
    return time.perf_counter(), time.process_time()


def since(began: Times) -> Times:
    """Seconds since then."""
    wall, busy = clocks()
    return wall - began[0], busy - began[1]


class Rounds(FederatedCallback):
    """Times of every round, from hook to hook."""

    def __init__(self) -> None:
        self.seconds: list[Times] = []
        self._began = 0.0, 0.0

    def on_round_start(self, trainer: Any) -> None:
        self._began = clocks()

    def on_round_end(self, trainer: Any) -> None:
        self.seconds.append(since(self._began))
