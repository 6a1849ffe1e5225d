"""Runs whose clients are at sites."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from offices import PERSONAL, SECRETS, Office

from flgraph.callbacks import FedPer
from flgraph.federation import FederatedTrainer, Tolerance
from flgraph.federation.engines.host import SiteHost
from flgraph.federation.engines.remote import Remote
from flgraph.runs.keys import derive_key


@pytest.fixture
def remote(
    federate: Callable[..., FederatedTrainer], toy_federation: Callable[..., Any], toy_module: Any, tmp_path: Path
) -> Callable[..., Any]:
    """Makes a trainer whose clients A, B and C are at two sites, and the office between them."""

    def make(
        aggregator: Any = None,
        folder: str = "sites",
        deadline: float = 1.0,
        accept_states: bool = False,
        signs: bool = True,
        **kwargs: Any,
    ) -> Any:
        aggregator = aggregator or FedPer(**PERSONAL)
        module, data = toy_module(dropout=0.5), toy_federation(6, 8, 9)
        hosts = {}
        for site, names in (("one", ["A", "B"]), ("two", ["C"])):
            there = federate(aggregator, enable_checkpointing=False, transforms=kwargs.get("transforms", ()))
            clients, run = there.host(module, data, names), kwargs.get("name", f"{aggregator.name}-{data.name}")
            hosts[site] = SiteHost(clients, tmp_path / folder / site, run, SECRETS[site], accept_states=accept_states)
        office = Office(hosts)
        sites = {
            site: {name: client.disclosed(host.key) for name, client in host.clients.items()}
            for site, host in hosts.items()
        }
        min_clients = kwargs.pop("min_clients", 1)
        tolerance = Tolerance(min_clients, kwargs.pop("on_bad_upload", None))
        trainer = federate(aggregator, engine=Remote(office, sites, deadline, 0.0), tolerance=tolerance, **kwargs)
        trainer.checkpoint_key = derive_key(SECRETS["server"], "checkpoints") if signs else None
        return trainer, office, (module, data)

    return make
