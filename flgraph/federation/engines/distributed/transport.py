"""Messages between the processes of a federation, and signs of life."""

from __future__ import annotations

import atexit
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import PrefixStore, ProcessGroupGloo, Store
from torch.distributed.rendezvous import rendezvous

from flgraph.errors import EngineError
from flgraph.federation.engines.distributed.environment import Place

MEETING = timedelta(minutes=5)
"""How long processes wait for each other when they start."""

exit_code = 1
"""With which this process ends after a session that failed."""

_failed = False

_FOREVER = timedelta(days=3650)
"""For messages: how long a turn takes is nobody's business, and who is gone the watch sees."""

_TICK = 0.02


class Message:
    """A header that JSON can hold, and pieces of bytes.

    The bytes are one block: 8 of the header's length, the header, the pieces.
    """

    def __init__(self, header: Mapping[str, Any], pieces: Sequence[bytes] = ()) -> None:
        self.header, self.pieces = dict(header), list(pieces)

    def to_block(self) -> bytearray:
        """What travels."""
        head = json.dumps({"sizes": list(map(len, self.pieces)), "header": self.header}).encode()
        block = bytearray(len(head).to_bytes(8, "little"))
        block += head
        for piece in self.pieces:
            block += piece
        return block

    @classmethod
    def from_block(cls, block: memoryview) -> Message:
        """Reads what :meth:`to_block` wrote."""
        start = 8 + int.from_bytes(block[:8], "little")
        head = json.loads(bytes(block[8:start]))
        pieces = []
        for size in head["sizes"]:
            pieces.append(bytes(block[start : start + size]))
            start += size
        return cls(head["header"], pieces)


class Wire:
    """Sends messages between process 0 and the others.

    They go over gloo, from memory to memory of the hosts, whatever the clients compute on: payloads are bytes on the
    CPU, and NCCL would allow one process per GPU only. The process group is not torch's default one, so neither
    Lightning nor torchmetrics can take it for theirs.

    Use :meth:`here`: processes meet once, and the connection serves all runs that they then do one after another.

    Args:
        place: this process; there must be others.
    """

    _here: Wire | None = None

    @classmethod
    def here(cls, place: Place) -> Wire:
        """The wire of this process."""
        if cls._here is None:
            cls._here = cls(place)
        return cls._here

    def __init__(self, place: Place) -> None:
        self.place = place
        self._sessions = 0
        self._pending: dict[int, Callable[[], None]] = {}
        self.watch: Watch | None = None
        try:
            store, _, _ = next(rendezvous("env://", timeout=MEETING))
            self._store: Store = PrefixStore("flgraph", store)
            options = self._options()
            # Any: its type does not tell of all that it has.
            self._group: Any = ProcessGroupGloo(PrefixStore("gloo", self._store), place.rank, place.world, options)
        except RuntimeError as error:  # torch.distributed's errors are of this kind
            raise EngineError(
                f"The {place.world} processes of the federation did not meet: {_short(error)}."
            ) from error

    def _options(self) -> Any:
        kind: Any = ProcessGroupGloo
        options = kind._Options()
        options._timeout = MEETING
        if self.place.local_world == self.place.world:
            options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        else:
            options._devices = [ProcessGroupGloo.create_default_device()]
        return options

    @contextmanager
    def session(self, patience: float) -> Iterator[Watch]:
        """All processes enter it together, and watch each other inside.

        Args:
            patience: seconds without a sign of life after which a process is given up.
        """
        self._sessions += 1
        store = PrefixStore(f"session-{self._sessions}", self._store)
        self.watch = Watch(store, self.place, patience)
        self.watch.meet()
        try:
            yield self.watch
        except BaseException:
            global _failed
            _failed = True
            raise
        finally:
            self.watch.stop()
            self.watch = None

    @contextmanager
    def first_here(self) -> Iterator[bool]:
        """One process per machine enters before the others."""
        assert self.watch is not None
        first = self.place.local_rank == 0
        if not first:
            self.watch.wait_for_key(f"first/{self.place.machine}")
        yield first
        if first:
            self.watch.tell(f"first/{self.place.machine}")

    # ------------------------------------------------------------------------------------------------------ messages
    def post(self, messages: Mapping[int, Message]) -> None:
        """Begins to send messages to processes, and returns at once."""
        self.flush()
        self._pending = {rank: self._send(rank, message) for rank, message in messages.items()}

    def flush(self, seconds: float | None = None) -> None:
        """Waits until what was posted has been received.

        Args:
            seconds: how long at most.

        Raises:
            EngineError: a process is gone.
        """
        pending, self._pending = self._pending, {}
        self._each(pending, seconds)

    def collect(self, ranks: Sequence[int]) -> dict[int, Message]:
        """One message from each of these processes.

        Raises:
            EngineError: one of them is gone.
        """
        return self._each({rank: lambda rank=rank: self._receive(rank) for rank in ranks})  # type: ignore[misc]

    def _send(self, rank: int, message: Message) -> Callable[[], None]:
        block = torch.frombuffer(message.to_block(), dtype=torch.uint8)
        size = torch.tensor([block.numel()])
        works = [(tensor, self._group.send([tensor], rank, 0)) for tensor in (size, block)]

        def wait() -> None:
            for _, work in works:  # with its tensor, which must live until then
                work.wait(_FOREVER)

        return wait

    def _receive(self, rank: int) -> Message:
        size = torch.empty(1, dtype=torch.long)
        self._group.recv([size], rank, 0).wait(_FOREVER)
        block = torch.empty(int(size), dtype=torch.uint8)
        self._group.recv([block], rank, 0).wait(_FOREVER)
        return Message.from_block(memoryview(block.numpy().data))

    def _each(self, works: Mapping[int, Callable[[], Any]], seconds: float | None = None) -> dict[int, Any]:
        """Does blocking work with several processes at a time, in threads: who waits must hear of other failures."""
        assert self.watch is not None
        done: dict[int, Any] = {}
        failed: dict[int, BaseException] = {}

        def do(rank: int, work: Callable[[], Any]) -> None:
            try:
                done[rank] = work()
            except RuntimeError as error:
                failed[rank] = error

        threads = [threading.Thread(target=do, args=item, daemon=True) for item in works.items()]
        for thread in threads:
            thread.start()
        deadline = math.inf if seconds is None else time.monotonic() + seconds
        for thread in threads:
            while thread.is_alive() and not failed and time.monotonic() < deadline:
                thread.join(0.1)
                self.watch.check()
            if failed:
                rank, error = next(iter(failed.items()))
                time.sleep(2 * _TICK)  # who left with a word has said it by now
                self.watch.check()
                raise EngineError(f"{self.watch.call(rank)} is gone{self.watch.doing()}") from error
        return done


