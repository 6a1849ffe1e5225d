"""Being asked to stop."""

from __future__ import annotations

import os
import signal
import time
import weakref

import pytest

from flgraph.federation.signals import stop_on_signals


class Thing:
    """Something to be collected."""


def _collected_within(seconds: float, things: list[Thing]) -> None:
    things.clear()
    time.sleep(seconds)


def test_while_python_collects_an_object() -> None:
    """What is raised then is lost; the run has to end all the same."""
    things = [Thing()]
    _ref = weakref.ref(things[0], lambda _: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(SystemExit) as stopped, stop_on_signals():
        _collected_within(20, things)
    assert stopped.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
