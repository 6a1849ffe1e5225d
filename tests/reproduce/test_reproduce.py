"""A miniature study, end to end: runs side by side, resumption, tables."""

from __future__ import annotations

import contextlib
import csv
import fcntl
import json
import math
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

import pytest
import yaml

from flgraph.cli import main
from flgraph.errors import InputError
from flgraph.reproduce import Study, collect, finished, list_studies, load_study, run_study, runner, write_tables
from flgraph.reproduce.cli import write_study
from flgraph.reproduce.ledger import read_ledger
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


SENT = {"bytes_per_round": {"up": 1e6, "down": 2e6}, "setup_bytes": {"up": 3e5, "down": 7e5}}


def tiny_study(rounds: int = 3) -> Study:
    paper = {"TINY": {"Local": [50.0, 60.0]}}
    return Study("tiny/table", "A tiny study", "accuracy", rounds, [1, 2], {"TINY": list(TINY)}, METHODS, paper)


def write_results(folder: Path, final: float, best: float, tests: list[float], **further: object) -> None:
    folder.mkdir(parents=True)
    mean = {"clients": {}, "mean": {"test/accuracy": final}}
    best_val = {"clients": {}, "mean": {"test/accuracy": best, "val/accuracy": 0.5}}
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


def test_finished_runs_need_not_keep_checkpoints(tmp_path: Path) -> None:
    study = tiny_study(rounds=2).cut(methods=["Local"])
    kept, dropped = (run_folder(study, run, tmp_path) / "version_0" for run in study.runs())
    run_study(study.cut(seeds=[1]), tmp_path, jobs=1, report=lambda line: None)
    run_study(study, tmp_path, jobs=1, report=lambda line: None, keep_checkpoints=False)
    assert (kept / "checkpoints").is_dir()
    assert sorted(path.name for path in dropped.iterdir()) == ["config.yaml", "history.jsonl", "results.json"]
    assert [len(results) for results in finished(study, tmp_path).values()] == [2]


def test_checkpoints_come_as_often_as_asked(tmp_path: Path) -> None:
    study = tiny_study(rounds=1).cut(methods=["Local"], seeds=[1])
    for every, checkpoint_every in ((None, 1), (7, 7)):
        runs = tmp_path / str(every)
        run_study(study, runs, jobs=1, report=lambda line: None, checkpoint_every=every)
        config = yaml.safe_load(
            (run_folder(study, next(iter(study.runs())), runs) / "version_0/config.yaml").read_text()
        )
        assert config["trainer"]["checkpoint_every"] == checkpoint_every


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
    columns = "table,setting,method,metric,protocol,paper_mean,paper_std,mean,std,seeds,rounds,which"
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


