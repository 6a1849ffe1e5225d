from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch import nn

from flgraph.models import FedEgo


def test_the_first_numbers_drawn_are_those_of_the_first_client(benchmark: ModuleType) -> None:
    """By hand: a linear layer draws its matrix and its bias, and then the matrix anew."""
    torch.manual_seed(1027)
    linear = nn.Linear(20, 8)
    nn.init.kaiming_normal_(linear.weight)
    before = torch.get_rng_state()
    weights = benchmark.published_weights(1027, clients=1, features=20, classes=3, hidden=8)
    torch.testing.assert_close(weights["reduction.layers.0.weight"], linear.weight.detach().t())
    torch.testing.assert_close(weights["reduction.layers.0.bias"], linear.bias.detach())
    assert torch.equal(torch.get_rng_state(), before)


def test_a_mean_of_four_clients_is_half_as_large(benchmark: ModuleType) -> None:
    one, four = (benchmark.published_weights(7, clients, 400, 5, hidden=64) for clients in (1, 4))
    for name in one:
        assert float(four[name].std() / one[name].std()) == pytest.approx(0.5, rel=0.15)


def test_the_weights_are_all_that_the_model_has(benchmark: ModuleType) -> None:
    weights = benchmark.published_weights(7, clients=2, features=20, classes=3, hidden=8)
    sizes = {"in_channels": 20, "num_classes": 3, "hidden_channels": 8}
    model = benchmark.StartedFedEgo(weights, **sizes)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, weights[name])
    assert not benchmark.StartedFedEgo({}, **sizes).state_dict()["personalization.layers.0.lin_neighbour.bias"].any()
    assert FedEgo(**sizes).state_dict().keys() == weights.keys()
