"""Studies run: side by side, cut off, resumed, beside another command."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pandas
import pytest
import yaml
from filelock import FileLock

from flgraph.cli.main import main
from flgraph.errors import InputError
from flgraph.reproduce import Study, collect, finished, run_study, runner
from flgraph.reproduce.runner import find_results, run_folder


@pytest.mark.usefixtures("in_process")
def test_study_runs_and_goes_on(tiny_study: Callable[..., Study], tmp_path: Path) -> None:
    study, lines = tiny_study(), list[str]()
    run_study(study.cut(methods=["Local"], seeds=[1]), tmp_path, jobs=1, report=lines.append)
    first = run_folder(study, next(iter(study.runs())), tmp_path)
    before = (first / "version_0" / "results.json").stat().st_mtime_ns
    run_study(study, tmp_path, jobs=2, report=lines.append)
    assert lines[2] == "tiny/table: 1 of 4 runs are done"
    assert (first / "version_0" / "results.json").stat().st_mtime_ns == before
    cells = {(cell.method, cell.protocol): cell for cell in collect(study, finished(study, tmp_path))}
    assert len(cells) == 6
    for run in study.runs():
        results = find_results(study, run, tmp_path)
        assert results is not None
        assert results["seed"] == run.seed
        assert results["rounds"] == 3
    values = [find_results(study, run, tmp_path)["final"]["mean"]["test/accuracy"] for run in study.runs()]  # type: ignore[index]
    assert cells["Local", "final"].mean == pytest.approx(100 * (values[0] + values[2]) / 2)
    assert all(cells[method, "best_test"].mean >= cells[method, "final"].mean for method in study.methods)
    # A run that was cut off, here by making the study longer, goes on in its own folder.
    longer = tiny_study(rounds=4).cut(methods=["Local"], seeds=[1])
    run_study(longer, tmp_path, jobs=1, report=lines.append)
    assert [path.name for path in sorted(first.glob("version_*"))] == ["version_0"]
    assert len((first / "version_0" / "history.jsonl").read_text().splitlines()) == 4


@pytest.mark.usefixtures("in_process")
def test_finished_runs_need_not_keep_checkpoints(tiny_study: Callable[..., Study], tmp_path: Path) -> None:
    study = tiny_study(rounds=2).cut(methods=["Local"])
    kept, dropped = (run_folder(study, run, tmp_path) / "version_0" for run in study.runs())
    run_study(study.cut(seeds=[1]), tmp_path, jobs=1, report=lambda line: None)
    run_study(study, tmp_path, jobs=1, report=lambda line: None, keep_checkpoints=False)
    assert (kept / "checkpoints").is_dir()
    left = {path.name for path in dropped.iterdir() if not path.name.startswith(".")}
    assert left == {"config.yaml", "history.jsonl", "ledger.jsonl", "partition.npz", "results.json"}
    assert [len(results) for results in finished(study, tmp_path).values()] == [2]


@pytest.mark.usefixtures("in_process")
def test_checkpoints_come_as_often_as_asked(tiny_study: Callable[..., Study], tmp_path: Path) -> None:
    study = tiny_study(rounds=1).cut(methods=["Local"], seeds=[1])
    for every, checkpoint_every in ((None, 1), (7, 7)):
        runs = tmp_path / str(every)
        run_study(study, runs, jobs=1, report=lambda line: None, checkpoint_every=every)
        config = yaml.safe_load(
            (run_folder(study, next(iter(study.runs())), runs) / "version_0/config.yaml").read_text()
        )
        assert config["trainer"]["checkpoint_every"] == checkpoint_every


@pytest.mark.usefixtures("in_process")
def test_failed_run_names_its_log(tiny_study: Callable[..., Study], tmp_path: Path) -> None:
    tiny = tiny_study(rounds=1).cut(methods=["Local"], seeds=[1])
    study = replace(tiny, settings={"TINY": f"{tiny.settings['TINY']} --data.batch_size=0"})
    with pytest.raises(InputError, match=r"1 that failed; the first's log is .*log\.txt") as caught:
        run_study(study, tmp_path, jobs=1, report=lambda line: None)
    log = Path(str(caught.value).rsplit(" ", 1)[1].rstrip("."))
    assert "Expected `data.batch_size` to be 1 or more but got 0." in log.read_text()


@pytest.mark.usefixtures("in_process")
def test_a_misspelt_metric_ends_with_the_first_run(tiny_study: Callable[..., Study], tmp_path: Path) -> None:
    study = replace(tiny_study(rounds=1), metric="test/acuracy")
    with pytest.raises(
        InputError, match=r"`metric` to be one that runs have, such as .*test/accuracy.*, but got 'test/acu"
    ):
        run_study(study, tmp_path, jobs=1, report=lambda line: None)
    runs = list(study.runs())
    assert 1 <= sum(run_folder(study, run, tmp_path).exists() for run in runs) < len(runs)


@pytest.mark.usefixtures("in_process")
def test_killed_and_started_again_gives_the_same_table(
    tiny_study: Callable[..., Study], start: Callable[..., Any], tmp_path: Path
) -> None:
    """SIGKILL hits the command, and a run in the middle; what goes on alone is waited for, not started twice."""
    file = tmp_path / "small.yaml"
    study = tiny_study(rounds=8).cut(methods=["FedStar"])
    fields = {name: getattr(study, name) for name in ("title", "metric", "rounds", "seeds", "settings", "methods")}
    file.write_text(yaml.safe_dump(fields))
    whole, cut = tmp_path / "whole", tmp_path / "cut"

    def args(runs: Path) -> list[str]:
        return ["reproduce", str(file), "--jobs=2", f"--runs={runs}", f"--out={runs / 'out'}"]

    main(args(whole))
    command_ = start(*args(cut))
    command_.wait_for(lambda: [h for h in cut.glob("*/*/version_0/history.jsonl") if h.read_text().count("\n") >= 3])
    command_.signal(signal.SIGKILL)  # its two runs go on alone
    command_.wait()
    victim = next(iter(pids_below(cut)))
    os.kill(victim, signal.SIGKILL)
    assert start(*args(cut)).wait() == 0
    tables = [pandas.read_csv(folder / "out" / "small.csv").drop(columns="seconds") for folder in (cut, whole)]
    assert tables[0].equals(tables[1])
    assert len(list(cut.glob("*/*-seed[12]"))) == 2
    assert len(list(cut.glob("*/*/version_*/results.json"))) == 2


def pids_below(runs: Path) -> list[int]:
    """Processes that write a log below this folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if (entry / "fd" / "1").readlink().is_relative_to(runs):
                    found.append(int(entry.name))
    return found


