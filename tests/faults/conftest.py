"""Runs that can be killed, and small data for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import flgraph

PATIENCE = 60.0


class Run:
    """One ``flgraph`` process."""

    def __init__(self, server: subprocess.Popen[str], folder: Path, args: list[str], file_size: int) -> None:
        self.stdout, self.stderr = folder / "stdout.txt", folder / "stderr.txt"
        self._server = server
        order = {"args": args, "stdout": str(self.stdout), "stderr": str(self.stderr), "file_size": file_size}
        assert server.stdin is not None
        server.stdin.write(json.dumps(order) + "\n")
        server.stdin.flush()
        self.pid = self._answer()

    def signal(self, signum: int) -> None:
        """May be too late, if the process has ended: until :meth:`wait` nobody else can have its number."""
        self.kill(self.pid, signum)

    def kill(self, pid: int, signum: int) -> None:
        """A signal to a process that this one started."""
        try:
            os.kill(pid, signum)
        except ProcessLookupError:
            return

    def pause(self, seconds: float) -> None:
        """Lets it run."""
        time.sleep(seconds)

    def wait(self) -> int:
        """Exit code, negative for a signal."""
        return self._answer()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, f"nothing happened: {self.stderr.read_text()}"
            time.sleep(0.002)

    def _answer(self) -> int:
        assert self._server.stdout is not None
        return int(self._server.stdout.readline())


Start = Callable[..., Run]


@pytest.fixture(scope="session")
def server() -> Iterator[subprocess.Popen[str]]:
    places = [Path(flgraph.__file__).parents[1], Path(__file__).parents[2]]  # the package, and what tests give it
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", str(Path(__file__).with_name("forking.py"))]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def start(server: subprocess.Popen[str], tmp_path: Path) -> Start:
    def begin(*args: str, file_size: int = 0) -> Run:
        return Run(server, tmp_path, list(args), file_size)

    return begin


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two data sets of paths (class 0) and cycles (class 1), with two node labels."""
    root = tmp_path_factory.mktemp("data")
    for name, graphs in (("ONE", 30), ("TWO", 20)):
        edges, owner, labels = [], [], []
        for graph in range(graphs):
            first, size = len(owner) + 1, 3 + graph % 4
            pairs = [(first + i, first + i + 1) for i in range(size - 1)]
            if graph % 2:
                pairs.append((first, first + size - 1))
            edges += [f"{a}, {b}" for pair in pairs for a, b in (pair, pair[::-1])]
            owner += [str(graph + 1)] * size
            labels += [str((graph + i) % 2) for i in range(size)]
        folder = root / name
        folder.mkdir()
        classes = [str(graph % 2) for graph in range(graphs)]
        for key, lines in (
            ("A", edges),
            ("graph_indicator", owner),
            ("graph_labels", classes),
            ("node_labels", labels),
        ):
            (folder / f"{name}_{key}.txt").write_text("\n".join(lines) + "\n")
    return root


@pytest.fixture
def options(data: Path, tmp_path: Path) -> list[str]:
    """A small run in ``tmp_path / "runs"``."""
    return [
        *("-c", "configs/method/fedprox.yaml", "--data.datasets", "[ONE, TWO]", "--data.root", str(data)),
        *("--trainer.default_root_dir", str(tmp_path / "runs"), "--trainer.name", "run"),
        *("--model.hidden_channels", "8", "--model.num_layers", "2", "--trainer.accelerator", "cpu"),
    ]
