"""Processes that die, hang or fail end the run in one sentence, and it goes on with any number of processes."""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from flgraph.cli.main import main
from flgraph.federation.engines.distributed.engine import num_cores
from flgraph.runs import checkpoint
from flgraph.runs.history import read_records

Start = Callable[..., Any]  # see conftest.py

ROUNDS = 16
TIMEOUT = "3"

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")


@pytest.fixture
def fit(options: list[str]) -> list[str]:
    """Three clients, so that every process of two has one at least."""
    return [
        *("fit", *options, "--trainer.rounds", str(ROUNDS), "--trainer.logger", "false"),
        *("--trainer.enable_progress_bar", "false", "--data.shards", "2"),
    ]


def on_processes(count: int) -> list[str]:
    engine = "--trainer.engine"
    return [engine, "ProcessGroup", f"{engine}.processes", str(count), f"{engine}.timeout", TIMEOUT]


FORKED = ["--trainer.engine", "flgraph.federation.engines.forked.Forked"]
needs_cores = pytest.mark.skipif(num_cores() < 2, reason="nothing is forked for one core")


def process(parent: int, rank: int) -> int:
    """Number of the process of that rank which ``parent`` forked, one after another."""
    children = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError, ValueError, IndexError):  # no process, or one that has just ended
            if int(stat(folder.name)[1]) == parent:
                children.append(int(folder.name))
    return sorted(children)[rank]


def stat(pid: int | str) -> list[str]:
    """A process's state, its parent's number, and so on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def begun(run: Any, folder: Path, rounds: int) -> None:
    history = folder / "history.jsonl"
    run.wait_for(lambda: history.exists() and history.read_text().count("\n") >= rounds)


def told(run: Any) -> str:
    output = run.stderr.read_text()
    assert re.fullmatch(r"flgraph: error: .+\n", output)
    return str(output.removeprefix("flgraph: error: ").strip())


def test_killed_then_hung_then_finished_in_one_process(
    start: Start, fit: list[str], tmp_path: Path, assert_same: Callable[..., None]
) -> None:
    folder = tmp_path / "runs" / "run" / "version_0"
    run = start(*fit, *on_processes(2))
    begun(run, folder, 2)
    run.kill(process(run.pid, 1), signal.SIGKILL)
    assert run.wait() == 1
    sentence = told(run)
    assert sentence.startswith("Process 1 ")
    assert "continue with --ckpt_path " in sentence  # of the launcher, or of the leader
    done = len(read_records(folder / "history.jsonl"))
    assert done < ROUNDS

    run = start(*fit, *on_processes(3), "--ckpt_path", "last")
    begun(run, folder, done + 2)
    leader, hung = process(run.pid, 0), process(run.pid, 2)
    run.kill(hung, signal.SIGSTOP)
    run.wait_for(lambda: stat(leader)[0] == "Z")  # it has ended, and torch's launcher ends the others
    run.kill(hung, signal.SIGCONT)  # or else torch would wait for it for half a minute
    assert run.wait() == 1
    assert f"gave no sign of life for {TIMEOUT} s" in told(run)
    assert "Process 2 (client" in told(run)
    assert len(read_records(folder / "history.jsonl")) < ROUNDS

    main([*fit, "--ckpt_path", "last"])
    main([*fit, "--trainer.name", "whole"])
    folders = [tmp_path / "runs" / name / "version_0" / "checkpoints" / "last" / "clients" for name in ("run", "whole")]
    resumed, whole = ({f.name: checkpoint.load_file(f) for f in sorted(path.iterdir())} for path in folders)
    assert len(whole) == 4
    assert_same(resumed, whole)


@needs_cores
def test_a_forked_process_is_killed(
    start: Start, fit: list[str], tmp_path: Path, assert_same: Callable[..., None]
) -> None:
    folder = tmp_path / "runs" / "run" / "version_0"
    run = start(*fit, *FORKED)
    begun(run, folder, 2)
    run.kill(process(run.pid, 0), signal.SIGKILL)
    assert run.wait() == 1
    assert re.match(r"Process 1 \(client.*`\) was ended by SIGKILL in round \d+ \((train|evaluate)\); ", told(run))
    assert len(read_records(folder / "history.jsonl")) < ROUNDS

    run = start(*fit, *FORKED, "--ckpt_path", "last")
    assert run.wait() == 0, run.stderr.read_text()
    main([*fit, "--trainer.engine", "Sequential", "--trainer.name", "whole"])
    folders = [tmp_path / "runs" / name / "version_0" / "checkpoints" / "last" / "clients" for name in ("run", "whole")]
    resumed, whole = ({f.name: checkpoint.load_file(f) for f in sorted(path.iterdir())} for path in folders)
    assert_same(resumed, whole)


@needs_cores
def test_forked_processes_end_with_the_one_that_is_killed(start: Start, fit: list[str], tmp_path: Path) -> None:
    run = start(*fit, *FORKED)
    begun(run, tmp_path / "runs" / "run" / "version_0", 2)
    other = process(run.pid, 0)
    run.signal(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL
    run.wait_for(lambda: not Path(f"/proc/{other}").exists() or stat(other)[0] == "Z")


@pytest.mark.parametrize("engine", [on_processes(2), pytest.param(FORKED, marks=needs_cores)], ids=["group", "forked"])
def test_asked_to_stop(engine: list[str], start: Start, fit: list[str], tmp_path: Path) -> None:
    """All processes end, and say which command line goes on."""
    folder = tmp_path / "runs" / "run" / "version_0"
    run = start(*fit, *engine)
    begun(run, folder, 2)
    other = process(run.pid, -1)
    run.signal(signal.SIGINT)
    assert run.wait() == 130
    how, line = run.stderr.read_text().splitlines()
    assert how == "flgraph: error: interrupted; continue with:"
    assert line == shlex.join(["flgraph", *fit, *engine, "--ckpt_path", str(folder)])
    assert not Path(f"/proc/{other}").exists()
    assert not (folder / "results.json").exists()


@pytest.mark.parametrize("engine", [on_processes(3), pytest.param(FORKED, marks=needs_cores)], ids=["group", "forked"])
def test_a_client_of_another_process_fails(engine: list[str], start: Start, fit: list[str], tmp_path: Path) -> None:
    """The sentence is that of one process: the first of the clients, in their order, that failed."""
    run = start(*fit, *engine, "--model", "tests.faults.failing.Failing", "--model.hidden_channels", "8")
    assert run.wait() == 1
    folder = tmp_path / "runs" / "run" / "version_0"
    assert told(run) == (
        "Client `TWO-1` failed in round 2 (train): RuntimeError: out of luck; "
        f"its traceback is in {folder}/error.txt; continue with --ckpt_path {folder}."
    )
    assert "in training_step" in (folder / "error.txt").read_text()
