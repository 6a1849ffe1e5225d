"""Tables of runs, written by hand here."""

from __future__ import annotations

import csv
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from flgraph.cli.reproduce import write_study
from flgraph.errors import InputError
from flgraph.reproduce import Study, collect, finished, load_study, write_tables
from flgraph.reproduce.cells import Cell
from flgraph.reproduce.index import read_index
from flgraph.reproduce.runner import run_folder

PARAMETERS = {"a": {"total": 1000, "shared": 200}, "b": {"total": 1500, "shared": 200}}
SENT = {"bytes_per_round": {"up": 1e6, "down": 2e6}, "setup_bytes": {"up": 3e5, "down": 7e5}}


def test_tables(tiny_study: Callable[..., Study], write_results: Callable[..., None], tmp_path: Path) -> None:
    study = tiny_study(rounds=2)
    runs = list(study.runs())
    write_results(run_folder(study, runs[0], tmp_path) / "version_0", 0.6, 0.5, [0.7, 0.6])
    write_results(
        run_folder(study, runs[1], tmp_path) / "version_0", 0.9, 0.9, [0.8, 0.9], parameters=PARAMETERS, **SENT
    )
    write_results(run_folder(study, runs[2], tmp_path) / "version_0", 0.8, 0.7, [0.7, 0.8], seed=2)
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
    columns = "table,setting,method,metric,protocol,paper_mean,paper_std,mean,std,seeds,rounds,which,digest"
    columns += ",parameters,shared,up,down,seconds"
    assert list(rows[0]) == columns.split(",")
    assert len(rows) == 6
    assert rows[3]["paper_mean"] == ""
    assert rows[3]["std"] == ""  # one seed has no spread
    assert [row["which"] for row in rows] == ["1 2"] * 3 + ["1"] * 3
    text = files[1].read_text()
    assert (
        "| Local | 50.00 ± 60.00 | 70.00 ± 14.14 | +20.00 | within | 60.00 ± 14.14 | 75.00 ± 7.07 | - | - | - | - | 2 |"
        in text
    )
    assert "| FedStar | - | 90.00 | - | - | 90.00 | 90.00 | +30.00 | 1,250 | 200 | 2 / 5 | 1 |" in text


def test_errors_have_a_unit_of_their_own_and_less_is_better(
    tiny_study: Callable[..., Study], write_results: Callable[..., None], tmp_path: Path
) -> None:
    study = replace(tiny_study(rounds=2), metric=["rmse", "accuracy"], seeds=[1], paper={})
    for run, final, best in zip(study.runs(), (0.6, 0.5123), ([0.7, 0.4], [0.55, 0.5]), strict=True):
        folder = run_folder(study, run, tmp_path) / "version_0"
        write_results(folder, 0.5, 0.5, best)
        for file in ("results.json", "history.jsonl"):
            text = (folder / file).read_text()
            text = text.replace('"test/accuracy": 0.5', f'"test/rmse": {final}') if file == "results.json" else text
            (folder / file).write_text(text.replace("test/accuracy", "test/rmse"))
    done = finished(study, tmp_path)
    cells = {(cell.method, cell.protocol): cell.mean for cell in collect(study, done) if cell.metric == "rmse"}
    assert (cells["FedStar", "final"], cells["FedStar", "best_test"]) == (0.5123, 0.5)
    assert cells["Local", "best_test"] == 0.4
    text = write_tables(study, done, collect(study, done), tmp_path / "out", tmp_path)[1].read_text()
    assert "Test accuracy in percent and test rmse, less being better: unweighted mean over clients" in text
    assert "| FedStar | 0.512 | 0.512 | 0.500 | +0.088 | 1 |" in text


@pytest.mark.parametrize(("mean", "verdict"), [(49.0, "below"), (50.0, "within"), (53.0, "within"), (53.1, "above")])
def test_verdict(mean: float, verdict: str) -> None:
    assert Cell("t", "s", "m", "accuracy", "final", 51.5, 1.5, mean, 0.0, 2, 3).verdict == verdict


