from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.metadata import parse_session_start_info_plugin_data
from tensorboard.summary.writer import event_file_writer
from torch import Tensor
from torch.nn import functional as F

from flgraph.callbacks import GCFL, DFedGNN, FedAvg, FedPer, FedProx, GraphFL, Local
from flgraph.errors import InputError
from flgraph.federation import Aggregator, FederatedCallback, FederatedTrainer, Route, personal, shared
from flgraph.federation.run_log import RunLog
from flgraph.models import GNN
from flgraph.runs.history import History, RoundRecord, default_monitor, evaluation, read_records

Fit = Callable[..., FederatedTrainer]


@pytest.fixture
def fit(federate: Callable[..., FederatedTrainer], toy_federation: Callable[..., Any], toy_module: Any) -> Fit:
    """Runs three rounds with two clients, and returns the trainer."""

    def run(aggregator: Aggregator, model: Any = None, ckpt_path: str | None = None, **kwargs: Any) -> FederatedTrainer:
        trainer = federate(aggregator, **{"rounds": 3, **kwargs})
        trainer.fit(model or toy_module(), toy_federation(6, 8), ckpt_path=ckpt_path)
        return trainer

    return run


def results_of(trainer: FederatedTrainer) -> dict[str, Any]:
    assert trainer.run_dir is not None
    results: dict[str, Any] = json.loads((trainer.run_dir / "results.json").read_text())
    return results


# ----------------------------------------------------------------------------------------------------------- results
METRICS = {"train/loss", "val/loss", "val/accuracy", "test/loss", "test/accuracy"}


def test_results_have_the_documented_shape(fit: Fit) -> None:
    """Others read this file; what it holds besides is listed here too, so that nothing is added in passing."""
    results = results_of(fit(FedAvg()))
    further = {
        "stopped_early",
        "metric_bytes_per_round",
        "setup_bytes",
        "aggregator",
        "parameters",
        "data",
        "dropped",
        "monitor",
        "data_name",
    }
    documented = {"final", "best_val", "rounds", "seconds_per_round", "bytes_per_round", "seed", "versions", "config"}
    assert results.keys() == documented | further
    for part in ("final", "best_val"):
        assert results[part].keys() == {"round", "clients", "mean", "weighted_mean"}
        assert results[part]["clients"].keys() == {"A", "B"}
        assert all(metrics.keys() == METRICS for metrics in results[part]["clients"].values())
        for name, mean in results[part]["mean"].items():
            assert mean == pytest.approx(sum(results[part]["clients"][client][name] for client in "AB") / 2)
    assert results["bytes_per_round"].keys() == {"up", "down"}
    assert (results["rounds"], results["seed"]) == (3, 0)
    assert results["seconds_per_round"] > 0
    assert results["config"]["trainer"]["aggregator"]["class"] == "FedAvg"
    assert results["aggregator"] == results["dropped"] == {}
    assert results["parameters"] == {name: {"total": 23, "shared": 23} for name in "AB"}
    assert results["data"]["B"]["num_train_samples"] == 8


def test_fit_returns_what_it_writes(
    federate: Callable[..., FederatedTrainer], toy_federation: Callable[..., Any], toy_module: Any
) -> None:
    trainer = federate(FedAvg(), rounds=1)
    returned = trainer.fit(toy_module(), toy_federation(6))
    assert results_of(trainer) == json.loads(json.dumps(returned))


def test_metrics_that_are_no_number_become_null(fit: Fit, toy_module: Any) -> None:
    class Broken(toy_module):  # type: ignore[misc]
        def on_validation_epoch_end(self) -> None:
            self.log("val/broken", float("nan"))

    results = results_of(fit(FedAvg(), Broken()))
    assert results["final"]["clients"]["A"]["val/broken"] is None
    assert results["final"]["mean"]["val/broken"] is None
    assert results["final"]["mean"]["val/loss"] is not None


