"""Finding, reading and grouping of runs; means and deviations against numbers worked out by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from flgraph.errors import InputError
from flgraph.report.compare import Comparison, Method, compare
from flgraph.report.page import render
from flgraph.report.settings import difference, shown
from flgraph.report.tables import left_out
from flgraph.runs import reader
from flgraph.runs.reader import find_runs

ROUND = {"A": 0.5, "B": 0.7}


def comparison(*places: Path, metric: str = "accuracy") -> Comparison:
    (only,) = compare(find_runs(places)[0], metric)
    return only


def methods(*places: Path) -> dict[str, Method]:
    return {method.label: method for method in comparison(*places).methods}


def close(*values: float) -> Any:
    return pytest.approx(values, nan_ok=True)


def test_numbers_by_hand(study: Path) -> None:
    found = methods(study)
    assert list(found) == ["Local", "FedAvg"]  # the baseline first
    local, fedavg = found.values()
    assert [run.seed for run in local.runs] == [1, 2]
    assert local.final() == close(65.0, math.sqrt(50))  # 60 and 70
    assert local.best_val() == close(70.0, 0.0)
    assert local.best_test() == close(70.0, 0.0)
    assert fedavg.final() == close(75.0, math.sqrt(50))  # 70 and 80
    assert fedavg.best_val() == close(80.0, math.sqrt(200))  # 70 and 90
    assert fedavg.client("B") == close(60.0, math.sqrt(200))
    assert fedavg.gain(local) == close(10.0, 0.0)  # 70 - 60 and 80 - 70
    assert fedavg.gain(local, "A") == close(25.0, math.sqrt(50))  # 30 and 20
    assert fedavg.gain(local, "B") == close(-5.0, math.sqrt(50))  # -10 and 0
    assert fedavg.per_round("up") == close(1000, 0)
    megabytes, values = fedavg.over_bytes()
    assert megabytes == pytest.approx([0.003, 0.006, 0.009])
    assert values == pytest.approx([50, 75, 75])
    assert fedavg.curves("test/accuracy") == [pytest.approx([50, 60, 70]), pytest.approx([50, 90, 80])]


def test_gain_is_paired_by_seed(make_run: Any, study: Path) -> None:
    make_run("Local-seed3", [{"A": 0.1, "B": 0.1}] * 3, aggregator="Local", seed=3, bytes_up=0)
    found = methods(study)
    assert found["FedAvg"].gain(found["Local"]) == close(10.0, 0.0)


def test_gain_without_common_seeds(make_run: Any, tmp_path: Path) -> None:
    make_run("Local-seed1", [ROUND], aggregator="Local")
    make_run("FedAvg-seed2", [{"A": 0.9, "B": 0.9}], seed=2)
    found = methods(tmp_path)
    assert found["FedAvg"].gain(found["Local"]) == close(30.0, math.nan)


def test_partitions_are_no_repeats(make_run: Any, tmp_path: Path) -> None:
    """The same seed on data that was dealt anew is another run, and paired with its like."""
    for seed, local, fedavg in ((0, 0.5, 0.6), (1, 0.6, 0.8), (2, 0.7, 0.7)):
        dealt = {"partition_seed": seed}
        make_run(f"Local-{seed}", [{"A": local, "B": local}], aggregator="Local", data=dealt)
        make_run(f"FedAvg-{seed}", [{"A": fedavg, "B": fedavg}], data=dealt, dropout_seed=seed)
    make_run("Local-9", [{"A": 0.1, "B": 0.1}], aggregator="Local", data={"partition_seed": 9})
    found = methods(tmp_path)
    local, fedavg = (next(m for m in found.values() if m.shares_nothing == alone) for alone in (True, False))
    assert [len(method.runs) for method in (local, fedavg)] == [4, 3]
    assert not fedavg.repeats
    assert fedavg.final() == close(70.0, 10.0)
    assert fedavg.gain(local) == close(10.0, 10.0)  # 10, 20 and 0
    assert fedavg.gain(local, "B") == close(10.0, 10.0)


def test_runs_that_were_not_evaluated(make_run: Any, tmp_path: Path) -> None:
    folder = make_run("FedAvg", [ROUND, ROUND], every=5, finished=False)
    with pytest.raises(InputError, match=r"or `val/\.\.\.`, or above one, but got 1 without"):
        comparison(folder)


def test_clients_are_read_once(make_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand of them would be read a thousand times each."""
    folder = make_run("FedAvg", [{f"client-{number}": 0.5 for number in range(20)}])
    read: list[int] = []
    metrics = reader._metrics
    monkeypatch.setattr(reader, "_metrics", lambda given: read.append(len(given)) or metrics(given))
    (method,) = methods(folder).values()
    spreads = [method.client(f"client-{number}") for number in range(20)]
    assert spreads == [close(50.0, math.nan)] * 20
    assert read.count(20) <= 3  # the history, and both protocols


