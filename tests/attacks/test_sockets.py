"""Where processes of one machine listen: nowhere that another machine could reach."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flgraph.federation.engines.distributed.transport import listening_store

psutil = pytest.importorskip("psutil")

LISTENS = """
import sys, psutil
from flgraph.federation.engines.distributed.environment import ProcessEnvironment
from flgraph.federation.engines.distributed.transport import Transport
transport = Transport(ProcessEnvironment.here())
print(sorted({c.laddr.ip for c in psutil.Process().net_connections() if c.status == psutil.CONN_LISTEN}), flush=True)
sys.stdin.read()
"""


def listening(pid: int) -> set[str]:
    """Addresses on which a process and its children listen."""
    process = psutil.Process(pid)
    found = [own for one in (process, *process.children(recursive=True)) for own in one.net_connections()]
    return {own.laddr.ip for own in found if own.status == psutil.CONN_LISTEN}


def test_a_run_of_two_processes_listens_on_loopback_only(
    start: Callable[..., Any], graph_files: Path, tmp_path: Path
) -> None:
    engine = "--trainer.engine"
    run = start(
        *("fit", "-c", "configs/method/fedavg.yaml", "--data.datasets", "[ONE]", "--data.root", str(graph_files)),
        *("--trainer.default_root_dir", str(tmp_path / "runs"), "--trainer.name", "run", "--trainer.rounds", "500"),
        *("--model.hidden_channels", "8", "--trainer.accelerator", "cpu", "--data.shards", "2"),
        *(engine, "ProcessGroup", f"{engine}.processes", "2", "--trainer.enable_progress_bar", "false"),
    )
    history = tmp_path / "runs" / "run" / "version_0" / "history.jsonl"
    run.wait_for(lambda: history.exists() and history.read_text().count("\n") >= 1)
    found = listening(run.pid)
    run.signal(15)
    run.wait()
    assert found == {"127.0.0.1"}


def test_processes_that_something_else_started_listen_on_loopback_only() -> None:
    """Process 0 holds the store then; its address may be a name under which the machine is known elsewhere."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    where = {"MASTER_ADDR": socket.gethostname(), "MASTER_PORT": port, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", LISTENS],
            env={**os.environ, **where, "RANK": rank, "LOCAL_RANK": rank},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    try:
        said = [process.stdout.readline().strip() for process in processes if process.stdout is not None]
    finally:
        for process in processes:
            process.communicate()
    assert said == ["['127.0.0.1']"] * 2


def test_a_store_listens_on_its_address_only() -> None:
    store = listening_store("127.0.0.2", world=1)
    mine = [own for own in psutil.Process().net_connections() if own.laddr and own.laddr.port == store.port]
    assert {own.laddr.ip for own in mine if own.status == psutil.CONN_LISTEN} == {"127.0.0.2"}
    with pytest.raises(OSError, match="in use"):
        listening_store("127.0.0.2", store.port)