class Scripted(pl.LightningModule):
    """Reports a given score after each local epoch."""

    def __init__(self, scores: Iterable[float], in_features: int = 4) -> None:
        super().__init__()
        self.scores = list(scores)
        self.layer = torch.nn.Linear(in_features, 2)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return F.cross_entropy(self.layer(batch[0]), batch[1])

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val/score", self.scores[self.current_epoch - 1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize(("mode", "best"), [("max", 2), ("min", 3)])
def test_the_best_round_is_the_first_best_of_the_monitored_mean(fit: Fit, mode: str, best: int) -> None:
    scores = [0.5, 0.9, 0.1, 0.9, 0.1]
    trainer = fit(FedAvg(), Scripted(scores), rounds=5, monitor="val/score", monitor_mode=mode, keep_checkpoints=1)
    results = results_of(trainer)
    assert results["best_val"]["round"] == best
    assert results["best_val"]["mean"]["val/score"] == pytest.approx(scores[best - 1])
    assert results["final"]["round"] == 5
    assert trainer.run_dir is not None
    checkpoints = trainer.run_dir / "checkpoints"
    assert (checkpoints / "best").resolve().name == f"round-{best:05d}"
    assert {path.name for path in checkpoints.glob("round-*")} == {f"round-{best:05d}", "round-00005"}


def test_by_default_it_is_the_first_metric_that_the_model_has(fit: Fit) -> None:
    trainer = fit(FedAvg(), Scripted([0.5, 0.9]), rounds=2)
    results = results_of(trainer)
    assert (results["monitor"], trainer.monitor_mode, results["best_val"]["round"]) == ("val/score", "max", 2)
    assert results_of(fit(FedAvg()))["monitor"] == "val/accuracy"
    assert trainer.run_dir is not None
    more = fit(FedAvg(), Scripted([0.5, 0.9, 0.2]), str(trainer.run_dir), rounds=3)
    assert (more.monitor, more.history.best["round"]) == ("val/score", 2)


def test_one_client_does_not_choose_it() -> None:
    measured = {"val/samples": 9.0, "val/loss": 0.2, "val/rmse": 0.4, "test/accuracy": 1.0}
    metrics = {"bad": {"val/accuracy": 1.0, **measured}, "north": measured, "east": measured}
    assert default_monitor(metrics) == "val/rmse"
    assert default_monitor({"north": {"val/samples": 9.0, "val/loss": 0.2}}) == "val/loss"
    assert default_monitor({"north": {"train/loss": 0.2}}) == "val/accuracy"


def test_evaluate_every(fit: Fit) -> None:
    """Every second round, and the last one whatever its number."""
    trainer = fit(FedAvg(), rounds=5, evaluate_every=2)
    assert trainer.run_dir is not None
    lines = read_records(trainer.run_dir / "history.jsonl")
    assert [line["round"] for line in lines] == [1, 2, 3, 4, 5]
    assert [bool(line["metrics"]) for line in lines] == [False, True, False, True, True]
    assert results_of(trainer)["final"]["round"] == 5


def test_history_sums_up_to_the_results(fit: Fit) -> None:
    trainer = fit(FedAvg(), rounds=4)
    assert trainer.run_dir is not None
    lines, results = read_records(trainer.run_dir / "history.jsonl"), results_of(trainer)
    assert results["bytes_per_round"]["up"] == sum(line["bytes_up"] for line in lines) / 4
    assert results["bytes_per_round"]["down"] == sum(line["bytes_down"] for line in lines) / 4
    assert results["seconds_per_round"] == pytest.approx(sum(line["seconds"] for line in lines) / 4)
    assert lines[-1]["mean"] == results["final"]["mean"]


def test_every_run_has_a_folder_of_its_own(fit: Fit) -> None:
    one, other = fit(FedAvg(), rounds=1), fit(FedAvg(), rounds=1)
    assert one.run_dir is not None
    assert other.run_dir is not None
    assert (one.run_dir.name, other.run_dir.name) == ("version_0", "version_1")
    assert one.run_dir.parent.name == "fedavg-toy"
    assert fit(FedAvg(), rounds=1, name="mine").run_dir.parent.name == "mine"  # type: ignore[union-attr]


def test_runs_of_one_seed_are_the_same_and_of_two_are_not(fit: Fit, toy_module: Any) -> None:
    def final(seed: int) -> Any:
        return results_of(fit(FedAvg(), toy_module(dropout=0.5), seed=seed))["final"]

    assert final(0) == final(0) != final(1)


def test_a_trainer_runs_again_from_the_start(
    federate: Callable[..., FederatedTrainer], toy_federation: Callable[..., Any], toy_module: Any
) -> None:
    trainer = federate(FedAvg(), rounds=2)
    data = toy_federation(6, 8)
    one, other = trainer.fit(toy_module(dropout=0.5), data), trainer.fit(toy_module(dropout=0.5), data)
    assert one["final"] == other["final"]
    assert not trainer.aggregator.shared, "what was given stays as it was"