def test_a_name_folder_gives_its_seeds_and_the_newest_of_each(make_run: Any) -> None:
    make_run("fedavg-ab", [ROUND], seed=1)
    make_run("fedavg-ab", [ROUND], seed=2, version=1)
    newest = make_run("fedavg-ab", [{"A": 0.6, "B": 0.8}], seed=1, version=10)
    (method,) = methods(newest.parent).values()
    assert [run.folder.name for run in method.runs] == ["version_10", "version_1"]
    assert [run.folder.name for run in method.repeats] == ["version_0"]


def test_a_run_found_twice_counts_once(make_run: Any, tmp_path: Path) -> None:
    run = make_run("a", [ROUND])
    (run / "checkpoints" / "last").mkdir(parents=True)
    (run / "checkpoints" / "last" / "results.json").write_text("{}")
    assert [found.folder for found in find_runs([run, tmp_path])[0]] == [run]


def test_settings_tell_methods_apart(make_run: Any, tmp_path: Path) -> None:
    for version, lr in enumerate((0.1, 0.2, 0.2)):
        make_run("fedavg", [ROUND], lr=lr, seed=version, version=version)
    part = comparison(tmp_path)
    assert [(method.label, len(method.runs)) for method in part.methods] == [
        ("fedavg (lr=0.1)", 1),
        ("fedavg (lr=0.2)", 2),
    ]
    assert part.differences() == {"model.lr": ["0.1", "0.2"]}
    assert part.baseline is None


def test_titles_have_the_settings_that_tell_them_apart() -> None:
    flats = [{"data.a": n, "data.b": n, "data.c": n, "data.d": 1, "data.e": n} for n in (1, 2)]
    assert [difference(flat, flats) for flat in flats] == ["a=1, b=1, c=1, …", "a=2, b=2, c=2, …"]
    flats.append({**flats[1], "data.d": 3})
    assert [difference(flat, flats) for flat in flats[1:]] == ["a=2, b=2, c=2, d=1, …", "a=2, b=2, c=2, d=3, …"]


def test_settings_of_newer_versions_that_are_null_make_no_method(make_run: Any, tmp_path: Path) -> None:
    make_run("a", [ROUND], seed=1)
    make_run("a", [ROUND], seed=2, version=1, clip=None)
    assert len(methods(tmp_path)) == 1


def test_the_order_is_that_of_the_arguments(study: Path) -> None:
    assert list(methods(study / "FedAvg-seed1", study)) == ["FedAvg", "Local"]


def test_data_has_sections(study: Path, make_run: Any) -> None:
    make_run(
        "FedAvg-chem", [{"MUTAG": 0.9}], data={"datasets": ["MUTAG", "BZR", "COX2", "DHFR", "PTC_MR", "AIDS", "NCI1"]}
    )
    make_run("elsewhere", [ROUND], data={"root": "/other", "batch_size": 7})
    make_run("cut", [ROUND], data={"fractions": [0.5, 0.2, 0.3]})
    parts = compare(find_runs([study])[0], "accuracy")
    assert {part.title: [method.label for method in part.methods] for part in parts} == {
        "CHEM": ["FedAvg-chem"],
        "A, B (fractions=–)": ["Local", "elsewhere", "FedAvg"],
        "A, B (fractions=[0.5, 0.2, 0.3])": ["cut"],
    }


