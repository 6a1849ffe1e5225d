"""Runs that are stopped at any moment, and go on to the same bits."""

from __future__ import annotations

import json
import random
import re
import shlex
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from flgraph.runs.checkpoint import CheckpointStore, find_checkpoint, read_manifest
from flgraph.runs.history import read_records

Start = Callable[..., Any]  # see conftest.py

ROUNDS = 24


def measured(run: Path) -> dict[str, Any]:
    """What must be the same bits: metrics, bytes, and the clients' models and optimizers."""
    results = json.loads((run / "results.json").read_text())
    states = {}
    for file in sorted((run / "checkpoints" / "last" / "clients").glob("*.ckpt")):
        state = torch.load(file, weights_only=True)
        kept = {"state_dict": state["state_dict"], "optimizer": state["optimizer_states"]}
        states[file.stem] = {key: tensor.tolist() for key, tensor in flatten(kept).items()}
    server = (run / "checkpoints" / "last" / "server.safetensors").read_bytes()
    tensors = server[8 + int.from_bytes(server[:8], "little") :]  # the header holds seconds
    records = [
        {key: value for key, value in record.items() if key != "seconds"}
        for record in read_records(run / "history.jsonl")
    ]
    return {
        **{key: results[key] for key in ("final", "best_val", "rounds", "bytes_per_round", "setup_bytes", "seed")},
        "clients": states,
        "server": tensors,
        "history": records,
    }


def flatten(value: Any, prefix: str = "") -> dict[str, torch.Tensor]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    flat = {prefix: value} if isinstance(value, torch.Tensor) else {}
    for key, inner in items:
        flat.update(flatten(inner, f"{prefix}/{key}"))
    return flat


def lines(file: Path) -> int:
    return file.read_text().count("\n") if file.exists() else 0


def checkpoints(run: Path) -> CheckpointStore:
    return CheckpointStore(run / "checkpoints")


def assert_whole(run: Path) -> None:
    """Whatever passes for a checkpoint is one."""
    store = checkpoints(run)
    for number in store.rounds():
        assert read_manifest(store.path(number))["round"] == number
    for link in ("last", "best"):
        if (store.folder / link).exists():
            read_manifest(store.folder / link)