# ------------------------------------------------------------------------------------------------------- tensorboard
def scalars(trainer: FederatedTrainer) -> EventAccumulator:
    return EventAccumulator(str(trainer.run_dir)).Reload()


def steps(events: EventAccumulator, tag: str) -> list[int]:
    return [event.step for event in events.Scalars(tag)]


def test_tensorboard_has_every_round_by_client_and_mean(fit: Fit) -> None:
    trainer = fit(FedAvg(), logger=True)
    events = scalars(trainer)
    names = [name.replace("/", "_") for name in METRICS]
    expected = {f"mean/{name}" for name in names} | {f"per_client_{name}/{client}" for name in names for client in "AB"}
    expected |= {"round/bytes_up", "round/bytes_down", "round/seconds"}
    assert expected | {f"reported/{name}" for name in names} == set(events.Tags()["scalars"])
    assert trainer.run_dir is not None
    lines = read_records(trainer.run_dir / "history.jsonl")
    for tag in expected:
        assert steps(events, tag) == [1, 2, 3], tag
    for line, value in zip(lines, events.Scalars("mean/val_accuracy"), strict=True):
        assert value.value == pytest.approx(line["mean"]["val/accuracy"])
    for line, value in zip(lines, events.Scalars("per_client_val_accuracy/B"), strict=True):
        assert value.value == pytest.approx(line["metrics"]["B"]["val/accuracy"])
    assert [value.value for value in events.Scalars("round/bytes_up")] == [line["bytes_up"] for line in lines]