@pytest.mark.parametrize(
    ("data", "title"),
    [
        ({"dataset": "Cora", "partition": "label_skew"}, "Cora, label skew, 2 clients"),
        ({"dataset": "Cora", "partition": "label_skew", "partition_key": "year"}, "Cora, by year, 2 clients"),
        ({"dataset": "Cora", "partition": "../saved_as/whose_1.npz"}, "Cora, whose_1.npz, 2 clients"),
        ({"datasets": ["NCI1"], "shards": 7, "partition": "whose.npz"}, "NCI1, 2 clients"),
    ],
)
def test_names_of_data(make_run: Any, tmp_path: Path, data: dict[str, Any], title: str) -> None:
    make_run("FedAvg", [ROUND], data={"datasets": None, **data})
    [part] = compare(find_runs([tmp_path])[0])
    assert part.title == title


def test_runs_from_python_are_told_apart_by_clients(tmp_path: Path) -> None:
    for name, clients in (("one", ["A", "B"]), ("two", ["A", "B"]), ("three", ["A", "C"])):
        (tmp_path / name).mkdir()
        part = {"clients": {client: {"test/accuracy": 0.5} for client in clients}}
        aggregator = {"class": "FedAvg"}
        config = {
            "trainer": {"aggregator": aggregator},
            "model": {"class": name},
            "data": {c: {"n": 1} for c in clients},
        }
        (tmp_path / name / "results.json").write_text(
            json.dumps({"final": part, "rounds": 3, "config": config, "data_name": "own"})
        )
    parts = compare(find_runs([tmp_path])[0], "accuracy")
    assert [part.title for part in parts] == ["own, 2 clients (n=1, n=–)", "own, 2 clients (n=–, n=1)"]
    assert sorted([method.label for method in part.methods] for part in parts) == [["one", "two"], ["three"]]
    method = parts[0].methods[0]
    assert method.final() == close(50.0, math.nan)
    assert math.isnan(method.best_test()[0])  # there is no history


def test_unfinished_runs_are_in_no_mean(make_run: Any, study: Path) -> None:
    make_run("FedAvg-seed3", [{"A": 0.1, "B": 0.1}] * 2, seed=3, finished=False, planned=3)
    make_run("FedPer-seed1", [ROUND] * 2, aggregator="FedPer", finished=False, planned=3)
    part = comparison(study)
    local, fedavg, fedper = part.methods
    assert fedavg.final() == close(75.0, math.sqrt(50))
    assert [run.seed for run in fedavg.rest] == [3]
    assert not fedper.finished
    assert fedper.final() == close(60.0, math.nan)  # as of now
    assert [method.label for method in part.compared] == ["FedAvg"]
    assert part.baseline is local


def test_a_continued_run_is_unfinished_until_it_ends_again(make_run: Any) -> None:
    run = make_run("a", [ROUND] * 2)
    with open(run / "history.jsonl", "a") as stream:
        stream.write(json.dumps({"round": 3, "metrics": {"A": {"test/accuracy": 0.9}}}) + "\n")
    (found,) = find_runs([run])[0]
    assert not found.finished
    assert found.done == 3
    assert found.protocol("final")[0] == {"test/accuracy": 0.9}
    file = run / "config.yaml"
    file.write_text(file.read_text().replace("rounds: 2", "rounds: 7"))  # as going on writes it
    assert find_runs([run])[0][0].planned == 7


def test_best_validation_round_of_an_unfinished_run(make_run: Any) -> None:
    run = make_run("a", [{"A": 0.5}, {"A": 0.9}, {"A": None}, {"A": 0.7}], finished=False)
    (found,) = find_runs([run])[0]
    assert found.protocol("best_val")[0]["test/accuracy"] == 0.9
    assert found.protocol("final")[0]["test/accuracy"] == 0.7


def test_a_last_line_that_was_cut_is_left_out(make_run: Any) -> None:
    run = make_run("a", [ROUND] * 3, finished=False)
    text = (run / "history.jsonl").read_text()
    (run / "history.jsonl").write_text(text[:-40])
    assert find_runs([run])[0][0].done == 2


