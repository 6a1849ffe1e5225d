from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import networkx as nx
import pytest
import torch

from flgraph.callbacks import DFedGNN, FedAvg, Local
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer, Payload
from flgraph.federation.payload import pack, unpack

FIVE = ["A", "B", "C", "D", "E"]
Federate = Callable[..., FederatedTrainer]


def begun(clients: Sequence[str] = FIVE, **kwargs: Any) -> DFedGNN:
    server = DFedGNN(**kwargs)
    server.seed = 3
    server.start({"w": torch.zeros(1)}, clients)
    return server


def aggregate(server: DFedGNN, values: dict[str, float], round: int) -> None:
    server.accept(server.aggregate(sent(values), round, "train"))


def sent(values: dict[str, float]) -> dict[str, Payload]:
    return {c: Payload({"w": torch.tensor([float(value)])}, {"num_samples": 1}) for c, value in values.items()}


def models(server: DFedGNN, clients: Sequence[str] = FIVE) -> list[float]:
    found = []
    for client in clients:
        download = server.download(client, 1, "train")
        assert download is not None
        found.append(float(download.tensors["w"]))
    return found


# -------------------------------------------------------------------------------------------------------- by hand
def test_a_ring_of_five() -> None:
    """Each client's model is the mean of its own and those of the two beside it; A and E are neighbours."""
    server = begun()
    assert models(server) == [0.0] * 5
    aggregate(server, {"A": 1, "B": 2, "C": 6, "D": 10, "E": 30}, 1)
    assert models(server) == pytest.approx([33 / 3, 9 / 3, 18 / 3, 46 / 3, 41 / 3])


def test_who_sat_out_counts_with_its_last_model() -> None:
    server = begun()
    aggregate(server, {"A": 3, "B": 6}, 1)  # the others still have the initial 0
    assert models(server) == pytest.approx([9 / 3, 9 / 3, 6 / 3, 0, 3 / 3])
    aggregate(server, {"A": 0, "C": 9}, 2)
    assert models(server) == pytest.approx([6 / 3, 15 / 3, 15 / 3, 9 / 3, 0])


def test_who_is_left_out_for_good_counts_no_more() -> None:
    server = begun()
    aggregate(server, {"A": 1, "B": 2, "C": 900, "D": 10, "E": 30}, 1)
    server.excluded = {"C"}
    aggregate(server, {"A": 1, "B": 2, "D": 10, "E": 30}, 2)
    assert models(server, "ABDE") == pytest.approx([33 / 3, 3 / 2, 40 / 2, 41 / 3])


def test_clients_that_begin_with_their_own_models() -> None:
    """Until a client has sent one it is sent none, and does not count."""
    server = DFedGNN()
    server.start({}, FIVE)  # as with initial_weights = "own"
    assert [server.download(client, 1, "train") for client in FIVE] == [None] * 5
    aggregate(server, {"A": 3, "B": 6, "D": 2}, 1)
    assert server.download("C", 2, "train") is None
    assert models(server, "ABD") == pytest.approx([9 / 2, 9 / 2, 2])
    again = DFedGNN()
    again.load_server_state(unpack(pack(server.server_state())))
    assert again.download("C", 2, "train") is None
    aggregate(server, {"C": 1, "E": 0}, 2)
    assert models(server) == pytest.approx([9 / 3, 10 / 3, 9 / 3, 3 / 3, 5 / 3])


def test_a_star_by_metropolis_and_hastings() -> None:
    """Degrees 3, 1, 1, 1: all edges weigh a quarter, the center keeps a quarter and the others three."""
    server = begun(FIVE[:4], topology="star", weights="metropolis")
    assert server.mixing("A") == pytest.approx({"A": 0.25, "B": 0.25, "C": 0.25, "D": 0.25})
    assert server.mixing("C") == pytest.approx({"A": 0.25, "C": 0.75})
    aggregate(server, {"A": 4, "B": 8, "C": 0, "D": 0}, 1)
    assert models(server, FIVE[:4]) == pytest.approx([3, 7, 1, 1])
    assert sum(models(server, FIVE[:4])) == pytest.approx(4 + 8), "the mean over clients stays"


@pytest.mark.parametrize("weights", ["uniform", "metropolis"])
@pytest.mark.parametrize("topology", ["ring", "complete", "star", "random_regular", [["B", "E"], ["E", "A"]]])
def test_rows_sum_to_one_and_metropolis_columns_too(topology: Any, weights: Any) -> None:
    server = begun(topology=topology, weights=weights)
    rows = {client: server.mixing(client) for client in FIVE}
    for client, row in rows.items():
        assert row[client] > 0
        assert all(other in rows and client in rows[other] for other in row)
    if weights == "metropolis":
        for client in FIVE:
            assert sum(rows[client].values()) == pytest.approx(1)
            assert sum(row.get(client, 0) for row in rows.values()) == pytest.approx(1)