@pytest.fixture
def numbered_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process numbers its files, and TensorBoard sorts those of one second as text: 10 before 9."""
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))


@pytest.mark.usefixtures("numbered_anew")
@pytest.mark.parametrize("after", [0, 1])
def test_tensorboard_shows_a_round_once_that_ran_twice(tmp_path: Path, after: int) -> None:
    folder = tmp_path / "name" / "version_0"
    folder.mkdir(parents=True)
    for first, last in ((0, 2), (after, 3)):
        log = RunLog(folder, loggers=True, after_round=first)
        for number in range(first + 1, last + 1):
            log.add(RoundRecord(number))
        log.finish("failed", History("val/accuracy", "max"))
    assert steps(EventAccumulator(str(folder)).Reload(), "round/bytes_up") == [1, 2, 3]


def test_tensorboard_shows_the_routing_table(fit: Fit) -> None:
    trainer = fit(FedPer(base=["first.*"]), logger=True)
    (text,) = scalars(trainer).Tensors("routes/text_summary")
    table = text.tensor_proto.string_val[0].decode()
    assert "| first.weight | 3x4 float32 | shared |" in table
    assert "| last.weight | 2x3 float32 | personal |" in table


def test_tensorboard_begins_with_what_matters(fit: Fit) -> None:
    """It sorts groups of scalars, and texts, by their names."""
    tags = scalars(fit(FedAvg(), logger=True)).Tags()
    assert sorted(tags["scalars"])[0].startswith("mean/")
    assert [tag for tag in sorted(tags["tensors"]) if tag.endswith("/text_summary")] == [
        "routes/text_summary",
        "settings/text_summary",
    ]


def test_tensorboard_compares_runs_by_their_settings_and_final_metrics(tmp_path: Path) -> None:
    """As its HPARAMS tab asks: no summary of an experiment, which one run would write for all."""
    folder = tmp_path / "name" / "version_0"
    folder.mkdir(parents=True)
    aggregator = {"class": "FedProx", "mu": 0.5, "weighting": None}
    settings = {"seed": 1, "trainer": {"aggregator": aggregator, "personal": ["*norm*"]}, "data": {"A": {"n": 1}}}
    log, history = RunLog(folder, loggers=True), History("val/accuracy", "max")
    log.describe([], "", settings)
    for number, value in ((1, 0.9), (2, 0.5)):
        record = RoundRecord(number, metrics={"A": {"val/accuracy": value}})
        history.add(record)
        log.add(record)
    history.final = evaluation(1, {"A": {"val/accuracy": 0.9}})  # where it went back to
    log.finish("success", history)
    events = EventAccumulator(str(folder)).Reload()
    plugin = events.PluginTagToContent("hparams")
    assert set(plugin) == {"_hparams_/session_start_info", "_hparams_/session_end_info"}
    shown = parse_session_start_info_plugin_data(plugin["_hparams_/session_start_info"]).hparams
    assert {name: value.number_value or value.string_value for name, value in shown.items()} == {
        "seed": 1,
        "aggregator": "FedProx",
        "aggregator.mu": 0.5,
        "personal": '["*norm*"]',
    }
    assert [(event.step, round(event.value, 6)) for event in events.Scalars("mean/val_accuracy")] == [
        (1, 0.9),
        (2, 0.5),
    ]
    assert [(event.step, round(event.value, 6)) for event in events.Scalars("reported/val_accuracy")] == [(2, 0.9)]
    (text,) = events.Tensors("settings/text_summary")
    assert b"mu: 0.5" in text.tensor_proto.string_val[0]


def test_metrics_that_no_table_would_have_are_named(fit: Fit, toy_module: Any) -> None:
    class Misnaming(toy_module):  # type: ignore[misc]
        def _report(self, batch: list[torch.Tensor], split: str) -> None:
            self.log(f"{split}_acc", 0.5)

    with pytest.warns(UserWarning, match="No table has `val_acc`, and it decides nothing: call it `val/acc`"):
        fit(FedAvg(), rounds=2, model=Misnaming())


def test_large_federations_log_means_only(fit: Fit) -> None:
    events = scalars(fit(FedAvg(), logger=True, max_logged_clients=1))
    assert steps(events, "mean/val_accuracy") == [1, 2, 3]
    assert not any(tag.endswith(("/A", "/B")) for tag in events.Tags()["scalars"])


@pytest.mark.usefixtures("numbered_anew")
def test_tensorboard_has_each_step_once_after_a_resume(fit: Fit) -> None:
    """Also where rounds were logged that the checkpoint does not know of."""
    stopped = fit(FedAvg(), rounds=5, logger=True, keep_checkpoints=9)
    assert stopped.run_dir is not None
    older = str(stopped.run_dir / "checkpoints" / "round-00002")
    resumed = fit(FedAvg(), rounds=6, logger=True, ckpt_path=older)
    assert resumed.run_dir == stopped.run_dir.resolve()
    for tag in ("mean/val_accuracy", "per_client_val_accuracy/A", "round/bytes_up"):
        assert steps(scalars(resumed), tag) == [1, 2, 3, 4, 5, 6]


def test_a_checkpoint_finds_its_rounds_logged(fit: Fit) -> None:
    """Events wait in memory for minutes; a process killed after a checkpoint would leave a gap before it."""
    seen: list[list[int]] = []

    class Look(FederatedCallback):
        def on_round_start(self, trainer: FederatedTrainer) -> None:
            if trainer.current_round > 1:
                seen.append(steps(scalars(trainer), "mean/val_accuracy"))

    fit(FedAvg(), logger=True, rounds=4, callbacks=[Look()])
    assert seen == [[1], [1, 2], [1, 2, 3]]


def test_other_loggers_are_given_every_round(fit: Fit, tmp_path: Path) -> None:
    from pytorch_lightning.loggers import CSVLogger

    logger = CSVLogger(str(tmp_path / "csv"))
    fit(FedAvg(), logger=logger)
    rows = (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()
    assert len(rows) == 1 + 3 + 1  # the last one is what is reported
    assert "mean/val_accuracy" in rows[0].split(",")


# --------------------------------------------------------------------------------------------------------- arguments
@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"rounds": 0}, r"trainer\.rounds"),
        ({"rounds": 1.5}, r"trainer\.rounds"),
        ({"local_epochs": 0}, r"trainer\.local_epochs"),
        ({"seed": None}, r"trainer\.seed"),
        ({"client_fraction": 0.0}, r"trainer\.client_fraction"),
        ({"client_fraction": 1.1}, r"trainer\.client_fraction"),
        ({"client_fraction": "0.5"}, r"trainer\.client_fraction"),
        ({"engine": "Forked"}, r"trainer\.engine"),
        ({"policy": {}}, r"trainer\.policy"),
        ({"tolerance": 3}, r"trainer\.tolerance"),
        ({"privacy": 3}, r"trainer\.privacy"),
        ({"secure_sums": True}, r"trainer\.secure_sums"),
        ({"monitor": 5}, r"trainer\.monitor"),
        ({"name": 5}, r"trainer\.name"),
        ({"personal": "net.*"}, r"trainer\.personal"),
        ({"logger": "tb"}, r"trainer\.logger"),
        ({"evaluate_every": 0}, r"trainer\.evaluate_every"),
        ({"checkpoint_every": 0}, r"trainer\.checkpoint_every"),
        ({"keep_checkpoints": 0}, r"trainer\.keep_checkpoints"),
        ({"monitor_mode": "most"}, r"trainer\.monitor_mode"),
        ({"name": "a/b"}, r"trainer\.name"),
        ({"precision": "17"}, r"trainer\.precision"),
        ({"accumulate_grad_batches": 0}, r"trainer\.accumulate_grad_batches"),
    ],
    ids=str,
)
def test_arguments_out_of_range_are_named(arguments: dict[str, Any], field: str, federate: Any) -> None:
    with pytest.raises(InputError, match=rf"^Expected `{field}` to be "):
        federate(FedAvg(), **arguments)


def test_clients_need_names_that_are_file_names(
    federate: Callable[..., FederatedTrainer], toy_federation: Any, toy_data: Any, toy_module: Any
) -> None:
    for name in ("../A", "a/b", "..", "", "mean"):
        with pytest.raises(InputError, match=r"`data\.clients`"):
            federate(FedAvg()).fit(toy_module(), toy_federation(**{name: toy_data()}))
    data = toy_federation(A=toy_data())
    data.given = {}
    with pytest.raises(InputError, match="at least one client"):
        federate(FedAvg()).fit(toy_module(), data)


# --------------------------------------------------------------------------------------------- precision and clipping
def test_mixed_precision_the_cpu(fit: Fit, federate: Any, graph_federation: Any, recorder: Any) -> None:
    """Products in bfloat16, weights in float32, on both sides."""
    trainer = federate(FedAvg(), rounds=2, precision="bf16-mixed", engine=recorder)
    trainer.fit(GNN(hidden_channels=8, num_layers=1, dropout=0.0), graph_federation())
    assert {t.dtype for _, upload in recorder.uploads() for t in upload.tensors.values()} == {torch.float32}
    assert {t.dtype for t in trainer.server.aggregator.shared.values()} == {torch.float32}
    exact = federate(FedAvg(), rounds=2)
    exact.fit(GNN(hidden_channels=8, num_layers=1, dropout=0.0), graph_federation())
    one, other = trainer.history.last["mean"]["train/loss"], exact.history.last["mean"]["train/loss"]
    assert one == pytest.approx(other, rel=0.05)
    assert one != other, "nothing was computed in bfloat16"


def test_gradients_are_clipped_per_client(fit: Fit, toy_module: Any) -> None:
    """A step of SGD with rate 1 is as long as the gradient."""
    start = fit(Local(), toy_module(lr=0.0), rounds=1).engine.clients  # type: ignore[attr-defined]
    after = fit(Local(), toy_module(lr=1.0), rounds=1, gradient_clip_val=0.01).engine.clients  # type: ignore[attr-defined]
    for name in "AB":
        pairs = zip(start[name].module.parameters(), after[name].module.parameters(), strict=True)
        length = sum(float((a - b).detach().square().sum()) for a, b in pairs) ** 0.5
        assert length == pytest.approx(0.01, rel=1e-3)


# -------------------------------------------------------------------------------------------- buffers of a batch norm
class SharesAll(FedAvg):
    def routes(self) -> list[Route]:
        return shared("*")


class KeepsStatistics(FedAvg):
    def routes(self) -> list[Route]:
        return [*personal("norm.running_*", "norm.num_batches_tracked"), *shared("*")]


def test_statistics_of_batch_norms_follow_the_routes(fit: Fit, toy_module: Any, recorder: Any) -> None:
    """6 and 8 rows in one batch each: a count of 1 per round; means weighted by rows."""
    averaged = fit(SharesAll(), toy_module(norm=True), rounds=1, engine=recorder)
    uploads = dict(recorder.uploads())
    mean = (6 * uploads["A"].tensors["norm.running_mean"] + 8 * uploads["B"].tensors["norm.running_mean"]) / 14
    clients = averaged.engine.clients  # type: ignore[attr-defined]
    for name in "AB":
        norm = clients[name].module.norm
        torch.testing.assert_close(norm.running_mean, mean)
        assert norm.num_batches_tracked.dtype == torch.int64
        assert norm.num_batches_tracked.item() == 1

    kept = fit(KeepsStatistics(), toy_module(norm=True), rounds=1).engine.clients  # type: ignore[attr-defined]
    for name in "AB":
        assert torch.equal(kept[name].module.norm.running_mean, uploads[name].tensors["norm.running_mean"])
    assert torch.equal(kept["A"].module.norm.weight, kept["B"].module.norm.weight)
    assert torch.equal(kept["A"].module.last.weight, clients["A"].module.last.weight)


# -------------------------------------------------------------------------------------------------- anybody's modules
@pytest.mark.parametrize(
    "aggregator", [FedAvg(), FedProx(), Local(), FedPer(base=["layer.weight"])], ids=lambda a: a.name
)
def test_a_module_without_hyperparameters_runs(fit: Fit, aggregator: Aggregator) -> None:
    """It is copied, so that all clients begin with its weights."""
    module = Scripted([0.5] * 3)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    clients = fit(aggregator, module, monitor="val/score").engine.clients  # type: ignore[attr-defined]
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items()), "a template stays"
    equal = torch.equal(clients["A"].module.layer.weight, clients["B"].module.layer.weight)
    assert equal == (not isinstance(aggregator, Local))
    assert not torch.equal(clients["A"].module.layer.weight, before["layer.weight"])


def test_a_function_as_model(fit: Fit, toy_module: Any) -> None:
    made = []

    def model(data: Any) -> pl.LightningModule:
        made.append(data.num_train_samples)
        return toy_module(in_features=data.x.size(1), hidden=5)

    trainer = fit(FedAvg(), model)
    assert made == [6, 8]
    assert trainer.engine.clients["A"].module.first.weight.shape == (5, 4)  # type: ignore[attr-defined]
    assert results_of(trainer)["config"]["model"]["class"].endswith("model")


# -------------------------------------------------------------------------------------------- what stays with clients
@pytest.mark.parametrize(
    "aggregator", [FedAvg(), FedProx(), GCFL(base=["first.*", "norm.*"]), DFedGNN(), GraphFL()], ids=lambda a: a.name
)
def test_personal_layers_tighten_any_algorithm(
    fit: Fit, toy_module: Any, recorder: Any, aggregator: Aggregator
) -> None:
    """FedBN (Li et al., ICLR 2021): layers of batch normalisation stay with each client, the rest is averaged."""
    trainer = fit(aggregator, toy_module(norm=True), personal=["*norm*"], engine=recorder)
    for _, _, answer in recorder.crossed:
        assert b"norm." not in answer
    for _, _, download in recorder.downloads():
        assert not any("norm" in name for name in download.tensors)
    one, other = (client.module.state_dict() for client in trainer.engine.clients.values())  # type: ignore[attr-defined]
    for name in ("norm.weight", "norm.running_mean"):
        assert not torch.equal(one[name], other[name])
    assert torch.equal(one["first.weight"], other["first.weight"])


def test_personal_patterns_are_checked(fit: Fit, toy_module: Any, recorder: Any) -> None:
    """One that matches nothing is a misspelt one; one on a tensor that stays anyway opens no door to it."""
    with pytest.raises(InputError, match=r"personal` to be patterns .* client `A` but got `\*batchnorm\*`"):
        fit(FedAvg(), toy_module(norm=True), personal=["*batchnorm*"])
    fit(FedPer(base=["first.*"]), personal=["last.*"], engine=recorder)
    assert {name for _, upload in recorder.uploads() for name in upload.tensors} == {"first.weight", "first.bias"}


def test_tables_list_all_that_may_leave(
    fit: Fit, federate: Any, toy_federation: Any, toy_module: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the screen and in TensorBoard: tensors beside the model, scalars, metrics."""
    trainer = fit(GraphFL(), logger=True, rounds=1, enable_progress_bar=True)
    (text,) = scalars(trainer).Tensors("routes/text_summary")
    table = text.tensor_proto.string_val[0].decode()
    for row in (
        "| gradient/* | gradient | extra tensor |",
        "| num_samples | – | scalar |",
        "| what the model logs | – | metric |",
    ):
        assert row in table
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("What may leave a client", "gradient/*", "num_samples", "extra tensor"))
