from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import federations
import pytest
import torch
from pytorch_lightning.callbacks import GradientAccumulationScheduler
from torch import Tensor
from torch_geometric.data import Data

from flgraph import models as nets
from flgraph.callbacks import FGGP, AdaFGL, EarlyStopping, FedAvg, FedEgo, FedProto, Local, Stragglers
from flgraph.data import NodeFederation, NodeGraph
from flgraph.errors import InputError
from flgraph.federation import ClientError, FederatedCallback, FederatedTrainer, Payload, Request, Sequential, Tolerance
from flgraph.models import GNN
from flgraph.models import FedEgo as FedEgoNet
from flgraph.runs.history import read_records

Make = Callable[..., Any]
Models = dict[str, dict[str, Tensor]]


class Snapshots(FederatedCallback):
    """Every client's weights after every round."""

    def __init__(self) -> None:
        self.rounds: dict[int, Models] = {}

    def on_round_end(self, trainer: FederatedTrainer) -> None:
        self.rounds[trainer.current_round] = models(trainer)


def models(trainer: Any) -> Models:
    return {
        name: {key: tensor.clone() for key, tensor in client.module.state_dict().items()}
        for name, client in trainer.engine.clients.items()
    }


def model(lr: float = 0.03) -> GNN:
    return GNN(hidden_channels=4, num_layers=1, lr=lr)


def stop(scores: list[float], patience: int) -> tuple[int, int]:
    """The best of these rounds and the last one to be run, counted from 1."""
    best, last = 1, len(scores)
    for number, score in enumerate(scores, start=1):
        if score > scores[best - 1] + 1e-5:
            best = number
        if number - best >= patience:
            last = number
            break
    return best, last


def weighted(metrics: dict[str, dict[str, float]], name: str) -> float:
    counts = {client: values[f"{name.split('/')[0]}/samples"] for client, values in metrics.items()}
    return sum(counts[client] * values[name] for client, values in metrics.items()) / sum(counts.values())


def test_it_goes_back_to_the_best_round(
    federate: Make, graph_federation: Make, assert_same: Make, tmp_path: Path
) -> None:
    whole = federate(FedAvg(), rounds=25)
    whole.fit(model(), graph_federation())
    scores = [weighted(record["metrics"], "val/accuracy") for record in read_records(whole.run_dir / "history.jsonl")]
    best, last = stop(scores, patience=3)
    assert best < last < 25
    assert best > 1

    snapshots = Snapshots()
    trainer = federate(FedAvg(), rounds=25, callbacks=[EarlyStopping(patience=3), snapshots])
    results = trainer.fit(model(), graph_federation())
    assert results["rounds"] == last
    assert results["stopped_early"]
    assert_same(models(trainer), snapshots.rounds[best])
    records = read_records(trainer.run_dir / "history.jsonl")
    assert results["final"]["round"] == best
    assert results["final"]["clients"] == records[best - 1]["metrics"]
    expected = weighted(records[best - 1]["metrics"], "test/accuracy")
    assert results["final"]["weighted_mean"]["test/accuracy"] == pytest.approx(expected)
    assert records[best - 1]["weighted_mean"]["test/accuracy"] == pytest.approx(expected)
    assert "val/samples" not in results["final"]["mean"]

    again = federate(FedAvg(), rounds=25)
    for tested in (trainer.test(), again.test(model(), graph_federation(), ckpt_path=str(trainer.run_dir))):
        for name, values in tested.items():
            assert values.items() <= results["final"]["clients"][name].items()


