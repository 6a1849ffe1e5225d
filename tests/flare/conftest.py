"""A server and three sites on loopback, with certificates, each a process of its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import flgraph
from flgraph.runs.compatibility import sealed

SITES = {"north": "trees", "east": "rings", "west": "ladders"}
"""Site to the client that it has."""

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "flare"

PARITY = Path(__file__).resolve().parents[1] / "parity"
"""Where sites find the data of methods that are compared with one process."""


class Federation:
    """Kits, and the processes that run them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.kits = folder, folder / "kits"
        own = Path(flgraph.__file__).parents[1], PARITY
        path = os.pathsep.join([*map(str, own), os.environ.get("PYTHONPATH", "")])
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        self.processes: list[subprocess.Popen[bytes]] = []

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        """``flgraph``, to its end."""
        command = [sys.executable, "-m", "flgraph", *args]
        return subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=300, check=False
        )

    def begin(self, *args: str, log: str = "") -> subprocess.Popen[bytes]:
        """``flgraph`` in the background; its output goes to the file ``log``."""
        command = [sys.executable, "-m", "flgraph", *args]
        with open(self.folder / (log or "background.log"), "ab") as out:
            process = subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=out, stderr=out)
        self.processes.append(process)
        return process

    def stop(self) -> None:
        """Ends everything that was begun, by its own process id; what a kit runs ends with it."""
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(30)

    def submit(self, name: str, rounds: int, *further: str) -> subprocess.Popen[bytes]:
        """Begins a run of FedStar under the supervisor."""
        return self.begin_run(name, "-c", str(EXAMPLE / "federation.yaml"), f"--trainer.rounds={rounds}", *further)

    def begin_run(self, name: str, *run: str, sites: Iterable[str] = SITES) -> subprocess.Popen[bytes]:
        """Begins a run under the supervisor."""
        return self.begin("flare", "submit", "--sites", ",".join(sites), "--name", name, *run, log=f"{name}.log")

    def told(self, name: str) -> str:
        """What the supervisor of a run has said."""
        return (self.folder / f"{name}.log").read_text()

    def rounds(self, name: str) -> list[dict[str, Any]]:
        """The rounds of a run so far, as the server wrote them."""
        files = sorted((self.kits / "server" / "flgraph" / name).glob("version_*/history.jsonl"))
        lines = files[-1].read_text().splitlines() if files else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def results(self, name: str) -> dict[str, Any]:
        """What the administrator has of a run."""
        found: dict[str, Any] = json.loads((self.folder / "runs" / "flare" / name / "results.json").read_text())
        return found

    def in_one_process(self, rounds: int) -> dict[str, Any]:
        """Results of the same run in one process."""
        data = self.folder / "data.yaml"
        data.write_text(yaml.safe_dump({"data": yaml.safe_load((EXAMPLE / "north.yaml").read_text())["data"]}))
        where = ("--trainer.default_root_dir", "runs", "--trainer.name", f"one-{rounds}")
        run = ("-c", str(EXAMPLE / "federation.yaml"), f"--trainer.rounds={rounds}")
        done = self.run("fit", "-c", str(data), *run, *where)
        assert done.returncode == 0, done.stderr
        (file,) = (self.folder / "runs" / f"one-{rounds}").glob("version_*/results.json")
        found: dict[str, Any] = json.loads(file.read_text())
        return found

    def pids(self, kit: str, module: str) -> list[int]:
        """FLARE's processes of a kit that run ``module``."""
        place, found = str(self.kits / kit), []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    words = (entry / "cmdline").read_bytes().decode().split("\0")
                except (OSError, UnicodeDecodeError):
                    continue
                if place in words and any(module in word for word in words):
                    found.append(int(entry.name))
        return found

    def signal(self, kit: str, module: str, number: int) -> None:
        """Sends a signal to such processes."""
        pids = self.pids(kit, module)
        assert pids, f"no process of {kit} runs {module}"
        for pid in pids:
            os.kill(pid, number)

    def wait_for(self, condition: Callable[[], bool], what: str, seconds: float = 400.0) -> None:
        """Waits until something holds."""
        deadline = time.monotonic() + seconds
        while not condition():
            logs = "".join(path.read_text()[-2000:] for path in self.folder.glob("*.log"))
            assert time.monotonic() < deadline, f"waited too long for {what}\n{logs}"
            time.sleep(0.2)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'flgraph[flare]'")
    found = Federation(tmp_path_factory.mktemp("flare"))
    sites = ("--sites", ",".join(SITES), "--port", str(free_port()))
    made = found.run("flare", "provision", *sites, "--data", str(EXAMPLE))
    assert made.returncode == 0, made.stderr
    for site in SITES:  # the run's own, for runs in one process to be compared with
        with open(found.kits / site / "local" / "flgraph.yaml", "a") as stream:
            stream.write("seed: 0\n")
    try:
        for kit in ("server", *SITES):
            found.begin("flare", "start", f"kits/{kit}")
        found.wait_for(lambda: _connected(found), "the sites to connect")
        yield found
    finally:
        found.stop()


def _connected(federation: Federation) -> bool:
    log = federation.kits / "server" / "flgraph.log"
    return log.is_file() and all(f"New client {site}@" in log.read_text() for site in SITES)


@pytest.fixture
def as_sites_tell() -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Makes of results of one process those of sites, which tell less of their clients' data and models."""

    def told(results: dict[str, Any]) -> dict[str, Any]:
        data = {name: sealed(settings) for name, settings in results["data"].items()}
        parameters = {name: {"shared": counts["shared"]} for name, counts in results["parameters"].items()}
        return {**results, "data": data, "parameters": parameters}

    return told
