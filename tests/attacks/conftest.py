"""What attacks need."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import fuzz
import pytest
from asking import KEY, Server
from federations import write_paths_and_cycles

from flgraph.callbacks import FedPer
from flgraph.federation import Aggregator, FederatedTrainer, Policy
from flgraph.federation.engines.host import SiteHost

collect_ignore = ["asking.py", "fuzz.py"]


@pytest.fixture(scope="session")
def made() -> Any:
    """Algorithm to what makes it, a model and data."""
    return fuzz.makes()


@pytest.fixture(scope="session")
def recorded(made: Any) -> Any:
    """An honest run of an algorithm, by its name."""
    return cache(lambda name: fuzz.record(made[name], rounds=3 if name.startswith("GCFL") else 2))


@pytest.fixture(scope="session")
def graph_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a data set ``ONE`` of paths (class 0) and cycles (class 1), as text files."""
    root = tmp_path_factory.mktemp("graphs")
    write_paths_and_cycles(root, "ONE", 30, labels=1)
    return root


@pytest.fixture
def site(
    federate: Callable[..., FederatedTrainer], toy_federation: Callable[..., Any], toy_module: Any, tmp_path: Path
) -> Callable[..., Server]:
    """Makes a site with clients A and B, and a server that asks it."""

    def make(policy: Policy | None = None, aggregator: Aggregator | None = None, **kwargs: Any) -> Server:
        model, data = kwargs.pop("model", toy_module(dropout=0.5)), kwargs.pop("data", None) or toy_federation(6, 8)
        ledger, accepts = kwargs.pop("ledger", "ledger.jsonl"), policy is not None and policy.accept_states
        own = {"policy": policy or Policy(), "rounds": 3, "enable_checkpointing": False, **kwargs}
        clients = federate(aggregator or FedPer(base=["first.*"]), **own).host(model, data)
        host = SiteHost(clients, tmp_path / "states", "run", KEY, accept_states=accepts)
        host.note_in(tmp_path / ledger)
        return Server(host)

    return make
