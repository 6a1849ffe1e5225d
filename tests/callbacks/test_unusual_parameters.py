"""Parameters with two names, and complex ones: each algorithm does what it does with their like."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from flgraph.callbacks import APFL, SCAFFOLD, Ditto, FedAvg, FedNova, FedOpt, FedProx, FedRep
from flgraph.errors import InputError

ALGORITHMS: dict[str, Callable[[], Any]] = {
    "FedAvg": FedAvg,
    "FedProx": FedProx,
    "FedOpt": FedOpt,
    "FedNova": FedNova,
    "FedRep": partial(FedRep, head=["last.*"]),
    "SCAFFOLD": partial(SCAFFOLD, server_lr=0.5),
    "Ditto": Ditto,
    "APFL": APFL,
}


@pytest.fixture
def found(federate: Any, toy_federation: Any) -> Callable[..., dict[str, dict[str, Tensor]]]:
    """What clients have and the server shares after a run in which all clients begin alike."""

    def run(algorithm: Callable[[], Any], kind: Callable[[], Any]) -> dict[str, dict[str, Tensor]]:
        def make(data: Any) -> Any:
            torch.manual_seed(0)
            return kind()

        trainer = federate(algorithm(), rounds=3)
        trainer.fit(make, toy_federation(6, 10))
        own = {name: client.module.state_dict() for name, client in trainer.engine.clients.items()}
        return {**own, "server": dict(trainer.server.aggregator.shared)}

    return run


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_second_name_changes_nothing(name: str, found: Any, toy_module: Any) -> None:
    class Tied(toy_module):  # type: ignore[misc]
        def __init__(self, named_twice: bool) -> None:
            super().__init__(in_features=4, hidden=4)
            if named_twice:
                self.norm = self.first

        def forward(self, x: Tensor) -> Any:
            return self.last(torch.tanh(self.first(torch.tanh(self.first(x)))))

    once, twice = (found(ALGORITHMS[name], partial(Tied, named_twice)) for named_twice in (False, True))
    for who, tensors in once.items():
        for key, tensor in tensors.items():
            assert torch.equal(tensor, twice[who][key])
            if key.startswith("first."):
                assert torch.equal(tensor, twice[who][key.replace("first", "norm")])


@pytest.mark.parametrize("name", ["FedAvg", "FedProx", "FedRep", "Ditto", "APFL"])
def test_complex_numbers_are_pairs_of_real_ones(name: str, found: Any, toy_module: Any) -> None:
    class Pairs(toy_module):  # type: ignore[misc]
        def __init__(self, kind: Callable[[Tensor], Tensor]) -> None:
            super().__init__(in_features=4)
            self.phases = torch.nn.Parameter(kind(torch.rand(3, 2)))

        def forward(self, x: Tensor) -> Any:
            phases = self.phases if self.phases.is_complex() else torch.view_as_complex(self.phases)
            return self.last((self.first(x) * phases).abs())

    real, other = (found(ALGORITHMS[name], partial(Pairs, kind)) for kind in (torch.clone, torch.view_as_complex))
    for who, tensors in real.items():
        for key, tensor in tensors.items():
            same = torch.view_as_real(other[who][key]) if key == "phases" else other[who][key]
            torch.testing.assert_close(same, tensor, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["FedOpt", "FedNova", "SCAFFOLD"])
def test_servers_average_complex_numbers(name: str, found: Any, toy_module: Any) -> None:
    """What is not stepped keeps its imaginary part."""

    class Turned(toy_module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(in_features=4)
            self.phases = torch.nn.Parameter(torch.full((3,), 1j))

        def forward(self, x: Tensor) -> Any:
            return self.last((self.first(x) * self.phases).abs())

    shared = found(ALGORITHMS[name], Turned)["server"]["phases"]
    assert shared.is_complex()
    assert bool((shared.imag.abs() > 0.5).all())


def test_steps_that_evaluate_the_loss_again(found: Any, toy_module: Any) -> None:
    class Quasi(toy_module):  # type: ignore[misc]
        def configure_optimizers(self) -> Any:
            return torch.optim.LBFGS(self.parameters(), max_iter=2)

    with pytest.raises(InputError, match=r"`model` to be one whose optimizer steps once for each gradient, for APFL,"):
        found(APFL, partial(Quasi, in_features=4))
