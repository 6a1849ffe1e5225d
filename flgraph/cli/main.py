"""The command line: what ``flgraph`` and ``python -m flgraph`` run."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from flgraph import __version__
from flgraph.cli.exits import ENDINGS, FAILED, ending_of, exit_with
from flgraph.errors import InputError
from flgraph.importing import without_collections

TRAINING = {
    "fit": "train a federation",
    "validate": "measure a checkpoint on validation data",
    "test": "measure a checkpoint on test data",
    "predict": "write what models say of every graph, node or link",
}
"""Commands of one parser, that of :mod:`flgraph.cli.fit`, which needs seconds for torch and Lightning."""
OTHERS = {
    "new": "write a small project that runs, with tables to be replaced",
    "data": "say what is in own files, before anything trains",
    "report": "compare runs on one page, as figures and tables",
    "reproduce": "run a paper's table",
    "ledger": "show and check what crossed in a run",
    "flare": "run a federation between organisations",
}
"""Commands with parsers of their own: they take no model and no data."""

SPINS = "1000"
"""How often a waiting thread of GNU's OpenMP, which PyTorch's wheels for Linux have, looks whether there is work before
it sleeps: what OpenMP itself takes where there are more threads than processors. Otherwise it takes three hundred times
as many, and a step takes many times as long where other processes want the processors, too, of which it knows nothing
(``benchmarks/shared_machine.py``)."""


_UNWRITTEN = {
    errno.EPIPE: "whoever read the output has left.",  # as `head` does when it has its lines
    errno.ENOSPC: "no space is left for the output.",  # of a run's own files another sentence says so
}


def main(args: Sequence[str] | None = None) -> None:
    """Entry point of ``flgraph`` and ``python -m flgraph``; its exit codes are 0 and those of :mod:`flgraph.cli.exits`.

    Args:
        args: the command line; that of the process when ``None``.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)  # read when PyTorch is imported, which comes later
    keep_memory()
    given = list(sys.argv[1:] if args is None else args)
    sys.argv = [sys.argv[0]]  # LightningCLI warns of arguments given twice
    _see_current_folder()
    warnings.formatwarning = lambda message, *_: f"flgraph: warning: {message}\n"  # without a line of somebody's code
    try:
        _run(given)
        sys.stdout.flush()
    except OSError as error:
        if error.errno not in _UNWRITTEN:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python says it again at its end
        exit_with(_UNWRITTEN[error.errno], FAILED)
    except ENDINGS as error:
        exit_with(*ending_of(error))


def keep_memory() -> None:
    """Keeps up to half a gigabyte that is free for what comes next, instead of giving it back and asking again.

    Otherwise GNU's C library gives memory back whenever a batch is done, and a round of FedStar on CHEM meets 50,000
    pages that the system clears first, in a tenth of its processor time. Who sets ``MALLOC_TRIM_THRESHOLD_`` decides
    otherwise.
    """
    if sys.platform != "linux" or "MALLOC_TRIM_THRESHOLD_" in os.environ:
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # which other C libraries have not
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 2**25)
        mallopt(_TRIM_THRESHOLD, 2**29)


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # in malloc.h


def _run(given: list[str]) -> None:
    match given:
        case ["--version", *_]:
            _show(f"flgraph {__version__}")
        case ["-h" | "--help", *_]:
            _show(_overview())
        case [command, *rest] if command in OTHERS:
            import_module(f"flgraph.cli.{command}").main(rest)
        case [command, *rest] if command in TRAINING:
            _train(command, rest)
        case _:
            from flgraph.cli.parser import suggestion

            names = [*TRAINING, *OTHERS]
            got = f"{given[0][:60]!r}{suggestion(given[0], names)}" if given else "none"
            raise InputError("command", f"one of {', '.join(names)}", got)


def _train(command: str, args: list[str]) -> None:
    from flgraph.cli.arguments import with_data_first, with_packaged_configs
    from flgraph.cli.help import help_of
    from flgraph.cli.typos import check

    if (text := help_of(command, args)) is not None:
        _show(text)
    own = check(command, with_data_first(with_packaged_configs([command, *args]))[1:])
    with without_collections():
        fit = import_module("flgraph.cli.fit")
    fit.main([command, *args], own)


def _show(text: str) -> NoReturn:
    """Ends as parsers do that were asked for help."""
    try:
        print(text, flush=True)
    except BrokenPipeError:  # as `flgraph --help | head` closes it; Python would try again when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(0)


def _overview() -> str:
    """Help for all commands."""
    lines = [
        "usage: flgraph COMMAND ...",
        "",
        "Federated learning on graphs, with PyTorch Lightning and PyTorch Geometric.",
    ]
    for title, commands in (("training", TRAINING), ("around it", OTHERS)):
        lines += ["", f"{title}:", *(f"    {name:<10} {what}" for name, what in commands.items())]
    example = "flgraph fit -c configs/data/chem.yaml -c configs/method/fedstar.yaml"
    return "\n".join(
        [*lines, "", "flgraph COMMAND --help says more; flgraph --version which one this is.", f"    {example}"]
    )


def _see_current_folder() -> None:
    """Lets classes of the current folder be named, as under ``python -m``; what is installed comes first."""
    here = os.getcwd()
    if not sys.flags.safe_path and not {"", here} & set(sys.path):
        sys.path.append(here)