def test_killed_and_started_again_gives_the_same_table(tmp_path: Path) -> None:
    """SIGKILL hits the command, a run in the middle, or both; what goes on alone is waited for, not started twice."""
    file = tmp_path / "small.yaml"
    content = {"title": "t", "metric": "accuracy", "rounds": 8, "seeds": [1, 2], "settings": {"TINY": TINY}}
    file.write_text(yaml.safe_dump({**content, "methods": {"FedStar": METHODS["FedStar"]}}))

    def start(runs: Path) -> subprocess.Popen[bytes]:
        args = ["reproduce", str(file), "--jobs=2", f"--runs={runs}", f"--out={runs / 'out'}"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        call = [sys.executable, "-m", "flgraph", *args]
        return subprocess.Popen(call, env=environment, stdout=subprocess.DEVNULL, cwd=Path(__file__).parents[2])

    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert start(whole).wait(100) == 0
    command_ = start(cut)
    wait_for(lambda: [h for h in cut.glob("*/*/version_0/history.jsonl") if h.read_text().count("\n") >= 3])
    command_.kill()  # its two runs go on alone
    command_.wait(30)
    victim = next(iter(pids_below(cut)))
    os.kill(victim, signal.SIGKILL)
    assert start(cut).wait(100) == 0
    assert (cut / "out" / "small.csv").read_bytes() == (whole / "out" / "small.csv").read_bytes()
    assert len(list(cut.glob("*/*-seed*"))) == 2
    assert len(list(cut.glob("*/*/version_*/results.json"))) == 2


def pids_below(runs: Path) -> list[int]:
    """Processes that run `flgraph fit` into this folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                line = (entry / "cmdline").read_bytes()
                if b"\0fit\0" in line and str(runs).encode() in line:
                    found.append(int(entry.name))
    return found


def wait_for(true: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "nothing happened in time"
        time.sleep(0.02)


@pytest.mark.parametrize(("mean", "verdict"), [(49.0, "below"), (50.0, "within"), (53.0, "within"), (53.1, "above")])
def test_verdict(mean: float, verdict: str) -> None:
    assert Cell("t", "s", "m", "accuracy", "final", 51.5, 1.5, mean, 0.0, 2, 3).verdict == verdict


@pytest.mark.parametrize("name", list_studies())
def test_studies_are_whole(name: str) -> None:
    """Every cell has the paper's number or none of its row has, and every configuration file exists."""
    study = load_study(name)
    root = Path(__file__).parents[2]
    papers = [study.paper] if isinstance(study.metric, str) else list(study.paper.values())
    assert isinstance(study.metric, str) or study.paper.keys() <= set(study.metrics)
    for paper in papers:
        assert paper.keys() <= study.settings.keys()
        for printed in paper.values():
            assert printed.keys() <= study.methods.keys()
            percent = name not in ("fedhgn/table2", "fedhgn/table5")  # statistics of partitions
            most = 100.0 if percent else 1e6
            assert all(len(numbers) in (1, 2) and 0 < numbers[0] < most for numbers in printed.values())
        assert len({frozenset(printed) for printed in paper.values()}) <= 1
    for run in study.runs():
        assert [arg for arg in run.args if arg.startswith("configs/")]
        assert all((root / arg).is_file() for arg in run.args if arg.startswith("configs/"))
        assert f"--trainer.rounds={study.rounds_of(run.method)}" in command(study, run, Path("runs"))


def test_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    main(["reproduce", "--list"])
    assert "fedstar/table1: FedStar (AAAI 2023), Table 1" in capsys.readouterr().out
    file = tmp_path / "bad.yaml"
    file.write_text(yaml.safe_dump({"title": "t", "roundz": 3}))
    bad = {
        ("reproduce",): f"Expected `study` to be one of {', '.join(list_studies())} but got",
        ("reproduce", "fedstar/table0"): f"Expected `study` to be a YAML file or one of {list_studies()[0]}",
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


# ------------------------------------------------------------------------------------------------- what studies are
def test_best_cluster_takes_each_clients_best_model_of_its_clusters(tmp_path: Path) -> None:
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
        for n, values in ((1, dict.fromkeys("ABC", 1.0)), (2, before), (3, dict.fromkeys("ABC", 1.0)))
    ]
    (folder / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    cells = {cell.protocol: cell.mean for cell in collect(study, finished(study, tmp_path))}
    assert cells["best_cluster"] == pytest.approx(100 * (0.5 + 0.7 + 0.9) / 3)
    assert cells["final"] == pytest.approx(50)


def test_methods_may_depend_on_the_setting() -> None:
    study = Study("p/t", "t", "accuracy", 1, [1], {"X": ["--x=1"], "Y": ["--y=1"]}, {"M": {"X": ["--m=1"]}})
    assert study.run("X", "M", 1).args == ("--x=1", "--m=1")
    with pytest.raises(InputError, match=r"`methods\.M` to be arguments for Y, too, but got \['X'\]"):
        study.run("Y", "M", 1)


def test_values_of_settings_and_seeds() -> None:
    study = Study(
        "p/t",
        "t",
        "accuracy",
        1,
        [1, 2],
        {"X": ["--x"], "Y": ["--y"]},
        {"M": ["--g={g}", "--s={seed}"], "N": ["--n=1"]},
        values={"g": {"X": {1: 0.5, "other": 2}, "Y": {1: 3}}},
    )
    assert study.run("X", "M", 1).args == ("--x", "--g=0.5", "--s=1")
    assert study.run("X", "M", 9).args == ("--x", "--g=2", "--s=9")
    assert study.run("Y", "N", 2).args == ("--y", "--n=1")
    with pytest.raises(InputError, match=r"`values\.g` to be given for Y with seed 2, too, but got"):
        study.run("Y", "M", 2)


def test_arguments_may_hold_the_seed(tmp_path: Path) -> None:
    study = Study("p/t", "t", "accuracy", 1, [1, 2], {"X": ["--x={seed}"]}, {"M": ["--m=1"]})
    assert [run.args for run in study.runs()] == [("--x=1", "--m=1"), ("--x=2", "--m=1")]
    assert len({run_folder(study, run, tmp_path) for run in study.runs()}) == 2


def test_a_run_is_named_by_what_it_does_and_told_apart_by_contents(tmp_path: Path) -> None:
    config = tmp_path / "small.yaml"
    config.write_text("a: 1\n")
    study = Study(
        "p/t", "t", "accuracy", 1, [1], {"X": ["-c", str(config), "--trainer.local_epochs=2"]}, {"M": ["--m"]}
    )
    run = study.run("X", "M", 7)
    assert run.name == "small+local_epochs=2+m"
    before = run_folder(study, run, tmp_path)
    assert before == tmp_path / "p" / run.digest / "small+local_epochs=2+m-seed7"
    config.write_text("# a remark\na:   1\n")
    assert run_folder(study, run, tmp_path) == before
    config.write_text("a: 2\n")
    assert run_folder(study, run, tmp_path) != before


def test_a_study_may_extend_another(tmp_path: Path) -> None:
    base = {"title": "t", "metric": "accuracy", "rounds": 3, "seeds": [1], "settings": {"X": ["a"]}}
    (tmp_path / "one.yaml").write_text(yaml.safe_dump({**base, "methods": {"M": ["m"], "N": ["n"]}}))
    (tmp_path / "two.yaml").write_text(yaml.safe_dump({"extends": "one", "title": "u", "figure": "convergence"}))
    study = load_study(str(tmp_path / "two.yaml"))
    assert (study.name, study.title, study.figure, study.rounds) == ("two", "u", "convergence", 3)
    assert list(study.methods) == ["M", "N"]
    wrong = {"extends": "three"}, {"extends": "one", "figure": "pie"}, {**base, "methods": {"a, b": ["m"]}}, {**base}
    sentences = "a study beside it", "one of convergence, settings", "without a comma", "methods"
    for content, sentence in zip(wrong, sentences, strict=True):
        (tmp_path / "bad.yaml").write_text(yaml.safe_dump(content))
        with pytest.raises(InputError, match=sentence):
            load_study(str(tmp_path / "bad.yaml"))


def test_figures_are_drawn(tmp_path: Path) -> None:
    study = replace(tiny_study(rounds=2), figure="convergence")
    for run in study.runs():
        write_results(run_folder(study, run, tmp_path) / "version_0", 0.6, 0.5, [0.7, 0.6])
    files = write_study(study, tmp_path, tmp_path / "out")
    assert [file.name for file in files] == ["table.csv", "table.md", "table_TINY.png"]
    assert files[2].read_bytes().startswith(b"\x89PNG")
    assert "![table_TINY](table_TINY.png)" in files[1].read_text()
    settings = {"7": study.settings["TINY"], "28": [*study.settings["TINY"], "--x"]}
    wide = replace(study, figure="settings", settings=settings, axis="clients", paper={})
    for run in wide.runs():
        if not run_folder(wide, run, tmp_path).exists():
            write_results(run_folder(wide, run, tmp_path) / "version_0", 0.8, 0.5, [0.7, 0.8])
    files = write_study(wide, tmp_path, tmp_path / "wide")
    assert files[2].name == "table.png"
    assert "## clients: 28" in files[1].read_text()


def test_settings_are_drawn_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first method lacks the middle one."""
    settings: dict[str, Any] = {name: [*TINY, f"--{name}"] for name in ("a", "b", "c")}
    study, ticks = replace(tiny_study(rounds=1), figure="settings", settings=settings, seeds=[1], paper={}), []
    for run in study.runs():
        if (run.method, run.setting) != ("Local", "b"):
            write_results(run_folder(study, run, tmp_path) / "version_0", 0.6, 0.5, [0.7])

    def keep(figure: Any, file: Path) -> None:
        ticks.extend(label.get_text() for label in figure.axes[0].get_xticklabels())

    monkeypatch.setattr("flgraph.report.charts.save_png", keep)
    write_study(study, tmp_path, tmp_path / "out")
    assert ticks == ["a", "b", "c"]


def test_figures_of_clients_and_of_labels(tmp_path: Path) -> None:
    study = replace(tiny_study(rounds=1), figure="clients", paper={})
    labels = {
        "A": {"train": 3, "train_labels": [1, 2], "emd": 0.5},
        "B": {"train": 1, "train_labels": [1, 0], "emd": 1},
    }
    for run in study.runs():
        folder = run_folder(study, run, tmp_path) / "version_0"
        write_results(folder, 0.6, 0.5, [0.6], partition={"clients": labels})
        results = json.loads((folder / "results.json").read_text())
        results["final"]["clients"] = {"A": {"test/accuracy": 0.5}, "B": {"test/accuracy": 0.7}}
        if run.method == "Local":  # one that has other clients
            del results["final"]["clients"]["B"]
        (folder / "results.json").write_text(json.dumps(results))
    for figure in ("clients", "labels"):
        files = write_study(replace(study, figure=figure), tmp_path, tmp_path / figure)
        assert [file.name for file in files[2:]] == ["table_TINY.png"]
        assert files[2].read_bytes().startswith(b"\x89PNG")


def test_predictions_are_drawn(tmp_path: Path) -> None:
    """Classes that clients predict, and a row of the true ones; without the callback one clear sentence."""
    study = replace(tiny_study(rounds=1).cut(methods=["Local"], seeds=[1]), figure="predictions", paper={})
    version = run_folder(study, next(iter(study.runs())), tmp_path) / "version_0"
    write_results(version, 0.8, 0.5, [0.8])
    results = json.loads((version / "results.json").read_text())
    shares = {"global_test/predicted_0": 0.25, "global_test/predicted_1": 0.75}
    true = {"global_test/true_0": 0.5, "global_test/true_1": 0.5}
    results["final"]["clients"] = {"A": {**shares, **true}, "B": {**shares, **true}}
    (version / "results.json").write_text(json.dumps(results))
    files = write_study(study, tmp_path, tmp_path / "out")
    assert [file.name for file in files] == ["table.csv", "table.md", "table_TINY.png"]
    assert files[2].read_bytes().startswith(b"\x89PNG")
    results["final"]["clients"] = {"A": {"test/accuracy": 0.5}}
    (version / "results.json").write_text(json.dumps(results))
    (tmp_path / "out" / "tiny" / "table.csv").unlink()
    for figure, sentence in (
        ("predictions", r"runs with callback flgraph\.callbacks\.PredictedLabels"),
        ("labels", r"`figure` to be one of runs whose partition tells `train_labels` of every client but got 'labels'"),
    ):
        with pytest.raises(InputError, match=sentence):
            write_study(replace(study, figure=figure), tmp_path, tmp_path / "out")  # type: ignore[arg-type]
    assert (tmp_path / "out" / "tiny" / "table.csv").is_file()  # written before the pictures


def test_embeddings_are_drawn(tmp_path: Path) -> None:
    """One picture of all rounds that were written; none where nothing was."""
    study = replace(tiny_study(rounds=1).cut(methods=["Local"], seeds=[1]), figure="embeddings")
    version = run_folder(study, next(iter(study.runs())), tmp_path) / "version_0"
    write_results(version, 0.8, 0.5, [0.8])
    assert [file.suffix for file in write_study(study, tmp_path, tmp_path / "out")] == [".csv", ".md"]
    (version / "embeddings").mkdir()
    for number in (10, 1):
        lines = ["client,graph,label,x,y", *(f"A,{graph},{graph % 2},{graph}.5,{-graph}" for graph in range(6))]
        (version / "embeddings" / f"round-{number}.csv").write_text("\n".join(lines) + "\n")
    files = write_study(study, tmp_path, tmp_path / "out")
    assert [file.name for file in files] == ["table.csv", "table.md", "table_TINY.png"]
    assert files[2].read_bytes().startswith(b"\x89PNG")


def test_a_study_may_have_several_metrics(tmp_path: Path) -> None:
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
    assert "| Local | 40.00 | 25.00 | -15.00 | - |" in text


def test_statistics_of_a_partition(tmp_path: Path) -> None:
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
    assert finished(study, tmp_path, read_ledger(tmp_path / "out/tiny/runs.jsonl"))["TINY", "Local"][0][
        "partition"
    ] == {"mean": {"nodes": 3.5}}


def test_without_validation_there_is_no_best_round(tmp_path: Path) -> None:
    """Runs of earlier versions have the last round in its place."""
    study = tiny_study(rounds=2).cut(methods=["Local"], seeds=[1])
    folder = run_folder(study, next(iter(study.runs())), tmp_path) / "version_0"
    write_results(folder, 0.5, 0.5, [0.6, 0.5])
    (folder / "results.json").write_text((folder / "results.json").read_text().replace(', "val/accuracy": 0.5', ""))
    cells = collect(study, finished(study, tmp_path))
    assert [cell.protocol for cell in cells] == ["final", "best_test"]
    files = write_study(study, tmp_path, tmp_path / "out")
    assert "| Local | 50.00 ± 60.00 | 50.00 | +0.00 | within | - | 60.00 |" in files[1].read_text()


def test_a_diverged_run_does_not_hide_the_table(tmp_path: Path) -> None:
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
    assert "| Local | 50.00 ± 60.00 | - | - | - | 60.00 |" in files[1].read_text()
    # Another seed that did not makes it no better.
    both = tiny_study(rounds=2)
    for run in both.runs():
        if not run_folder(both, run, tmp_path).exists():
            write_results(run_folder(both, run, tmp_path) / "version_0", 0.7, 0.7, [0.7, 0.7], seed=run.seed)
    text = write_study(both, tmp_path, tmp_path / "out")[1].read_text()
    assert "| Local | 50.00 ± 60.00 | - | - | - | 65.00 ± 7.07 |" in text
    assert "| FedStar | - | 70.00 ± 0.00 | - | - | 70.00 ± 0.00 | 70.00 ± 0.00 | +0.00 |" in text


def test_a_metric_that_no_run_has_is_told(tmp_path: Path) -> None:
    study = replace(tiny_study(rounds=1), metric="acuracy")
    for run in study.runs():
        write_results(run_folder(study, run, tmp_path) / "version_0", 0.7, 0.7, [0.7], seed=run.seed)
    with pytest.warns(UserWarning, match="tiny/table: no run has a value of metric acuracy"):
        files = write_study(study, tmp_path, tmp_path / "out")
    assert "| Local | 50.00 ± 60.00 | - | - | - | - | - | - |" in files[1].read_text()


def test_an_interrupted_study_begins_no_more_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_run_of_another_command_is_waited_for_last(tmp_path: Path) -> None:
    """It is taken as it is when the other command has ended it."""
    study, lines = tiny_study(rounds=1).cut(methods=["Local"]), list[str]()
    first, _ = (run_folder(study, run, tmp_path) for run in study.runs())
    first.mkdir(parents=True)
    with open(first / "log.txt", "a") as log:
        fcntl.flock(log, fcntl.LOCK_EX)

        def report(line: str) -> None:
            lines.append(line)
            if line.startswith("[1/"):
                write_results(first / "version_0", 0.5, 0.5, [0.5])
                fcntl.flock(log, fcntl.LOCK_UN)

        run_study(study, tmp_path, jobs=1, report=report)
    assert lines[1:] == ["[1/2] TINY Local seed 2: done", "[2/2] TINY Local seed 1: done"]


@pytest.fixture
def interruptible() -> Iterator[None]:
    """What was begun in the background of a shell ignores interruptions."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_command_does_not_wait_for_another(tmp_path: Path) -> None:
    study = tiny_study(rounds=1).cut(methods=["Local"])
    first, second = (run_folder(study, run, tmp_path) for run in study.runs())
    first.mkdir(parents=True)
    write_results(second / "version_0", 0.5, 0.5, [0.5])
    with open(first / "log.txt", "a") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        waiting = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
        waiting.start()
        with pytest.raises(KeyboardInterrupt):
            run_study(study, tmp_path, jobs=1, report=lambda line: None)
    assert not list(first.glob("version_*"))


def test_checkpoints_to_go_on_from(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("option", ["--out", "--runs"])
def test_folders_that_cannot_be_written(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    places = {"--out": tmp_path / "out", "--runs": tmp_path / "runs", option: tmp_path / "file"}
    with pytest.raises(SystemExit) as caught:
        main(["reproduce", "fedstar/table1", *(f"{name}={place}" for name, place in places.items())])
    assert caught.value.code == 2
    assert f"Expected `{option}` to be a folder to write to but got {tmp_path / 'file'}: " in capsys.readouterr().err


def test_how_it_was_made_makes_it(tmp_path: Path) -> None:
    """Rounds are given only where they are not the study's own; a study of the user's own is named by its file."""
    base = {"title": "t", "metric": "accuracy", "rounds": 2, "seeds": [1], "method_rounds": {"N": 9}}
    file = tmp_path / "own.yaml"
    file.write_text(yaml.safe_dump({**base, "settings": {"X": ["--x"]}, "methods": {"M": ["--m"], "N": ["--n"]}}))
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


def test_a_packaged_study_may_be_named_by_its_file() -> None:
    file = Path(runner.__file__).parent / "fedstar" / "table2.yaml"
    assert load_study(str(file)) == load_study("fedstar/table2")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"title": 3}, "`title` to be text but got 3"),
        ({"metric": []}, "`metric` to be the name of a metric or a list of such"),
        ({"rounds": "3"}, "`rounds` to be a positive integer but got '3'"),
        ({"seeds": 3}, "`seeds` to be a list of different whole numbers but got 3"),
        ({"seeds": [1, 1]}, "`seeds` to be a list of different whole numbers but got"),
        ({"settings": None}, "`settings` to be names with arguments, one or more, but got None"),
        ({"settings": ["a"]}, "`settings` to be names with arguments"),
        ({"settings": {5: ["a"]}}, "`a name in settings` to be text, in quotes where it is a number, but got 5"),
        ({"methods": {"M": None}}, r"`methods\.M` to be a configuration file, or a list of arguments, but got None"),
        (
            {"methods": {"M": {"X": 3}}},
            r"`methods\.M\.X` to be a configuration file, or a list of arguments, but got 3",
        ),
        ({"method_rounds": None}, "`method_rounds` to be a mapping but got None"),
        ({"method_rounds": {"M": 0}}, r"`method_rounds\.M` to be a positive integer but got 0"),
        ({"notes": "abc"}, "`notes` to be a list of sentences but got 'abc'"),
        ({"protocols": "best_client"}, "`protocols` to be best_client, or none, in a list, but got 'best_client'"),
        ({"values": {"g": [1]}}, r"`values\.g` to be setting to seed to value"),
        ({"paper": {"Y": {"M": [1.0]}}}, "`paper` to be of settings among X but got 'Y'"),
        ({"paper": {"X": {"N": [1.0]}}}, r"`paper\.X` to be of methods among M but got 'N'"),
        ({"paper": {"X": {"M": 50.0}}}, r"`paper\.X\.M` to be \[mean\] or \[mean, standard deviation\] but got 50\.0"),
        ({"metric": ["a", "b"], "paper": {"c": {}}}, "`paper` to be of metrics among a, b but got 'c'"),
    ],
)
def test_what_a_study_may_not_hold(change: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    base = {"title": "t", "metric": "accuracy", "rounds": 3, "seeds": [1], "settings": {"X": ["a"]}}
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump({**base, "methods": {"M": ["m"]}, **change}))
    with pytest.raises(InputError, match=sentence):
        load_study(str(tmp_path / "bad.yaml"))