def test_null_metrics_and_rounds_without_evaluation(make_run: Any, tmp_path: Path) -> None:
    make_run("a", [ROUND, {"A": None, "B": 0.5}, ROUND, {"A": None, "B": 0.5}], every=2)
    (method,) = methods(tmp_path).values()
    assert all(math.isnan(value) for value in method.curves("test/accuracy")[0])
    assert math.isnan(method.final()[0])
    assert math.isnan(method.client("A")[0])
    assert method.client("B")[0] == 50.0
    assert method.over_bytes() == ([], [])


def test_a_diverged_seed_is_not_left_out_of_a_mean(make_run: Any, study: Path) -> None:
    make_run("FedAvg-seed3", [ROUND, ROUND, {"A": None, "B": None}], seed=3)
    make_run("Local-seed3", [ROUND] * 3, aggregator="Local", seed=3, bytes_up=0)
    found = methods(study)
    assert math.isnan(found["FedAvg"].final()[0])
    assert math.isnan(found["FedAvg"].gain(found["Local"])[0])
    assert math.isfinite(found["FedAvg"].best_test()[0])  # its first round has a value


def test_where_a_run_computed_makes_no_method(make_run: Any, tmp_path: Path) -> None:
    for seed, engine in ((1, None), (2, {"class_path": "ProcessGroup", "init_args": {"processes": 4}})):
        file = make_run(f"FedAvg-seed{seed}", [ROUND], seed=seed) / "config.yaml"
        config = yaml.safe_load(file.read_text())
        config["trainer"]["engine"] = engine
        config["trainer"]["logger"] = {"class_path": "CSVLogger", "init_args": {"save_dir": f"logs/{seed}"}}
        file.write_text(yaml.safe_dump(config))
        results = file.with_name("results.json")
        results.write_text(json.dumps({**json.loads(results.read_text()), "config": config}))
    assert [len(method.runs) for method in comparison(tmp_path).methods] == [2]


def test_what_is_compared_unless_told(study: Path, tmp_path: Path) -> None:
    """The accuracy in the test, or else in another one; of what nobody tested, in validation."""
    assert compare(find_runs([study])[0])[0].metric.name == "accuracy"
    for file in study.rglob("*.json*"):
        file.write_text(file.read_text().replace('"test/', '"global_test/').replace('"val/accuracy', '"val/other'))
    assert compare(find_runs([study])[0])[0].metric.test == "global_test/accuracy"
    for file in study.rglob("*.json*"):
        file.write_text(file.read_text().replace('"global_test/', '"train/'))
    [part] = compare(find_runs([study])[0])
    assert (part.metric.words, part.metric.unit) == ("validation other", "")
    assert all(math.isfinite(method.final()[0]) for method in part.methods)
    assert "Validation other" in render([part], [])


def test_every_task_takes_its_own_metric(make_run: Any, tmp_path: Path) -> None:
    """Runs on other data, and runs on the same data that have no metric in common but a loss."""
    clusters = {"test/accuracy": "global_test/accuracy", "test/loss": "other_test/loss"}
    make_run("GNN-seed1", [ROUND])
    make_run("FCLG-seed1", [ROUND], aggregator="FCLG", rename=clusters)
    ranks = {"test/accuracy": "test/mrr", "val/accuracy": "val/mrr"}
    make_run("links", [ROUND], data={"datasets": ["C"]}, rename=ranks)
    parts = compare(find_runs([tmp_path])[0])
    assert {part.title: (part.metric.test, [m.label for m in part.methods]) for part in parts} == {
        "A, B (global test accuracy)": ("global_test/accuracy", ["FCLG"]),
        "A, B (test accuracy)": ("test/accuracy", ["GNN"]),
        "C": ("test/mrr", ["links"]),
    }
    assert all(math.isfinite(method.final()[0]) for part in parts for method in part.methods)


def test_a_metric_that_all_have_goes_before_one_that_some_have(make_run: Any, tmp_path: Path) -> None:
    make_run("a", [ROUND], rename={"test/loss": "global_test/accuracy"})
    make_run("b", [ROUND], aggregator="FedPer", rename={"test/accuracy": "global_test/accuracy"})
    make_run("c", [ROUND], aggregator="FedProx", finished=False, every=9)
    (part,) = compare(find_runs([tmp_path])[0])
    assert part.metric.test == "global_test/accuracy"
    assert [method.label for method in part.methods] == ["a", "b", "c"]  # what has no metric yet is not left out


