"""Records of runs beside the tables: a study goes on from them where the run folders are gone."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from flgraph.cli import main
from flgraph.errors import InputError
from flgraph.reproduce import Study, run_study
from flgraph.reproduce.cli import write_study
from flgraph.reproduce.ledger import ledger_file, read_ledger, record_runs, recorded
from flgraph.reproduce.runner import run_folder

SETTINGS: dict[str, str | list[str]] = {"S": ["--data=D"]}
METHODS: dict[str, str | list[str]] = {"Local": ["--a=1"], "GCFL": ["--b=2"]}
STUDY = Study("paper/table", "t", "accuracy", 3, [1, 2], SETTINGS, METHODS, {"S": {"Local": [50.0]}})


def write_run(folder: Path, seed: int, tests: list[float], **further: object) -> None:
    """A finished run of two clients; its best validation round is the first."""
    folder.mkdir(parents=True)

    def told(test: float) -> dict[str, object]:
        own = {"a": {"test/accuracy": test - 0.1}, "b": {"test/accuracy": test + 0.1}}
        return {"mean": {"test/accuracy": test}, "weighted_mean": {"test/accuracy": test / 2}, "own": own}

    rounds = [told(test) for test in tests]
    final, first = (
        {**{k: one[k] for k in ("mean", "weighted_mean")}, "clients": one["own"]} for one in (rounds[-1], rounds[0])
    )
    fields = {
        "rounds": len(tests),
        "seconds_per_round": 0.5,
        "bytes_per_round": {"up": 1e6, "down": 2e6},
        "versions": {"torch": "2"},
        "seed": seed,
        "parameters": {"a": {"total": 10, "shared": 4}, "b": {"total": 30, "shared": 4}},
        "data": {"a": {"content": "0123", "batch_size": 4}},
        **further,
    }
    (folder / "results.json").write_text(json.dumps({"final": final, "best_val": first, **fields}))
    lines = [
        json.dumps({"round": n, "metrics": one["own"], **{k: one[k] for k in ("mean", "weighted_mean")}})
        for n, one in enumerate(rounds, start=1)
    ]
    (folder / "history.jsonl").write_text("\n".join(lines) + "\n")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """All runs of the study; GCFL splits its clients in round 3."""
    split = {"splits": [{"round": 3, "into": [["a"], ["b"]]}]}
    for run in STUDY.runs():
        further = {"aggregator": split} if run.method == "GCFL" else {}
        tests = [0.6, 0.7 + run.seed / 100, 0.61 + run.seed / 30]
        write_run(run_folder(STUDY, run, tmp_path / "runs") / "version_0", run.seed, tests, **further)
    return tmp_path / "runs"


@pytest.mark.parametrize("average", ["clients", "samples"])
def test_records_give_the_same_table(runs: Path, tmp_path: Path, average: str) -> None:
    study, out = replace(STUDY, average=average, protocols=["best_client"]), tmp_path / "out"
    table, page, *_ = write_study(study, runs, out)
    before = table.read_text(), page.read_text()
    assert "best_cluster" in before[0]
    assert ("| best_client (optimistic) |" in before[1]) == (average == "clients")
    shutil.rmtree(runs)
    write_study(study, runs, out)
    assert table.read_text().count("\n") == 1  # what is not at hand is not shown, unless asked for
    write_study(study, runs, out, read_ledger(ledger_file(study, out)))
    assert (table.read_text(), page.read_text()) == before


def test_recorded_runs_are_not_run_again(runs: Path, tmp_path: Path) -> None:
    """Where the arguments of a run that is recorded would fail, only runs that are not can."""
    lines: list[str] = []
    write_study(STUDY, runs, tmp_path / "out")
    shutil.rmtree(runs)
    ledger = read_ledger(ledger_file(STUDY, tmp_path / "out"))
    run_study(STUDY, runs, jobs=1, report=lines.append, ledger=ledger)
    assert lines == ["paper/table: 4 of 4 runs are done"]
    with pytest.raises(InputError, match="1 failed"):
        run_study(STUDY.cut(methods=["Local"], seeds=[1], rounds=4), runs, jobs=1, report=lines.append, ledger=ledger)


def test_a_newer_run_takes_the_place_of_its_record(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_study(STUDY, runs, out)
    first = next(iter(STUDY.runs()))
    folder = run_folder(STUDY, first, runs) / "version_0"
    shutil.rmtree(folder)
    write_run(folder, 1, [0.1, 0.2, 0.3])
    write_study(STUDY.cut(methods=["Local"], seeds=[1]), runs, out)
    ledger = read_ledger(ledger_file(STUDY, out))
    assert len(ledger) == 4
    assert ledger[first.digest, 1, 3]["final"]["mean"] == {"test/accuracy": 0.3}
    assert ledger[first.digest, 1, 3]["best_test"]["mean"] == {"test/accuracy": 0.3}
    assert "clients" not in ledger[first.digest, 1, 3]["final"]
    assert {path.name for path in (out / "paper").iterdir()} == {"runs.jsonl", "table.csv", "table.md"}


def test_runs_that_stopped_early_stand_for_longer_ones(tmp_path: Path) -> None:
    run, file = next(iter(STUDY.runs())), tmp_path / "runs.jsonl"
    for number, (length, early) in enumerate([(3, True), (5, False), (7, True)]):
        write_run(tmp_path / str(number), 1, [0.5] * length, stopped_early=early)
        results = json.loads((tmp_path / str(number) / "results.json").read_text())
        record_runs(file, [(run, {**results, "folder": str(tmp_path / str(number))})])
    ledger = read_ledger(file)
    lengths = {}
    for rounds in (2, 4, 5, 6, 9):
        found = recorded(ledger, STUDY.cut(rounds=rounds), run)
        lengths[rounds] = found and found["rounds"]
    assert lengths == {2: None, 4: 3, 5: 5, 6: 3, 9: 7}


def test_pictures_that_need_more_are_left_as_they_are(runs: Path, tmp_path: Path) -> None:
    study, out = replace(STUDY, figure="convergence"), tmp_path / "out"
    write_study(study, runs, out)
    picture = out / "paper" / "table_S.png"
    before = picture.read_bytes()
    shutil.rmtree(run_folder(STUDY, next(iter(STUDY.runs())), runs))
    ledger = read_ledger(ledger_file(study, out))
    files = write_study(study, runs, out, ledger)
    assert files[-1] == picture
    assert picture.read_bytes() == before
    assert "![table_S](table_S.png)" in files[1].read_text()
    picture.unlink()
    assert [file.name for file in write_study(study, runs, out, ledger)] == ["table.csv", "table.md"]


def test_a_broken_record_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "fedstar").mkdir()
    file = tmp_path / "fedstar" / "runs.jsonl"
    file.write_text('{"digest": "a", "seed": 1, "rounds": 2}\n{"digest": "a", "se\n')
    with pytest.raises(InputError, match=r"line 2 of `.*runs.jsonl` to be the record of a run but got '\{\"digest"):
        read_ledger(file)
    with pytest.raises(SystemExit) as caught:
        main(["reproduce", "fedstar/table2", "--collect", "--recorded", "--out", str(tmp_path)])
    assert caught.value.code == 2
    assert "line 2 of" in capsys.readouterr().err