def test_best_cluster_takes_each_clients_best_model_of_its_clusters(
    tiny_study: Callable[..., Study], write_results: Callable[..., None], tmp_path: Path
) -> None:
    """A and B were together with C before round 3, A and B were not split any further."""
    study = tiny_study(rounds=4).cut(methods=["Local"], seeds=[1])
    folder = run_folder(study, next(iter(study.runs())), tmp_path) / "version_0"
    splits = [{"round": 3, "cluster": 0, "into": [["A", "B"], ["C"]]}]
    write_results(folder, 0.5, 0.5, [0.1, 0.2, 0.3, 0.5], aggregator={"splits": splits})
    results = json.loads((folder / "results.json").read_text())
    results["final"]["clients"] = {client: {"test/accuracy": 0.5} for client in "ABC"}
    (folder / "results.json").write_text(json.dumps(results))
    before = {"A": 0.4, "B": 0.7, "C": 0.9}
    lines = [
        {"round": n, "mean": {"test/accuracy": 1.0}, "metrics": {c: {"test/accuracy": v} for c, v in values.items()}}
        for n, values in ((1, dict.fromkeys("ABC", 1.0)), (2, before), (3, dict.fromkeys("ABC", 1.0)), (4, {}))
    ]
    (folder / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    cells = {cell.protocol: cell.mean for cell in collect(study, finished(study, tmp_path))}
    assert cells["best_cluster"] == pytest.approx(100 * (0.5 + 0.7 + 0.9) / 3)
    assert cells["final"] == pytest.approx(50)


def test_a_study_may_have_several_metrics(
    tiny_study: Callable[..., Study], write_results: Callable[..., None], tmp_path: Path
) -> None:
    base = tiny_study(rounds=1).cut(methods=["Local"], seeds=[1])
    paper = {"global_test/accuracy": {"TINY": {"Local": [40.0]}}}
    study = replace(base, metric=["accuracy", "global_test/accuracy"], paper=paper)
    folder = run_folder(study, next(iter(study.runs())), tmp_path) / "version_0"
    write_results(folder, 0.5, 0.5, [0.5])
    for file in ("results.json", "history.jsonl"):
        text = (folder / file).read_text()
        (folder / file).write_text(
            text.replace('"test/accuracy": 0.5', '"test/accuracy": 0.5, "global_test/accuracy": 0.25')
        )
    files = write_study(study, tmp_path, tmp_path / "out")
    with open(files[0]) as stream:
        rows = [row for row in csv.DictReader(stream) if row["protocol"] == "final"]
    assert [(row["metric"], row["mean"], row["paper_mean"]) for row in rows] == [
        ("accuracy", "50.0000", ""),
        ("global_test/accuracy", "25.0000", "40.0000"),
    ]
    text = files[1].read_text()
    assert "Test accuracy and global test accuracy in percent" in text
    assert "## TINY, global test accuracy" in text
    assert "| Local | 40.00 | 25.00 | -15.00 | 25.00 |" in text


def test_statistics_of_a_partition(
    tiny_study: Callable[..., Study], write_results: Callable[..., None], tmp_path: Path
) -> None:
    paper = {"partition/edges": {"TINY": {"Local": [20.5]}}}
    metric = ["partition/nodes", "partition/edges"]
    study = replace(tiny_study(rounds=1).cut(methods=["Local"], seeds=[1]), metric=metric, paper=paper)
    folder = run_folder(study, next(iter(study.runs())), tmp_path) / "version_0"
    write_results(folder, 0.5, 0.5, [0.5], partition={"mean": {"nodes": 1012.25, "edges": 20}})
    files = write_study(study, tmp_path, tmp_path / "out")
    with open(files[0]) as stream:
        rows = [(row["metric"], row["protocol"], row["mean"], row["paper_mean"]) for row in csv.DictReader(stream)]
    assert rows == [
        ("partition/nodes", "final", "1012.2500", ""),
        ("partition/edges", "final", "20.0000", "20.5000"),
    ]
    text = files[1].read_text()
    assert "| setting | nodes | edges |" in text
    assert "| TINY | 1,012.2 | 20.0 [20.5] |" in text
    # Where the statistics have no means, of every client's.
    shutil.rmtree(folder)
    clients = {"A": {"nodes": 3, "train_labels": [1, 2]}, "B": {"nodes": 4, "train_labels": [2, 2]}}
    write_results(folder, 0.5, 0.5, [0.5], partition={"clients": clients, "mean_emd": 0.5})
    with pytest.warns(UserWarning, match="no run has a value of metric partition/edges"):
        write_study(study, tmp_path, tmp_path / "out")
    assert "| TINY | 3.5 | nan [20.5] |" in files[1].read_text()
    shutil.rmtree(folder)
    assert finished(study, tmp_path, read_index(tmp_path / "out/tiny/runs.jsonl"))["TINY", "Local"][0]["partition"] == {
        "mean": {"nodes": 3.5}
    }


def test_without_validation_there_is_no_best_round(
    tiny_study: Callable[..., Study], write_results: Callable[..., None], tmp_path: Path
) -> None:
    """Runs of earlier versions have the last round in its place."""
    study = tiny_study(rounds=2).cut(methods=["Local"], seeds=[1])
    folder = run_folder(study, next(iter(study.runs())), tmp_path) / "version_0"
    write_results(folder, 0.5, 0.5, [0.6, 0.5])
    (folder / "results.json").write_text((folder / "results.json").read_text().replace(', "val/accuracy": 0.5', ""))
    cells = collect(study, finished(study, tmp_path))
    assert [cell.protocol for cell in cells] == ["final", "best_test"]
    files = write_study(study, tmp_path, tmp_path / "out")
    assert "| Local | 50.00 ± 60.00 | 50.00 | +0.00 | within | 60.00 | 1 |" in files[1].read_text()


def test_a_diverged_run_does_not_hide_the_table(
    tiny_study: Callable[..., Study], write_results: Callable[..., None], tmp_path: Path
) -> None:
    """NaN is written as null."""
    study = tiny_study(rounds=2).cut(methods=["Local"], seeds=[1])
    folder = run_folder(study, next(iter(study.runs())), tmp_path) / "version_0"
    write_results(folder, 0.5, 0.6, [0.6, 0.5])
    for file in ("results.json", "history.jsonl"):
        (folder / file).write_text((folder / file).read_text().replace('"test/accuracy": 0.5', '"test/accuracy": null'))
    cells = {cell.protocol: cell.mean for cell in collect(study, finished(study, tmp_path))}
    assert math.isnan(cells["final"])
    assert (cells["best_val"], cells["best_test"]) == (pytest.approx(60), pytest.approx(60))
    files = write_study(replace(study, figure="convergence"), tmp_path, tmp_path / "out")
    assert "| Local | 50.00 ± 60.00 | - | 60.00 |" in files[1].read_text()
    # Another seed that did not makes it no better.
    both = tiny_study(rounds=2)
    for run in both.runs():
        if not run_folder(both, run, tmp_path).exists():
            write_results(run_folder(both, run, tmp_path) / "version_0", 0.7, 0.7, [0.7, 0.7], seed=run.seed)
    text = write_study(both, tmp_path, tmp_path / "out")[1].read_text()
    assert "| Local | 50.00 ± 60.00 | - | 65.00 ± 7.07 |" in text
    assert "| FedStar | - | 70.00 ± 0.00 | 70.00 ± 0.00 | 70.00 ± 0.00 | +0.00 |" in text


def test_a_metric_that_no_run_has_is_told(
    tiny_study: Callable[..., Study], write_results: Callable[..., None], tmp_path: Path
) -> None:
    study = replace(tiny_study(rounds=1), metric="acuracy")
    for run in study.runs():
        write_results(run_folder(study, run, tmp_path) / "version_0", 0.7, 0.7, [0.7], seed=run.seed)
    with pytest.warns(UserWarning, match="tiny/table: no run has a value of metric acuracy"):
        files = write_study(study, tmp_path, tmp_path / "out")
    assert "| Local | 50.00 ± 60.00 | - | 2 |" in files[1].read_text()


def test_means_may_be_weighted_and_runs_may_stop_early(
    tiny_study: Callable[..., Study], write_results: Callable[..., None], tmp_path: Path
) -> None:
    """One run stopped in round 2 of 9, the other ran for its 12."""
    study = replace(tiny_study(rounds=9), average="samples", method_rounds={"FedStar": 12})
    assert study.cut(rounds=5).rounds_of("FedStar") == 5
    local, star = (run_folder(study, run, tmp_path) / "version_0" for run in study.cut(seeds=[1]).runs())
    write_results(local, 0.5, 0.5, [0.4, 0.5], stopped_early=True)
    write_results(star, 0.5, 0.5, [0.5] * 12, stopped_early=False)
    for folder in (local, star):
        for file in ("results.json", "history.jsonl"):
            text = (folder / file).read_text()
            (folder / file).write_text(text.replace('"mean": {', '"weighted_mean": {"test/accuracy": 0.25}, "mean": {'))
    done = finished(study, tmp_path)
    assert [len(results) for results in done.values()] == [1, 1]
    assert {cell.mean for cell in collect(study, done)} == {25.0}
    assert {cell.method: cell.rounds for cell in collect(study, done)} == {"Local": 9, "FedStar": 12}
    text = write_study(study, tmp_path, tmp_path / "out")[1].read_text()
    assert "mean weighted by samples over clients" in text
    assert "9 rounds, FedStar 12" in text
    assert list(finished(study.cut(rounds=11), tmp_path)) == [("TINY", "Local")]
    bad = tmp_path / "bad.yaml"
    base = {
        "title": "t",
        "metric": "accuracy",
        "rounds": 3,
        "seeds": [1],
        "settings": {"X": "a"},
        "methods": {"M": "m"},
    }
    for change, sentence in (
        ({"average": "nodes"}, "`average` to be one of clients, samples but got 'nodes'"),
        ({"method_rounds": {"N": 3}}, "`method_rounds` to be of methods among M but got 'N'"),
    ):
        bad.write_text(yaml.safe_dump({**base, **change}))
        with pytest.raises(InputError, match=sentence):
            load_study(str(bad))


def test_how_it_was_made_makes_it(write_results: Callable[..., None], tmp_path: Path) -> None:
    """Rounds are given only where they are not the study's own; a study of the user's own is named by its file."""
    base = {"title": "t", "metric": "accuracy", "rounds": 2, "seeds": [1], "method_rounds": {"N": 9}}
    file = tmp_path / "own.yaml"
    file.write_text(yaml.safe_dump({**base, "settings": {"X": "--x"}, "methods": {"M": "--m", "N": "--n"}}))
    study = load_study(str(file))
    for cut, told in ((study, ""), (study.cut(methods=["M"]), ""), (study.cut(rounds=1), " --rounds 1")):
        for run in cut.runs():
            rounds = cut.rounds_of(run.method)
            folder = run_folder(cut, run, tmp_path / "runs") / f"version_{rounds}"
            if not folder.exists():
                write_results(folder, 0.5, 0.5, [0.5] * rounds)
        text = write_study(cut, tmp_path / "runs", tmp_path / "out")[1].read_text()
        shown = f"flgraph reproduce {file} --settings X --methods {','.join(cut.methods)} --seeds 1{told}\n"
        assert shown in text


def test_runs_that_cannot_be_read(
    tiny_study: Callable[..., Study], write_results: Callable[..., None], tmp_path: Path
) -> None:
    study = tiny_study(rounds=2).cut(methods=["Local"], seeds=[1])
    folder = run_folder(study, next(iter(study.runs())), tmp_path) / "version_0"
    write_results(folder, 0.5, 0.5, [0.5, 0.5])
    (folder / "history.jsonl").unlink()
    with pytest.raises(InputError, match=r"history\.jsonl` to be the rounds of a run but got No such file"):
        write_study(study, tmp_path, tmp_path / "out")
    (folder / "results.json").write_text('{"rounds": 2')
    with pytest.raises(InputError, match=r"results\.json` to be JSON but got "):
        write_study(study, tmp_path, tmp_path / "out")
