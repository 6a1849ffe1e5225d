"""A server and two sites on loopback, with certificates, each a process of its own; and sites that are objects."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from flgraph.cli.main import main
from flgraph.federation.engines.host import Message
from flgraph.flare.run import Site, open_sites
from flgraph.flare.settings import read_settings, site_secret
from flgraph.runs.compatibility import sealed

SITES = {"north": ["trees"], "east": ["rings", "ladders"]}
"""Site to the clients that it has."""

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "flare"


class Federation:
    """Kits, and the processes that run them."""

    def __init__(self, folder: Path, start: Callable[..., Any]) -> None:
        self.folder, self.kits, self._start = folder, folder / "kits", start
        self.running: list[Any] = []

    def begin(self, *args: str, log: str) -> Any:
        """``flgraph flare`` in a process of its own."""
        return self._start("flare", *args, folder=self.folder, log=f"{log}-")

    def begin_kit(self, kit: str) -> None:
        """Runs a server or a site until :meth:`stop`."""
        self.running.append(self.begin("start", f"kits/{kit}", log=kit))

    def stop(self) -> None:
        """Ends all kits; what one runs ends with it."""
        for run in self.running:
            run.signal(signal.SIGTERM)
        for run in self.running:
            run.wait()

    def rounds(self, name: str) -> list[dict[str, Any]]:
        """The rounds of a run so far, as the server wrote them."""
        files = sorted((self.kits / "server" / "flgraph" / name).glob("version_*/history.jsonl"))
        lines = files[-1].read_text().splitlines() if files else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def kill(self, kit: str, module: str) -> None:
        """Kills FLARE's processes of a kit that run ``module``."""
        place, killed = str(self.kits / kit), 0
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    words = (entry / "cmdline").read_bytes().decode().split("\0")
                except (OSError, UnicodeDecodeError):
                    continue
                if place in words and any(module in word for word in words):
                    os.kill(int(entry.name), signal.SIGKILL)
                    killed += 1
        assert killed, f"no process of {kit} runs {module}"

    def wait_for(self, condition: Callable[[], bool], what: str, seconds: float = 400.0) -> None:
        """Waits until something holds."""
        deadline = time.monotonic() + seconds
        while not condition():
            logs = "".join(path.read_text()[-2000:] for path in self.folder.glob("*.txt"))
            assert time.monotonic() < deadline, f"waited too long for {what}\n{logs}"
            time.sleep(0.1)


@contextmanager
def running(
    folder: Path, start: Callable[..., Any], sites: Mapping[str, Sequence[str]], begin: Mapping[str, Any] | None = None
) -> Iterator[Federation]:
    """Kits of a server and sites, and the processes that run them.

    Args:
        folder: of the test's own.
        start: see the fixture of that name.
        sites: site to the clients that it has.
        begin: site to what begins it in another way, given the federation.
    """
    pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'flgraph[flare]'")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    found = Federation(folder, start)
    data = folder / "settings"
    data.mkdir()
    for site, clients in sites.items():
        content = yaml.safe_load((EXAMPLE / "north.yaml").read_text())
        # The run's own seed, and metrics as they are, for runs in one process to be compared with.
        own = {**content, "clients": list(clients), "seed": 0, "policy": {"metrics": {"*": None}}}
        (data / f"{site}.yaml").write_text(yaml.safe_dump(own))
    names = ("--sites", ",".join(sites), "--port", port)
    main(["flare", "provision", *names, "--data", str(data), "--out", str(found.kits)])
    try:
        for kit in ("server", *sites):
            (begin or {}).get(kit, Federation.begin_kit)(found, kit)
        log = found.kits / "server" / "flgraph.log"
        found.wait_for(
            lambda: log.is_file() and all(f"New client {site}@" in log.read_text() for site in sites), "the sites"
        )
        yield found
    finally:
        found.stop()


@pytest.fixture
def federation(tmp_path: Path, start: Callable[..., Any]) -> Iterator[Federation]:
    with running(tmp_path, start, SITES) as found:
        yield found


@pytest.fixture
def attacked(tmp_path: Path, start: Callable[..., Any]) -> Iterator[Federation]:
    """Three sites, the last of which runs ``malicious.py``."""
    code = tmp_path / "code"
    code.mkdir()
    shutil.copy(Path(__file__).with_name("malicious.py"), code / "sitecustomize.py")

    def begin(found: Federation, kit: str) -> None:
        found.running.append(_Started(found, kit, {**os.environ, "PYTHONPATH": str(code)}))

    with running(
        tmp_path, start, {"north": ["trees"], "east": ["rings"], "west": ["ladders"]}, {"west": begin}
    ) as found:
        yield found


class _Started:
    """A kit in a process of its own, with an environment of its own."""

    def __init__(self, federation: Federation, kit: str, env: Mapping[str, str]) -> None:
        command = [sys.executable, "-m", "flgraph", "flare", "start", f"kits/{kit}"]
        self._process = subprocess.Popen(command, cwd=federation.folder, env=dict(env))

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        return self._process.wait(400)


class InMemory:
    """Hands bytes over between a server and its sites in this process, as FLARE would carry them.

    One site at a time: clients share torch's generator and its default type here, which real sites do not.
    """

    def __init__(self, kits: Path, sites: Mapping[str, Mapping[str, Any]]) -> None:
        for site, settings in sites.items():
            (kits / site / "local").mkdir(parents=True, exist_ok=True)
            (kits / site / "local" / "flgraph.yaml").write_text(yaml.safe_dump(dict(settings)))
        self.kits, self.sites = kits, {site: Site(kits / site) for site in sites}
        self._one_at_a_time = threading.Lock()

    def send(self, site: str, message: Message, timeout: float) -> Message:
        with self._one_at_a_time:
            answer = self.sites[site].answer(Message.from_bytes(message.to_bytes()))
        return Message.from_bytes(bytes(answer.to_bytes()))

    def open(self, config: str, run: str) -> dict[str, Any]:
        """What all sites tell of their clients in a new job."""
        self.sites = {site: Site(self.kits / site) for site in self.sites}
        return open_sites(self, list(self.sites), config, 60.0, run)


@pytest.fixture
def in_memory() -> type[InMemory]:
    """A transport to sites in this process: ``in_memory(kits, {site: settings})``."""
    return InMemory


@pytest.fixture
def as_sites_tell() -> Callable[..., dict[str, Any]]:
    """Makes of results of one process those of sites, which tell less of their clients' data and models."""

    def of_sites(results: dict[str, Any], kits: Path, withheld: bool = False) -> dict[str, Any]:
        sites = [read_settings(kit.parents[1]) for kit in kits.glob("*/local/flgraph.yaml")]
        keys = {name: site_secret(site) for site in sites for name in site.clients}
        data = {name: sealed(settings, keys[name]) for name, settings in results["data"].items()}
        if withheld:  # numbers of samples are told in a sum, or not at all
            data = {name: {k: v for k, v in own.items() if k != "num_train_samples"} for name, own in data.items()}
        parameters = {name: {"shared": counts["shared"]} for name, counts in results["parameters"].items()}
        return {**results, "data": data, "parameters": parameters}

    return of_sites


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Runs in this process use as many threads as those of the sites do."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
