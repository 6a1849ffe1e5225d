"""Pictures of studies."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flgraph.cli.reproduce import write_study
from flgraph.errors import InputError
from flgraph.reproduce import Study
from flgraph.reproduce.runner import run_folder


def test_figures_are_drawn(
    tiny_study: Callable[..., Study], write_results: Callable[..., None], tmp_path: Path
) -> None:
    study = replace(tiny_study(rounds=2), figure="convergence")
    for run in study.runs():
        write_results(run_folder(study, run, tmp_path) / "version_0", 0.6, 0.5, [0.7, 0.6])
    files = write_study(study, tmp_path, tmp_path / "out")
    assert [file.name for file in files] == ["table.csv", "table.md", "table_TINY.png"]
    assert files[2].read_bytes().startswith(b"\x89PNG")
    assert "![table_TINY](table_TINY.png)" in files[1].read_text()
    settings = {"7": study.settings["TINY"], "28": f"{study.settings['TINY']} --x=1"}
    wide = replace(study, figure="settings", settings=settings, axis="clients", paper={})
    for run in wide.runs():
        if not run_folder(wide, run, tmp_path).exists():
            write_results(run_folder(wide, run, tmp_path) / "version_0", 0.8, 0.5, [0.7, 0.8])
    files = write_study(wide, tmp_path, tmp_path / "wide")
    assert files[2].name == "table.png"
    assert "## clients: 28" in files[1].read_text()


def test_settings_are_drawn_in_their_order(
    tiny_study: Callable[..., Study],
    write_results: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first method lacks the middle one."""
    tiny, ticks = tiny_study(rounds=1), list[str]()
    settings = {name: f"{tiny.settings['TINY']} --{name}=1" for name in ("a", "b", "c")}
    study = replace(tiny, figure="settings", settings=settings, seeds=[1], paper={})
    for run in study.runs():
        if (run.method, run.setting) != ("Local", "b"):
            write_results(run_folder(study, run, tmp_path) / "version_0", 0.6, 0.5, [0.7])

    def keep(figure: Any, file: Path, **_: Any) -> None:
        ticks.extend(label.get_text() for label in figure.axes[0].get_xticklabels())

    monkeypatch.setattr("flgraph.report.charts.save_figure", keep)
    write_study(study, tmp_path, tmp_path / "out")
    assert ticks == ["a", "b", "c"]


def test_figures_of_clients_and_of_labels(
    tiny_study: Callable[..., Study], write_results: Callable[..., None], tmp_path: Path
) -> None:
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


def test_predictions_are_drawn(
    tiny_study: Callable[..., Study], write_results: Callable[..., None], tmp_path: Path
) -> None:
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
        ("labels", r"`figure` to be one of runs whose partition has `train_labels` of every client but got 'labels'"),
    ):
        with pytest.raises(InputError, match=sentence):
            write_study(replace(study, figure=figure), tmp_path, tmp_path / "out")  # type: ignore[arg-type]
    assert (tmp_path / "out" / "tiny" / "table.csv").is_file()  # written before the pictures


def test_embeddings_are_drawn(
    tiny_study: Callable[..., Study], write_results: Callable[..., None], tmp_path: Path
) -> None:
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
