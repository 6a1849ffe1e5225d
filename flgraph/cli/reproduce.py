"""``flgraph reproduce``: a paper's table or figure by one command."""

from __future__ import annotations

import math
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from jsonargparse.typing import PositiveInt

from flgraph.cli.arguments import with_data_first, with_packaged_configs
from flgraph.cli.parser import CommandParser
from flgraph.cli.typos import check
from flgraph.errors import InputError, expect
from flgraph.reproduce.cells import finished, joined, read_earlier
from flgraph.reproduce.figures import plan_figures
from flgraph.reproduce.index import alone_in, index_file, read_index, record_runs
from flgraph.reproduce.leaderboard import has_leaderboard, write_leaderboard
from flgraph.reproduce.missing import dearest_first, find_gaps, told
from flgraph.reproduce.runner import find_results, run_each, run_folder, run_study
from flgraph.reproduce.runner import told as told_run
from flgraph.reproduce.study import LISTED, Run, Study, list_studies, load_study
from flgraph.reproduce.tables import write_tables


def main(args: Sequence[str]) -> None:
    """Runs a study, or lists them.

    Raises:
        InputError: an argument cannot be used, or a run failed.
    """
    parser = CommandParser(prog="flgraph reproduce", description="Reproduces a table or a figure of a paper.")
    option = parser.add_argument
    option("study", nargs="?", type=str, help="PAPER/TABLE, or a YAML file of the same form")
    option("--list", action="store_true", help="list the studies and exit")
    option(
        "--leaderboard",
        action="store_true",
        help="write OUT/README.md: every method by every setting, from what is recorded",
    )
    option(
        "--missing", nargs="?", const=True, metavar="PAPER", help="list printed numbers that lack runs, and core hours"
    )
    option(
        "--all",
        nargs="?",
        const=True,
        metavar="PAPER",
        help="run what --missing lists, the most informative per core hour first; a stopped one goes on",
    )
    option("--budget", type=str, help="time after which --all begins and goes on with nothing, such as 2h or 30m")
    option("--settings", type=str, help="comma-separated names; all if not given")
    option("--methods", type=str, help="comma-separated names; all if not given")
    option("--seeds", type=str, help="comma-separated numbers; the study's if not given")
    option("--rounds", type=PositiveInt, help="rounds of each run; the study's if not given")
    option("--jobs", type=PositiveInt, default=os.cpu_count() or 1, help="runs at a time")
    option("--collect", action="store_true", help="run nothing, only write tables of what is done")
    option("--recorded", action="store_true", help="runs that OUT/PAPER/runs.jsonl has but RUNS has not are done, too")
    option("--out", type=Path, default=Path("reproduction"), help="where tables go")
    option("--runs", type=Path, default=Path("runs/reproduce"), help="where run folders go")
    option("--keep_checkpoints", action="store_true", help="keep those of finished runs, too; else of shortened ones")
    option("--checkpoint_every", type=PositiveInt, help="rounds between checkpoints; by default as configured")
    given = parser.parse_args(list(args))
    for mode in (name for name in _MODES if getattr(given, name)):
        idle = [name for name in (*_MODES, *_OF_ONE_STUDY) if name != mode and getattr(given, name)]
        expect(not idle, f"--{mode}", "given without what it makes no use of", ", ".join(idle))
    if given.list:
        print("\n".join(f"{name}: {load_study(name).title}" for name in list_studies()))
        return
    if given.missing:
        gaps = find_gaps(given.out, None if given.missing is True else given.missing)
        print("\n".join(told(gaps)) or "every printed number has its runs")
        return
    expect(given.budget is None or given.all, "--budget", "given with --all", given.budget)
    if given.all:
        _folders(given.out, given.runs)
        work_off(None if given.all is True else given.all, given.out, given.runs, given.jobs, _seconds(given.budget))
        return
    if given.leaderboard:
        with _folder_of("--out", given.out):
            print("\n".join(f"wrote {file}" for file in write_leaderboard(given.out)))
        return
    expect(given.study is not None, "study", LISTED, "none")
    seeds = _split(given.seeds)
    expect(all(seed.isdecimal() for seed in seeds or ()), "--seeds", "whole numbers, separated by commas", given.seeds)
    full, runs = load_study(given.study), given.runs
    numbers = [int(seed) for seed in seeds or ()]
    study = full.cut(_split(given.settings), _split(given.methods), numbers or None, given.rounds)
    _folders(given.out, runs)
    index = read_index(index_file(study, given.out)) if given.recorded else {}
    fewer = any(study.rounds_of(method) < full.rounds_of(method) for method in study.methods)
    keep_checkpoints, every = given.keep_checkpoints or fewer, given.checkpoint_every
    try:
        if not given.collect:
            _check_arguments(study, [run for run in study.runs() if find_results(study, run, runs, index) is None])
            run_study(study, runs, given.jobs, keep_checkpoints=keep_checkpoints, index=index, checkpoint_every=every)
    finally:  # whatever is done is worth showing, also when a run failed or the study was stopped
        with _folder_of("--out", given.out):
            files = write_study(full.cut(rounds=given.rounds), runs, given.out, study)
        print("\n".join(f"wrote {file}" for file in files) or "no further run is done: no table was written")


