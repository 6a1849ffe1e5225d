"""Algorithms of every kind give the same bits at sites as in one process, also when a run goes from here to there."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from flgraph.runs.history import read_records

PARITY = Path(__file__).resolve().parents[1] / "parity"

METHODS = ("fedstar", "fedego", "fedhgn", "fclg")  # FedAvg does nothing that FedStar does not
BEGAN = [(method, began) for method in METHODS for began in ("at sites", "in one process")]
BEGAN.remove(("fedstar", "at sites"))  # which is in test_federation.py
"""Methods of every kind, and where their runs begin."""


@pytest.fixture(scope="module")
def methods() -> Iterator[Any]:
    """The module of that name; runs in this process use one thread, as those of the sites do."""
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(PARITY))
        patch.setattr(sys, "argv", sys.argv[:1])
        torch.set_num_threads(1)
        yield import_module("methods")
        torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def one(methods: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with all runs of one process; in ``cut`` those that stopped earlier."""
    root = tmp_path_factory.mktemp("one")
    for method in METHODS:
        methods.run(method, root, methods.ROUNDS)
        methods.run(method, root / "cut", methods.CUT)
    return root


@pytest.mark.parametrize(("method", "began"), BEGAN)
def test_same_bits(
    method: str,
    began: str,
    methods: Any,
    one: Path,
    federation: Any,
    measured: Callable[[Path], dict[str, Any]],
    as_sites_tell: Callable[..., Any],
    assert_same: Callable[..., None],
    tmp_path: Path,
) -> None:
    """A run that began at sites ends in one process, too: its last round is done once more there."""
    name, expected = f"{method}-{began.replace(' ', '-')}", measured(one / method / "version_0")
    if began == "in one process":
        shutil.copytree(one / "cut" / method, federation.kits / "server" / "flgraph" / name, symlinks=True)
    there = _fit(name, methods, federation, list(expected["results"]["final"]["clients"]), tmp_path)
    assert_same(measured(there), {**expected, "results": as_sites_tell(expected["results"])})
    if began == "in one process":
        begun = read_records(one / "cut" / method / "version_0" / "history.jsonl")
        assert federation.rounds(name)[: methods.CUT] == begun  # seconds, too
    else:
        earlier = there / "checkpoints" / f"round-{methods.ROUNDS - 1:05d}"
        methods.run(method, tmp_path, methods.ROUNDS, "--ckpt_path", str(earlier))
        assert_same(measured(there), expected)


def _fit(name: str, methods: Any, federation: Any, clients: list[str], out: Path) -> Path:
    """Runs a method at two sites, more clients at the first; returns the run with the states of all clients."""
    method, sites = name.partition("-")[0], ("north", "east")
    for site, own in zip(sites, (clients[:-1], clients[-1:]), strict=True):
        data = {"class_path": f"federations.{methods.kind(method).__name__}"}
        content = {"data": data, "clients": own, "seed": 0}  # the run's own
        (federation.kits / site / "local" / "flgraph.yaml").write_text(yaml.safe_dump(content))
    run = federation.begin_run(name, *methods.settings(method, methods.ROUNDS), sites=sites)
    assert run.wait(400) == 0, federation.told(name)
    done = federation.run("flare", "gather", name, "--out", str(out))
    assert done.returncode == 0, done.stderr
    return out / name / "version_0"
