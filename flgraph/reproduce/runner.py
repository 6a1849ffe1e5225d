"""Runs the grid of a study, several runs side by side, and goes on where it was stopped."""

from __future__ import annotations

import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from multiprocessing import connection, get_context
from pathlib import Path
from threading import Event, Lock
from typing import Any

from filelock import FileLock, Timeout

from flgraph.errors import InputError
from flgraph.reproduce.index import RunIndex, recorded
from flgraph.reproduce.protocols import check_metrics
from flgraph.reproduce.study import Run, Study
from flgraph.runs.checkpoint import CheckpointStore, read_manifest
from flgraph.runs.files import writing
from flgraph.runs.reader import number, read_results

_LOCKED, _LOOK_AGAIN = 75, 0.5
"""Exit status of a run that another command has under way, and seconds until it is looked at again."""

_FORKS = get_context("forkserver") if sys.platform == "linux" else get_context("spawn")
"""How runs begin: on Linux forked from one process with a single thread that has imported what they need."""
_STARTING = Lock()
"""Held where multiprocessing looks which processes have ended: of two threads that do, one would lose the status."""


def run_study(
    study: Study,
    runs: Path,
    jobs: int,
    report: Callable[[str], None] = print,
    keep_checkpoints: bool = True,
    index: RunIndex | None = None,
    checkpoint_every: int | None = None,
) -> None:
    """Runs whatever is not done yet.

    Every run is a process of its own, ``flgraph fit`` with one thread, so that the cores are shared by runs and not by
    threads. As multiprocessing asks, a script that calls this does so under ``if __name__ == "__main__"``. A run that
    was interrupted goes on from its last checkpoint. Studies of one paper share their runs: what one table has done,
    another does not do again. Several commands may work on the same folder at the same time: what one has under way
    is waited for by others only when nothing else is left.

    Args:
        study: what to run.
        runs: where run folders go.
        jobs: how many runs at a time.
        report: called with a line for each run that ends.
        keep_checkpoints: whether a run that has ended keeps its checkpoints, which a longer run could go on from; a
            study of hundreds of runs can need a great deal of room for them.
        index: runs that are done although they have no folder.
        checkpoint_every: rounds between a run's checkpoints, as its configuration says when ``None``.

    Raises:
        InputError: a run failed; names its log. The other runs are finished first. Or a folder cannot be written.
            Or the first run that ends measures none of the study's metrics; no other is begun then.
    """
    planned, failed = list(study.runs()), list[Run]()
    waiting = [run for run in planned if find_results(study, run, runs, index) is None]
    done = len(planned) - len(waiting)
    report(f"{study.name}: {done} of {len(planned)} runs are done")
    further = [] if checkpoint_every is None else [f"--trainer.checkpoint_every={checkpoint_every}"]

    def ended(study: Study, run: Run, code: int) -> None:
        nonlocal done
        done += 1
        if not code and (found := find_results(study, run, runs)):
            check_metrics(study, found)
        report(f"[{done}/{len(planned)}] {told(run)}: {'FAILED' if code else 'done'}")
        failed.extend([run] if code else [])

    run_each([(study, run) for run in waiting], runs, jobs, ended, keep_checkpoints, further)
    if failed:
        log = run_folder(study, failed[0], runs) / "log.txt"
        raise InputError(f"runs of {study.name}", "done", f"{len(failed)} that failed; the first's log is {log}")


def told(run: Run) -> str:
    """A run in words."""
    return f"{run.setting} {run.method} seed {run.seed}"


def run_each(
    work: Sequence[tuple[Study, Run]],
    runs: Path,
    jobs: int,
    ended: Callable[[Study, Run, int], None],
    keep_checkpoints: bool = True,
    further: Sequence[str] = (),
    deadline: float = math.inf,
) -> None:
    """Runs of any studies in their order, several side by side; those that are done count as ended well.

    Args:
        work: studies and runs of them.
        runs: where run folders go.
        jobs: how many runs at a time.
        ended: called in this thread with the exit status of each run that ends.
        keep_checkpoints: see :func:`run_study`.
        further: arguments of ``flgraph fit``.
        deadline: of ``time.monotonic``, at which no run is begun any more and those under way are ended, to go on from
            their last checkpoints another time.
    """
    stopped = Event()
    with ThreadPoolExecutor(jobs) as pool:

        def begin(one: tuple[Study, Run]) -> Future[int | None]:
            return pool.submit(_execute, *one, runs, keep_checkpoints, further, stopped, deadline)

        try:
            pending = {begin(one): one for one in work}
            while pending:
                for future in wait(pending, return_when=FIRST_COMPLETED).done:
                    one, code = pending.pop(future), future.result()
                    if code is not None:
                        ended(*one, code)
                    elif time.monotonic() < deadline:  # another command has it under way: again after all others
                        pending[begin(one)] = one
        except BaseException:  # an interruption, a full disk: none of the runs that still wait is begun
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def command(study: Study, run: Run, runs: Path) -> list[str]:
    """The ``flgraph`` arguments of a run."""
    folder, rounds = run_folder(study, run, runs), study.rounds_of(run.method)
    where = [f"--trainer.default_root_dir={folder.parent}", f"--trainer.name={folder.name}"]
    return ["fit", *run.args, f"--seed_everything={run.seed}", f"--trainer.rounds={rounds}", *where]


