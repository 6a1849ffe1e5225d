"""How a command ends: with one sentence on standard error and an exit code."""

from __future__ import annotations

import sys
from typing import NoReturn

from flgraph.errors import EngineError, InputError

FAILED, REFUSED, INTERRUPTED = 1, 2, 130
"""A client's turn failed or a process is gone; something the user gave cannot be used; interrupted."""

ENDINGS = (InputError, EngineError, KeyboardInterrupt)
"""What ends a command with a sentence; everything else is a mistake in the program and ends it with a traceback."""


def ending_of(error: BaseException) -> tuple[str, int]:
    """The sentence, on one line, and the exit code with which one of :data:`ENDINGS` ends a command."""
    if isinstance(error, KeyboardInterrupt):
        return stopped("interrupted", error), INTERRUPTED
    if isinstance(error, InputError):
        return " ".join(str(error).split()), REFUSED
    text = "; ".join([str(error).removesuffix("."), *getattr(error, "__notes__", [])])
    return f"{' '.join(text.split())}.", FAILED


def stopped(how: str, error: BaseException) -> str:
    """The sentence for a run that was asked to stop, and on a line of its own the command that goes on with it."""
    return "\n".join([f"{how}; continue with:" if (notes := getattr(error, "__notes__", [])) else f"{how}.", *notes])


def exit_with(message: str, code: int) -> NoReturn:
    """Prints one line to standard error and exits."""
    print(f"flgraph: error: {message}", file=sys.stderr)
    raise SystemExit(code)
