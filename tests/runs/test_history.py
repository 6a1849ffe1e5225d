from __future__ import annotations

import errno
import json
import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from flgraph.runs.files import write_json, write_text
from flgraph.runs.history import (
    History,
    Metrics,
    RoundRecord,
    append_record,
    mean_metrics,
    read_records,
    truncate_records,
    weighted_mean_metrics,
)
from flgraph.runs.results import discard_results, versions


def record(round: int, **accuracy: float) -> RoundRecord:
    """A round of two seconds in which clients report validation accuracies."""
    metrics = {name: {"val/accuracy": value} for name, value in accuracy.items()}
    return RoundRecord(round, 2.0, 10 * round, round, 1, list(accuracy), metrics)


def best_round(mode: str, *means: float) -> int | None:
    history = History("val/accuracy", mode)
    for round, mean in enumerate(means, start=1):
        history.add(record(round, A=mean))
    return history.best.get("round")


# ------------------------------------------------------------------------------------------------------------- means
def test_means_are_unweighted_over_those_who_report() -> None:
    metrics: Metrics = {"A": {"x": 1.0, "y": 5.0}, "B": {"x": 2.0}, "C": {"x": 6.0, "z": math.nan}}
    mean = mean_metrics(metrics)
    assert (mean["x"], mean["y"]) == (3.0, 5.0)
    assert math.isnan(mean["z"])
    assert mean_metrics({}) == {}


def test_means_do_not_depend_on_the_order() -> None:
    values = {"A": 0.1, "B": 0.2, "C": 0.3, "D": 1e16, "E": -1e16}
    forwards = {name: {"x": value} for name, value in values.items()}
    assert mean_metrics(forwards) == mean_metrics(dict(reversed(forwards.items()))) == {"x": pytest.approx(0.12)}


# -------------------------------------------------------------------------------------------------------- best round
def test_the_first_of_equal_rounds_is_the_best() -> None:
    assert best_round("max", 0.2, 0.7, 0.5, 0.7) == 2
    assert best_round("min", 0.5, 0.2, 0.7, 0.2) == 2


def test_rounds_that_are_no_number_are_not_the_best() -> None:
    """NaN is neither larger nor smaller than anything: as a first value it would stay for ever."""
    assert best_round("max", math.nan, 0.1, math.nan) == 2
    assert best_round("min", math.nan, math.inf) == 2
    assert best_round("max", math.nan) is None


def test_a_round_in_which_somebody_was_silent_beats_none_in_which_nobody_was() -> None:
    history = History("val/accuracy", "max")
    history.add(replace(record(1, A=0.6), silent=["B"]))
    assert (history.best["round"], history.partial) == (1, ["B"])
    history.add(record(2, A=0.5, B=0.3))
    history.add(replace(record(3, A=0.9), silent=["B"]))
    assert (history.best["round"], history.partial) == (2, [])
    history.add(record(4, A=0.5, B=0.4))
    assert history.best["round"] == 4


def test_no_round_is_better_by_who_was_left_out() -> None:
    history = History("val/accuracy", "max")
    history.add(record(1, A=0.9, B=0.5))
    history.add(record(2, A=0.8))
    assert history.best["round"] == 1
    history.add(record(3, A=0.95))
    assert history.best["round"] == 3


def test_the_best_round_is_that_of_the_mean() -> None:
    history = History("val/accuracy", "max")
    history.add(record(1, A=1.0, B=0.0))
    history.add(record(2, A=0.6, B=0.5))
    assert history.best["round"] == 2
    assert history.best["clients"] == {"A": {"val/accuracy": 0.6}, "B": {"val/accuracy": 0.5}}
    assert history.best["mean"] == {"val/accuracy": 0.55}


def test_history_sums_up_all_rounds() -> None:
    history = History("val/accuracy", "max")
    for added in (record(1, A=0.5), record(2), record(3, A=0.25)):
        history.add(added)
    results = history.results()
    assert results["rounds"] == 3
    assert results["seconds_per_round"] == 2.0
    assert results["bytes_per_round"] == {"up": 20.0, "down": 2.0}
    assert (results["final"]["round"], results["best_val"]["round"]) == (3, 1)


def test_history_without_its_metric_has_no_best_round() -> None:
    history = History("val/other", "max")
    history.add(record(1, A=0.5))
    assert history.results()["final"]["round"] == 1
    assert history.results()["best_val"] == {"clients": {}, "mean": {}, "weighted_mean": {}}


