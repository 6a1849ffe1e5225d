"""What ``flgraph fit`` writes, and what the other subcommands make of it."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from flgraph.cli import fit
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer, Sequential
from flgraph.federation.engines.forked import Forked
from flgraph.models import FedStar

Call = Callable[..., Any]  # see conftest.py

FEDSTAR = ("-c", "configs/method/fedstar.yaml")


def results(run: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run / "results.json").read_text())
    return content


def measured(run: Path) -> dict[str, Any]:
    """What does not depend on the clock."""
    found = results(run)
    return {key: found[key] for key in ("final", "best_val", "rounds", "bytes_per_round", "setup_bytes")}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def finished(trained: Callable[[str], Path]) -> Path:
    """A run of two rounds."""
    return trained("fedstar")


def test_run_folder(done: Call, small: list[str], runs: Path) -> None:
    out = done("fit", *FEDSTAR, *small).out
    run = runs / "fedstar-alpha-beta" / "version_0"
    assert f"results in {run}" in out
    assert "structure.convs.0.lin.weight" in out
    for noise in ("GPU available", "Trainer.fit", "LeafSpec", "Warning", "💡"):
        assert noise not in out
    names = {path.name for path in run.iterdir()}
    assert names >= {"config.yaml", "results.json", "history.jsonl", "checkpoints"}
    assert {path.name for path in (run / "checkpoints").iterdir()} >= {"round-00001", "round-00002", "last", "best"}
    last = run / "checkpoints" / "last"
    assert last.resolve().name == "round-00002"
    assert {path.name for path in (last / "clients").iterdir()} == {"ALPHA.ckpt", "BETA.ckpt"}

    history = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    assert [record["round"] for record in history] == [1, 2]
    assert history[-1]["metrics"] == results(run)["final"]["clients"]

    (events,) = run.glob("events.out.tfevents.*")
    board = EventAccumulator(str(events)).Reload()
    assert {"mean/val_accuracy", "per_client_val_accuracy/ALPHA", "per_client_test_loss/BETA", "round/bytes_up"} <= set(
        board.Tags()["scalars"]
    )
    points = board.Scalars("per_client_val_accuracy/BETA")
    assert [point.step for point in points] == [1, 2]
    assert points[1].value == pytest.approx(history[1]["metrics"]["BETA"]["val/accuracy"])


@pytest.mark.skipif(sys.platform != "linux", reason="forks on Linux only")
@pytest.mark.parametrize(
    ("command", "further", "cores", "engine"),
    [
        ("fit", [], 2, Forked),
        ("validate", [], 2, Forked),
        ("predict", [], 2, Sequential),
        ("fit", [], 1, Sequential),
        ("fit", ["--trainer.engine", "Sequential"], 2, Sequential),
    ],
)
@pytest.mark.parametrize("given", ["", "1"])
def test_who_says_nothing_has_clients_on_all_cores(
    call: Call,
    small: list[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    further: list[str],
    cores: int,
    engine: type,
    given: str,
) -> None:
    seen = []

    def session(trainer: FederatedTrainer) -> None:
        seen.append(type(trainer.engine))
        raise InputError("enough seen")

    monkeypatch.setattr(FederatedTrainer, "_session", session)
    monkeypatch.setattr(fit, "num_cores", lambda: cores)
    if given:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    else:
        monkeypatch.delenv("OMP_NUM_THREADS")
    assert call(command, *FEDSTAR, *small, *further).sentence == "enough seen"
    assert seen == [Sequential if given else engine]


def test_results(done: Call, small: list[str], runs: Path) -> None:
    done("fit", *FEDSTAR, *small, "--seed_everything", "5")
    found = results(runs / "fedstar-alpha-beta" / "version_0")
    assert found["seed"] == 5
    assert found["rounds"] == found["final"]["round"] == 2
    assert found["config"]["trainer"]["rounds"] == 2
    assert found["config"]["data"]["init_args"]["datasets"] == ["ALPHA", "BETA"]
    assert {"flgraph", "torch", "git"} <= found["versions"].keys()
    metrics = found["final"]["clients"]["ALPHA"]
    assert {f"{split}/{name}" for split in ("train", "val", "test") for name in ("loss", "accuracy", "f1")} <= set(
        metrics
    )
    clients = found["final"]["clients"].values()
    assert found["final"]["mean"]["val/loss"] == pytest.approx(sum(client["val/loss"] for client in clients) / 2)


def test_client_checkpoint_is_a_lightning_checkpoint(finished: Path) -> None:
    clients = finished / "checkpoints" / "last" / "clients"
    model = FedStar.load_from_checkpoint(clients / "BETA.ckpt")
    assert (model.in_channels, model.num_classes) == (4, 3)
    saved = torch.load(clients / "BETA.ckpt", weights_only=True)["state_dict"]
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, saved[name])


def test_effective_config_reproduces_the_run(
    done: Call, small: list[str], runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("seed_everything: 3\ntrainer:\n  local_epochs: 2\n  rounds: 7\n")
    options = ["--model.hidden_channels", "16", "--trainer.aggregator.weighting", "uniform"]
    done("fit", *FEDSTAR, "-c", str(own), *small, *options)
    first = runs / "fedstar-alpha-beta" / "version_0"
    config = yaml.safe_load((first / "config.yaml").read_text())
    assert config["seed_everything"] == 3
    assert (config["trainer"]["local_epochs"], config["trainer"]["rounds"]) == (2, 2)
    assert config["model"]["init_args"]["hidden_channels"] == 16
    assert config["trainer"]["aggregator"]["init_args"]["weighting"] == "uniform"
    assert config["data"]["class_path"] == "flgraph.data.TUFederation"
    assert "seed" not in config["trainer"]

    monkeypatch.chdir(tmp_path)  # nothing in it depends on where one is
    done("fit", "-c", str(first / "config.yaml"))
    second = first.with_name("version_1")
    assert measured(second) == measured(first)
    assert yaml.safe_load((second / "config.yaml").read_text()) == config


def test_a_model_that_is_given_its_optimizer(done: Call, call: Call, small: list[str]) -> None:
    args = ["fit", "-c", "configs/method/fedavg.yaml", *small, "--model", "tests.cli.own.Optimised"]
    args += ["--model.by", "torch.optim.SGD", "--model.by.lr"]
    done(*args, "0.1")
    assert "failed in round 1 (train): ValueError: Invalid learning rate: -1.0" in call(*args, "-1").err


def test_later_options_win(done: Call, small: list[str], tmp_path: Path) -> None:
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    one.write_text("trainer:\n  rounds: 11\n  local_epochs: 12\n  evaluate_every: 13\n")
    two.write_text("trainer:\n  rounds: 21\n  local_epochs: 22\n")
    files = ("-c", str(one), f"--config={two}")
    out = done("fit", *FEDSTAR, *small, *files, "--trainer.rounds=31", "--print_config").out
    trainer = yaml.safe_load(out)["trainer"]
    assert (trainer["rounds"], trainer["local_epochs"], trainer["evaluate_every"]) == (31, 22, 13)


def test_name_and_versions(done: Call, small: list[str], tmp_path: Path) -> None:
    options = [*small, "--trainer.name", "mine", "--trainer.rounds", "1", "--trainer.logger", "false"]
    for _ in range(2):
        done("fit", *FEDSTAR, *options)
    elsewhere = tmp_path / "else" / "where"
    done("fit", *FEDSTAR, *options, "--trainer.default_root_dir", str(elsewhere))
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"mine"}
    assert {path.name for path in (tmp_path / "runs" / "mine").iterdir()} == {"version_0", "version_1"}
    assert (elsewhere / "mine" / "version_0" / "results.json").is_file()
    assert not list(elsewhere.rglob("events.out.tfevents.*"))


def test_seeds(done: Call, small: list[str], finished: Path) -> None:
    for seed in ("0", "2"):
        done("fit", *FEDSTAR, *small, "--seed_everything", seed, "--trainer.logger", "false")
    one, again, other = (measured(finished.with_name(f"version_{number}")) for number in range(3))
    assert one == again
    assert one["final"] != other["final"]


def test_data_without_a_class(
    done: Call, small: list[str], runs: Path, tu_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLGRAPH_DATA", str(tu_root))
    trainer = small[small.index("--trainer.default_root_dir") :]
    done("fit", "-c", "configs/method/local.yaml", "--data.datasets", "[BETA]", *trainer)
    done("fit", "-c", "configs/method/local.yaml", "--data.datasets=[BETA, ALPHA]", *trainer)
    assert list(results(runs / "local-beta" / "version_0")["final"]["clients"]) == ["BETA"]
    assert list(results(runs / "local-beta-alpha" / "version_0")["final"]["clients"]) == ["BETA", "ALPHA"]


def test_shards(done: Call, small: list[str], runs: Path) -> None:
    done("fit", *FEDSTAR, *small, "--data.shards", "3")
    found = results(runs / "fedstar-alpha-beta-3" / "version_0")
    assert list(found["final"]["clients"]) == [f"{name}-{number}" for name in ("ALPHA", "BETA") for number in (1, 2, 3)]


def test_evaluate_every_and_checkpoint_every(done: Call, small: list[str], runs: Path) -> None:
    every = ("--trainer.evaluate_every", "3", "--trainer.checkpoint_every", "2", "--trainer.keep_checkpoints", "9")
    done("fit", *FEDSTAR, *small, "--trainer.rounds", "5", *every)
    run = runs / "fedstar-alpha-beta" / "version_0"
    history = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    assert [record["round"] for record in history if record["metrics"]] == [3, 5]
    rounds = sorted(path.name for path in (run / "checkpoints").glob("round-*"))
    # Every second one, the last, and the third, which was the best when it was evaluated.
    assert rounds == ["round-00002", "round-00003", "round-00004", "round-00005"]


def test_precision(done: Call, small: list[str], runs: Path) -> None:
    for precision in ("bf16-mixed", "64-true"):
        done("fit", *FEDSTAR, *small, "--trainer.precision", precision, "--trainer.name", precision)
    kinds = {}
    for precision in ("bf16-mixed", "64-true"):
        run = runs / precision / "version_0"
        assert math.isfinite(results(run)["final"]["mean"]["train/loss"])
        state = torch.load(run / "checkpoints" / "last" / "clients" / "ALPHA.ckpt", weights_only=True)
        kinds[precision] = state["state_dict"]["readout.weight"].dtype
    assert kinds == {"bf16-mixed": torch.float32, "64-true": torch.float64}


def test_loss_of_nan(done: Call, small: list[str], runs: Path) -> None:
    """A model that diverges at its client is a result like any other; JSON knows no NaN, so it is null."""
    done("fit", "-c", "configs/method/fedavg.yaml", *small, "--model.lr", "1e30", "--trainer.aggregator", "Local")
    text = (runs / "local-alpha-beta" / "version_0" / "results.json").read_text()

    def refuse(constant: str) -> None:
        raise AssertionError(f"no JSON: {constant}")

    found = json.loads(text, parse_constant=refuse)
    assert found["final"]["clients"]["ALPHA"]["val/loss"] is None
    assert found["final"]["mean"]["val/loss"] is None
    assert found["final"]["clients"]["ALPHA"]["val/accuracy"] is not None


@pytest.mark.parametrize("subcommand", ["validate", "test"])
def test_evaluation_is_told_where_the_run_is_silent(
    done: Call, small: list[str], finished: Path, subcommand: str
) -> None:
    """What is asked for is printed, and neither a routing table nor progress is."""
    silent = done(subcommand, *FEDSTAR, *small, "--trainer.enable_progress_bar", "false").out
    assert silent
    assert silent in done(subcommand, *FEDSTAR, *small).out


@pytest.mark.parametrize(("subcommand", "split"), [("validate", "val"), ("test", "test")])
def test_evaluation(done: Call, small: list[str], finished: Path, subcommand: str, split: str) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.is_file()}
    out = done(subcommand, *FEDSTAR, *small).out
    final = results(finished)["final"]["clients"]
    assert f"{split}, round 2" in out
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in out.splitlines() if line.startswith("│")]
    shown = {row[0]: row[1:] for row in rows}
    for client in ("ALPHA", "BETA"):
        columns = [name for name in final[client] if name.startswith(f"{split}/") and name != f"{split}/samples"]
        assert shown[client] == [f"{final[client][name]:.4f}" for name in columns]
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.is_file()} == before
    assert [path.name for path in finished.parent.iterdir()] == ["version_0"]


def test_predictions(done: Call, small: list[str], finished: Path) -> None:
    out = done("predict", *FEDSTAR, *small).out
    assert f"predictions in {finished / 'predictions'}, after round " in out
    for client, graphs, classes in (("ALPHA", 40, 2), ("BETA", 30, 3)):
        with open(finished / "predictions" / f"{client}.csv", newline="") as stream:
            rows = list(csv.DictReader(stream))
        assert [int(row["graph"]) for row in rows] == list(range(graphs))
        assert {row["split"] for row in rows} == {"train", "val", "test"}
        for row in rows:
            probabilities = [float(row[f"p{number}"]) for number in range(classes)]
            assert sum(probabilities) == pytest.approx(1, abs=1e-5)
            assert probabilities[int(row["class"])] == max(probabilities)
            assert len(row) == classes + 3


def test_checkpoint_paths(done: Call, small: list[str], finished: Path) -> None:
    """All ways to name the same checkpoint; the newest run counts where none is named."""
    shown = {
        done("test", *FEDSTAR, *small, "--ckpt_path", path).out
        for path in (
            "last",
            str(finished),
            str(finished / "checkpoints"),
            str(finished / "checkpoints" / "last"),
            str(finished / "checkpoints" / "round-00002"),
        )
    }
    assert len(shown) == 1
    assert "test, round 2" in shown.pop()
    assert "test, round 1" in done("test", *FEDSTAR, *small, "--ckpt_path", f"{finished}/checkpoints/round-00001").out
    best = results(finished)["best_val"]["round"]
    assert f"test, round {best}" in done("test", *FEDSTAR, *small, "--ckpt_path", "best").out
    done("fit", *FEDSTAR, *small, "--trainer.rounds", "3")
    assert "test, round 3" in done("test", *FEDSTAR, *small).out


def test_more_rounds_for_a_finished_run(done: Call, small: list[str], finished: Path) -> None:
    out = done("fit", *FEDSTAR, *small, "--trainer.rounds", "4", "--ckpt_path", "last").out
    assert f"continuing {finished} after round 2" in out
    done("fit", *FEDSTAR, *small, "--trainer.rounds", "4")
    assert measured(finished) == measured(finished.with_name("version_1"))
