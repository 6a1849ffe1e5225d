"""Runs the grid of a study, several runs side by side, and goes on where it was stopped."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import Any

from flgraph.errors import InputError
from flgraph.reproduce.index import Ledger, recorded
from flgraph.reproduce.study import Run, Study
from flgraph.runs.checkpoint import CheckpointStore, read_manifest
from flgraph.runs.files import writing
from flgraph.runs.reader import number, read_results

_LOOK_AGAIN = 0.5
"""Seconds until a run that another command has under way is looked at again."""


def run_study(
    study: Study,
    runs: Path,
    jobs: int,
    report: Callable[[str], None] = print,
    keep_checkpoints: bool = True,
    ledger: Ledger | None = None,
    checkpoint_every: int | None = None,
) -> None:
    """Runs whatever is not done yet.

    Every run is a process of its own, ``flgraph fit`` with one thread, so that the cores are shared by runs and not by
    threads. A run that was interrupted goes on from its last checkpoint. Studies of one paper share their runs: what
    one table has done, another does not do again. Several commands may work on the same folder at the same time: what
    one has under way is waited for by others only when nothing else is left.

    Args:
        study: what to run.
        runs: where run folders go.
        jobs: how many runs at a time.
        report: called with a line for each run that ends.
        keep_checkpoints: whether a run that has ended keeps its checkpoints, which a longer run could go on from; a
            study of hundreds of runs can need a great deal of room for them.
        ledger: runs that are done although they have no folder.
        checkpoint_every: rounds between a run's checkpoints, as its configuration says when ``None``.

    Raises:
        InputError: a run failed; names its log. The other runs are finished first. Or a folder cannot be written.
    """
    waiting = [run for run in study.runs() if find_results(study, run, runs, ledger) is None]
    total = len(list(study.runs()))
    report(f"{study.name}: {total - len(waiting)} of {total} runs are done")
    done, failed = total - len(waiting), []
    with ThreadPoolExecutor(jobs) as pool, _none_after(pool) as stopped:

        def begin(run: Run) -> Future[int | None]:
            return pool.submit(_execute, study, run, runs, keep_checkpoints, checkpoint_every, stopped)

        pending = {begin(run): run for run in waiting}
        while pending:
            for future in wait(pending, return_when=FIRST_COMPLETED).done:
                run, code = pending.pop(future), future.result()
                if code is None:  # another command has it under way: again after all others
                    pending[begin(run)] = run
                    continue
                done += 1
                told = "done" if code == 0 else "FAILED"
                report(f"[{done}/{total}] {run.setting} {run.method} seed {run.seed}: {told}")
                if code != 0:
                    failed.append(run)
    if failed:
        log = run_folder(study, failed[0], runs) / "log.txt"
        raise InputError(
            f"Expected all runs of {study.name} to end well but {len(failed)} failed; the first's log is {log}."
        )


@contextmanager
def _none_after(pool: ThreadPoolExecutor) -> Iterator[Event]:
    """Whatever ends this, an interruption or a disk that is full, begins none of the runs that still wait."""
    stopped = Event()
    try:
        yield stopped
    except BaseException:
        stopped.set()
        pool.shutdown(wait=False, cancel_futures=True)
        raise


def command(study: Study, run: Run, runs: Path) -> list[str]:
    """The ``flgraph`` arguments of a run."""
    folder = run_folder(study, run, runs)
    return [
        "fit",
        *run.args,
        f"--seed_everything={run.seed}",
        f"--trainer.rounds={study.rounds_of(run.method)}",
        f"--trainer.default_root_dir={folder.parent}",
        f"--trainer.name={folder.name}",
    ]


def run_folder(study: Study, run: Run, runs: Path) -> Path:
    """Where a run's versions lie; the same for all studies of a paper that need it."""
    return runs / study.paper_name / run.digest / f"{run.name}-seed{run.seed}"


def find_results(study: Study, run: Run, runs: Path, ledger: Ledger | None = None) -> dict[str, Any] | None:
    """``results.json`` of a finished run of the study's length, with its folder as ``folder``; the newest there is.

    A run that stopped early is one, too, if that was no later. Where there is no folder, it is what the ledger has.

    Raises:
        InputError: a file is there but is not what a run writes.
    """
    rounds = study.rounds_of(run.method)
    for folder in sorted(
        run_folder(study, run, runs).glob("version_*"), key=lambda path: path.stat().st_mtime, reverse=True
    ):
        results = read_results(folder / "results.json")
        done = number(results.get("rounds"))
        if done == rounds or (results.get("stopped_early", False) and done < rounds):
            return {**results, "folder": str(folder)}
    return None if ledger is None else recorded(ledger, study, run)


def _execute(
    study: Study, run: Run, runs: Path, keep_checkpoints: bool, checkpoint_every: int | None, stopped: Event
) -> int | None:
    """Its exit status; ``None`` where another command has it under way, or where nothing is to begin any more."""
    folder, rounds = run_folder(study, run, runs), study.rounds_of(run.method)
    with writing(runs), ExitStack() as stack:
        folder.mkdir(parents=True, exist_ok=True)
        log = stack.enter_context(open(folder / "log.txt", "a"))
        # Held by the run itself, too: where `flgraph reproduce` was killed and its runs were not, the next one waits
        # for them instead of starting them a second time.
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stopped.wait(_LOOK_AGAIN)
            return None
        if stopped.is_set():
            return None
        code = 0
        if find_results(study, run, runs) is None:
            args = command(study, run, runs)
            if checkpoint_every is not None:
                args.append(f"--trainer.checkpoint_every={checkpoint_every}")
            checkpoint = _checkpoint(folder, rounds)
            if checkpoint is not None:
                args.append(f"--ckpt_path={checkpoint}")
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            call = [sys.executable, "-m", "flgraph", *args]
            code = subprocess.run(call, stdout=log, stderr=subprocess.STDOUT, env=environment, check=False).returncode
        if code == 0 and not keep_checkpoints:
            for store in _stores(folder):
                if all(done <= rounds for done in store.rounds()):  # or else a longer run is under way in there
                    shutil.rmtree(store.folder, ignore_errors=True)
        return code


def _checkpoint(folder: Path, rounds: int) -> Path | None:
    """The newest whole checkpoint to go on from: of a run that was cut off, or that is shorter."""
    for store in _stores(folder):
        if any(done > rounds for done in store.rounds()):
            continue  # to go on from an older one would undo a longer run
        for done in reversed(store.rounds()):
            with suppress(InputError):  # a damaged one; there may be an older one beside it
                read_manifest(store.path(done))
                return store.path(done)
    return None


def _stores(folder: Path) -> list[CheckpointStore]:
    """Those of a run's versions, the newest first."""
    versions = sorted(folder.glob("version_*"), key=lambda path: path.stat().st_mtime, reverse=True)
    return [CheckpointStore(version / "checkpoints") for version in versions]