@pytest.mark.parametrize("cut", [2, 7])
def test_a_run_of_too_few_rounds_goes_on_as_if_it_had_not_ended(
    cut: int,
    federate: Make,
    graph_federation: Make,
    assert_same: Make,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What ended at its limit went back to its best round, too; goes on from its last all the same."""

    def run(folder: str, rounds: int, ckpt: str | None = None) -> Any:
        trainer = federate(
            FedAvg(), rounds=rounds, callbacks=[EarlyStopping(patience=8)], default_root_dir=str(tmp_path / folder)
        )
        trainer.fit(model(), graph_federation(), ckpt_path=ckpt)
        return trainer

    whole = run("whole", 30)
    assert cut < whole.current_round < 30
    short = run("cut", cut)
    assert short.history.final["round"] <= cut
    resumed = run("cut", 30, "last")
    assert resumed.current_round == whole.current_round
    assert resumed.history.final == whole.history.final
    assert_same(models(resumed), models(whole))
    for name, client in whole.engine.clients.items():
        assert_same(resumed.engine.clients[name].state(), client.state())
    with pytest.warns(UserWarning, match="stopped early, with patience 8: nothing is left to do"):
        over = run("cut", 40, "last")
    assert over.current_round == whole.current_round
    assert over.history.final == whole.history.final
    assert_same(models(over), models(whole))


def test_going_on_without_it_is_told(federate: Make, graph_federation: Make) -> None:
    """The clients are those of the best round, which no run without it would have."""
    trainer = federate(FedAvg(), rounds=25, callbacks=[EarlyStopping(patience=3)])
    last = trainer.fit(model(), graph_federation())["rounds"]
    with pytest.warns(UserWarning, match="goes on without EarlyStopping, a callback of the checkpoint"):
        federate(FedAvg(), rounds=last + 1).fit(model(), graph_federation(), ckpt_path=str(trainer.run_dir))


@pytest.mark.parametrize("callback", [Stragglers(0.3), GradientAccumulationScheduler({0: 2})])
def test_going_on_without_others_is_told(callback: Any, federate: Make, graph_federation: Make) -> None:
    """With or without a state at the server."""
    federate(FedAvg(), rounds=1, callbacks=[callback]).fit(model(), graph_federation())
    with pytest.warns(UserWarning, match=f"goes on without {type(callback).__name__}, a callback of the checkpoint"):
        federate(FedAvg(), rounds=2).fit(model(), graph_federation(), ckpt_path="last")


@pytest.mark.parametrize("cut", [3, 7])
def test_a_run_may_end_where_it_was_stopped(
    cut: int, federate: Make, graph_federation: Make, assert_same: Make, tmp_path: Path
) -> None:
    class Killed(FederatedCallback):
        def on_round_start(self, trainer: FederatedTrainer) -> None:
            if trainer.current_round == cut + 1:
                raise KeyboardInterrupt

    def run(folder: str, rounds: int, *more: Any, ckpt: str | None = None) -> Any:
        callbacks = [EarlyStopping("val/loss", "max", patience=20), *more]
        trainer = federate(FedAvg(), rounds=rounds, callbacks=callbacks, default_root_dir=str(tmp_path / folder))
        trainer.fit(model(), graph_federation(), ckpt_path=ckpt)
        return trainer

    whole = run("whole", cut)
    assert whole.history.final["round"] < cut  # the loss falls
    with pytest.raises(KeyboardInterrupt):
        run("cut", 30, Killed())
    for _ in range(2):
        ended = run("cut", cut, ckpt="last")
        assert ended.history.final == whole.history.final
        assert_same(models(ended), models(whole))
        assert_same(ended.test(), whole.test())


@pytest.mark.parametrize(("mode", "best"), [("max", None), ("min", "round-00004")])
def test_the_best_checkpoint_has_the_best_rounds_models(
    mode: Any, best: str | None, federate: Make, graph_federation: Make
) -> None:
    """The last round is the best by the trainer's metric; clients may go back to that which is best by another."""
    callbacks = [EarlyStopping("val/loss", mode)]
    trainer = federate(FedAvg(), rounds=4, monitor="val/loss", monitor_mode="min", callbacks=callbacks)
    trainer.fit(model(), graph_federation())
    assert trainer.history.best["round"] == 4
    assert (trainer.history.final["round"] == 4) == (mode == "min")
    found = trainer._store.best()
    assert (found and found.resolve().name) == best


@pytest.mark.parametrize("rounds", [6, 30])
def test_a_trainer_runs_again_from_the_start(
    rounds: int, federate: Make, graph_federation: Make, assert_same: Make
) -> None:
    """Whether the first run was stopped or not, the second knows nothing of it."""
    callbacks = [EarlyStopping("val/loss", "min", patience=3, scope="clients")]
    trainer = federate(Local(), rounds=rounds, callbacks=callbacks)
    kept = ("final", "best_val", "rounds", "stopped_early")
    results, ended = [], []
    for _ in range(2):
        told = trainer.fit(model(lr=0.2), graph_federation())
        results.append({name: told[name] for name in kept})
        ended.append(models(trainer))
    assert results[0] == results[1]
    assert results[0]["stopped_early"] == (rounds == 30)
    assert_same(ended[0], ended[1])


def test_each_client_by_itself(federate: Make, graph_federation: Make, assert_same: Make) -> None:
    snapshots, everything = Snapshots(), Snapshots()
    federate(Local(), rounds=40, callbacks=[everything]).fit(model(lr=0.2), graph_federation())
    callback = EarlyStopping("val/loss", "min", patience=2, scope="clients")
    trainer = federate(Local(), rounds=40, callbacks=[callback, snapshots])
    results = trainer.fit(model(lr=0.2), graph_federation())
    records = read_records(trainer.run_dir / "history.jsonl")
    lasts = {}
    for name, client in models(trainer).items():
        best, lasts[name] = stop([-record["metrics"][name]["val/loss"] for record in records], patience=2)
        assert_same(client, everything.rounds[best][name])
        assert results["final"]["clients"][name] == records[best - 1]["metrics"][name]
    assert len(set(lasts.values())) > 1
    assert results["rounds"] == max(lasts.values()) < 40
    for record in records:  # who has stopped takes no part
        assert record["clients"] == [name for name in lasts if record["round"] <= lasts[name]]


def test_a_client_that_was_left_out_is_not_waited_for(federate: Make, toy_module: Any, toy_federation: Make) -> None:
    accuracies = [{"A": 0.9, "B": 0.5, "C": 0.5}, {"A": 0.8, "B": 0.6, "C": 0.6}, {"A": 0.8, "B": 0.5}]
    engine = Told(*accuracies, failing=("C", 3))
    callbacks = [EarlyStopping("val/accuracy", patience=1, scope="clients")]
    trainer = federate(
        Local(), engine=engine, rounds=9, callbacks=callbacks, tolerance=Tolerance(on_bad_upload="drop", strikes=1)
    )
    results = trainer.fit(toy_module(), toy_federation(4, 4, 4))
    assert results["dropped"] == {"C": {"times": 1, "excluded": True}}
    assert (results["rounds"], results["stopped_early"]) == (3, True)


def test_a_client_that_joins_late(federate: Make, graph_federation: Make) -> None:
    """Rounds in which it did not train are none without an improvement."""
    callbacks = [EarlyStopping("val/loss", "min", patience=3, scope="clients"), Stragglers(away={"A": [[1, 5]]})]
    trainer = federate(Local(), rounds=12, callbacks=callbacks)
    trainer.fit(model(lr=0.2), graph_federation())
    records = read_records(trainer.run_dir / "history.jsonl")
    took = {name: [r["round"] for r in records if name in r["clients"]] for name in ("A", "B", "C")}
    assert took["A"][0] == 6
    assert min(map(len, took.values())) >= 4  # the first and three that are no better, at least


def test_the_limit_is_an_end_too(federate: Make, graph_federation: Make, assert_same: Make) -> None:
    snapshots = Snapshots()
    trainer = federate(
        FedAvg(), rounds=4, evaluate_every=3, callbacks=[snapshots, EarlyStopping("val/loss", "max", min_delta=0.0)]
    )
    results = trainer.fit(model(), graph_federation())
    assert not results["stopped_early"]
    assert results["final"]["round"] in (3, 4)
    assert_same(models(trainer), snapshots.rounds[results["final"]["round"]])
    losses = {
        r["round"]: weighted(r["metrics"], "val/loss") for r in read_records(trainer.run_dir / "history.jsonl")[2:]
    }
    assert results["final"]["round"] == max(losses, key=lambda number: losses[number])


def test_no_number_is_no_improvement(
    federate: Make, toy_module: Any, toy_federation: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    stopping = EarlyStopping("val/loss", "min", patience=2, average="clients")
    trainer = federate(Local(), rounds=9, callbacks=[stopping], enable_progress_bar=True)
    module = toy_module(lr=float("nan"))
    with pytest.warns(UserWarning, match=r"loss of client `.` is NaN in round 1: its training diverged, or") as warned:
        results = trainer.fit(module, toy_federation(4, 6))
    assert len([one for one in warned if "diverged" in str(one.message)]) == 2  # once a client
    assert "stops after round 2: val/loss was not better for 2 evaluations" in capsys.readouterr().out
    assert results["rounds"] == 2
    assert results["final"]["round"] == 2
    assert all(torch.isnan(client["first.weight"]).all() for client in models(trainer).values())


class Told(Sequential):
    """Clients that tell these accuracies after rounds, or nothing."""

    def __init__(self, *accuracies: dict[str, float], failing: tuple[str, int] = ("", 0)) -> None:
        super().__init__()
        self.accuracies, self.failing = accuracies, failing

    def run(self, turns: Any) -> Any:
        answers: Any = super().run(turns)
        for name, turn in turns.items():
            if (name, turn.round) == self.failing:
                answers[name] = ClientError("gone")
            elif turn.request is Request.EVALUATE and turn.round and turn.splits:
                del answers[name]
                if (told := self.accuracies[turn.round - 1].get(name)) is not None:
                    answers[name] = Payload(scalars={"val/accuracy": told, "val/samples": 4}).to_bytes()
        return answers


def test_a_round_in_which_a_client_was_silent_is_passed_over(
    federate: Make, toy_module: Any, toy_federation: Make
) -> None:
    engine = Told({"A": 0.9, "B": 0.5}, {"A": 0.99}, {"A": 0.92, "B": 0.6}, {"A": 0.7, "B": 0.5}, {})
    stopping, tolerance = EarlyStopping("val/accuracy", patience=1), Tolerance(on_bad_upload="drop")
    trainer = federate(FedAvg(), engine=engine, rounds=5, callbacks=[stopping], tolerance=tolerance)
    results = trainer.fit(toy_module(), toy_federation(4, 4))
    assert results["rounds"] == 4
    assert results["final"]["round"] == results["best_val"]["round"] == 3
    records = read_records(trainer.run_dir / "history.jsonl")
    assert [record.get("silent") for record in records] == [None, ["B"], None, None]


class Installs(FederatedCallback):
    """Has all clients hold what the server has, in every round."""

    def on_round_end(self, trainer: Any) -> None:
        trainer.install()


def test_who_was_silent_is_told_whoever_installs(federate: Make, toy_module: Any, toy_federation: Make) -> None:
    engine, tolerance = Told({"A": 0.9, "B": 0.5}, {"A": 0.99}), Tolerance(on_bad_upload="drop")
    trainer = federate(FedAvg(), engine=engine, rounds=2, callbacks=[Installs()], tolerance=tolerance)
    trainer.fit(toy_module(), toy_federation(4, 4))
    assert [line.get("silent") for line in read_records(trainer.run_dir / "history.jsonl")] == [None, ["B"]]


def test_bad_input(federate: Make, toy_module: Any, toy_federation: Make) -> None:
    for field, value in (("mode", "up"), ("patience", 0), ("min_delta", -1.0), ("average", "all"), ("scope", "one")):
        with pytest.raises(InputError, match=f"`EarlyStopping.{field}` to be .* but got {value!r}"):
            EarlyStopping(**{field: value})  # type: ignore[arg-type]
    for callback, message in (
        (EarlyStopping("val/f1"), r"`EarlyStopping.monitor` to be one of .*val/accuracy.* but got 'val/f1'"),
        (
            EarlyStopping(),
            r"`EarlyStopping.average` to be clients, since not all clients report `val/samples`, but got",
        ),
        (EarlyStopping(scope="clients"), "`EarlyStopping.scope` to be federation, for an algorithm in which"),
    ):
        with pytest.raises(InputError, match=message):
            federate(FedAvg(), rounds=1, callbacks=[callback]).fit(toy_module(), toy_federation(4, 6))


def test_clients_that_share_no_layer_may_share_something_else(federate: Make) -> None:
    """FedEgo without averaged reduction layers still has a global model."""
    random = torch.Generator().manual_seed(0)
    edges = torch.randint(0, 60, (2, 400), generator=random)
    graph = NodeGraph.from_pyg(Data(x=torch.randn(60, 4, generator=random), edge_index=edges, y=torch.arange(60) % 2))
    data = NodeFederation(graph, num_clients=2, partition="dirichlet", fanouts=(2,))
    stop = EarlyStopping(scope="clients", average="clients")
    with pytest.raises(InputError, match=r"`EarlyStopping\.scope` to be federation"):
        federate(FedEgo(average_reduction=False), rounds=1, callbacks=[stop]).fit(
            FedEgoNet(hidden_channels=2, num_layers=1), data
        )


@pytest.mark.parametrize(
    ("half", "net"),
    [
        (partial(FedProto, inference="prototypes"), partial(GNN, hidden_channels=4, num_layers=2)),
        (FGGP, partial(nets.FGGP, hidden_channels=4)),
        (partial(AdaFGL, federated_rounds=2), partial(nets.AdaFGL, hidden_channels=4)),
    ],
)
def test_what_evaluations_go_by_goes_back_too(half: Make, net: Make, federate: Make, assert_same: Make) -> None:
    """Prototypes that were received, or what a model learned from later on; and forth again, where the run goes on."""
    data = federations.Graphs if net.func is GNN else federations.Whole  # type: ignore[attr-defined]

    def run(folder: str, rounds: int, ckpt_path: str | None = None) -> Any:
        stopping = EarlyStopping("train/loss", mode="max", average="clients", patience=9)
        trainer = federate(half(), rounds=rounds, client_fraction=0.5, callbacks=[stopping], name=folder)
        trainer.fit(net(), data(), ckpt_path=ckpt_path)
        return trainer

    whole = run("whole", 4)
    final = whole.history.final
    assert final["round"] < 4
    for name, values in whole.test().items():
        assert values.items() <= final["clients"][name].items()
    run("cut", 3)
    resumed = run("cut", 4, "last")
    assert resumed.history.final == final
    for name, client in whole.engine.clients.items():
        assert_same(resumed.engine.clients[name].state(), client.state())
