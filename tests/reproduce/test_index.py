"""Records of runs beside the tables: a study goes on from them where the run folders are gone."""

from __future__ import annotations

import csv
import json
import math
import shutil
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from flgraph.cli.main import main
from flgraph.cli.reproduce import write_study
from flgraph.errors import InputError
from flgraph.reproduce import Study, list_studies, load_study, run_study
from flgraph.reproduce.index import index_file, read_index, record_runs, recorded
from flgraph.reproduce.runner import run_folder

ROOT = Path(__file__).parents[2]
SUPERSEDED = {
    *("1fb5052b", "ea988920", "c0a7eb09", "b399c0f8", "c57e25d2", "dff40572", "a947905e"),  # NCI1, features: all
    *("42f41c19", "82ffbb57"),  # label-tuned FCLG on ENZYMES and DHFR, features: attributes
}
"""Digests of records that no study asks for any more."""

METHODS = {"Local": "--a=1", "GCFL": "--b=2"}
STUDY = Study("paper/table", "t", "accuracy", 3, [1, 2], {"S": "--data=D"}, METHODS, {"S": {"Local": [50.0]}})


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
    for protocol in ("best_client", "best_cluster"):  # of whose rounds there is no weighted mean
        assert (f"| {protocol} (optimistic) |" in before[1]) == (average == "clients")
    shutil.rmtree(runs)
    write_study(study, runs, out)
    assert (table.read_text(), page.read_text()) == before


@pytest.mark.usefixtures("in_process")
def test_recorded_runs_are_not_run_again(runs: Path, tmp_path: Path) -> None:
    """Where the arguments of a run that is recorded would fail, only runs that are not can."""
    lines: list[str] = []
    write_study(STUDY, runs, tmp_path / "out")
    shutil.rmtree(runs)
    index = read_index(index_file(STUDY, tmp_path / "out"))
    run_study(STUDY, runs, jobs=1, report=lines.append, index=index)
    assert lines == ["paper/table: 4 of 4 runs are done"]
    with pytest.raises(InputError, match="1 that failed"):
        run_study(STUDY.cut(methods=["Local"], seeds=[1], rounds=4), runs, jobs=1, report=lines.append, index=index)