class Watch:
    """Notices when a process has died or hangs.

    A thread of every process leaves a sign of life in the store that torchrun keeps, and looks for those of the others:
    process 0 for all, the others for that of process 0. It also notices when its own process stands still: when it is
    in a client's turn and uses no processor time. A turn that computes may take as long as it likes.

    Args:
        store: of this session.
        place: this process.
        patience: seconds without a sign after which a process is given up.
    """

    def __init__(self, store: Store, place: Place, patience: float) -> None:
        self.place, self.patience = place, patience
        self.call: Callable[[int], str] = lambda rank: f"Process {rank}"
        """How a process is called in a sentence."""
        self.turn = ""
        """What this process is doing for a client, empty where it waits or does something else."""
        self.doing: Callable[[], str] = lambda: ""
        """The end of a sentence that says when it was."""
        self.failure = ""
        self._store, self._ended = store, threading.Event()
        self._told = threading.Event()
        self._others = [rank for rank in range(place.world) if rank != place.rank] if place.rank == 0 else [0]
        self._thread = threading.Thread(target=self._look, daemon=True)

    def meet(self) -> None:
        """Waits until all processes are there, and begins to watch.

        Raises:
            EngineError: some do not come.
        """
        self._beat(0)
        deadline = time.monotonic() + MEETING.total_seconds()
        while not self._store.check([f"beat/{rank}" for rank in self._others]):
            if time.monotonic() > deadline:
                raise EngineError(f"Not all of the {self.place.world} processes of the federation came")
            time.sleep(_TICK)
        self._thread.start()

    def stop(self) -> None:
        """Ends the watch."""
        self._ended.set()

    def check(self) -> None:
        """Raises EngineError if a process is gone."""
        if self.failure:
            self._told.set()
            raise EngineError(self.failure)

    def tell(self, key: str) -> None:
        """Sets a sign for :meth:`wait_for_key`."""
        self._store.set(key, "")

    def wait_for_key(self, key: str) -> None:
        """Waits until another process has called :meth:`tell`."""
        while not self._store.check([key]):
            self.check()
            time.sleep(_TICK)

    # -------------------------------------------------------------------------------------------------- in the thread
    def _beat(self, number: int) -> None:
        self._store.set(f"beat/{self.place.rank}", str(number))

    def _look(self) -> None:
        seen: dict[int, tuple[bytes, float]] = {}
        own = ("", 0.0, time.monotonic())  # turn, processor time, when that last rose
        number = 0
        while not self._ended.wait(min(2.0, self.patience / 10)):
            number += 1
            try:
                self._beat(number)
                failure = self._store.get("failed").decode() if self._store.check(["failed"]) else ""
                beats = self._store.multi_get([f"beat/{rank}" for rank in self._others])
            except RuntimeError:  # the store is gone with who kept it
                failure, beats = "The process that started the others is gone", []
            now = time.monotonic()
            for rank, beat in zip(self._others, beats, strict=False):
                if rank not in seen or seen[rank][0] != beat:
                    seen[rank] = beat, now
                elif now - seen[rank][1] > self.patience:
                    failure = failure or self._silent(rank)
            turn, used = self.turn, time.process_time()
            if not turn or turn != own[0] or used - own[1] > 0.01 * self.patience:
                own = turn, used, now
            elif now - own[2] > self.patience:
                failure = failure or f"{self.call(self.place.rank)} stands still {turn}"
            if failure and not self._ended.is_set():
                self._fail(failure)
                return

    def _silent(self, rank: int) -> str:
        return f"{self.call(rank)} gave no sign of life for {self.patience:.0f} s{self.doing()}"

    def _fail(self, failure: str) -> None:
        self.failure = failure
        with suppress(RuntimeError):  # the store may be what failed
            if not self._store.check(["failed"]):
                self._store.set("failed", failure)
        # The main thread tells; not where it is what stands still.
        if not self._told.wait(5) and not self._ended.is_set():
            if self.place.rank == 0:
                print(f"flgraph: error: {failure}.", file=sys.stderr, flush=True)
            os._exit(1)


@atexit.register
def _leave() -> None:
    """Ends the process at once after a failure: threads that wait for others that are gone would abort it."""
    if _failed:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)


def _short(error: BaseException) -> str:
    return " ".join(str(error).split()).removesuffix(".")[:300]
