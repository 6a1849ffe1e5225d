"""Where processes of one machine listen: nowhere that another machine could reach."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flgraph.federation.engines.distributed.transport import listening_store

psutil = pytest.importorskip("psutil")

LISTENS = """
import json, os, sys, time, psutil
from pathlib import Path
from flgraph.federation.engines.distributed.environment import ProcessEnvironment
from flgraph.federation.engines.distributed.transport import Transport
os.environ.update(json.loads(sys.argv[1]))
transport = Transport(ProcessEnvironment.here())
print(sorted({c.laddr.ip for c in psutil.Process().net_connections() if c.status == psutil.CONN_LISTEN}), flush=True)
while not Path("seen").exists():
    time.sleep(0.05)
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


def test_processes_that_something_else_started_listen_on_loopback_only(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    """Process 0 holds the store then; its address may be a name under which the machine is known elsewhere."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    where = {"MASTER_ADDR": socket.gethostname(), "MASTER_PORT": port, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    (tmp_path / "listens.py").write_text(LISTENS)
    processes = [
        start("listens.py", json.dumps({**where, "RANK": rank, "LOCAL_RANK": rank}), log=f"{rank}-") for rank in "01"
    ]
    said = [process.stdout for process in processes]
    processes[0].wait_for(lambda: all(file.exists() and file.read_text() for file in said))
    (tmp_path / "seen").touch()
    assert [process.wait() for process in processes] == [0, 0], processes[0].stderr.read_text()
    assert [file.read_text().strip() for file in said] == ["['127.0.0.1']"] * 2


def test_a_store_listens_on_its_address_only() -> None:
    store = listening_store("127.0.0.2", world=1)
    mine = [own for own in psutil.Process().net_connections() if own.laddr and own.laddr.port == store.port]
    assert {own.laddr.ip for own in mine if own.status == psutil.CONN_LISTEN} == {"127.0.0.2"}
    with pytest.raises(OSError, match="in use"):
        listening_store("127.0.0.2", store.port)