def test_a_newer_run_takes_the_place_of_its_record(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_study(STUDY, runs, out)
    first = next(iter(STUDY.runs()))
    folder = run_folder(STUDY, first, runs) / "version_0"
    shutil.rmtree(folder)
    write_run(folder, 1, [0.1, 0.2, 0.3])
    write_study(STUDY.cut(methods=["Local"], seeds=[1]), runs, out)
    index = read_index(index_file(STUDY, out))
    assert len(index) == 4
    record = index[first.digest, 1][3]
    assert record["final"]["mean"] == {"test/accuracy": 0.3}
    assert record["best_test"]["mean"] == {"test/accuracy": 0.3}
    assert "clients" not in record["final"]
    assert {path.name for path in (out / "paper").iterdir()} == {".lock", "runs.jsonl", "table.csv", "table.md"}


def test_a_table_that_shares_runs_changes_no_record(runs: Path, tmp_path: Path) -> None:
    """Not even what it is called."""
    write_study(STUDY, runs, tmp_path / "out")
    records = index_file(STUDY, tmp_path / "out").read_bytes()
    write_study(replace(STUDY, methods={"Alone": METHODS["Local"]}, paper={}), runs, tmp_path / "out")
    assert index_file(STUDY, tmp_path / "out").read_bytes() == records


def test_what_a_table_has_stays_in_it(runs: Path, tmp_path: Path) -> None:
    """Of runs that are gone, without a record: cells that no run is at hand for, and seeds."""
    out = tmp_path / "out"
    table, page = write_study(STUDY, runs, out)
    whole = table.read_bytes(), page.read_bytes()
    shutil.rmtree(runs)
    index_file(STUDY, out).unlink()
    assert write_study(STUDY, runs, out) == []
    longer = replace(STUDY, seeds=[1, 2, 3], methods={**METHODS, "FedAvg": "--c=3"})
    tests = {("Local", 1): 0.9, ("Local", 3): 0.77, ("FedAvg", 1): 0.5}
    for (method, seed), test in tests.items():
        run = longer.run("S", method, seed)
        write_run(run_folder(longer, run, runs) / "version_0", seed, [0.6, 0.7, test], versions={"torch": "3"})
    assert write_study(longer, runs, out) == [table, page]
    rows = {row.split(" | ")[0]: row for row in page.read_text().splitlines() if row.startswith("| ")}
    kept = next(row for row in whole[1].decode().splitlines() if row.startswith("| GCFL"))
    assert rows["| GCFL"] == kept.replace("| +0.00 |", "|")  # Local is of other seeds now
    # Seed 1 of Local is the earlier run's, and seed 3 the new one's: 61 + 10 / 3, 61 + 20 / 3 and 77.
    values = [61 + 10 / 3, 61 + 20 / 3, 77.0]
    mean, std = statistics.fmean(values), statistics.stdev(values)
    assert f"| Local | 50.00 | {mean:.2f} ± {std:.2f} | {mean - 50:+.2f} |" in rows["| Local"]
    assert rows["| Local"].endswith("| 20 | 4 | 3 / 6 | 3 |")
    assert "| 50.00 |" in rows["| FedAvg"]
    assert "- torch: 2, 3\n" in page.read_text()
    with open(table, newline="") as stream:
        which = {row["method"]: row["which"] for row in csv.DictReader(stream)}
    assert which == {"Local": "1 2 3", "GCFL": "1 2", "FedAvg": "1"}
    again = table.read_bytes(), page.read_bytes()
    write_study(longer, runs, out)
    assert (table.read_bytes(), page.read_bytes()) == again


def test_gains_of_rows_whose_runs_are_gone(runs: Path, tmp_path: Path) -> None:
    """They are over what the other method has now."""
    study, out = replace(STUDY, base="Local"), tmp_path / "out"
    write_study(study, runs, out)
    shutil.rmtree(runs)
    index_file(study, out).unlink()
    changed = replace(study, methods={**METHODS, "Local": "--a=7"})
    for seed in (1, 2):
        run = changed.run("S", "Local", seed)
        write_run(run_folder(changed, run, runs) / "version_0", seed, [0.6, 0.7, 0.9])
    page = write_study(changed, runs, out)[1].read_text()
    assert "| 66.00 ± 2.36 |" in (row := next(row for row in page.splitlines() if row.startswith("| GCFL")))
    assert "| -24.00 | -24.00 | 20 | 4 | 3 / 6 | 2 |" in row


def test_a_protocol_that_some_seeds_lack_is_left_out(runs: Path, tmp_path: Path) -> None:
    study, out = replace(STUDY, protocols=["best_client"]), tmp_path / "out"
    table = write_study(STUDY, runs, out)[0]
    shutil.rmtree(runs)
    index_file(study, out).unlink()
    longer = replace(study, seeds=[1, 2, 3])
    write_run(run_folder(longer, longer.run("S", "Local", 3), runs) / "version_0", 3, [0.6, 0.7, 0.9])
    write_study(longer, runs, out)
    with open(table, newline="") as stream:
        seeds = {row["protocol"]: row["seeds"] for row in csv.DictReader(stream) if row["method"] == "Local"}
    assert seeds == {"final": "3", "best_test": "3"}


def test_a_damaged_table_is_named(runs: Path, tmp_path: Path) -> None:
    table = write_study(STUDY, runs, tmp_path / "out")[0]
    text = table.read_text()
    for damaged in (text[:-60], text.replace(",2,3,1 2,", ",2,3,1 x,", 1), text.replace("\n", "\n<<<<<<< HEAD\n", 1)):
        table.write_text(damaged)
        with pytest.raises(InputError, match=r"line \d of .*table.csv` to be a row of a table"):
            write_study(STUDY, runs, tmp_path / "out")


def test_a_picture_of_a_setting_whose_runs_are_gone_stays_on_the_page(runs: Path, tmp_path: Path) -> None:
    study, out = replace(STUDY, figure="convergence", settings={"S": "--data=D", "T": "--data=E"}), tmp_path / "out"
    for run in study.runs():
        if run.setting == "T":
            write_run(run_folder(study, run, runs) / "version_0", run.seed, [0.6, 0.7, 0.9])
    write_study(study, runs, out)
    for method in METHODS:
        shutil.rmtree(run_folder(study, study.run("T", method, 1), runs).parent)
    index_file(study, out).unlink()
    page = write_study(study, runs, out)[1].read_text()
    assert "![table_S](table_S.png)" in page
    assert "![table_T](table_T.png)" in page
    assert "## T" in page


def test_further_seeds_of_a_part(runs: Path, tmp_path: Path) -> None:
    out, part = tmp_path / "out", STUDY.cut(methods=["GCFL"], seeds=[2, 7])
    write_run(run_folder(part, part.run("S", "GCFL", 7), runs) / "version_0", 7, [0.6, 0.7, 0.9])
    table = write_study(STUDY, runs, out, part)[0]
    with open(table, newline="") as stream:
        which = {row["method"]: row["which"] for row in csv.DictReader(stream) if row["protocol"] == "final"}
    assert which == {"Local": "1 2", "GCFL": "1 2 7"}


def test_a_row_of_other_settings_makes_room(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_study(STUDY, runs, out)
    changed = replace(STUDY, methods={**METHODS, "GCFL": "--b=4"})
    write_run(run_folder(changed, changed.run("S", "GCFL", 2), runs) / "version_0", 2, [0.6, 0.7, 0.3])
    shutil.rmtree(run_folder(changed, changed.run("S", "Local", 1), runs))
    index_file(STUDY, out).unlink()
    rows = write_study(changed, runs, out)[1].read_text().splitlines()
    assert any(row.startswith("| GCFL | - | 30.00 | - |") and row.endswith("| 1 |") for row in rows)
    assert any(row.startswith("| Local | 50.00 | 66.00 ± 2.36 |") and row.endswith("| 2 |") for row in rows)


def test_a_study_that_was_cut_shows_all_that_is_done(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flgraph.cli.reproduce.load_study", lambda name: STUDY)
    table, page = write_study(STUDY, runs, tmp_path / "out")
    whole = table.read_bytes(), page.read_bytes()
    args = ["reproduce", "paper/table", "--runs", str(runs), "--out", str(tmp_path / "out"), "--methods", "GCFL"]
    main([*args, "--seeds", "1"])
    assert (table.read_bytes(), page.read_bytes()) == whole


def test_a_table_of_other_rounds_is_another_one(runs: Path, tmp_path: Path) -> None:
    """Its picture, too; and a table says nothing that one of other rounds said in its place."""
    out, one = tmp_path / "out", replace(STUDY, figure="convergence").cut(seeds=[1])
    assert [file.name for file in write_study(one, runs, out)] == ["table.csv", "table.md", "table_S.png"]
    for run in one.cut(rounds=2).runs():
        write_run(run_folder(one, run, runs) / "version_1", run.seed, [0.1, 0.2])
    shorter = [file.name for file in write_study(one.cut(rounds=2), runs, out)]
    assert shorter == ["table_2_rounds.csv", "table_2_rounds.md", "table_2_rounds_S.png"]
    assert one.cut(rounds=3).table == "table"
    rewritten = replace(one, rounds=2, methods={"Local": METHODS["Local"]})
    assert "GCFL" not in write_study(rewritten, runs, out)[1].read_text()


def test_a_picture_of_more_runs_than_are_at_hand_stays(runs: Path, tmp_path: Path) -> None:
    study, out = replace(STUDY, figure="convergence"), tmp_path / "out"
    picture = write_study(study, runs, out)[2]
    before = picture.read_bytes()
    shutil.rmtree(run_folder(study, study.run("S", "GCFL", 1), runs))
    shutil.rmtree(run_folder(study, study.run("S", "GCFL", 2), runs))
    index_file(study, out).unlink()
    assert write_study(study, runs, out)[2] == picture
    assert picture.read_bytes() == before
    assert "![table_S](table_S.png)" in (out / "paper" / "table.md").read_text()


def test_rounds_after_the_results_are_not_looked_at(runs: Path, tmp_path: Path) -> None:
    """A longer run is under way in the folder of a shorter one; it was killed while it wrote."""
    study = replace(STUDY, protocols=["best_client"])
    before = write_study(study, runs, tmp_path / "out")[0].read_bytes()
    for file in runs.glob("*/*/*/version_0/history.jsonl"):
        line = json.dumps({"round": 4, "mean": {"test/accuracy": 1.0}, "metrics": {"a": {"test/accuracy": 1.0}}})
        file.write_text(f'{file.read_text()}{line}\n{{"round": 5, "me')
    assert write_study(replace(study, figure="convergence"), runs, tmp_path / "out")[0].read_bytes() == before
    assert read_index(index_file(study, tmp_path / "out"))


def test_a_run_whose_records_are_cut_short_is_named(runs: Path, tmp_path: Path) -> None:
    file = sorted(runs.glob("*/*/*/version_0/history.jsonl"))[0]
    file.write_text(file.read_text().splitlines()[0] + "\n")
    with pytest.raises(InputError, match=r"history.jsonl` to be of \d rounds, as its results are, but got 1"):
        write_study(STUDY, runs, tmp_path / "out")
    (file.parent / "results.json").write_text(json.dumps({"rounds": STUDY.rounds, "final": None}))
    with pytest.raises(InputError, match=r"results.json` to be a run's, with `final` and `seed`, but got one without"):
        write_study(STUDY, runs, tmp_path / "out")


def test_gains_are_over_common_seeds(runs: Path, tmp_path: Path) -> None:
    """With seeds 1 and 2 both have 61 % + 10/3 points per seed; Local gets 10 more with seed 2 and loses seed 1."""
    local = [run for run in STUDY.runs() if run.method == "Local"]
    for run, test in zip(local, (0.5, 0.6), strict=True):
        folder = run_folder(STUDY, run, runs) / "version_0"
        shutil.rmtree(folder)
        write_run(folder, run.seed, [test] * 3)
    rows = write_study(STUDY, runs, tmp_path / "a")[1].read_text().splitlines()
    gcfl = 61 + 100 * 1.5 / 30
    assert f"| {gcfl - 55:+.2f} |" in next(row for row in rows if row.startswith("| GCFL"))
    shutil.rmtree(run_folder(STUDY, local[0], runs))
    rows = write_study(STUDY, runs, tmp_path / "b")[1].read_text().splitlines()
    assert f"| {61 + 100 * 2 / 30 - 60:+.2f} |" in next(row for row in rows if row.startswith("| GCFL"))
    assert "| gain over Local |" not in write_study(STUDY.cut(seeds=[1]), runs, tmp_path / "c")[1].read_text()


def test_differences_from_a_method_are_paired(runs: Path, tmp_path: Path) -> None:
    """Of two seeds the quantile of Student's t is that of a Cauchy variable."""
    for run, test in zip([run for run in STUDY.runs() if run.method == "Local"], (0.5, 0.6), strict=True):
        folder = run_folder(STUDY, run, runs) / "version_0"
        shutil.rmtree(folder)
        write_run(folder, run.seed, [test] * 3)
    rows = write_study(replace(STUDY, base="Local"), runs, tmp_path / "a")[1].read_text().splitlines()
    one, two = 61 + 100 / 30 - 50, 61 + 200 / 30 - 60
    mean, half = (one + two) / 2, math.tan(0.475 * math.pi) * abs(one - two) / 2
    row = next(row for row in rows if row.startswith("| GCFL"))
    assert f"| {mean:+.2f} [{mean - half:+.2f}, {mean + half:+.2f}] (2) |" in row
    assert "| over Local |" in next(row for row in rows if row.startswith("| method"))
    rows = write_study(replace(STUDY, base="Local").cut(seeds=[2]), runs, tmp_path / "b")[1].read_text().splitlines()
    assert f"| {two:+.2f} | {two:+.2f} |" in next(row for row in rows if row.startswith("| GCFL"))
    assert replace(STUDY, base="Local").cut(methods=["GCFL"]).base == ""


def test_runs_that_stopped_early_stand_for_longer_ones(tmp_path: Path) -> None:
    run, file = next(iter(STUDY.runs())), tmp_path / "runs.jsonl"
    for number, (length, early) in enumerate([(3, True), (5, False), (7, True)]):
        write_run(tmp_path / str(number), 1, [0.5] * length, stopped_early=early)
        results = json.loads((tmp_path / str(number) / "results.json").read_text())
        record_runs(file, [(run, {**results, "folder": str(tmp_path / str(number))})])
    index = read_index(file)
    lengths = {}
    for rounds in (2, 4, 5, 6, 9):
        found = recorded(index, run.digest, run.seed, rounds)
        lengths[rounds] = found and found["rounds"]
    assert lengths == {2: None, 4: 3, 5: 5, 6: 3, 9: 7}


def test_pictures_that_need_more_are_left_as_they_are(runs: Path, tmp_path: Path) -> None:
    study, out = replace(STUDY, figure="convergence"), tmp_path / "out"
    write_study(study, runs, out)
    picture = out / "paper" / "table_S.png"
    before = picture.read_bytes()
    shutil.rmtree(run_folder(STUDY, next(iter(STUDY.runs())), runs))
    files = write_study(study, runs, out)
    assert files[-1] == picture
    assert picture.read_bytes() == before
    assert "![table_S](table_S.png)" in files[1].read_text()
    picture.unlink()
    assert [file.name for file in write_study(study, runs, out)] == ["table.csv", "table.md"]


def test_a_broken_record_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "fedstar").mkdir()
    file = tmp_path / "fedstar" / "runs.jsonl"
    whole = '{"digest": "a", "seed": 1, "rounds": 2, "seconds_per_round": 0.5}\n'
    for bad in ('{"digest": "a", "seed": 1, "rounds": 2}', '{"digest": "\xff"}'):
        file.write_bytes((whole + bad).encode("latin-1"))
        with pytest.raises(InputError, match=r"line 2 of .*runs.jsonl` to be the record of a run"):
            read_index(file)
    file.write_text(whole + '{"digest": "a", "se\n')
    with pytest.raises(InputError, match=r"line 2 of .*runs.jsonl` to be the record of a run but got '\{\"digest"):
        read_index(file)
    with pytest.raises(SystemExit) as caught:
        main(["reproduce", "fedstar/table2", "--collect", "--recorded", "--out", str(tmp_path)])
    assert caught.value.code == 2
    assert "line 2 of" in capsys.readouterr().err


@pytest.mark.parametrize("file", sorted(ROOT.glob("reproduction/*/runs.jsonl")), ids=lambda file: file.parent.name)
def test_every_record_is_of_some_study(file: Path) -> None:
    index = read_index(file)
    records = {(*run, rounds) for run, lengths in index.items() for rounds in lengths}
    seeds, found = {seed for _, seed in index}, set[tuple[str, int, int]]()
    for study in map(load_study, (name for name in list_studies() if name.startswith(f"{file.parent.name}/"))):
        for run in replace(study, seeds=sorted(seeds)).runs():
            record = recorded(index, run.digest, run.seed, study.rounds_of(run.method))
            found |= {(record["digest"], run.seed, record["rounds"])} if record else set()
    assert {key[0] for key in records - found} <= SUPERSEDED
