from __future__ import annotations

import inspect
from types import ModuleType

from flgraph import callbacks
from flgraph.data import SyntheticFederation
from flgraph.federation import Aggregator


def test_every_method_has_a_line(benchmark: ModuleType) -> None:
    every = {
        kind
        for _, kind in inspect.getmembers(callbacks, inspect.isclass)
        if issubclass(kind, Aggregator) and not inspect.isabstract(kind)
    }
    measured = set()
    for group in benchmark.GROUPS.values():
        for given in group.methods.values():
            measured.add(type(given[0]() if isinstance(given, tuple) else given()))
        assert "FedAvg" in group.methods
    assert measured == every


def test_a_line_is_measured(benchmark: ModuleType) -> None:
    group = benchmark.GROUPS["graphs"]
    seconds, megabytes = benchmark.measure(group, "FedBN", SyntheticFederation(["trees"], num_graphs=20), 3)
    plain = benchmark.measure(group, "FedAvg (norm)", SyntheticFederation(["trees"], num_graphs=20), 3)
    assert seconds > 0
    assert 0 < megabytes < plain[1]  # what normalises stays