_MODES = ("list", "missing", "all", "leaderboard")
_OF_ONE_STUDY = (
    *("study", "settings", "methods", "seeds", "rounds", "collect", "recorded"),
    *("keep_checkpoints", "checkpoint_every"),
)


def _check_arguments(study: Study, waiting: Sequence[Run]) -> None:
    """Refuses what one of many runs would end with, before any is begun: each setting once, and each method."""
    settings, methods = ({getattr(run, kind): run for run in waiting} for kind in ("setting", "method"))
    for run in (*settings.values(), *methods.values()):
        try:
            check("fit", with_data_first(with_packaged_configs(["fit", *run.args]))[1:])
        except InputError as error:
            where = f"{run.setting} {run.method}"
            raise InputError(f"{study.name}: {where} cannot begin. {error}") from error


def work_off(
    paper: str | None,
    out: Path,
    runs: Path,
    jobs: int,
    seconds: float = math.inf,
    report: Callable[[str], None] = print,
) -> None:
    """Runs what :func:`~flgraph.reproduce.missing.find_gaps` finds, in the order of ``dearest_first``.

    Each run is recorded when it ends, so that none is done twice; tables are written at the end, however it comes.

    Args:
        paper: one paper; all if not given.
        out: where tables and records go.
        runs: where run folders go.
        jobs: runs at a time.
        seconds: after which nothing is begun or goes on; what is under way goes on another time.
        report: called with a line for each run that ends.

    Raises:
        InputError: a run failed; names its log. The others are done first.
    """
    deadline = time.monotonic() + seconds
    work = dearest_first(find_gaps(out, paper))
    known = [hours for *_, hours in work if math.isfinite(hours)]
    report(f"{len(work)} runs, {math.fsum(known):.1f} core hours, {len(work) - len(known)} never timed")
    failed: list[Path] = []
    touched: dict[str, Study] = {}
    count = 0

    def ended(study: Study, run: Run, code: int) -> None:
        nonlocal count
        count += 1
        report(f"[{count}/{len(work)}] {study.name} {told_run(run)}: {'FAILED' if code else 'done'}")
        results = find_results(study, run, runs)
        if code or results is None:
            failed.append(run_folder(study, run, runs) / "log.txt")
            return
        touched[study.name] = study
        with _folder_of("--out", out):
            record_runs(index_file(study, out), [(run, results)])

    try:
        each = [(study, run) for study, run, _ in work]
        run_each(each, runs, jobs, ended, keep_checkpoints=False, deadline=deadline)
    finally:
        for study in touched.values():
            with _folder_of("--out", out):
                files = write_study(study, runs, out)
            report("\n".join(f"wrote {file}" for file in files))
    if failed:
        raise InputError("runs", "done", f"{len(failed)} that failed; the first's log is {failed[0]}")


def write_study(study: Study, runs: Path, out: Path, part: Study | None = None) -> list[Path]:
    """Records whatever is done, and writes tables and figures of it.

    Args:
        study: what was run.
        runs: where run folders are.
        out: where tables and the index go, whose records stand for runs without a folder.
        part: of the study, which may have further seeds.

    Returns:
        The files; none where nothing is done. What the table that is there has of runs that are gone, cells or seeds,
        is in the new one, too. A leaderboard that is there is brought up to date.
    """
    done = finished(study, runs, index := read_index(index_file(study, out)))
    for cell, results in finished(part, runs, index).items() if part else ():
        done[cell] = [*done.get(cell, ()), *(one for one in results if one["seed"] not in study.seeds)]
    if not done:
        return []
    found = ((study.run(*cell, run["seed"]), run) for cell, results in done.items() for run in results)
    record_runs(index_file(study, out), (one for one in found if "folder" in one[1]))
    with alone_in(out / study.paper_name):
        earlier = read_earlier(study, out)
        cells, used = joined(study, done, earlier)
        if not (used and cells):
            return []
        for metric in study.metrics:
            if not any(math.isfinite(cell.mean) for cell in cells if cell.metric == metric):
                warnings.warn(f"{study.name}: no run has a value of metric {metric}", stacklevel=2)
        figures = plan_figures(study, used, cells, out)
        shown = [file for file, draw in figures if draw is not None or file.exists()]
        files = write_tables(study, used, cells, out, runs, shown, earlier)
        for file, draw in figures:
            if draw is not None:
                draw(file)
    board = write_leaderboard(out) if study.paper_name and has_leaderboard(out) else []
    return [*files, *shown, *board]


def _seconds(text: str | None) -> float:
    """A budget in seconds."""
    if text is None:
        return math.inf
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)([smh])", text)
    expect(found is not None, "--budget", "a number with s, m or h, such as 2h", text)
    assert found is not None
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]


def _folders(out: Path, runs: Path) -> None:
    for name, folder in (("--out", out), ("--runs", runs)):
        with _folder_of(name, folder):
            folder.mkdir(parents=True, exist_ok=True)


@contextmanager
def _folder_of(option: str, folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(option, "a folder to write to", f"{folder}: {error.strerror or error}") from error


def _split(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]
