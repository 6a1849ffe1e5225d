"""Starts ``flgraph`` many times without importing anything anew.

Each run is a process of its own, forked from this one, that can be killed like any other. A line of JSON in is an order
to start one, answered by its process id, or to wait for one, answered by its exit code.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.utils.tensorboard  # what a run imports by itself, for the first of them to be as quick as the others

from flgraph.cli.main import main
from flgraph.federation.engines.distributed import launcher

elastic_launch = launcher.elastic_launch


def forked(config: launcher.LaunchConfig, program: str) -> Callable[..., Any]:
    """As torch's launcher of a command that runs ``flgraph``, but its processes are forked from this one, too."""

    def run(*args: str) -> Any:
        assert program == sys.executable
        given = args[args.index("flgraph") + 1 :]
        return elastic_launch(replace(config, start_method="fork"), main)(given)

    return run


def begin(order: dict[str, Any]) -> None:
    """Runs ``flgraph`` in this process, to its end."""
    os.chdir(order["folder"])
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(order[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    if order["file_size"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["file_size"], resource.RLIM_INFINITY))
    main(order["args"])
    sys.exit()


def serve() -> None:
    """Obeys one order after another, until there are no more."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the shell had it ignored
    launcher.elastic_launch = forked  # type: ignore[assignment, misc]
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            answer = os.waitstatus_to_exitcode(os.waitpid(order["wait"], 0)[1])
        else:
            answer = os.fork()
            if answer == 0:
                begin(order)
        print(answer, flush=True)


if __name__ == "__main__":
    serve()