def wait_for(true: Callable[[], object], seconds: float = 400.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "nothing happened in time"
        time.sleep(0.02)


def test_an_interrupted_study_begins_no_more_runs(
    tiny_study: Callable[..., Study], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, begun, told = replace(tiny_study(), seeds=list(range(20))), list[int](), Event()

    def run(study: Study, run: Any, *args: Any) -> int | None:
        begun.append(run.seed)
        assert len(begun) == 1 or told.wait(60)  # the second is under way when the first is told to be done
        time.sleep(0.2)
        return 0

    def interrupt(line: str) -> None:
        if line.startswith("[1/"):
            told.set()
            raise KeyboardInterrupt

    monkeypatch.setattr(runner, "_execute", run)
    with pytest.raises(KeyboardInterrupt):
        run_study(study, tmp_path, jobs=1, report=interrupt)
    assert len(begun) <= 3


@pytest.mark.usefixtures("in_process")
def test_a_run_of_another_command_is_waited_for_last(
    tiny_study: Callable[..., Study], write_results: Callable[..., None], tmp_path: Path
) -> None:
    """It is taken as it is when the other command has ended it."""
    study, lines = tiny_study(rounds=1).cut(methods=["Local"]), list[str]()
    first, _ = (run_folder(study, run, tmp_path) for run in study.runs())
    first.parent.mkdir(parents=True)
    with FileLock(first.parent / "seed1.lock") as lock:

        def report(line: str) -> None:
            lines.append(line)
            if line.startswith("[1/"):
                write_results(first / "version_0", 0.5, 0.5, [0.5])
                lock.release()

        run_study(study, tmp_path, jobs=1, report=report)
    assert lines[1:] == ["[1/2] TINY Local seed 2: done", "[2/2] TINY Local seed 1: done"]


@pytest.fixture
def endless(tiny_study: Callable[..., Study], tmp_path: Path) -> Iterator[list[str]]:
    """Arguments of a run that would take an hour; whoever runs them ends with the test, also where that fails."""
    study = tiny_study(rounds=1_000_000)
    yield runner.command(study, next(iter(study.runs())), tmp_path)
    for pid in pids_below(tmp_path):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_run_is_cut_off_at_its_deadline(endless: list[str], tmp_path: Path) -> None:
    """It is no failure; nothing goes on, and nobody holds its lock."""
    lock, log = tmp_path / "lock", tmp_path / "log.txt"
    assert runner._call(str(lock), endless, log, Event(), time.monotonic() + 0.5) is None
    assert not pids_below(tmp_path)
    with FileLock(lock, timeout=0):
        pass


def test_a_run_that_a_signal_ends(endless: list[str], tmp_path: Path) -> None:
    """Its status is the signal's, also where others end at the same time; interrupted it says how to go on."""
    codes: dict[int, int | None] = {}

    def call(number: int) -> None:
        codes[number] = runner._call(str(tmp_path / f"{number}.lock"), endless, tmp_path / f"{number}.txt", Event())

    callers = [threading.Thread(target=call, args=(number,)) for number in (signal.SIGKILL, signal.SIGTERM)]
    for caller in callers:
        caller.start()
    wait_for(lambda: len(list(tmp_path.glob("*/*/*/version_*/checkpoints/last"))) == 2)  # `**` enters what is removed
    for pid in pids_below(tmp_path):
        parent = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()[1]
        assert len(os.listdir(f"/proc/{parent}/task")) == 1, "a process with threads must not be forked"
        os.kill(pid, int(Path(f"/proc/{pid}/fd/1").readlink().stem))
    for caller in callers:
        caller.join()
    assert codes == {signal.SIGKILL: -signal.SIGKILL, signal.SIGTERM: 128 + signal.SIGTERM}
    assert "continue with" in (tmp_path / f"{signal.SIGTERM.value}.txt").read_text()


def test_a_forked_run_is_as_a_new_process(tiny_study: Callable[..., Study], tmp_path: Path) -> None:
    """Also one that is not the first of its server: the same bits."""
    study = tiny_study(rounds=2)
    run = list(study.runs())[-1]
    fresh = "import sys; from flgraph.reproduce.runner import run_locked; run_locked(*sys.argv[1:])"
    places = [tmp_path / name for name in ("forked", "again", "fresh")]
    for place in places[:2]:
        place.mkdir()
        assert runner._call(str(place / "lock"), runner.command(study, run, place), place / "log.txt", Event()) == 0
    places[2].mkdir()
    args = [str(places[2] / "lock"), *runner.command(study, run, places[2])]
    subprocess.run([sys.executable, "-c", fresh, *args], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    clients = [[file.read_bytes() for file in sorted(place.rglob("round-00002/clients/*"))] for place in places]
    assert len(clients[0]) == 2
    assert clients[0] == clients[1] == clients[2]
    results = [find_results(study, run, place) for place in places]
    assert len({str([found[name] for name in ("final", "best_val")]) for found in results if found is not None}) == 1


@pytest.fixture
def interruptible() -> Iterator[None]:
    """What was begun in the background of a shell ignores interruptions."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_command_does_not_wait_for_another(
    tiny_study: Callable[..., Study], write_results: Callable[..., None], tmp_path: Path
) -> None:
    study = tiny_study(rounds=1).cut(methods=["Local"])
    first, second = (run_folder(study, run, tmp_path) for run in study.runs())
    write_results(second / "version_0", 0.5, 0.5, [0.5])
    with FileLock(first.parent / "seed1.lock"):
        waiting = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
        waiting.start()
        with pytest.raises(KeyboardInterrupt):
            run_study(study, tmp_path, jobs=1, report=lambda line: None)
    assert not list(first.glob("version_*"))


@pytest.mark.usefixtures("in_process")
def test_checkpoints_to_go_on_from(tiny_study: Callable[..., Study], tmp_path: Path) -> None:
    """A damaged one is passed over; one of a longer run is left alone, and not removed when a shorter one has ended."""
    study = tiny_study(rounds=3).cut(methods=["Local"], seeds=[1])
    run_study(study, tmp_path, jobs=1, report=lambda line: None)
    folder = run_folder(study, next(iter(study.runs())), tmp_path)
    (newest,) = (folder / "version_0" / "checkpoints").glob("round-00003")
    next(iter((newest / "clients").iterdir())).write_bytes(b"damaged")
    found = runner._checkpoint(folder, 3)
    assert found is not None
    assert found.name < newest.name
    assert runner._checkpoint(folder, 4) == found
    assert runner._checkpoint(folder, 2) is None
    (folder / "version_0" / "results.json").unlink()
    shutil.copytree(folder / "version_0", folder / "version_1", symlinks=True)
    shutil.rmtree(folder / "version_1" / "checkpoints" / newest.name)
    os.replace(folder / "version_0" / "checkpoints" / newest.name, folder / "version_0/checkpoints/round-00009")
    run_study(study, tmp_path, jobs=1, report=lambda line: None, keep_checkpoints=False)
    assert (folder / "version_1" / "results.json").is_file()
    assert [(folder / f"version_{number}" / "checkpoints").exists() for number in (0, 1)] == [True, False]


def test_checkpoints_are_kept_of_runs_cut_short_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[bool] = []
    monkeypatch.setattr("flgraph.cli.reproduce.run_study", lambda *_, **given: kept.append(given["keep_checkpoints"]))
    for rounds in ("199", "200", "201"):
        places = (f"--{name}={tmp_path}" for name in ("out", "runs"))
        main(["reproduce", "fedstar/table1", "--rounds", rounds, *places])
    assert kept == [True, False, False]


def test_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    main(["reproduce", "--list"])
    assert "fedstar/table1: FedStar (AAAI 2023), Table 1" in capsys.readouterr().out
    file = tmp_path / "bad.yaml"
    file.write_text(yaml.safe_dump({"title": "t", "roundz": 3}))
    methods = {"a": "-c configs/method/fedavg.yaml", "b": "-c configs/method/fedavg.yaml {x}"}
    own = {"settings": {"s": "-c configs/data/chem.yaml"}, "methods": methods, "metric": "accuracy", "seeds": [1]}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump({"title": "t", "rounds": 1, **own}))
    places = [f"--{name}={tmp_path / name}" for name in ("out", "runs")]
    bad = {
        ("reproduce", str(tmp_path / "own.yaml"), *places): "own: s b cannot begin. unrecognized arguments: {x}",
        ("reproduce",): "Expected `study` to be a study that `flgraph reproduce --list` shows but got",
        ("reproduce", "fedstar/tabel10"): "`flgraph reproduce --list` shows but got 'fedstar/tabel10' (did you mean "
        "fedstar/table10?).",
        ("reproduce", "fedstar/table1", "--settings", "CHIM"): "but got 'CHIM' (did you mean CHEM?).",
        ("reproduce", "fedstar/table1", "--seeds", "a"): "Expected `--seeds` to be whole numbers",
        ("reproduce", "fedstar/table1", "--seeds", "²"): "Expected `--seeds` to be whole numbers",
        (
            "reproduce",
            "fedstar/table1",
            "--all",
            "--collect",
        ): "without what it makes no use of but got 'study, c",
        ("reproduce", "--missing", "fclg", "--seeds", "1"): "`--missing` to be given without what it makes no use of",
        ("reproduce", "fedstar/table1", "--rounds", "0"): "rounds",
        ("reproduce", "fedstar/table1", "--round", "1"): "unrecognized arguments",
        ("reproduce", str(file)): "to be a study with fields among",
    }
    for args, sentence in bad.items():
        with pytest.raises(SystemExit) as caught:
            main(list(args))
        assert caught.value.code == 2
        error = capsys.readouterr().err
        assert sentence in error
        assert error.count(os.linesep) == 1
    assert not list(tmp_path.rglob("log.txt"))


@pytest.mark.parametrize("option", ["--out", "--runs"])
def test_folders_that_cannot_be_written(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    places = {"--out": tmp_path / "out", "--runs": tmp_path / "runs", option: tmp_path / "file"}
    with pytest.raises(SystemExit) as caught:
        main(["reproduce", "fedstar/table1", *(f"{name}={place}" for name, place in places.items())])
    assert caught.value.code == 2
    assert f"Expected `{option}` to be a folder to write to but got {tmp_path / 'file'}: " in capsys.readouterr().err
