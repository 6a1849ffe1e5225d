"""A miniature study, end to end: runs side by side, resumption, tables."""

from __future__ import annotations

import csv
import json
import math
import os
from pathlib import Path

import pytest
import yaml

from flgraph.cli import main
from flgraph.errors import InputError
from flgraph.reproduce import Study, collect, finished, list_studies, load_study, run_study, write_tables
from flgraph.reproduce.runner import command, find_results, run_folder
from flgraph.reproduce.table import Cell

TINY = [
    "--data=flgraph.data.SyntheticFederation",
    "--data.domains=[trees,rings]",
    "--data.num_graphs=30",
    "--trainer.enable_progress_bar=false",
    "--trainer.logger=false",
]
METHODS: dict[str, str | list[str]] = {
    "Local": ["--model=GNN", "--model.hidden_channels=4", "--trainer.aggregator=Local"],
    "FedStar": ["--model=FedStar", "--model.hidden_channels=4", "--trainer.aggregator=FedStar"],
}


PARAMETERS = {"a": {"total": 1000, "shared": 200}, "b": {"total": 1500, "shared": 200}}


def tiny_study(rounds: int = 3) -> Study:
    paper = {"TINY": {"Local": [50.0, 60.0]}}
    return Study("tiny/table", "A tiny study", "accuracy", rounds, [1, 2], {"TINY": list(TINY)}, METHODS, paper)


def write_results(folder: Path, final: float, best: float, tests: list[float], **further: object) -> None:
    folder.mkdir(parents=True)
    mean = {"clients": {}, "mean": {"test/accuracy": final}}
    best_val = {"clients": {}, "mean": {"test/accuracy": best}}
    fields = {"rounds": len(tests), "seconds_per_round": 0.5, "versions": {"torch": "2"}, "seed": 1, **further}
    (folder / "results.json").write_text(json.dumps({"final": mean, "best_val": best_val, **fields}))
    lines = [json.dumps({"round": n, "mean": {"test/accuracy": value}}) for n, value in enumerate(tests, start=1)]
    (folder / "history.jsonl").write_text("\n".join(lines) + "\n")


def test_study_runs_and_goes_on(tmp_path: Path) -> None:
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
    assert all(cells[method, "best_test"].mean >= cells[method, "final"].mean for method in METHODS)
    # A run that was cut off, here by making the study longer, goes on in its own folder.
    longer = tiny_study(rounds=4).cut(methods=["Local"], seeds=[1])
    run_study(longer, tmp_path, jobs=1, report=lines.append)
    assert [path.name for path in sorted(first.glob("version_*"))] == ["version_0"]
    assert len((first / "version_0" / "history.jsonl").read_text().splitlines()) == 4


def test_failed_run_names_its_log(tmp_path: Path) -> None:
    study = Study(
        "tiny/bad", "t", "accuracy", 1, [1], {"TINY": [*TINY, "--data.batch_size=0"]}, {"Local": METHODS["Local"]}
    )
    with pytest.raises(InputError, match=r"1 failed; the first's log is .*log\.txt") as caught:
        run_study(study, tmp_path, jobs=1, report=lambda line: None)
    log = Path(str(caught.value).rsplit(" ", 1)[1].rstrip("."))
    assert "Expected `data.batch_size` to be 1 or more but got 0." in log.read_text()


def test_tables(tmp_path: Path) -> None:
    study = tiny_study(rounds=2)
    runs = list(study.runs())
    write_results(run_folder(study, runs[0], tmp_path) / "version_0", 0.6, 0.5, [0.7, 0.6])
    write_results(run_folder(study, runs[1], tmp_path) / "version_0", 0.9, 0.9, [0.8, 0.9], parameters=PARAMETERS)
    write_results(run_folder(study, runs[2], tmp_path) / "version_0", 0.8, 0.7, [0.7, 0.8])
    done = finished(study, tmp_path)
    cells = collect(study, done)
    local = {cell.protocol: cell for cell in cells if cell.method == "Local"}
    assert (local["final"].mean, local["final"].seeds) == (pytest.approx(70), 2)
    assert local["final"].std == pytest.approx(math.sqrt(200))  # sample deviation of 60 and 80
    assert local["best_val"].mean == pytest.approx(60)
    assert local["best_test"].mean == pytest.approx(75)
    assert local["final"].verdict == "within"
    files = write_tables(study, done, cells, tmp_path / "out", tmp_path)
    with open(files[0]) as stream:
        rows = list(csv.DictReader(stream))
    columns = "table,setting,method,metric,protocol,paper_mean,paper_std,mean,std,seeds,rounds"
    assert list(rows[0]) == columns.split(",")
    assert len(rows) == 6
    assert rows[3]["paper_mean"] == ""
    assert rows[3]["std"] == ""  # one seed has no spread
    text = files[1].read_text()
    assert (
        "| Local | 50.00 ± 60.00 | 70.00 ± 14.14 | +20.00 | within | 60.00 ± 14.14 | 75.00 ± 7.07 | - | - | - | 2 |"
        in text
    )
    assert "| FedStar | - | 90.00 | - | - | 90.00 | 90.00 | +20.00 | 1,250 | 200 | 1 |" in text


@pytest.mark.parametrize(("mean", "verdict"), [(49.0, "below"), (50.0, "within"), (53.0, "within"), (53.1, "above")])
def test_verdict(mean: float, verdict: str) -> None:
    assert Cell("t", "s", "m", "accuracy", "final", 51.5, 1.5, mean, 0.0, 2, 3).verdict == verdict


@pytest.mark.parametrize("name", list_studies())
def test_studies_are_whole(name: str) -> None:
    """Every cell has the paper's number or none of its row has, and every configuration file exists."""
    study = load_study(name)
    root = Path(__file__).parents[2]
    assert study.paper.keys() <= study.settings.keys()
    for printed in study.paper.values():
        assert printed.keys() <= study.methods.keys()
        assert all(len(numbers) in (1, 2) and 0 < numbers[0] < 100 for numbers in printed.values())
    assert len({frozenset(printed) for printed in study.paper.values()}) <= 1
    for run in study.runs():
        assert [arg for arg in run.args if arg.startswith("configs/")]
        assert all((root / arg).is_file() for arg in run.args if arg.startswith("configs/"))
    assert f"--trainer.rounds={study.rounds}" in command(study, next(iter(study.runs())), Path("runs"))


def test_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    main(["reproduce", "--list"])
    assert "fedstar/table1: FedStar (AAAI 2023), Table 1" in capsys.readouterr().out
    file = tmp_path / "bad.yaml"
    file.write_text(yaml.safe_dump({"title": "t", "roundz": 3}))
    bad = {
        ("reproduce",): "Expected `study` to be one of fedstar/figure3, fedstar/figure4, fedstar/table1",
        ("reproduce", "fedstar/table0"): "Expected `study` to be a YAML file or one of fedstar/figure3",
        ("reproduce", "fedstar/table1", "--settings", "CHIM"): "Expected `--settings` to be among CHEM",
        ("reproduce", "fedstar/table1", "--seeds", "a"): "Expected `--seeds` to be whole numbers",
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
