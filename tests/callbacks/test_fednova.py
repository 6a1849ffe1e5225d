from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from flgraph.callbacks import FedAvg, FedNova
from flgraph.federation import FederatedTrainer, Payload
from flgraph.models import GNN

Federate = Callable[..., FederatedTrainer]


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_numbers_by_hand(weighting: Any) -> None:
    """A goes 1 in one step, B 6 in three: 1 and 2 a step."""
    half = FedNova(weighting=weighting)
    half.owners = {"A": ["w", "bn.running_mean"], "B": ["w", "bn.running_mean"]}
    half.start({"w": torch.tensor([10.0]), "bn.running_mean": torch.zeros(1)}, ["A", "B"])
    uploads = {
        client: Payload(
            {"w": torch.tensor([weight]), "bn.running_mean": torch.tensor([weight])},
            {"num_samples": samples, "steps": steps},
        )
        for client, weight, samples, steps in (("A", 11.0, 3, 1.0), ("B", 16.0, 1, 3.0))
    }
    made = half.aggregate(uploads, 1, "train")
    # p = 3/4, 1/4: tau = 1.5, and 1.25 a step; or halves: 2 and 1.5. Statistics are averaged.
    assert made["w"].item() == pytest.approx(10 + (1.5 * 1.25 if weighting == "samples" else 2 * 1.5))
    assert made["bn.running_mean"].item() == pytest.approx(12.25 if weighting == "samples" else 13.5)


def test_equal_steps_are_fedavg(federate: Federate, graph_federation: Callable[..., Any]) -> None:
    """Bit for bit; where clients have unequal numbers of batches it is another mean."""
    for batch_size, same in ((64, True), (8, False)):
        found = []
        for half in (FedAvg(), FedNova()):
            trainer: Any = federate(half, rounds=2, local_epochs=2, enable_checkpointing=False)
            trainer.fit(GNN(hidden_channels=4, num_layers=1), graph_federation(batch_size=batch_size))
            found.append(trainer.server.aggregator.shared)
        assert all(torch.equal(tensor, found[1][name]) for name, tensor in found[0].items()) == same


HOW = [
    {"momentum": 0.0, "dampening": 0.3},
    {"momentum": 0.5},
    {"momentum": 0.5, "dampening": 0.3},
    {"momentum": 0.5, "nesterov": True},
]


@pytest.mark.parametrize("how", HOW, ids=str)
def test_counts_as_many_gradients_as_sgd_adds_up(
    how: dict[str, Any],
    federate: Federate,
    toy_federation: Callable[..., Any],
    toy_module: type[Any],
    recorder: Any,
) -> None:
    class Heavy(toy_module):  # type: ignore[misc]
        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1, **how)

    weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = torch.optim.SGD([weight], lr=1.0, **how)
    for _ in range(3):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    trainer = federate(FedNova(optimizer_state="reset"), rounds=2, local_epochs=3, engine=recorder)
    trainer.fit(lambda data: Heavy(in_features=4), toy_federation(4, 6))
    steps = [upload.scalars["steps"] for _, upload in recorder.uploads()]
    assert steps == pytest.approx([-weight.item()] * 4, rel=1e-12)


def test_other_optimizers_are_counted_each(
    federate: Federate, toy_federation: Callable[..., Any], toy_module: type[Any], recorder: Any
) -> None:
    """RMSprop's momentum is not that of the paper."""

    class Other(toy_module):  # type: ignore[misc]
        def configure_optimizers(self) -> Any:
            return torch.optim.RMSprop(self.parameters(), lr=0.01, momentum=0.5)

    federate(FedNova(), rounds=1, local_epochs=3, engine=recorder).fit(
        lambda data: Other(in_features=4), toy_federation(4, 6)
    )
    assert {upload.scalars["steps"] for _, upload in recorder.uploads()} == {3.0}


def test_batches_without_a_loss_are_no_steps(
    federate: Federate, toy_federation: Callable[..., Any], toy_module: type[Any], recorder: Any
) -> None:
    class Skips(toy_module):  # type: ignore[misc]
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            return None if batch_idx % 2 else loss

    federate(FedNova(), rounds=1, engine=recorder).fit(
        lambda data: Skips(in_features=4), toy_federation(8, 4, batch_size=2)
    )
    assert [upload.scalars["steps"] for _, upload in recorder.uploads()] == [2.0, 1.0]


def test_who_made_no_step_takes_part_with_where_it_is() -> None:
    """A goes 1 in two steps, B makes none: as the mean has it, and not once more less."""
    half = FedNova(weighting="uniform")
    half.owners = {"A": ["w"], "B": ["w"]}
    half.start({"w": torch.tensor([10.0])}, ["A", "B"])
    uploads = {
        client: Payload({"w": torch.tensor([weight])}, {"num_samples": 3, "steps": steps})
        for client, weight, steps in (("A", 11.0, 2.0), ("B", 10.0, 0.0))
    }
    assert half.aggregate(uploads, 1, "train")["w"].item() == pytest.approx(10.5)
