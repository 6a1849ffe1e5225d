"""Runs of every method on one, two and three processes, in one launch for each number."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import flgraph
from flgraph.federation.engines.distributed.launcher import launch

collect_ignore = [
    "device_program.py",
    "federations.py",
    "methods.py",
    "program.py",
    "stand_in.py",
]  # found by name once their folder is on the path

HERE = Path(__file__).parent
PATIENCE = 240


@pytest.fixture(scope="session")
def methods() -> Iterator[Any]:
    """The module of that name; its neighbours are found by name, too, here and in processes started from here."""
    paths = [str(HERE), str(Path(flgraph.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HERE))
        patch.setenv("PYTHONPATH", os.pathsep.join(path for path in paths if path))
        patch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))
        patch.setattr(sys, "argv", sys.argv[:1])
        yield import_module("methods")


@pytest.fixture(scope="session")
def runs(methods: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with all runs: ``one`` process, ``two``, ``three``, and those that went from one to another."""
    root = tmp_path_factory.mktemp("parity")
    names, rounds, cut = methods.METHODS, methods.ROUNDS, methods.CUT
    for name in names:
        methods.run(name, root / "one", rounds)
        methods.run(name, root / "one-then-three", cut)
    last = ("--ckpt_path", "last")
    jobs = [[name, "two", rounds] for name in names] + [[name, "two-then-one", cut] for name in names]
    code = launch([sys.executable, str(HERE / "program.py"), str(root), json.dumps(jobs)], 2)
    assert code == 0
    jobs = [[name, "three", rounds] for name in names] + [[name, "one-then-three", rounds, *last] for name in names]
    _torchrun(3, str(HERE / "program.py"), str(root), json.dumps(jobs))
    for name in names:
        methods.run(name, root / "two-then-one", rounds, *last)
    return root


@pytest.fixture(scope="session")
def torchrun(methods: Any) -> Callable[..., None]:
    """What the command of that name does, on the loopback interface: number of processes, program, arguments."""
    return _torchrun


def _torchrun(processes: int, *command: str) -> None:
    options = ["--nproc-per-node", str(processes), "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *options, "--local-addr", "127.0.0.1", *command],
        check=True,
        timeout=PATIENCE,
    )
