"""Runs of every method on one process and on two, in one launch."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import methods
import pytest
import torch

import flgraph
from flgraph.federation.engines.distributed.launcher import launch

collect_ignore = ["ddp.py", "device_program.py", "federations.py", "methods.py", "program.py", "stand_in.py"]

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def found_by_name() -> Iterator[None]:
    """Modules here are found by name in processes that are started, too."""
    paths = [str(HERE), str(Path(flgraph.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(path for path in paths if path))
        patch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))
        patch.setattr(sys, "argv", sys.argv[:1])
        yield


@pytest.fixture(scope="session")
def runs(found_by_name: None, start_in: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with all runs: ``one`` process, ``two``, ``forked`` ones, and those that went from one to another.

    Clients move to other processes after the round at which these were cut.
    """
    root = tmp_path_factory.mktemp("parity")
    jobs: list[tuple[str, str, str | None]] = []
    for name in methods.METHODS:
        methods.run(name, root / "one", methods.ROUNDS, *methods.KEEP)
        jobs.append((name, "two", None))
    for name in methods.CONTINUED:
        further = shutil.copytree(root / "one" / name, root / "one-then-two" / name, symlinks=True)
        jobs.append((name, "one-then-two", methods.cut(further)))
    program = [str(HERE / "program.py"), str(root)]
    assert launch([sys.executable, *program, json.dumps(jobs), "ProcessGroup"], 2) == 0
    forked = [(name, "forked", None) for name in methods.METHODS]
    where = "flgraph.federation.engines.forked.Forked"
    run = start_in(root, *program, json.dumps(forked), where)
    assert run.wait() == 0, run.stderr.read_text()
    for name in methods.CONTINUED:
        further = shutil.copytree(root / "two" / name, root / "two-then-one" / name, symlinks=True)
        methods.run(name, root / "two-then-one", methods.ROUNDS, ckpt_path=methods.cut(further))
    return root
