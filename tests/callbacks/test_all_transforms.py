"""Transforms go with every algorithm of the package, or are refused with a sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import fuzz
import pytest
import torch
from torch import Tensor

from flgraph.errors import InputError
from flgraph.federation import Clip, FederatedTrainer, HalfPrecision, Quantise, TopK
from flgraph.testing import check_algorithm

DATA = {
    "FedEgo": ["ego_graphs/*"],
    "PublishedFedEgo": ["ego_graphs/*"],
    "FedGCN": ["setup/*"],
    "FedGTA": ["topology/*"],
    "FedHGN": ["rows/*"],
    "FedProto": ["prototypes/*"],
    "FGGP": ["prototypes/*"],
    "FedSSP": ["consensus/*"],
    "FedTAD": ["reliability/*"],
    "FedPUB": ["function/*"],
    "FedSagePlus": ["generated/*", "gradient/*"],
}
"""What of each algorithm's uploads is data, or weights that come back to nobody; not taken from what they declare."""

OWN = {"PublishedDFedGNN"}
"""Algorithms whose clients begin with weights of their own, which nobody else knows."""

ALGORITHMS = [name for name in fuzz.algorithms() if name not in (*OWN, "FedAvg-uniform", "Local")]
"""All others, but for Local, which uploads nothing."""

MODELS = ("_models", "_relations", "_variates")
"""Where server halves keep weights beside the shared ones."""


@pytest.fixture(scope="module")
def makes() -> Mapping[str, Callable[[], Any]]:
    """Algorithm to what makes it, a model and data."""
    return fuzz.makes()


def trained(make: Callable[[], Any], folder: Path, transforms: list[Any], rounds: int = 1) -> FederatedTrainer:
    aggregator, model, data = make()
    trainer = FederatedTrainer(
        aggregator,
        rounds=rounds,
        transforms=transforms,
        default_root_dir=str(folder),
        enable_progress_bar=False,
        enable_checkpointing=False,
        logger=False,
        accelerator="cpu",
        **({"monitor": "val/loss"} if type(aggregator).__name__ == "FCLG" else {}),
    )
    trainer.fit(model, data)
    return trainer


def weights(value: Any) -> list[Tensor]:
    """All tensors in nested values, in their order."""
    if isinstance(value, Tensor):
        return [value]
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return [tensor for part in parts for tensor in weights(part)]


def held(trainer: FederatedTrainer) -> list[Tensor]:
    """All weights that the server holds."""
    assert trainer.server is not None
    server = trainer.server.aggregator
    return weights([server.shared, *(getattr(server, name, ()) for name in MODELS)])


@pytest.mark.parametrize("name", ["FedAvg", "GCFLPlus", "SCAFFOLD", "FedHGN", "FedEgo", "FedPUB", "FedSagePlus"])
def test_transforms_without_effect_leave_every_bit(name: str, makes: Any, tmp_path: Path) -> None:
    plain = trained(makes[name], tmp_path, [])
    same = trained(makes[name], tmp_path, [Clip(1e9, leave=DATA.get(name, []))])
    assert len(held(plain)) == len(held(same))
    assert all(torch.equal(one, other) for one, other in zip(held(plain), held(same), strict=True))


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "FedTAD"])  # whose server trains as well
def test_clients_that_add_nothing_leave_the_server_where_it_is(name: str, makes: Any, tmp_path: Path) -> None:
    """An update of the length 0 is one of no weights, of whatever an algorithm's uploads are relative to."""
    kept: dict[str, list[Tensor]] = {}

    def watched() -> Any:
        aggregator, model, data = makes[name]()
        kind = type(aggregator)

        def start(self: Any, initial: Any, clients: Any) -> None:
            kept["start"] = [tensor.clone() for tensor in initial.values()]
            kind.start(self, initial, clients)

        def aggregate(self: Any, uploads: Any, round: int, exchange: str) -> Any:
            if round:
                kept.setdefault("relations", [tensor.clone() for tensor in weights(getattr(self, "_relations", {}))])
            return kind.aggregate(self, uploads, round, exchange)

        aggregator.__class__ = type(f"Watched{kind.__name__}", (kind,), {"start": start, "aggregate": aggregate})
        return aggregator, model, data

    trainer = trained(watched, tmp_path, [Clip(0.0, leave=DATA.get(name, []))], rounds=2)
    assert trainer.server is not None
    server: Any = trainer.server.aggregator
    models = weights(server.shared or getattr(server, "_models", {}))
    first = kept["start"] * (len(models) // max(len(kept["start"]), 1))  # one for each cluster or client
    relations = weights(getattr(server, "_relations", {}))
    for one, other in zip(first + kept["relations"], models + relations, strict=True):
        assert torch.equal(one, other)
    assert not any(tensor.any() for tensor in weights(getattr(server, "_variates", {})))


@pytest.mark.parametrize("name", sorted(OWN))
def test_updates_need_a_start_that_the_server_knows(name: str, makes: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"`aggregator.initial_weights` to be first or mean with transforms"):
        trained(makes[name], tmp_path, [Clip(1.0)])


@pytest.mark.parametrize("name", sorted(DATA))
def test_data_has_to_be_named(name: str, makes: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="to be named in `leave` of a transform"):
        trained(makes[name], tmp_path, [Clip(1.0)])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_codes_go_with_every_exchange(name: str, makes: Any, tmp_path: Path) -> None:
    """With those, too, in which clients send nothing."""
    leave = DATA.get(name, [])
    trainer = trained(makes[name], tmp_path, [TopK(0.3, leave=leave), Quantise(8)], rounds=2)
    assert all(bool(tensor.isfinite().all()) for tensor in held(trainer))


CODED = ["FedAvg", "GraphFL", "SCAFFOLD"]


@pytest.mark.parametrize("name", CODED)
def test_transformed_runs_keep_the_promises(name: str, makes: Any) -> None:
    """They resume and move with the same bits, though clients remember what they did not send."""
    leave = DATA.get(name, [])
    second = HalfPrecision() if name == "GraphFL" else Quantise(8)
    transforms = [Clip(0.5, leave=leave), TopK(0.3), second]
    check_algorithm(makes[name], rounds=2, transforms=transforms, client_fraction=0.8)


@pytest.mark.parametrize("name", ["GraphFL", "SchemaFedAvg", "FedHGN", "FedSagePlus", "FedGCN", "DFedGNN"])
def test_coded_runs_stay_near(name: str, makes: Any, tmp_path: Path) -> None:
    plain = held(trained(makes[name], tmp_path, []))
    coded = held(trained(makes[name], tmp_path, [HalfPrecision(leave=DATA.get(name, []))]))
    for one, other in zip(plain, coded, strict=True):
        torch.testing.assert_close(one, other, rtol=0.05, atol=0.02)
