"""Clients on all cores of this machine, in processes that begin as copies of this one."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from typing import Any

import torch

from flgraph.errors import EngineError
from flgraph.federation.client import Client
from flgraph.federation.engines.distributed.engine import ProcessGroup, num_cores
from flgraph.federation.engines.distributed.environment import ProcessEnvironment
from flgraph.federation.engines.distributed.transport import Pipes


class Forked(ProcessGroup):
    """What ``flgraph fit`` takes if nothing else is asked for: processes of one thread, as many as cores or clients.

    They are forked when the data is there and the clients are not: it is in memory once, nothing is imported again, and
    there is no thread yet that a copy would lack. Results are the same bits as those of :class:`Sequential` with one
    thread, on any number of cores. Where there are more than two cores per client, where other threads of Python run,
    and on a machine with an NVIDIA GPU, clients stay in this process, with its threads.

    It serves one session: whatever holds the clients ends with it.
    """

    launched = False

    def __init__(self) -> None:
        super().__init__()
        self._processes: list[ForkProcess] = []
        self._threads = 1  # of this process, where it has all clients

    def lightning(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return dict(arguments)

    @contextmanager
    def session(self) -> Iterator[None]:
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)  # a copy of a process with threads of OpenMP that used some would wait forever
        try:
            yield
        finally:
            for process in self._processes:
                process.kill()  # it has nothing that is still needed
                process.join()
            self._processes, self._transport = [], None
            torch.set_num_threads(self._threads)

    def setup(
        self, build: Callable[[str], Client], names: Sequence[str], release: Callable[[str], None] | None = None
    ) -> None:
        cores = num_cores()
        alone = len(names) < 2 or 2 * len(names) < cores
        alone = alone or threading.active_count() > 1  # one may hold a lock
        alone = alone or torch.cuda.is_available()  # CUDA that was asked anything fails in a forked process
        count = 1 if alone else min(cores, len(names))
        ends: dict[int, Connection] = {}
        for rank in range(1, count):
            ends[rank], other = get_context("fork").Pipe()
            arguments = (
                rank,
                count,
                other,
                list(ends.values()),
                lambda: super(Forked, self).setup(build, names, release),
            )
            process = get_context("fork").Process(target=self._serve, args=arguments)
            process.start()
            other.close()
            self._processes.append(process)
        self.process = ProcessEnvironment(0, count, 0, count)
        self._transport = Pipes(ends, self._gone) if ends else None
        torch.set_num_threads(self._threads if alone else 1)
        super().setup(build, names, release)

    def _serve(
        self, rank: int, count: int, end: Connection, others: Sequence[Connection], prepare: Callable[[], None]
    ) -> None:
        """What a copy does, until the first process ends it, or is gone."""
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(signum, signal.SIG_IGN)  # the first process decides what becomes of them
        for other in others:
            other.close()
        self._processes = []
        self.process = ProcessEnvironment(rank, count, rank, count)
        self._transport = Pipes({0: end}, lambda rank: "Process 0 is gone")
        try:
            self.serve(prepare)
        except EngineError:
            os._exit(1)

    def serve(self, prepare: Callable[[], None] | None = None) -> None:
        def ready() -> None:
            assert prepare is not None
            prepare()
            gc.collect()
            gc.freeze()  # libraries and idle clients are many, and they stay

        super().serve(ready)

    def _gone(self, rank: int) -> str:
        process = self._processes[rank - 1]
        process.join(1)
        code = process.exitcode
        how = f"was ended by {signal.Signals(-code).name}" if code is not None and code < 0 else "ended"
        return f"{self._name(rank)} {how}{self._when()}"
