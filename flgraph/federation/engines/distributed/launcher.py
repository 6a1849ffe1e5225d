"""Starting the processes of a :class:`ProcessGroup` on this machine, with torch's elastic launcher."""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from flgraph.federation.engines.distributed.engine import num_cores
from flgraph.federation.engines.distributed.transport import LOOPBACK, listening_store

LAST_WORDS = "FLGRAPH_LAST_WORDS"
"""Variable with the folder where processes leave the sentence with which they end, for the one that started them."""

_BACKEND = "flgraph"
"""Under which torch's launcher knows :class:`_OneMachine`."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_GRACE = 5
"""Seconds that a process has to end when it is asked to."""


def launch(command: Sequence[str], processes: int | None) -> int:
    """Runs ``command`` in several processes, as ``torchrun --standalone`` would, and waits for them.

    When one of them ends by an error or a signal, the others are ended. Their output goes where this process's goes.

    Args:
        command: program and arguments; each process learns from torchrun's variables which one it is.
        processes: how many; one per GPU, else one per core, when ``None``.

    Returns:
        The exit code of what ended first, that of process 0 if it had a say; one sentence went to standard error.
    """
    processes = processes or torch.cuda.device_count() or num_cores()
    with tempfile.TemporaryDirectory(prefix="flgraph-launch-") as folder, _restored():
        os.environ |= {LAST_WORDS: folder, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(_GRACE)}
        rendezvous_handler_registry.register(_BACKEND, _OneMachine)
        logging.disable(logging.CRITICAL)  # what the launcher has to say is said below
        try:
            elastic_launch(_config(processes, folder), command[0])(*command[1:])
            return 0
        except ChildFailedError as error:
            return _explain(Path(folder), {rank: failure.exitcode for rank, failure in error.failures.items()})
        except SignalException as error:
            words = _words(Path(folder))
            if words or error.sigval == signal.SIGINT:
                print(f"flgraph: error: {words.get(0, (0, 'interrupted.'))[1]}", file=sys.stderr)
            return 128 + error.sigval


class _OneMachine(RendezvousHandler):
    """Where this launcher and its processes find each other: a store that no other machine can reach.

    Those of torch listen on all addresses of the machine.

    Args:
        parameters: of the launch.
    """

    def __init__(self, parameters: RendezvousParameters) -> None:
        self._run, self._store, self._closed = parameters.run_id, listening_store(LOOPBACK), False

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        return RendezvousInfo(self._store, 0, 1, RendezvousStoreInfo(LOOPBACK, self._store.port))

    def get_backend(self) -> str:
        return _BACKEND

    def get_run_id(self) -> str:
        return self._run

    def is_closed(self) -> bool:
        return self._closed

    def set_closed(self) -> None:
        self._closed = True

    def num_nodes_waiting(self) -> int:
        return 0

    def shutdown(self) -> bool:
        self._closed = True
        return True


@contextmanager
def _restored() -> Iterator[None]:
    """Undoes what the launcher leaves behind: variables, signal handlers, and that it may not log."""
    environment, disabled = dict(os.environ), logging.root.manager.disable
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(environment)
        logging.disable(disabled)
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def say(sentence: str, code: int) -> bool:
    """Leaves the sentence with which this process ends to the process that started it; False if none did."""
    folder, rank = os.environ.get(LAST_WORDS), os.environ.get("RANK")
    if folder is None or rank is None:
        return False
    with suppress(OSError):  # the folder is gone with who would have read it
        (Path(folder) / f"{rank}.txt").write_text(f"{code} {sentence}")
    return True


def _config(processes: int, folder: str) -> LaunchConfig:
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=str(uuid.uuid4()),
        rdzv_backend=_BACKEND,
        rdzv_endpoint=f"{LOOPBACK}:0",
        local_addr=LOOPBACK,
        max_restarts=0,
        monitor_interval=0.1,
        logs_specs=DefaultLogsSpecs(log_dir=folder),
    )


def _words(folder: Path) -> dict[int, tuple[int, str]]:
    """Of each process that left a sentence: its exit code, and the sentence."""
    texts = {int(file.stem): file.read_text().partition(" ") for file in folder.glob("*.txt") if file.stem.isdigit()}
    return {rank: (int(code), sentence) for rank, (code, _, sentence) in texts.items()}


def _explain(folder: Path, codes: Mapping[int, int]) -> int:
    """Prints one sentence: process 0's, or another one's, or how one ended that left none."""
    # Those that were ended because another one was gone have SIGTERM's code, and tell of that only.
    words = {rank: told for rank, told in _words(folder).items() if told[0] != 128 + signal.SIGTERM}
    if words:
        number, sentence = words[min(words)]
        print(f"flgraph: error: {sentence}", file=sys.stderr)
        return number
    rank, code = min(codes.items(), key=lambda item: (item[1] in (-signal.SIGTERM, 128 + signal.SIGTERM), item[0]))
    if code < 0:
        how = f"was ended by {signal.Signals(-code).name}; continue with --ckpt_path last if there is a checkpoint"
        print(f"flgraph: error: Process {rank} {how}.", file=sys.stderr)
        return 1
    return code
