"""What a run does when it is asked to stop."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Stopped(BaseException):
    """Ends a run from within a signal handler; no part of the run takes it for an error of its own."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Makes SIGINT and SIGTERM end what is inside at once, as KeyboardInterrupt and SystemExit(143).

    The Trainers of the clients look for a SIGTERM only between two of their batches, so that they can miss one, and
    turn a KeyboardInterrupt into an exit that says nothing. Does nothing outside the main thread, where Python allows
    no handlers; signals that are ignored stay ignored.
    """
    report = sys.unraisablehook

    def stop(signum: int, frame: Any) -> None:
        raise Stopped(signum)

    def again(lost: Any) -> None:
        """Asks once more: what is raised while Python collects an object ends nothing."""
        if isinstance(lost.exc_value, Stopped):
            threading.Timer(0.05, os.kill, (os.getpid(), lost.exc_value.signum)).start()
        else:
            report(lost)

    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        before = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}
        before = {signum: handler for signum, handler in before.items() if handler is not signal.SIG_IGN}
    for signum in before:
        signal.signal(signum, stop)
    sys.unraisablehook = again
    try:
        yield
    except Stopped as stopped:
        if stopped.signum == signal.SIGINT:
            raise KeyboardInterrupt from None
        raise SystemExit(128 + stopped.signum) from None
    finally:
        sys.unraisablehook = report
        for signum, handler in before.items():
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)
