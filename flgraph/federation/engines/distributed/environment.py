"""Which of several processes this one is, and how Lightning is kept from seeing the others."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pytorch_lightning.utilities.rank_zero import rank_zero_only

_LAUNCHED = {f"{whose}{what}" for what in ("RANK", "WORLD_SIZE") for whose in ("", "LOCAL_", "GROUP_", "ROLE_")}
_LAUNCHED |= {"NODE_RANK", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT"}
"""Variables that torchrun sets, together with those that begin with TORCHELASTIC_."""


@dataclass(frozen=True)
class ProcessEnvironment:
    """A process among those that run the same program.

    Args:
        rank: its number; the server is in process 0.
        world: how many there are.
        local_rank: its number among those on its machine.
        local_world: how many there are on its machine.
        machine: number of the machine.
        launched: whether torchrun, or something that sets the same variables, started them.
    """

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1
    machine: int = 0
    launched: bool = False

    @property
    def one_machine(self) -> bool:
        """Whether all processes are on this machine."""
        return self.local_world == self.world

    @classmethod
    def here(cls, environment: Mapping[str, str] = os.environ) -> ProcessEnvironment:
        """As the environment variables say; a single process where there are none."""
        if "RANK" not in environment or "WORLD_SIZE" not in environment:
            return cls()
        rank, world = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        return cls(
            rank,
            world,
            int(environment.get("LOCAL_RANK", rank)),
            int(environment.get("LOCAL_WORLD_SIZE", world)),
            int(environment.get("GROUP_RANK", 0)),
            True,
        )


@contextmanager
def alone() -> Iterator[None]:
    """Lets Lightning believe that this process is the only one, whatever started it.

    It would otherwise take the federation's processes for those of one distributed Trainer: choose torchrun's cluster
    environment, use its ports, and leave out what only rank 0 does.
    """
    hidden = {key: value for key, value in os.environ.items() if key in _LAUNCHED or key.startswith("TORCHELASTIC_")}
    lightning: Any = rank_zero_only  # a function with an attribute
    rank = lightning.rank
    for name in hidden:
        del os.environ[name]
    lightning.rank = 0
    try:
        yield
    finally:
        os.environ.update(hidden)
        lightning.rank = rank


def device_of(process: ProcessEnvironment, devices: int | str | Sequence[int], count: int) -> list[int] | None:
    """The GPU of a process: those that may be used are assigned in turns, so that processes can share one.

    Args:
        process: the process.
        devices: as given to Lightning: a list of GPUs, or how many; 1 and ``"auto"`` stand for all.
        count: how many GPUs the machine has.

    Returns:
        One number, or ``None`` if ``devices`` is something else, which Lightning is to judge.
    """
    text = str(devices).strip()
    if isinstance(devices, str) and "," in text:
        devices = [int(part) for part in text.split(",") if part.strip().isdigit()]
    if isinstance(devices, Sequence) and not isinstance(devices, str):
        usable = list(devices)
    elif text in ("1", "auto", "-1"):
        usable = list(range(count))
    elif text.isdigit():
        usable = list(range(min(int(text), count)))
    else:
        return None
    return [usable[process.local_rank % len(usable)]] if usable else None