def run_folder(study: Study, run: Run, runs: Path) -> Path:
    """Where a run's versions lie; the same for all studies of a paper that need it, whatever they call it."""
    folder = runs / study.paper_name / run.digest
    return next(folder.glob(f"*-seed{run.seed}"), folder / f"{run.name}-seed{run.seed}")


def find_results(study: Study, run: Run, runs: Path, index: RunIndex | None = None) -> dict[str, Any] | None:
    """``results.json`` of a finished run of the study's length, with ``folder`` and ``digest``; the newest there is.

    A run that stopped early is one, too, if that was no later. Where there is no folder, it is what the index has.

    Raises:
        InputError: a file is there but is not what a run writes.
    """
    rounds, home = study.rounds_of(run.method), run_folder(study, run, runs)
    for folder in _versions(home):
        results = read_results(folder / "results.json")
        done = number(results.get("rounds"))
        if done == rounds or (results.get("stopped_early", False) and done < rounds):
            if not isinstance(results.get("final"), dict) or "seed" not in results:
                raise InputError(str(folder / "results.json"), "a run's, with `final` and `seed`,", "one without")
            return {**results, "folder": str(folder), "digest": home.parent.name}
    return None if index is None else recorded(index, home.parent.name, run.seed, rounds)


def run_locked(lock: str, *args: str) -> None:
    """``flgraph`` with these arguments, unless another process holds the lock.

    The run holds it itself: where ``flgraph reproduce`` was killed and its runs were not, the next one waits for them
    instead of starting them a second time.
    """
    from flgraph.cli.main import main

    try:
        with FileLock(lock, timeout=0):
            main(args)
    except Timeout:
        raise SystemExit(_LOCKED) from None


def _execute(
    study: Study,
    run: Run,
    runs: Path,
    keep_checkpoints: bool,
    further: Sequence[str],
    stopped: Event,
    deadline: float = math.inf,
) -> int | None:
    """Its exit status; ``None`` where another command has it under way, or where nothing is to go on any more."""
    if stopped.is_set() or time.monotonic() >= deadline:
        return None
    rounds, home = study.rounds_of(run.method), run_folder(study, run, runs).parent
    with writing(runs):
        home.mkdir(parents=True, exist_ok=True)
        lock = FileLock(home / f"seed{run.seed}.lock", timeout=0)
        try:
            with lock:
                folder = run_folder(study, run, runs)
                folder.mkdir(exist_ok=True)
                checkpoint = _checkpoint(folder, rounds)
                resumed = [] if checkpoint is None else [f"--ckpt_path={checkpoint}"]
                done = find_results(study, run, runs) is not None
            args = [*command(study, run, runs), *further, *resumed]
            code = 0 if done else _call(lock.lock_file, args, folder / "log.txt", stopped, deadline)
            if code == 0 and not keep_checkpoints:
                with lock:
                    for store in _stores(folder):
                        if all(one <= rounds for one in store.rounds()):  # or else a longer run is under way in there
                            shutil.rmtree(store.folder, ignore_errors=True)
        except Timeout:
            code = _LOCKED
    if code == _LOCKED:
        stopped.wait(_LOOK_AGAIN)
        return None
    return code


def _call(lock: str, args: list[str], log: Path, stopped: Event, deadline: float = math.inf) -> int | None:
    """The exit status of ``flgraph`` with these arguments, a process of its own with one thread, or ``None``."""
    process = _FORKS.Process(target=_begin, args=(lock, args, log, dict(os.environ)))
    with _STARTING:
        if stopped.is_set():
            return None
        _FORKS.set_forkserver_preload(["flgraph.reproduce.warm"])
        try:
            process.start()
        except (EOFError, OSError):  # the server was ended before it answered, as by an interruption: no second one
            stopped.set()
            raise
    left = None if math.isinf(deadline) else max(deadline - time.monotonic(), 0)
    ended = bool(connection.wait([process.sentinel], left))
    if not ended:
        process.kill()
        connection.wait([process.sentinel])
    with _STARTING:
        process.join()
    return process.exitcode if ended else None


def _begin(lock: str, args: list[str], log: Path, environment: dict[str, str]) -> None:
    """What the process of a run does: its variables are those of the caller, its output goes to the log."""
    os.environ.clear()
    os.environ.update({**environment, "OMP_NUM_THREADS": "1"})
    with open(log, "a") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    run_locked(lock, *args)


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
    return [CheckpointStore(version / "checkpoints") for version in _versions(folder)]


def _versions(folder: Path) -> list[Path]:
    """The newest first."""
    return sorted(folder.glob("version_*"), key=lambda path: path.stat().st_mtime, reverse=True)
