from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from flgraph.callbacks import FedStar
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer
from flgraph.models import GNN
from flgraph.models import FedStar as FedStarNet


@pytest.fixture
def crossed(graph_federation: Callable[..., Any], federate: Callable[..., FederatedTrainer], recorder: Any) -> Any:
    """Two rounds of clients with 3, 5 and 7 features, and all that crossed between them and the server."""
    trainer = federate(FedStar(), rounds=2, engine=recorder, enable_checkpointing=False)
    trainer.fit(FedStarNet(hidden_channels=4, num_layers=2), graph_federation(features=(3, 5, 7)))
    return recorder


def test_only_the_structure_encoder_leaves(crossed: Any) -> None:
    """Seen in the bytes themselves: all exchanges, the first ones included."""
    expected = {name for name in crossed.clients["A"].module.state_dict() if name.startswith("structure.")}
    assert len(expected) == 2 + 2 * 2
    for _, upload in crossed.uploads():
        assert upload.tensors.keys() == expected
        assert upload.scalars.keys() == {"num_samples"}
    for _, upload in crossed.uploads("agree"):
        assert upload.tensors.keys() <= expected
    for _, upload in crossed.uploads("describe"):
        assert upload.scalars.keys() == {"shared", "num_samples"}
        assert json.loads(upload.scalars["shared"]).keys() == expected
    for name, turn, answer in crossed.crossed:
        for secret in (b"feature.", b"mix.", b"post.", b"readout."):
            assert secret not in answer, (name, turn.name)


def test_structure_is_common_and_everything_else_ones_own(crossed: Any) -> None:
    one, other = (crossed.clients[name].module.state_dict() for name in "AC")
    for name, tensor in one.items():
        equal = tensor.shape == other[name].shape and torch.equal(tensor, other[name])
        assert equal == name.startswith("structure."), name


def test_structure_is_the_weighted_mean(crossed: Any) -> None:
    uploads = dict(crossed.uploads()[-3:])
    total = sum(int(upload.scalars["num_samples"]) for upload in uploads.values())
    for name, tensor in crossed.clients["B"].module.state_dict().items():
        if name.startswith("structure."):
            terms = [int(u.scalars["num_samples"]) / total * u.tensors[name].double() for u in uploads.values()]
            torch.testing.assert_close(tensor.double(), torch.stack(terms).sum(dim=0), rtol=0, atol=1e-7)


def test_another_model_is_refused(
    graph_federation: Callable[..., Any], federate: Callable[..., FederatedTrainer]
) -> None:
    with pytest.raises(InputError, match=r"`model` to be FedStar, .* but got one without `structure\.\*`"):
        federate(FedStar()).fit(GNN(), graph_federation())
