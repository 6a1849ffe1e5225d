"""Starts ``flgraph``, or a script, many times without importing anything anew.

Each run is a process of its own, forked from this one, that can be killed like any other. A line of JSON in is an order
to start one, answered by its process id, or to wait for one, answered by its exit code.
"""

from __future__ import annotations

import json
import os
import resource
import runpy
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from flgraph.cli.main import main
from flgraph.importing import without_collections

with without_collections():
    import sklearn.model_selection  # noqa: F401 - what a run imports by itself, as the next three, for it to be quick
    import torch
    import torch.utils.tensorboard

    import flgraph.cli.fit  # noqa: F401
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
    """Runs ``flgraph``, or the script that is the first argument, in this process to its end."""
    os.chdir(order["folder"])
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(order[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    if order["file_size"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["file_size"], resource.RLIM_INFINITY))
    script, *args = order["args"]
    if script.endswith(".py"):
        sys.path.insert(0, os.path.dirname(script))
        sys.argv = [script, *args]
        runpy.run_path(script, run_name="__main__")
    else:
        main(order["args"])
    sys.exit()


def serve() -> None:
    """Obeys one order after another, until there are no more."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the shell had it ignored
    launcher.elastic_launch = forked  # type: ignore[assignment, misc]
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