def test_runs_of_unlike_seeds_or_rounds(make_run: Any, study: Path) -> None:
    make_run("FedPer-seed1", [ROUND] * 3, aggregator="FedPer", seed=1)
    run = make_run("FedProx-seed1", [ROUND] * 2, aggregator="FedProx", seed=1, planned=3)
    make_run("FedProx-seed2", [ROUND] * 2, aggregator="FedProx", seed=2, planned=3)
    part = comparison(study)
    found = {method.label: part.unlike(method) for method in part.methods}
    assert found == {"Local": {}, "FedAvg": {}, "FedPer": {"seeds": "1, 2"}, "FedProx": {"rounds": "3"}}
    for file in run.parents[1].glob("FedProx*/*/results.json"):
        file.write_text(json.dumps({**json.loads(file.read_text()), "stopped_early": True}))
    part = comparison(study)
    assert part.unlike(part.methods[-1]) == {}  # it would have done as many


def test_clients_that_were_left_out(make_run: Any) -> None:
    failed = {1: {"C": "no answer"}, 2: {"C": "no answer", "B": "x" * 500}, 4: {"C": "NaN"}}
    run = make_run("a", [ROUND] * 4, dropped=failed)
    part = comparison(run)
    (method,) = part.methods
    found = list(left_out(part))
    assert found[0][1:] == (method.runs[0], "C", "1–2, 4, then for good", "NaN")
    assert found[1][2:4] == ("B", "2, then for good")
    assert len(found[1][4]) == 160


def test_less_is_better_for_losses(study: Path) -> None:
    (part,) = compare(find_runs([study])[0], "loss")
    assert part.metric.lower
    assert part.metric.scale == 1
    assert part.metric.difference == "difference from"  # which is good below zero
    assert part.methods[0].final()[0] == pytest.approx(1 / 3)
    assert part.methods[0].best_test()[0] == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("told", "total", "shared"),
    [
        ({"A": {"total": 10, "shared": 5}, "B": {"total": 30, "shared": 5}}, 20.0, 5.0),
        ({"A": {"total": 7}}, 7.0, math.nan),
        ({"shared": {"total": 10, "shared": 4}, "total": {"total": 30, "shared": 4}}, 20.0, 4.0),  # clients' names
        ({"A": {"total": "many", "shared": None}}, math.nan, math.nan),
        ([1, 2], math.nan, math.nan),
        (None, math.nan, math.nan),
    ],
)
def test_parameters_are_read_with_care(make_run: Any, tmp_path: Path, told: Any, total: float, shared: float) -> None:
    make_run("a", [ROUND], parameters=told)
    (method,) = methods(tmp_path).values()
    assert (method.parameters("total"), method.parameters("shared")) == close(total, shared)


def test_other_graphs_from_python_are_other_data(tmp_path: Path) -> None:
    for number, content in enumerate(("x", "x", "y")):
        (tmp_path / f"m-seed{number}").mkdir()
        config = {"seed": number, "model": {"class": "M"}, "data": {"A": {"content": content, "seed": number}}}
        part = {"clients": {"A": {"test/accuracy": 0.5}}}
        results = {"final": part, "rounds": 3, "config": config, "seed": number}
        (tmp_path / f"m-seed{number}" / "results.json").write_text(json.dumps(results))
    parts = compare(find_runs([tmp_path])[0], "accuracy")
    assert {part.title: [len(method.runs) for method in part.methods] for part in parts} == {
        "1 client (content=x)": [2],
        "1 client (content=y)": [1],
    }


@pytest.mark.parametrize("own", [{"class_path": "mine.Sets"}, {"graphs": {"north": "north"}}])
def test_own_data_of_another_folder_is_other_data(make_run: Any, tmp_path: Path, own: dict[str, Any]) -> None:
    for root in ("may", "june"):
        make_run(root, [ROUND], data={**own, "root": root})
    assert len(compare(find_runs([tmp_path])[0], "accuracy")) == 2


def test_settings_are_shown_as_texts() -> None:
    assert [shown(value) for value in ("a.b.Cee", "a.txt", None, [1], True)] == ["Cee", "a.txt", "–", "[1]", "true"]
