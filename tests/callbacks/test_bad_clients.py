from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from flgraph.callbacks import BadClients, FedAvg, RecordNoise
from flgraph.data import GraphFederation
from flgraph.errors import InputError
from flgraph.federation import GeometricMedian, Krum, Median, Tolerance, TrimmedMean
from flgraph.models import GNN


@pytest.fixture
def uploads(federate: Callable[..., Any], graph_federation: Callable[..., GraphFederation]) -> Callable[..., Any]:
    """What three clients send in a first round, and with what they began; and the trainer."""

    def make(*callbacks: Any, **kwargs: Any) -> Any:
        recorder = kwargs.pop("engine")
        trainer = federate(
            FedAvg(optimizer_state="reset"), rounds=1, engine=recorder, callbacks=list(callbacks), **kwargs
        )
        trainer.fit(GNN(hidden_channels=4, num_layers=2), graph_federation())
        first = recorder.downloads()[0][2].tensors
        return first, {name: upload.tensors for name, upload in recorder.uploads()}, trainer

    return make


@pytest.mark.parametrize(("attack", "factor"), [("sign_flip", -2.0), ("scaled", 2.0)])
def test_updates_of_bad_clients_are_turned_or_scaled(uploads: Any, recorder: Any, attack: Any, factor: float) -> None:
    _, honest, _ = uploads(engine=type(recorder)())
    first, sent, _ = uploads(BadClients(["B"], attack, factor=2.0), engine=recorder)
    for name, before in first.items():
        expected = before + factor * (honest["B"][name] - before) if before.is_floating_point() else honest["B"][name]
        torch.testing.assert_close(sent["B"][name], expected)
        assert torch.equal(sent["A"][name], honest["A"][name])


def test_labels_are_flipped_for_training_only(uploads: Any, recorder: Any) -> None:
    _, honest, trainer = uploads(engine=type(recorder)())
    before = [batch.y for batch in trainer.engine.clients["B"].data.train_dataloader()]
    _, sent, trainer = uploads(BadClients(["B"], "label_flip"), engine=recorder)
    assert any(not torch.equal(tensor, honest["B"][name]) for name, tensor in sent["B"].items())
    assert all(torch.equal(tensor, honest["A"][name]) for name, tensor in sent["A"].items())
    after = [batch.y for batch in trainer.engine.clients["B"].data.train_dataloader()]
    assert torch.cat(before).bincount().tolist() == torch.cat(after).bincount().tolist()


def test_labels_beside_noise_for_records(federate: Callable[..., Any], graph_federation: Callable[..., Any]) -> None:
    """Which draws graphs one by one from the data: flipped labels of batches would change nothing."""
    trainer = federate(FedAvg(), rounds=1, callbacks=[BadClients(["B"], "label_flip"), RecordNoise(1.0, 1.0, 0.5)])
    with pytest.raises(InputError, match=r"`BadClients\.attack` to be one that leaves labels as they are"):
        trainer.fit(GNN(hidden_channels=4, num_layers=2), graph_federation())


def test_a_replaced_model_is_what_the_mean_becomes(uploads: Any, recorder: Any) -> None:
    """By a factor of the number of clients that count alike, the mean of updates near 0 is the attacker's own."""
    first, plain, _ = uploads(BadClients(["A", "B", "C"], "replacement", factor=1.0), engine=type(recorder)())
    _, sent, _ = uploads(BadClients(["B"], "replacement", factor=3.0), engine=recorder)
    for name, before in first.items():
        if before.is_floating_point():
            torch.testing.assert_close(sent["B"][name], before + 3 * (plain["B"][name] - before))


def test_a_client_without_numbers_loses_its_place_only(uploads: Any, recorder: Any) -> None:
    tolerance = Tolerance(on_bad_upload="drop")
    _, _, trainer = uploads(BadClients(["B"], "nan"), engine=recorder, tolerance=tolerance)
    assert trainer.server.dropped == {"B": {"times": 1, "excluded": False}}
    assert all(torch.isfinite(tensor).all() for tensor in trainer.server.aggregator.shared.values())


@pytest.mark.parametrize("combine", [Median(), TrimmedMean(0.2), Krum(0.2), GeometricMedian()])
def test_robust_means_stay_near_the_honest_ones(
    combine: Any, federate: Callable[..., Any], toy_federation: Callable[..., Any], toy_module: Any
) -> None:
    rows = (6, 6, 6, 6, 6)

    def shared(combine: Any, *callbacks: Any) -> torch.Tensor:
        trainer = federate(FedAvg("uniform", combine=combine), rounds=3, callbacks=list(callbacks))
        trainer.fit(toy_module(), toy_federation(*rows))
        return torch.cat([tensor.flatten() for tensor in trainer.server.aggregator.shared.values()])

    bad = BadClients(["C"], "sign_flip", factor=50.0)
    honest, moved = shared(None), shared(None, bad)
    assert float((shared(combine, bad) - honest).norm()) < 0.1 * float((moved - honest).norm())


def test_what_is_refused(federate: Callable[..., Any], toy_federation: Callable[..., Any], toy_module: Any) -> None:
    for arguments, field in (
        ({"clients": []}, "BadClients.clients"),
        ({"clients": ["A"], "attack": "loud"}, "BadClients.attack"),
        ({"clients": ["A"], "factor": 0.0}, "BadClients.factor"),
        ({"clients": ["A"], "target": -1}, "BadClients.target"),
    ):
        with pytest.raises(InputError, match=field):
            BadClients(**arguments)
    with pytest.raises(InputError, match=r"Expected `BadClients.clients` to be among A, B but got 'Z'"):
        federate(FedAvg(), rounds=1, callbacks=[BadClients(["Z"])]).fit(toy_module(), toy_federation(4, 4))
