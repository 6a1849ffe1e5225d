"""What happens before, between and after the rounds: early stops, evaluation alone, checkpoints of chosen rounds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from flgraph.callbacks import FedAvg, Local
from flgraph.data import FlatGraphs, GraphFederation
from flgraph.errors import InputError
from flgraph.federation import FederatedCallback, FederatedTrainer, personal, shared
from flgraph.federation.display import quiet_lightning
from flgraph.models import GNN
from flgraph.runs.history import read_records

Make = Callable[..., Any]


class Stop(FederatedCallback):
    """Stops after so many rounds, counted over resumptions."""

    def __init__(self, after: int) -> None:
        self.after, self.count = after, 0

    def on_round_end(self, trainer: FederatedTrainer) -> None:
        self.count += 1
        trainer.should_stop = self.count == self.after

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.count = state_dict["count"]


def model() -> GNN:
    return GNN(hidden_channels=4, num_layers=1)


def test_an_early_stop_is_evaluated_logged_and_kept(federate: Make, graph_federation: Make) -> None:
    """The last round is like any other in bytes, history, best round and checkpoint."""
    trainer = federate(FedAvg(), rounds=9, evaluate_every=4, callbacks=[Stop(6)])
    results = trainer.fit(model(), graph_federation())
    records = read_records(trainer.run_dir / "history.jsonl")
    assert [record["round"] for record in records] == [1, 2, 3, 4, 5, 6]
    assert [bool(record["metrics"]) for record in records] == [False, False, False, True, False, True]
    assert results["final"]["mean"] == records[-1]["mean"]
    assert results["bytes_per_round"]["down"] == sum(record["bytes_down"] for record in records) / 6
    scores = {record["round"]: record["mean"]["val/accuracy"] for record in records if record["metrics"]}
    assert results["best_val"]["round"] == max(scores, key=lambda round: (scores[round], -round))
    again = federate(FedAvg(), rounds=9, evaluate_every=4)
    tested = again.test(model(), graph_federation(), ckpt_path=str(trainer.run_dir))
    kept = {name: value for name, value in results["final"]["clients"]["A"].items() if name.startswith("test/")}
    assert tested["A"] == kept


def test_the_server_side_of_a_callback_is_resumed(federate: Make, graph_federation: Make) -> None:
    federate(FedAvg(), rounds=3, callbacks=[Stop(5)]).fit(model(), graph_federation())
    trainer = federate(FedAvg(), rounds=9, callbacks=[Stop(5)])
    assert trainer.fit(model(), graph_federation(), ckpt_path="last")["rounds"] == 5


def test_the_best_round_has_a_checkpoint(federate: Make, graph_federation: Make) -> None:
    trainer = federate(FedAvg(), rounds=8, checkpoint_every=5, keep_checkpoints=1, seed=3)
    results = trainer.fit(model(), graph_federation())
    best = (trainer.run_dir / "checkpoints" / "best").resolve()
    assert best.name == f"round-{results['best_val']['round']:05d}"
    tested = federate(FedAvg(), rounds=8, seed=3).test(model(), graph_federation(), ckpt_path="best")
    expected = results["best_val"]["clients"]["B"]
    assert tested["B"] == {name: value for name, value in expected.items() if name.startswith("test/")}


def test_evaluation_after_fit(federate: Make, graph_federation: Make) -> None:
    """What was fitted is tested, an older checkpoint if one is named, and a path that is none is refused."""
    template, data = model(), graph_federation()
    trainer = federate(FedAvg(), rounds=2)
    final = trainer.fit(template, data)["final"]["clients"]["C"]
    for tested in (trainer.test(), trainer.test(template, data)):
        assert tested["C"]["test/loss"] == final["test/loss"]
    first = read_records(trainer.run_dir / "history.jsonl")[0]["metrics"]["C"]["test/loss"]
    assert trainer.test(ckpt_path=str(trainer.run_dir / "checkpoints" / "round-00001"))["C"]["test/loss"] == first
    with pytest.raises(InputError, match="`ckpt_path`"):
        trainer.test(ckpt_path="/nonexistent")
    with pytest.raises(InputError, match="given together with a datamodule"):
        trainer.test(template)


@pytest.mark.parametrize("evaluated", ["aggregated", "trained"])
def test_predictions_are_those_of_the_model_that_is_tested(
    federate: Make, graph_federation: Make, assert_same: Make, evaluated: Any
) -> None:
    """Clients have not installed the aggregate of a round without evaluation when its checkpoint is written."""

    class Evaluated(FedAvg):
        evaluated_model = evaluated

    settings: dict[str, Any] = {"evaluate_every": 3}
    done = federate(Evaluated(), rounds=3, keep_checkpoints=3, **settings)
    done.fit(model(), graph_federation())
    path = str(done.run_dir / "checkpoints" / "round-00002")
    tested, trainer = (federate(Evaluated(), rounds=3, **settings) for _ in range(2))
    tested.test(model(), graph_federation(), ckpt_path=path)
    predictions = trainer.predict(model(), graph_federation(), ckpt_path=path)
    with quiet_lightning():
        assert_same(predictions, {name: told.batches for name, told in tested.engine.predict()})
    weights = [client.module.state_dict()["convs.0.lin1.weight"] for client in trainer.engine.clients.values()]
    assert torch.equal(weights[0], weights[1]) == (evaluated == "aggregated")


def test_fewer_rounds_than_done_are_refused(federate: Make, graph_federation: Make) -> None:
    """Before anything of the longer run is removed."""
    done = federate(Local(), rounds=3)
    done.fit(model(), graph_federation())
    before = sorted(done.run_dir.rglob("*"))
    with pytest.raises(InputError, match=r"`trainer\.rounds` to be 3 or more, as done but got 2"):
        federate(Local(), rounds=2).fit(model(), graph_federation(), ckpt_path="last")
    assert sorted(done.run_dir.rglob("*")) == before


def test_a_copied_checkpoint_is_tested_but_not_continued(
    federate: Make, graph_federation: Make, tmp_path: Path
) -> None:
    trainer = federate(Local(), rounds=1)
    trainer.fit(model(), graph_federation())
    copy = (trainer.run_dir / "checkpoints" / "last").resolve().rename(tmp_path / "copy")
    assert set(federate(Local(), rounds=2).test(model(), graph_federation(), ckpt_path=str(copy))) == {"A", "B", "C"}
    with pytest.raises(InputError, match="`ckpt_path` to be in the folder of its run"):
        federate(Local(), rounds=2).fit(model(), graph_federation(), ckpt_path=str(copy))


def test_a_personal_route_after_a_shared_one_stops_the_run(federate: Make, graph_federation: Make) -> None:
    class Mistaken(FedAvg):
        def routes(self) -> Any:
            return [*shared("*", on_mismatch="personal"), *personal("readout.*")]

    with pytest.raises(InputError, match="but got routes before it that cover the same"):
        federate(Mistaken(), rounds=1).fit(model(), graph_federation())


def test_no_limit_of_evaluation(federate: Make, graph_federation: Make) -> None:
    trainer = federate(Local(), rounds=1, limit_test_batches=0)
    metrics = trainer.fit(model(), graph_federation())["final"]["clients"]["A"]
    assert {name.split("/")[0] for name in metrics} == {"train", "val"}


def test_structure_settings_hold_for_each_federation(graph_list: Make) -> None:
    """One flat set in two federations: neither sees the other's embedding."""
    graphs = FlatGraphs.from_pyg(graph_list(20, 4, 0))
    sizes = {}
    for kind, dim in (("rwse+dse", 3), ("dse", 5), ("none", 1)):
        data = GraphFederation({"a": graphs}, structure=kind, dse_dim=dim, rwse_dim=dim)
        data.setup()
        sizes[kind] = data.client("a").model_args.get("structure_channels")
    assert sizes == {"rwse+dse": 6, "dse": 5, "none": None}
    assert "s" not in graphs.node_tensors
