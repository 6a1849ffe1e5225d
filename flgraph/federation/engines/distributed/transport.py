"""Messages between the processes of a federation."""

from __future__ import annotations

import atexit
import errno
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from torch.distributed import PrefixStore, ProcessGroupGloo, Store, TCPStore
from torch.distributed.rendezvous import rendezvous

from flgraph.errors import EngineError
from flgraph.federation.engines.distributed.environment import ProcessEnvironment
from flgraph.federation.engines.distributed.heartbeat import MEETING, TICK, Heartbeat
from flgraph.federation.engines.host import Message

exit_code = 1
"""With which this process ends after a session that failed."""

LOOPBACK = "127.0.0.1"

_failed = False

_FOREVER = timedelta(days=3650)
"""For messages: how long a turn takes is nobody's business, and the heartbeat notices who is gone."""


class Transport:
    """Sends messages between process 0 and the others.

    They go over gloo, from memory to memory of the hosts, whatever the clients compute on: payloads are bytes on the
    CPU, and NCCL would allow one process per GPU only. The process group is not torch's default one, so neither
    Lightning nor torchmetrics can take it for theirs.

    Use :meth:`here`: processes meet once, and the connection serves all runs that they then do one after another.

    Args:
        process: this process; there must be others.
    """

    _here: Transport | None = None

    @classmethod
    def here(cls, process: ProcessEnvironment) -> Transport:
        """The transport of this process."""
        if cls._here is None:
            cls._here = cls(process)
        return cls._here

    def __init__(self, process: ProcessEnvironment) -> None:
        self.process = process
        self.heartbeat: Heartbeat | None = None
        self._sessions = 0
        self._pending: dict[int, Callable[[], None]] = {}
        try:
            self._store: Store = PrefixStore("flgraph", _meet(process))
            gloo: Any = ProcessGroupGloo  # Any: its type does not tell of all that it has
            options = gloo._Options()
            options._timeout = MEETING
            device = gloo.create_device(hostname=LOOPBACK) if process.one_machine else gloo.create_default_device()
            options._devices = [device]
            self._group = gloo(PrefixStore("gloo", self._store), process.rank, process.world, options)
        except (RuntimeError, OSError) as error:  # torch.distributed's errors are of the first kind
            short = " ".join(str(error).split()).removesuffix(".")[:300]
            raise EngineError(f"The {process.world} processes of the federation did not meet: {short}.") from error

    @contextmanager
    def session(self, timeout: float) -> Iterator[Heartbeat]:
        """All processes enter it together, and watch each other inside.

        Args:
            timeout: seconds without a sign of life after which a process is given up.
        """
        self._sessions += 1
        store = PrefixStore(f"session-{self._sessions}", self._store)
        self.heartbeat = Heartbeat(store, self.process, timeout)
        self.heartbeat.start()
        try:
            yield self.heartbeat
        except BaseException:
            global _failed
            _failed = True
            raise
        finally:
            self.heartbeat.stop()
            self.heartbeat = None

    # ------------------------------------------------------------------------------------------------------ messages
    def send(self, messages: Mapping[int, Message]) -> None:
        """Begins to send messages to processes, and returns at once."""
        self.flush()
        self._pending = {rank: self._send(rank, message) for rank, message in messages.items()}

    def flush(self, seconds: float | None = None) -> None:
        """Waits until what was sent has been received.

        Args:
            seconds: how long at most.

        Raises:
            EngineError: a process is gone.
        """
        pending, self._pending = self._pending, {}
        self._each(pending, seconds)

    def receive(self, ranks: Sequence[int]) -> dict[int, Message]:
        """One message from each of these processes, once they have received theirs.

        Raises:
            EngineError: one of them is gone.
        """
        received = self._each({rank: lambda rank=rank: self._receive(rank) for rank in ranks})  # type: ignore[misc]
        self.flush()
        return received

    def _send(self, rank: int, message: Message) -> Callable[[], None]:
        block = torch.frombuffer(message.to_bytes(), dtype=torch.uint8)
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
        return Message.from_bytes(block.numpy().data)

    def _each(self, works: Mapping[int, Callable[[], Any]], seconds: float | None = None) -> dict[int, Any]:
        """Does blocking work with several processes at a time, in threads: who waits must hear of other failures."""
        assert self.heartbeat is not None
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
                self.heartbeat.check()
            if failed:
                rank, error = next(iter(failed.items()))
                time.sleep(2 * TICK)  # who left with a word has said it by now
                self.heartbeat.check()
                raise EngineError(f"{self.heartbeat.name(rank)} is gone{self.heartbeat.when()}") from error
        return done


class Pipes:
    """Messages to processes and from them, as :class:`Transport` has them, between a process and those forked from it.

    Args:
        ends: of pipes, by the number of the process at the other one.
        gone: the beginning of a sentence that says that a process is.
    """

    heartbeat = None

    def __init__(self, ends: Mapping[int, Connection], gone: Callable[[int], str]) -> None:
        self._ends, self._gone = ends, gone

    def send(self, messages: Mapping[int, Message]) -> None:
        """Sends messages to processes; raises EngineError if one is gone."""
        for rank, message in messages.items():
            with self._expected(rank):
                self._ends[rank].send_bytes(message.to_bytes())

    def receive(self, ranks: Sequence[int]) -> dict[int, Message]:
        """One message from each of these processes; raises EngineError if one is gone."""
        found: dict[int, Message] = {}
        while missing := {self._ends[rank]: rank for rank in ranks if rank not in found}:
            for end in wait(list(missing)):
                rank = missing[end]  # type: ignore[index]
                with self._expected(rank):
                    found[rank] = Message.from_bytes(self._ends[rank].recv_bytes())
        return {rank: found[rank] for rank in ranks}

    @contextmanager
    def _expected(self, rank: int) -> Iterator[None]:
        try:
            yield
        except (EOFError, OSError) as error:
            raise EngineError(f"{self._gone(rank)}.") from error


def _meet(process: ProcessEnvironment) -> Store:
    """The store in which processes find each other: torchrun's, or one of process 0 that listens where it must only."""
    address, port = (LOOPBACK if process.one_machine else os.environ.get("MASTER_ADDR")), os.environ.get("MASTER_PORT")
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" or not address or not port:
        store: Store = next(rendezvous("env://", timeout=MEETING))[0]
        return store
    if process.rank:
        return TCPStore(address, int(port), process.world, timeout=MEETING)
    return listening_store(address, int(port), process.world)


def listening_store(address: str, port: int = 0, world: int = 1) -> TCPStore:
    """A store that listens on one address, not on all of the machine as torch's does of itself.

    Args:
        address: where it listens, if this machine can (behind a translation of addresses it cannot); else on all.
        port: a free one when 0.
        world: how many processes it is for.

    Raises:
        OSError: the port is taken.
    """
    family, *_, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, socket.SOCK_STREAM) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(place)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            listening.bind(("", port))
        listening.listen(socket.SOMAXCONN)
        port = listening.getsockname()[1]
        further: dict[str, Any] = {"timeout": MEETING, "wait_for_workers": False, "multi_tenant": True}
        return TCPStore(address, port, world, is_master=True, master_listen_fd=listening.detach(), **further)


@atexit.register
def _leave() -> None:
    """Ends the process at once after a failure: threads that wait for others that are gone would abort it."""
    if _failed:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)
