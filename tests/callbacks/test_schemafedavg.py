from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from federations import ten_relations
from torch import Tensor

from flgraph.callbacks import FedProx, SchemaFedAvg
from flgraph.data import HeteroClients, HeteroFederation
from flgraph.data.hetero.schema import with_reverse
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer, GaussianNoise
from flgraph.federation.routes import Route, personal, shared
from flgraph.models import GNN, RGCN

Federate = Callable[..., FederatedTrainer]


def net(**kwargs: Any) -> RGCN:
    return RGCN(**{"hidden_channels": 4, "num_bases": 0, **kwargs})


def by_relation(trainer: Any, federation: HeteroFederation) -> dict[str, dict[Any, Tensor]]:
    """Client to relation to weights."""
    found = {}
    for name, client in trainer.engine.clients.items():
        weights = client.module.state_dict()["convs.1.weight"]
        found[name] = dict(zip(federation.client(name).weight_rows, weights, strict=True))
    return found


def test_a_relation_is_averaged_over_those_who_have_it(federate: Federate, recorder: Any) -> None:
    trainer: Any = federate(SchemaFedAvg(), rounds=1, engine=recorder)
    federation = ten_relations()
    trainer.fit(net(), federation)
    held = by_relation(trainer, federation)
    sent = dict(recorder.uploads())
    relations = {relation for rows in held.values() for relation in rows}
    owners = {relation: [name for name in held if relation in held[name]] for relation in relations}
    assert {len(names) for names in owners.values()} > {1}  # some have it, others lack it
    for relation, names in owners.items():
        key = "relations/convs.1.weight/" + "|".join(relation)
        counts = {name: float(sent[name].scalars["num_samples"]) for name in names}
        expected = sum(sent[name].tensors[key].double() * counts[name] for name in names) / sum(counts.values())
        for name in names:
            torch.testing.assert_close(held[name][relation], expected.float())


def test_relations_of_weights_that_stay(federate: Federate, recorder: Any) -> None:
    """What whoever runs it keeps at the clients leaves under no other name."""
    trainer: Any = federate(SchemaFedAvg(mu=1.0), rounds=1, engine=recorder, personal=["convs.1.*"])
    trainer.fit(net(num_layers=3), ten_relations())
    rounds = [list(upload.tensors) for _, upload in recorder.uploads()]
    assert any(name.startswith("relations/convs.2.weight/") for names in rounds for name in names)
    assert not any("convs.1" in name for names in rounds for name in names)


def test_noise_does_not_hide_names(federate: Federate) -> None:
    trainer: Any = federate(SchemaFedAvg(weighting="uniform"), rounds=1, transforms=[GaussianNoise(1.0, 20.0)])
    told = trainer.fit(net(), ten_relations())["privacy"]
    assert told["epsilon"] is None
    assert told["claim"] == "none: names of relations/* leave without noise"


@pytest.mark.parametrize("precision", ["bf16-true", "64-true"])
def test_in_another_precision(precision: Any, federate: Federate) -> None:
    """A model is converted when it is first trained, which is after the schema was told."""
    trainer: Any = federate(SchemaFedAvg(), rounds=2, precision=precision)
    results = trainer.fit(net(), ten_relations())
    assert not results["dropped"]
    assert {row.dtype for row in trainer.server.aggregator._relations.values()} == {
        torch.bfloat16 if precision == "bf16-true" else torch.float64
    }


def test_all_start_from_the_first_holders_weights(federate: Federate) -> None:
    trainer: Any = federate(SchemaFedAvg(), rounds=1, limit_train_batches=0)
    federation = ten_relations()
    trainer.fit(net(), federation)
    held = by_relation(trainer, federation)
    for one in held.values():
        for other in held.values():
            for relation in one.keys() & other.keys():
                assert torch.equal(one[relation], other[relation])


class ByPosition(RGCN):
    """Clients have the same types in the same order, and may share them by position."""

    schema_tensors = ()


class AllButEmbeddings(FedProx):
    """FedProx on everything but the embeddings."""

    def routes(self) -> list[Route]:
        return [*personal("embedding.*"), *shared("*")]


@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_with_equal_schemas_it_is_fedprox(mu: float, assert_equal_runs: Callable[..., None]) -> None:
    """Clients of one graph, with other training nodes, have the same relations; the proximal term covers them, too."""
    whole = with_reverse(ten_relations().read())
    parts = {name: whole.replace(train=whole.train[first::3]) for first, name in enumerate("xyz")}
    data, how = partial(HeteroClients, parts), {"rounds": 3, "local_epochs": 2}
    model = partial(ByPosition, hidden_channels=4, num_bases=0)
    assert_equal_runs(SchemaFedAvg(mu=mu), AllButEmbeddings(mu=mu), model, data, ("state_dict",), **how)


def test_bad_data(federate: Federate, graph_federation: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match="`data` to be data with `weight_rows` in client `A`"):
        federate(SchemaFedAvg(rows=["convs.*"], common=["post.*"]), rounds=1).fit(
            GNN(hidden_channels=4, num_layers=1), graph_federation()
        )