@pytest.fixture
def fit(options: list[str]) -> list[str]:
    return ["fit", *options, "--trainer.rounds", str(ROUNDS)]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Filled by the first test that needs it."""
    return {}


@pytest.fixture
def expected(uninterrupted: dict[str, Any], start: Start, fit: list[str], tmp_path: Path) -> dict[str, Any]:
    """The measurements of a run that nothing happened to."""
    if not uninterrupted:
        run = start(*fit, "--trainer.default_root_dir", str(tmp_path / "uninterrupted"))
        assert run.wait() == 0, run.stderr.read_text()
        assert run.stderr.read_text() == ""
        uninterrupted.update(measured(tmp_path / "uninterrupted" / "run" / "version_0"))
    return uninterrupted


def assert_as_expected(run: Path, expected: dict[str, Any]) -> None:
    assert_whole(run)
    assert [path.name for path in checkpoints(run).folder.glob(".*")] == []
    found = measured(run)
    assert [record["round"] for record in found["history"]] == list(range(1, ROUNDS + 1))
    for key, value in expected.items():
        assert found[key] == value, key


def test_killed_ten_times(start: Start, fit: list[str], tmp_path: Path, expected: dict[str, Any]) -> None:
    chance = random.Random(7)
    runs = tmp_path / "runs" / "run"
    killed = 0
    # The first is killed before there is a checkpoint, the others wherever in a round they are.
    for target in sorted([0, *(chance.randrange(1, ROUNDS - 8) for _ in range(9))]):
        folders = sorted(runs.glob("version_*"))
        resumable = any(checkpoints(folder).last() for folder in folders)
        run = start(*fit, *(["--ckpt_path", "last"] if resumable else []))
        newest = folders[-1] if resumable else runs / f"version_{len(folders)}"
        run.wait_for(lambda here=newest, least=target: lines(here / "history.jsonl") >= least and here.exists())
        run.pause(chance.uniform(0, 0.06))
        run.signal(signal.SIGKILL)
        killed += run.wait() == -signal.SIGKILL
        for folder in runs.glob("version_*"):
            assert_whole(folder)
    assert killed == 10
    run = start(*fit, "--ckpt_path", "last")
    assert run.wait() == 0, run.stderr.read_text()
    finished = [folder for folder in runs.glob("version_*") if (folder / "results.json").exists()]
    assert len(finished) == 1
    assert_as_expected(finished[0], expected)


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["SIGTERM", "SIGINT"])
def test_asked_to_stop(
    start: Start, fit: list[str], tmp_path: Path, expected: dict[str, Any], signum: int, code: int
) -> None:
    folder = tmp_path / "runs" / "run" / "version_0"
    chance = random.Random(signum)
    for target in (2, 14):
        run = start(*fit, *(["--ckpt_path", str(folder)] if folder.exists() else []))
        run.wait_for(lambda least=target: lines(folder / "history.jsonl") >= least)
        run.pause(chance.uniform(0, 0.1))
        run.signal(signum)
        assert run.wait() == code
        how, line = run.stderr.read_text().splitlines()
        assert how == f"flgraph: error: {'interrupted' if code == 130 else 'stopped'}; continue with:"
        assert line == shlex.join(["flgraph", *fit, "--ckpt_path", str(folder)])
        assert lines(folder / "history.jsonl") < ROUNDS
        assert not (folder / "results.json").exists()
        assert_whole(folder)
    run = start(*fit, "--ckpt_path", str(folder))
    assert run.wait() == 0, run.stderr.read_text()
    assert_as_expected(folder, expected)


def test_nothing_to_continue(start: Start, fit: list[str], tmp_path: Path) -> None:
    runs = tmp_path / "runs" / "run"
    run = start(*fit, "--ckpt_path", "last")
    assert run.wait() == 2
    assert run.stderr.read_text() == (
        f"flgraph: error: Expected `ckpt_path` to be the last checkpoint under {runs} but got none.\n"
    )


@pytest.mark.parametrize("logger", ["false", "true"])
def test_disk_full(start: Start, fit: list[str], tmp_path: Path, expected: dict[str, Any], logger: str) -> None:
    """A limit on the size of files is the disk that a process can fill without being anybody special."""
    folder = tmp_path / "runs" / "run" / "version_0"
    run = start(*fit, "--trainer.logger", logger, file_size=29500)
    assert run.wait() == 2
    # Whichever file is the first to be full. Not by lines: TensorBoard's own thread complains at the same time.
    where = rf"{re.escape(str(folder))}(/ledger\.jsonl)?"
    sentence = rf"flgraph: error: Expected `{where}` to be writable but got File too large\.\n"
    assert len(re.findall(sentence, run.stderr.read_text())) == 1
    last = checkpoints(folder).rounds()[-1]
    assert 1 <= last < ROUNDS
    assert_whole(folder)
    run = start(*fit, "--ckpt_path", "last")
    assert run.wait() == 0, run.stderr.read_text()
    assert_as_expected(folder, expected)


def test_half_written_folder_is_no_checkpoint(tmp_path: Path) -> None:
    run = tmp_path / "run" / "version_0"
    leftover = run / "checkpoints" / ".writing-00099"
    (leftover / "clients").mkdir(parents=True)
    (leftover / "manifest.json").write_text("{}")
    assert checkpoints(run).rounds() == []
    assert checkpoints(run).last() is None
    for path in ("last", "best"):
        with pytest.raises(ValueError, match="but got none"):
            find_checkpoint(path, run.parent)
    with pytest.raises(ValueError, match="a folder without one"):
        find_checkpoint(str(run), run.parent)
