"""Every example, run as a reader would run it: as a script, from another folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import flgraph

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def run(start: Callable[..., Any]) -> Callable[..., str]:
    """Runs a script in an empty folder and returns what it printed."""

    def call(*arguments: str) -> str:
        started = start(*arguments)
        code, output = started.wait(), str(started.stdout.read_text())
        assert code == 0, output + started.stderr.read_text()
        return output

    return call


@pytest.fixture
def run_without(tmp_path: Path) -> Callable[..., str]:
    """Runs a script in an empty folder and returns what it printed, if it imported none of some modules."""
    code = (
        "import runpy, sys; unwanted = tuple(sys.argv.pop(1).split()); runpy.run_path(sys.argv.pop(1), "
        "run_name='__main__'); assert not [name for name in sys.modules if name.startswith(unwanted)]"
    )

    def call(unwanted: str, *arguments: str) -> str:
        # Where the package is used from a checkout that nothing has installed, a script elsewhere would not find it.
        environment = {**os.environ, "PYTHONPATH": str(Path(flgraph.__file__).parent.parent), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-P", "-c", code, unwanted, *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return call


def results(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return found


def test_quickstart_and_reuse(run: Callable[..., str], run_without: Callable[..., str], tmp_path: Path) -> None:
    output = run(str(EXAMPLES / "quickstart.py"), "--rounds", "2")
    assert "$ flgraph fit -c configs/quickstart.yaml --trainer.rounds 2\n" in output
    commands = re.findall(r"^\$ flgraph (.*)$", output, flags=re.MULTILINE)
    assert len(commands) == 2
    assert "--trainer.aggregator flgraph.callbacks.Local" in commands[0]

    alone = results(tmp_path / "runs" / "local-synthetic" / "version_0")
    together = results(tmp_path / "runs" / "fedstar-synthetic" / "version_0")
    assert alone["bytes_per_round"] == {"up": 0, "down": 0}
    assert together["bytes_per_round"]["up"] > 0
    table = output[output.index("Test accuracy after round 2") :]
    for name, local in [*alone["final"]["clients"].items(), ("mean", alone["final"]["mean"])]:
        row = next(line for line in table.splitlines() if name in line)
        other = together["final"]["mean"] if name == "mean" else together["final"]["clients"][name]
        assert f"{local['test/accuracy']:.3f}" in row
        assert f"{other['test/accuracy']:.3f}" in row

    checkpoint = tmp_path / "runs/fedstar-synthetic/version_0/checkpoints/last/clients/trees.ckpt"
    assert checkpoint.is_file()
    output = run_without("flgraph.federation flgraph.callbacks", str(EXAMPLES / "reuse_client_model.py"))
    assert re.search(r"200 new graphs, \d+\.\d% of them", output)


def test_train_alone(run_without: Callable[..., str], tmp_path: Path) -> None:
    output = run_without("flgraph.federation", str(EXAMPLES / "train_alone.py"), "out", "--epochs", "2")
    assert "test/accuracy" in output
    assert list((tmp_path / "out").rglob("*.ckpt"))


def test_python_api(run: Callable[..., str], tmp_path: Path) -> None:
    output = run(str(EXAMPLES / "python_api.py"), "out", "--rounds", "2")
    assert re.search(r"mean test accuracy \d\.\d{3}", output)
    for client, graphs in {"north": 60, "south": 90, "west": 120}.items():
        assert f"{client}: {graphs} predictions" in output
    assert list(results(tmp_path / "out" / "fedstar-fake" / "version_0")["final"]["clients"]) == [
        "north",
        "south",
        "west",
    ]


def test_own_algorithm(run: Callable[..., str], tmp_path: Path) -> None:
    output = run(str(EXAMPLES / "own_algorithm.py"), "out", "--rounds", "2")
    assert "embed.weight" in output  # the routing table
    found = results(tmp_path / "out" / "servermomentum-synthetic" / "version_0")
    assert found["rounds"] == 2
    assert 0 <= found["final"]["mean"]["test/accuracy"] <= 1