def test_history_survives_a_checkpoint() -> None:
    one, other = History("val/accuracy", "max"), History("val/accuracy", "max")
    one.add(record(1, A=0.5))
    other.load_state(json.loads(json.dumps(one.state())))
    for history in (one, other):
        history.add(record(2, A=0.4))
    assert one.results() == other.results()


# ------------------------------------------------------------------------------------------------------------- files
def test_json_holds_no_nan(tmp_path: Path) -> None:
    """NaN is no JSON, and other parsers than Python's refuse the whole file."""
    given = {"a": math.nan, "b": [math.inf, -math.inf, 1.5], "c": {"d": None, "e": "NaN"}, "f": (1, True)}
    write_json(given, tmp_path / "file.json")

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    text = (tmp_path / "file.json").read_text()
    read = json.loads(text, parse_constant=refuse)
    assert read == {"a": None, "b": [None, None, 1.5], "c": {"d": None, "e": "NaN"}, "f": [1, True]}
    assert list(tmp_path.iterdir()) == [tmp_path / "file.json"]


def test_history_lines_hold_no_nan(tmp_path: Path) -> None:
    append_record(record(1, A=math.nan), tmp_path / "history.jsonl")
    (line,) = read_records(tmp_path / "history.jsonl")
    assert line["metrics"] == {"A": {"val/accuracy": None}}
    assert line["mean"] == {"val/accuracy": None}
    assert (line["round"], line["bytes_up"], line["clients"]) == (1, 10, ["A"])


@pytest.mark.parametrize(
    "half", ["", "\n", '{"round": 3, "sec', '{"round": 3}\n{"ro', '{"other": 1}\n', "[1]\n", "3\n"]
)
def test_truncating_drops_later_rounds_and_half_lines(tmp_path: Path, half: str) -> None:
    file = tmp_path / "history.jsonl"
    for round in (1, 2, 3):
        append_record(record(round), file)
    with open(file, "a") as stream:
        stream.write(half)
    truncate_records(file, 2)
    assert [line["round"] for line in read_records(file)] == [1, 2]
    append_record(record(3), file)
    assert [line["round"] for line in read_records(file)] == [1, 2, 3]


def test_truncating_what_is_not_there(tmp_path: Path) -> None:
    truncate_records(tmp_path / "history.jsonl", 2)
    assert not (tmp_path / "history.jsonl").exists()


@pytest.mark.parametrize(("rounds", "kept"), [(3, True), (5, True), (2, False)])
def test_results_of_more_rounds_go_when_a_run_goes_back(tmp_path: Path, rounds: int, kept: bool) -> None:
    (tmp_path / "results.json").write_text('{"rounds": 3}')
    (tmp_path / "error.txt").write_text("told")
    discard_results(tmp_path, rounds)
    assert [file.name for file in tmp_path.iterdir()] == ["results.json"] * kept
    discard_results(tmp_path, rounds)


def test_a_line_that_is_being_written_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    file.write_text('{"round": 1}\n{"round": 2}\n{"rou')
    assert read_records(file) == [{"round": 1}, {"round": 2}]


def test_files_are_written_whole_by_many_at_a_time(tmp_path: Path) -> None:
    file, texts = tmp_path / "table.md", [letter * 20000 for letter in "ab"]

    def write(text: str) -> None:
        for _ in range(200):
            write_text(text, file)
            assert file.read_text() in texts

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, texts))
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    write_text("before", tmp_path / "file")
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        write_text("after", tmp_path / "file")
    assert [file.read_text() for file in tmp_path.iterdir()] == ["before"]


def test_versions_name_what_computed() -> None:
    found = versions()
    assert {"python", "flgraph", "torch", "torch_geometric", "pytorch-lightning", "numpy", "git"} <= found.keys()
    assert all(isinstance(version, str) and version for version in found.values())


def test_texts_with_what_is_no_letter_are_written(tmp_path: Path) -> None:
    """Python has names of files that are no UTF-8 so, and errors repeat them."""
    write_text("file \udcff", tmp_path / "error.txt")
    assert (tmp_path / "error.txt").read_text() == "file \\udcff"


def test_who_hides_its_number_of_samples_has_no_part_in_the_weighted_mean() -> None:
    """Or one client could take the metric from all, and end runs that are stopped by it."""
    metrics = {"A": {"val/loss": 1.0, "val/samples": 3.0}, "B": {"val/loss": 2.0, "val/samples": 1.0}}
    hidden = {**metrics, "C": {"val/loss": 9.0}}
    assert weighted_mean_metrics(hidden) == weighted_mean_metrics(metrics) == {"val/loss": 1.25}
    assert weighted_mean_metrics({"C": {"val/loss": 9.0}}) == {}
