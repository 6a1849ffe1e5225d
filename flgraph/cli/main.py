"""The command line: what ``flgraph`` and ``python -m flgraph`` run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NoReturn

from flgraph.errors import EngineError, InputError

OTHERS = ("flare", "report", "reproduce")
"""Commands with parsers of their own: they take no model and no data."""


def main(args: Sequence[str] | None = None) -> None:
    """Entry point of ``flgraph`` and ``python -m flgraph``.

    Exit codes: 0 done; 1 a client's turn failed, or a process is gone; 2 something the user gave cannot be used; 130
    interrupted.
    """
    given = list(sys.argv[1:] if args is None else args)
    sys.argv = [sys.argv[0]]  # LightningCLI warns of arguments in two places
    end: Callable[[str, int], NoReturn] = exit_with
    try:
        if given and given[0] in OTHERS:  # one needs an extra, one locks, and one need not wait seconds for Lightning
            import_module(f"flgraph.cli.{given[0]}").main(given[1:])
            return
        from flgraph.cli import fit

        end = fit.exit_with
        fit.run(given)
    except InputError as error:
        end(str(error), 2)
    except EngineError as error:
        end("; ".join([str(error).removesuffix("."), *getattr(error, "__notes__", [])]) + ".", 1)
    except KeyboardInterrupt:
        end("interrupted.", 130)


def exit_with(message: str, code: int) -> NoReturn:
    """Prints one line to standard error and exits."""
    print(f"flgraph: error: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(code)
