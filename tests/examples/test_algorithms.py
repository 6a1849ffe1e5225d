"""The example algorithms keep what every algorithm has to keep, and do what their papers say."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from flgraph.callbacks import FedAvg
from flgraph.cli.main import main
from flgraph.data import SyntheticFederation
from flgraph.federation import Aggregator, FederatedTrainer
from flgraph.models import GNN
from flgraph.runs.checkpoint import load_file
from flgraph.testing import check_algorithm

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="module")
def algorithms() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        yield import_module("algorithms")
        sys.modules.pop("algorithms")


def federation() -> SyntheticFederation:
    return SyntheticFederation(["trees", "rings", "hubs"], num_graphs=12, batch_size=6)


def network() -> GNN:
    return GNN(hidden_channels=4, num_layers=2, optimizer="sgd", lr=0.05)


def run(aggregator: Aggregator, folder: Path, rounds: int = 3) -> FederatedTrainer:
    trainer = FederatedTrainer(
        aggregator,
        rounds=rounds,
        default_root_dir=str(folder),
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        accelerator="cpu",
    )
    trainer.fit(network(), federation())
    return trainer


def shared_of(trainer: FederatedTrainer) -> dict[str, torch.Tensor]:
    assert trainer.server is not None
    return trainer.server.aggregator.shared


@pytest.mark.parametrize("name", ["SCAFFOLD", "FedOpt", "Ditto", "TrimmedMean"])
def test_they_keep_the_promises(algorithms: Any, name: str) -> None:
    make: Callable[[], Aggregator] = algorithms.ALGORITHMS[name]
    check_algorithm(lambda: (make(), network(), federation()), rounds=2)


def test_scaffold_begins_as_fedavg_and_leaves_it(algorithms: Any, tmp_path: Path) -> None:
    plain, corrected = FedAvg(optimizer_state="reset"), algorithms.SCAFFOLD(optimizer_state="reset")
    first = [shared_of(run(make, tmp_path, 1)) for make in (plain, corrected)]
    for name, tensor in first[0].items():  # all control variates are zero in the first round
        assert torch.equal(tensor, first[1][name])
    third = [shared_of(run(make, tmp_path)) for make in (plain, corrected)]
    assert any(not torch.equal(tensor, third[1][name]) for name, tensor in third[0].items())


def test_scaffolds_control_is_the_mean_of_its_clients(algorithms: Any, tmp_path: Path) -> None:
    trainer = run(algorithms.SCAFFOLD(optimizer_state="reset"), tmp_path)
    assert trainer.server is not None
    server: Any = trainer.server.aggregator
    engine: Any = trainer.engine
    for name, control in server._control.items():
        own = [client.aggregator._own[name] for client in engine.clients.values()]
        assert torch.allclose(control, torch.stack(own).mean(dim=0), atol=1e-5)
        assert control.abs().sum() > 0


def test_fedopt_with_plain_steps_of_one_is_fedavg(algorithms: Any, tmp_path: Path) -> None:
    averaged = shared_of(run(FedAvg(), tmp_path, 1))
    stepped = shared_of(run(algorithms.FedOpt("sgd", lr=1.0), tmp_path, 1))  # momentum has no effect on a first step
    assert all(torch.allclose(tensor, stepped[name], atol=1e-6) for name, tensor in averaged.items())


def test_dittos_global_model_is_that_of_fedavg_and_its_clients_have_their_own(algorithms: Any, tmp_path: Path) -> None:
    # One round: layers that are not shared are trained with both of its models.
    trainer = run(algorithms.Ditto(), tmp_path, 1)
    averaged = shared_of(run(FedAvg(optimizer_state="reset"), tmp_path, 1))
    assert all(torch.equal(tensor, shared_of(trainer)[name]) for name, tensor in averaged.items())
    engine: Any = trainer.engine
    one, other, *_ = (client.shared_tensors() for client in engine.clients.values())
    assert any(not torch.equal(one[name], other[name]) for name in averaged)
    assert any(not torch.equal(one[name], averaged[name]) for name in averaged)


def test_trimmed_mean_leaves_the_ends_out(algorithms: Any) -> None:
    values = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0, "e": 1000.0}
    tensors = {client: {"w": torch.full((2,), value)} for client, value in values.items()}
    combined = algorithms.TrimmedMean(0.2)(tensors, dict.fromkeys(values, 1.0))
    assert combined["w"].tolist() == [3.0, 3.0]


def test_fedbn_from_the_command_line(tmp_path: Path) -> None:
    files = [f"-c=configs/{name}.yaml" for name in ("quickstart", "method/infograph")]
    options = {"trainer.rounds": 2, "model.norm": "batch", "model.hidden_channels": 4, "trainer.local_epochs": 1}
    args = [*files, f"-c={EXAMPLES / 'fedbn.yaml'}", *(f"--{key}={value}" for key, value in options.items())]
    quiet = ["--trainer.logger=false", "--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu"]
    main(["fit", *args, *quiet, f"--trainer.default_root_dir={tmp_path}", "--trainer.name=fedbn"])
    states = [load_file(file)["state_dict"] for file in sorted(tmp_path.rglob("checkpoints/last/clients/*.ckpt"))]
    norms = [name for name in states[0] if "norm" in name and states[0][name].is_floating_point()]
    others = [name for name in states[0] if "norm" not in name and states[0][name].shape == states[1][name].shape]
    assert norms
    assert others
    assert any(not torch.equal(states[0][name], states[1][name]) for name in norms)
    assert all(torch.equal(states[0][name], states[1][name]) for name in others)
