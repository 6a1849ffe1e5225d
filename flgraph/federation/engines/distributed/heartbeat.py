"""Signs of life between the processes of a federation."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

from torch.distributed import Store

from flgraph.errors import EngineError
from flgraph.federation.engines.distributed.environment import ProcessEnvironment

MEETING = timedelta(minutes=5)
"""How long processes wait for each other when they start."""

TICK = 0.02
"""Seconds between two looks into the store."""


class Heartbeat:
    """Notices when a process has died or hangs.

    A thread of every process leaves a sign of life in the store that torchrun keeps, and looks for those of the others:
    process 0 for all, the others for that of process 0. It also notices when its own process stands still: when it is
    in a client's turn and uses no processor time. A turn that computes may take as long as it likes.

    Args:
        store: of this session.
        process: this process.
        timeout: seconds without a sign after which a process is given up.
    """

    def __init__(self, store: Store, process: ProcessEnvironment, timeout: float) -> None:
        self.process, self.timeout = process, timeout
        self.name: Callable[[int], str] = lambda rank: f"Process {rank}"
        """How a process is called in a sentence."""
        self.when: Callable[[], str] = lambda: ""
        """The end of a sentence that says when something happened."""
        self.failure = ""
        self._turn = ""  # what this process is doing for a client
        self._store, self._ended, self._raised = store, threading.Event(), threading.Event()
        self._watched = [rank for rank in range(process.world) if rank != process.rank] if process.rank == 0 else [0]
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def start(self) -> None:
        """Waits until all processes are there, and begins to watch them.

        Raises:
            EngineError: some do not come.
        """
        self._beat(0)
        deadline = time.monotonic() + MEETING.total_seconds()
        while not self._store.check([f"beat/{rank}" for rank in self._watched]):
            if time.monotonic() > deadline:
                raise EngineError(f"Not all of the {self.process.world} processes of the federation came")
            time.sleep(TICK)
        self._thread.start()

    def stop(self) -> None:
        """Ends the watch."""
        self._ended.set()

    def check(self) -> None:
        """Raises EngineError if a process is gone."""
        if self.failure:
            self._raised.set()
            raise EngineError(self.failure)

    @contextmanager
    def during(self, turn: str) -> Iterator[None]:
        """Inside, this process works on a client's turn; ``turn`` is the end of a sentence about it."""
        self._turn = turn
        try:
            yield
        finally:
            self._turn = ""

    def set(self, key: str) -> None:
        """Sets a key for :meth:`wait_for`."""
        self._store.set(key, "")

    def wait_for(self, key: str) -> None:
        """Waits until another process has set a key."""
        while not self._store.check([key]):
            self.check()
            time.sleep(TICK)

    # -------------------------------------------------------------------------------------------------- in the thread
    def _beat(self, number: int) -> None:
        self._store.set(f"beat/{self.process.rank}", str(number))

    def _watch(self) -> None:
        seen: dict[int, tuple[bytes, float]] = {}
        last = ("", 0.0, time.monotonic())  # turn, processor time, when that last rose
        number = 0
        while not self._ended.wait(min(2.0, self.timeout / 10)):
            number += 1
            try:
                self._beat(number)
                failure = self._store.get("failed").decode() if self._store.check(["failed"]) else ""
                beats = self._store.multi_get([f"beat/{rank}" for rank in self._watched])
            except RuntimeError:  # the store is gone with who kept it
                failure, beats = "The process that started the others is gone", []
            now = time.monotonic()
            for rank, beat in zip(self._watched, beats, strict=False):
                if rank not in seen or seen[rank][0] != beat:
                    seen[rank] = beat, now
                elif now - seen[rank][1] > self.timeout:
                    silent = f"{self.name(rank)} gave no sign of life for {self.timeout:.0f} s{self.when()}"
                    failure = failure or silent
            turn, used = self._turn, time.process_time()
            if not turn or turn != last[0] or used - last[1] > 0.01 * self.timeout:
                last = turn, used, now
            elif now - last[2] > self.timeout:
                failure = failure or f"{self.name(self.process.rank)} stands still {turn}"
            if failure and not self._ended.is_set():
                self._fail(failure)
                return

    def _fail(self, failure: str) -> None:
        self.failure = failure
        with suppress(RuntimeError):  # the store may be what failed
            if not self._store.check(["failed"]):
                self._store.set("failed", failure)
        # The main thread raises it; not where it is what stands still.
        if not self._raised.wait(5) and not self._ended.is_set():
            if self.process.rank == 0:
                print(f"flgraph: error: {failure}.", file=sys.stderr, flush=True)
            os._exit(1)
