"""Checks of a trainer's arguments, and Lightning's objections to them in our words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from flgraph.errors import InputError, expect
from flgraph.federation.engines import Engine, ProcessGroup
from flgraph.federation.engines.distributed.environment import ProcessEnvironment

WHERE = ("accelerator", "devices", "strategy", "plugins")
"""Arguments that say where a Trainer computes; all others may change what comes out."""


def expect_counts(**values: int) -> None:
    """Raises :class:`InputError` for arguments that are no whole numbers of 1 or more."""
    for field, value in values.items():
        expect(isinstance(value, int) and value >= 1, f"trainer.{field}", "a whole number of 1 or more", value)


def refused_by_lightning(arguments: Mapping[str, Any], error: Exception, prefix: str = "trainer.") -> InputError:
    """Lightning's objection to one of its arguments as a sentence of ours; it names the argument in many ways.

    Args:
        arguments: what Lightning was given.
        error: its objection.
        prefix: what stands before the arguments' names for the user.
    """
    told = " ".join(str(error).split()).removesuffix(".")
    named = [key for key in arguments if re.search(rf"`{key}\b", told)]
    named += [key for key in arguments if re.search(rf"\b{key}\b", told, re.IGNORECASE)]
    if not named:
        return InputError(f"Expected `{prefix}*` to be arguments that Lightning takes but got: {told}.")
    shown = repr(arguments[named[0]])
    return InputError(f"Expected `{prefix}{named[0]}` to be one that Lightning takes here but got {shown}: {told}.")


def check_processes(engine: Engine, processes: int, devices: Any) -> None:
    """One device per process; several processes belong to the engine, or to Lightning's strategy under torchrun.

    Args:
        engine: where clients run.
        processes: that Lightning's strategy spans.
        devices: as given to the trainer.

    Raises:
        InputError: they do not go together.
    """
    process = ProcessEnvironment.here()
    if isinstance(engine, ProcessGroup) or not process.launched or process.world == 1:
        expect(processes == 1, "trainer.devices", "one device, which all clients of a process share,", devices)
        return
    given = f"{type(engine).__name__} with a strategy of {processes} processes"
    what = f"ProcessGroup, or the strategy to be one of {process.world} processes, as torchrun started,"
    expect(processes == process.world, "trainer.engine", what, given)
