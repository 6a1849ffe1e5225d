from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

from flgraph.data import GraphFederation
from flgraph.models import FedStar


def random_graph(generator: torch.Generator, features: int, classes: int) -> Data:
    n = int(torch.randint(3, 12, (), generator=generator))
    upper = torch.triu(torch.rand(n, n, generator=generator) < 0.3, diagonal=1)
    edge_index = (upper | upper.t()).nonzero().t()
    kinds = torch.randint(features, (n,), generator=generator)
    x = torch.nn.functional.one_hot(kinds, features).float()
    return Data(x=x, edge_index=edge_index, y=torch.randint(classes, (1,), generator=generator))


@pytest.fixture
def federation() -> GraphFederation:
    generator = torch.Generator().manual_seed(0)
    # More graphs than a batch in the first client, so that its epoch has two steps.
    shapes = {"b": (180, 4, 2), "a": (40, 6, 3), "c": (30, 3, 2)}
    graphs = {
        name: [random_graph(generator, features, classes) for _ in range(count)]
        for name, (count, features, classes) in shapes.items()
    }
    return GraphFederation(graphs)


def test_plain_and_flgraph_train_alike(benchmark: ModuleType, federation: GraphFederation) -> None:
    differences = benchmark.check(federation, rounds=3)
    assert set(differences) == {benchmark.PLAIN, benchmark.BARE}
    for worst in differences.values():
        assert worst.value <= 1e-6, worst.where


def test_bare_is_flgraph_to_the_last_bit(benchmark: ModuleType, federation: GraphFederation) -> None:
    assert benchmark.check(federation, rounds=3, dtype=torch.float32)[benchmark.BARE].value == 0


def test_a_difference_is_found(
    benchmark: ModuleType, federation: GraphFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other_order(sampler: torch.utils.data.Sampler[int]) -> Iterator[int]:
        return iter(range(len(sampler)))  # type: ignore[arg-type]

    monkeypatch.setattr(benchmark.SeededOrder, "__iter__", other_order)
    assert benchmark.check(federation, rounds=3)[benchmark.PLAIN].value > benchmark.TOLERANCE


def test_every_tensor_has_a_plain_name(benchmark: ModuleType) -> None:
    state: dict[str, Tensor] = FedStar(5, 2, 32).state_dict()
    plain = benchmark.PlainFedStar(5, 32, 2).state_dict()
    mapped = {benchmark.plain_name(name): tensor.shape for name, tensor in state.items()}
    assert mapped == {name: tensor.shape for name, tensor in plain.items() if not name.endswith(".eps")}


def test_the_floor_counts_every_product(benchmark: ModuleType) -> None:
    training = benchmark.Product(10, 4, 3, gradient=True, input_gradient=True)
    assert training.flop == 3 * 2 * 10 * 4 * 3
    assert benchmark.Product(10, 4, 3, gradient=True, input_gradient=False).flop == 2 * 2 * 10 * 4 * 3
    assert benchmark.Product(10, 4, 3, gradient=False, input_gradient=False).flop == 2 * 10 * 4 * 3


def test_measures_every_variant(benchmark: ModuleType, federation: GraphFederation) -> None:
    report = benchmark.measure(federation, rounds=2, repeats=1, seed=0)
    assert {name: len(seconds) for name, seconds in report.seconds.items()} == dict.fromkeys(benchmark.VARIANTS, 2)
    assert "| (a) plain" in report.text()
