"""The command line: what ``flgraph`` and ``python -m flgraph`` run."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from flgraph.cli.exits import ENDINGS, ending_of, exit_with

OTHERS = ("data", "flare", "ledger", "new", "report", "reproduce")
"""Commands with parsers of their own: they take no model and no data, and need not wait seconds for Lightning."""


SPINS = "3000"
"""How often a waiting thread of GNU's OpenMP, which PyTorch's wheels for Linux have, looks whether there is work before
it sleeps: some 50 microseconds, as long as an operation waits for the next. OpenMP's own choice is a hundred times as
many, with which a step takes many times as long where another process wants the processor, too
(``benchmarks/shared_machine.py``)."""


def main(args: Sequence[str] | None = None) -> None:
    """Entry point of ``flgraph`` and ``python -m flgraph``; its exit codes are 0 and those of :mod:`flgraph.cli.exits`.

    Args:
        args: the command line; that of the process when ``None``.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)  # read when PyTorch is imported, which comes later
    given = list(sys.argv[1:] if args is None else args)
    sys.argv = [sys.argv[0]]  # LightningCLI warns of arguments given twice
    command = given.pop(0) if given and given[0] in OTHERS else "fit"
    try:
        import_module(f"flgraph.cli.{command}").main(given)
    except ENDINGS as error:
        exit_with(*ending_of(error))
