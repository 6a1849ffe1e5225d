"""A training that ends in NaN once: its upload is refused, and it leaves no trace in later turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from flgraph.callbacks import APFL, MOON, SCAFFOLD, FedAvg
from flgraph.federation import FederatedTrainer, Tolerance
from flgraph.models import GNN


class FailsOnce(GNN):
    """Its loss is NaN in the third epoch of the one client that has 30 graphs."""

    fails = False

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss: Tensor = super().training_step(batch, batch_idx)
        return loss * float("nan") if self.fails and self.trainer.current_epoch == 2 else loss


@pytest.mark.parametrize("half", [FedAvg, SCAFFOLD, MOON, APFL])
def test_the_next_round_is_sound(
    half: Any, federate: Callable[..., FederatedTrainer], graph_federation: Callable[..., Any]
) -> None:
    data = graph_federation()
    data.setup("fit")
    most = max(data.client(name).num_train_samples for name in data.clients)

    def made(client: Any) -> FailsOnce:
        net = FailsOnce(hidden_channels=4, optimizer="sgd", **client.model_args)
        net.fails = client.num_train_samples == most
        return net

    tolerance = Tolerance(on_bad_upload="drop", strikes=2)
    trainer: Any = federate(half(), rounds=6, local_epochs=1, tolerance=tolerance)
    results = trainer.fit(made, data)
    assert results["dropped"] == {"B": {"times": 1, "excluded": False}}
    if half is APFL:
        assert all(0 < own["apfl/alpha"] < 1 for own in results["final"]["clients"].values())
