"""Starts ``flgraph`` many times without importing torch anew: a line of JSON in, its process id and exit code out.

Each run is a process of its own, forked from this one, that can be killed like any other.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys

import torch
import torch.utils.tensorboard  # what a run imports by itself, for the first of them to be as quick as the others

from flgraph.cli.main import main


def serve() -> None:
    """Runs one line after another, until there are no more."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the shell had it ignored
    for line in sys.stdin:
        run = json.loads(line)
        process = os.fork()
        if process == 0:
            for descriptor, name in ((1, "stdout"), (2, "stderr")):
                os.dup2(os.open(run[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
            if run["file_size"]:
                resource.setrlimit(resource.RLIMIT_FSIZE, (run["file_size"], resource.RLIM_INFINITY))
            main(run["args"])
            sys.exit()
        print(process, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)


if __name__ == "__main__":
    serve()