def test_studies_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("title: [a\n  b: {")
    with pytest.raises(InputError, match=r"broken\.yaml` to be a YAML file but got one that cannot be read"):
        load_study(str(tmp_path / "broken.yaml"))
    for one, other in (("a", "b"), ("b", "a")):
        (tmp_path / f"{one}.yaml").write_text(f"extends: {other}")
    with pytest.raises(InputError, match="a study beside it that does not extend it but got 'a'"):
        load_study(str(tmp_path / "a.yaml"))


def test_runs_that_cannot_be_read(tmp_path: Path) -> None:
    study = tiny_study(rounds=2).cut(methods=["Local"], seeds=[1])
    folder = run_folder(study, next(iter(study.runs())), tmp_path) / "version_0"
    write_results(folder, 0.5, 0.5, [0.5, 0.5])
    (folder / "history.jsonl").unlink()
    with pytest.raises(InputError, match=r"history\.jsonl` to hold the rounds of a run but got: No such file"):
        write_study(study, tmp_path, tmp_path / "out")
    (folder / "results.json").write_text('{"rounds": 2')
    with pytest.raises(InputError, match=r"results\.json` to be JSON but got: "):
        write_study(study, tmp_path, tmp_path / "out")


def test_configurations_that_cannot_be_read(tmp_path: Path) -> None:
    """Before anything is run; those whose names depend on the seed when they are looked for."""
    base = {"title": "t", "metric": "accuracy", "rounds": 3, "seeds": [1], "methods": {"M": ["m"]}}
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [b\n  c: {")
    file = tmp_path / "study.yaml"
    for setting, sentence in (
        ("configs/data/chme.yaml", r"`settings\.X` to be arguments with configuration files that exist but got 'con"),
        (["--config=none.yaml"], r"`settings\.X` to be arguments with configuration files that exist but got 'none"),
        (["-c", str(broken)], r"broken\.yaml` to be a YAML file but got one that cannot be read"),
    ):
        file.write_text(yaml.safe_dump({**base, "settings": {"X": setting}}))
        with pytest.raises(InputError, match=sentence):
            run_study(load_study(str(file)), tmp_path, jobs=1, report=lambda line: None)


def test_checkpoints_are_kept_of_runs_cut_short_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[bool] = []
    monkeypatch.setattr("flgraph.reproduce.cli.run_study", lambda *_, **given: kept.append(given["keep_checkpoints"]))
    for rounds in ("199", "200", "201"):
        places = (f"--{name}={tmp_path}" for name in ("out", "runs"))
        main(["reproduce", "fedstar/table1", "--rounds", rounds, *places])
    assert kept == [True, False, False]


def test_files_named_in_one_word_count_by_their_contents(tmp_path: Path) -> None:
    config = tmp_path / "small.yaml"
    digests = []
    for text in ("a: 1", "a:   1", "a: 2"):
        config.write_text(text)
        study = Study("p/t", "t", "accuracy", 1, [1], {"X": [f"--config={config}"]}, {"M": ["--m"]})
        digests.append(study.run("X", "M", 1).digest)
    assert digests[0] == digests[1] != digests[2]
    assert study.run("X", "M", 1).name == "small+m"


def test_a_seed_counts_once() -> None:
    with pytest.raises(InputError, match=r"`--seeds` to be different numbers but got \[1, 1\]"):
        tiny_study().cut(seeds=[1, 1])


def test_means_may_be_weighted_and_runs_may_stop_early(tmp_path: Path) -> None:
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
        "settings": {"X": ["a"]},
        "methods": {"M": ["m"]},
    }
    for change, sentence in (
        ({"average": "nodes"}, "`average` to be one of clients, samples but got 'nodes'"),
        ({"method_rounds": {"N": 3}}, "`method_rounds` to be rounds of methods among M but got 'N'"),
    ):
        bad.write_text(yaml.safe_dump({**base, **change}))
        with pytest.raises(InputError, match=sentence):
            load_study(str(bad))
