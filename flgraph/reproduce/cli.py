"""``flgraph reproduce``: a paper's table or figure by one command."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from jsonargparse import ArgumentParser
from jsonargparse.typing import PositiveInt

from flgraph.errors import InputError, expect
from flgraph.reproduce.figures import write_figures
from flgraph.reproduce.ledger import Ledger, ledger_file, read_ledger, record_runs
from flgraph.reproduce.runner import run_study
from flgraph.reproduce.study import Study, list_studies, load_study
from flgraph.reproduce.table import collect, finished, write_tables


class _Parser(ArgumentParser):
    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        raise InputError(" ".join(message.split()))


def main(args: Sequence[str]) -> None:
    """Runs a study, or lists them.

    Raises:
        InputError: an argument cannot be used, or a run failed.
    """
    parser = _Parser(
        prog="flgraph reproduce", description="Reproduces a table or a figure of a paper.", allow_abbrev=False
    )
    parser.add_argument("study", nargs="?", type=str, help="PAPER/TABLE, or a YAML file of the same form")
    parser.add_argument("--list", action="store_true", help="list the studies and exit")
    parser.add_argument("--settings", type=str, help="comma-separated names; all if not given")
    parser.add_argument("--methods", type=str, help="comma-separated names; all if not given")
    parser.add_argument("--seeds", type=str, help="comma-separated numbers; the study's if not given")
    parser.add_argument("--rounds", type=PositiveInt, help="rounds of each run; the study's if not given")
    parser.add_argument("--jobs", type=PositiveInt, default=os.cpu_count() or 1, help="runs at a time")
    parser.add_argument("--collect", action="store_true", help="run nothing, only write tables of what is done")
    known = "take runs that OUT/PAPER/runs.jsonl has a record of as done, where RUNS does not have them"
    parser.add_argument("--recorded", action="store_true", help=known)
    parser.add_argument("--out", type=Path, default=Path("reproduction"), help="where tables go")
    parser.add_argument("--runs", type=Path, default=Path("runs/reproduce"), help="where run folders go")
    keep = (
        "keep the checkpoints of finished runs; those of runs cut short by --rounds are always kept, to be gone on from"
    )
    parser.add_argument("--keep_checkpoints", action="store_true", help=keep)
    every = "rounds between the checkpoints of a run; as its configuration says if not given"
    parser.add_argument("--checkpoint_every", type=PositiveInt, help=every)
    given = parser.parse_args(list(args))
    if given.list:
        print("\n".join(f"{name}: {load_study(name).title}" for name in list_studies()))
        return
    expect(given.study is not None, "study", f"one of {', '.join(list_studies())}", "none")
    seeds = _split(given.seeds)
    expect(all(seed.isdigit() for seed in seeds or ()), "--seeds", "whole numbers, separated by commas", given.seeds)
    study = load_study(given.study).cut(
        _split(given.settings), _split(given.methods), [int(seed) for seed in seeds or ()] or None, given.rounds
    )
    runs = given.runs
    ledger = read_ledger(ledger_file(study, given.out)) if given.recorded else {}
    keep_checkpoints = given.keep_checkpoints or given.rounds is not None
    try:
        if not given.collect:
            run_study(
                study,
                runs,
                given.jobs,
                keep_checkpoints=keep_checkpoints,
                ledger=ledger,
                checkpoint_every=given.checkpoint_every,
            )
    finally:  # whatever is done is worth showing, also when a run failed or the study was stopped
        for file in write_study(study, runs, given.out, ledger):
            print(f"wrote {file}")


def write_study(study: Study, runs: Path, out: Path, ledger: Ledger | None = None) -> list[Path]:
    """Records whatever is done, and writes tables and figures of it.

    Args:
        study: what was run.
        runs: where run folders are.
        out: where tables go.
        ledger: records that stand for runs without a folder; none if not given.

    Returns:
        The files.
    """
    done = finished(study, runs, ledger)
    found = ((study.run(*cell, run["seed"]), run) for cell, results in done.items() for run in results)
    record_runs(ledger_file(study, out), (one for one in found if "folder" in one[1]))
    cells = collect(study, done)
    figures = write_figures(study, done, cells, out)
    return [*write_tables(study, done, cells, out, runs, figures), *figures]


def _split(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]