def test_pairs_and_graphs_are_topologies() -> None:
    pairs = [["B", "E"], ["E", "A"], ["A", "E"], ["C", "C"]]
    graph = nx.Graph([("B", "E"), ("E", "A")])
    graph.add_node("D")
    for topology in (pairs, graph):
        server = begun(topology=topology)
        assert server.summary() == {"topology": [["A", "E"], ["B", "E"]]}
        aggregate(server, {"A": 1, "B": 3, "C": 5, "D": 7, "E": 9}, 1)
        assert models(server) == pytest.approx([5, 6, 5, 7, 13 / 3])


def test_a_random_topology_is_regular_and_the_seed_s() -> None:
    one, other = (begun(topology="random_regular", degree=2) for _ in range(2))
    assert one.summary() == other.summary()
    assert all(len(one.mixing(client)) == 3 for client in FIVE)
    drawn = set()
    for seed in range(8):
        server = DFedGNN("random_regular")
        server.seed = seed
        server.start({"w": torch.zeros(1)}, FIVE)
        drawn.add(json.dumps(server.summary()))
    assert len(drawn) > 1


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"topology": "line"}, r"`aggregator.topology` to be one of ring, .* names but got 'line'\.$"),
        ({"topology": [["A", "B", "C"]]}, r"`aggregator.topology` to be pairs of clients' names but got \['A', 'B'"),
        ({"topology": nx.DiGraph([("A", "B")])}, "`aggregator.topology` to be an undirected graph but got"),
        ({"topology": nx.path_graph(3)}, "to be a graph whose nodes are clients' names but got"),
        ({"topology": [["A", "X"]]}, "to be pairs of clients A, B, C, D, E but got 'X'"),
        ({"topology": nx.empty_graph(["Y"])}, "to be pairs of clients A, B, C, D, E but got 'Y'"),
        ({"topology": "random_regular", "degree": 3}, "`aggregator.degree` to be below 5, .* but got 3"),
        ({"weights": "equal"}, "`aggregator.weights` to be uniform or metropolis but got 'equal'"),
        ({"degree": -1}, "`aggregator.degree` to be 0 or more but got -1"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        begun(**settings)


def test_state_survives() -> None:
    one = begun(topology="random_regular")
    aggregate(one, {"A": 1, "B": 2, "E": 5}, 1)
    other = DFedGNN(topology="random_regular")
    other.load_server_state(unpack(pack(one.server_state())))
    for server in (one, other):
        aggregate(server, {"C": 7}, 2)
    assert models(one) == models(other)
    assert one.summary() == other.summary()
    assert pack(one.server_state()).to_bytes() == pack(other.server_state()).to_bytes()


# ------------------------------------------------------------------------------------------------------ whole runs
def weights_of(trainer: Any) -> list[dict[str, Any]]:
    return [client.module.state_dict() for client in trainer.engine.clients.values()]


@pytest.mark.parametrize("topology", ["complete", "ring"])
def test_where_all_are_neighbours_it_is_fedavg(
    topology: str, toy_federation: Callable[..., Any], toy_module: Any, federate: Federate, assert_same: Any
) -> None:
    """Bit for bit, without weights; a ring of three is complete. Batch norm's integer buffers included."""
    found = []
    for aggregator in (FedAvg(weighting="uniform"), DFedGNN(topology=topology)):
        trainer: Any = federate(aggregator, rounds=3, enable_checkpointing=False)
        results = trainer.fit(toy_module(dropout=0.5, norm=True), toy_federation(6, 8, 10, batch_size=4))
        found.append((weights_of(trainer), results["bytes_per_round"]))
    assert_same(*found)


def test_one_client_is_alone(
    toy_federation: Callable[..., Any], toy_module: Any, federate: Federate, assert_same: Any
) -> None:
    found = []
    for aggregator in (Local(), DFedGNN(), DFedGNN("star"), DFedGNN("complete", weights="metropolis")):
        trainer: Any = federate(aggregator, rounds=2, enable_checkpointing=False)
        trainer.fit(toy_module(), toy_federation(6))
        found.append(weights_of(trainer))
    for other in found[1:]:
        assert_same(found[0], other)


def test_clients_differ_and_unequal_layers_stay(
    toy_federation: Callable[..., Any],
    toy_data: Callable[..., Any],
    toy_module: Any,
    federate: Federate,
    recorder: Any,
) -> None:
    data = toy_federation(**{name: toy_data(6, 3 if name == "D" else 4, seed=ord(name)) for name in FIVE})
    trainer: Any = federate(DFedGNN(), rounds=2, engine=recorder)
    results = trainer.fit(toy_module(), data)
    for _, upload in recorder.uploads():
        assert set(upload.tensors) == {"first.bias", "last.weight", "last.bias"}
    states = weights_of(trainer)
    assert len({tuple(state["last.bias"].tolist()) for state in states}) == 5
    assert results["aggregator"]["topology"] == [["A", "B"], ["A", "E"], ["B", "C"], ["C", "D"], ["D", "E"]]
