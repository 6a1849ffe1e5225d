from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from flgraph.callbacks import GCFL, FedPer, GCFLPlus
from flgraph.callbacks.gcfl import cosine_similarity, minimum_cut
from flgraph.callbacks.gcflplus import dtw_distance
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer, Payload
from flgraph.federation.payload import pack, unpack
from flgraph.models import GNN

CLIENTS = ["A", "B", "C", "D"]


def sent(values: dict[str, Sequence[float]], samples: int = 1) -> dict[str, Payload]:
    return {c: Payload({"convs.w": torch.tensor(v)}, {"num_samples": samples}) for c, v in values.items()}


def begun(aggregator: GCFL) -> GCFL:
    aggregator.start({"convs.w": torch.zeros(2)}, CLIENTS)
    return aggregator


def model_of(aggregator: GCFL, client: str) -> list[float]:
    download = aggregator.download(client, 1, "train")
    assert download is not None
    return download.tensors["convs.w"].tolist()


# ------------------------------------------------------------------------------------------------------------ pieces
@pytest.mark.parametrize("seed", range(8))
def test_minimum_cut_is_the_least_of_all_cuts(seed: int) -> None:
    count = 3 + seed % 4
    weights = torch.rand(count, count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    weights = weights + weights.t()
    names = [f"client {number}" for number in range(count)]
    first, second = minimum_cut(names, weights)
    assert sorted(first + second) == names
    assert first[0] == names[0]
    assert second

    def weight(side: Sequence[int]) -> float:
        return sum(float(weights[i, j]) for i in range(count) for j in range(count) if side[i] < side[j])

    cuts = {side: weight(side) for side in product((0, 1), repeat=count) if 0 < sum(side) < count}
    assert weight([int(name in second) for name in names]) == pytest.approx(min(cuts.values()))


def test_cosine_similarity_by_hand() -> None:
    found = cosine_similarity([torch.tensor(v) for v in ([3.0, 0.0], [1.0, 1.0], [0.0, -2.0], [0.0, 0.0])])
    half = math.sqrt(0.5)
    expected = [[1, half, 0, 0], [half, 1, -half, 0], [0, -half, 1, 0], [0, 0, 0, 0]]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


def test_dtw_by_hand() -> None:
    """1-1, 2-1, 3-3, 3-4 costs 0 + 1 + 0 + 1; a shift costs nothing."""
    assert dtw_distance(np.array([1.0, 2, 3]), np.array([1.0, 3, 4])) == pytest.approx(math.sqrt(2))
    assert dtw_distance(np.array([0.0, 0, 1, 2]), np.array([0.0, 1, 1, 2, 2])) == 0
    assert dtw_distance(np.array([1.0]), np.array([4.0])) == 3


@pytest.mark.parametrize("seed", range(5))
def test_dtw_is_the_cheapest_of_all_paths(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=4), rng.normal(size=5)

    @lru_cache(None)
    def cheapest(i: int, j: int) -> float:
        here = (a[i] - b[j]) ** 2
        before = [cheapest(*p) for p in ((i - 1, j), (i, j - 1), (i - 1, j - 1)) if min(p) >= 0]
        return float(here + min(before, default=0.0))

    assert dtw_distance(a, b) == pytest.approx(math.sqrt(cheapest(3, 4)))


# -------------------------------------------------------------------------------------------------------- the server
def test_splits_when_the_cluster_stands_still_and_members_do_not() -> None:
    """A, B pull one way and C, D the other: the mean update is short, the longest long."""
    server = begun(GCFL(eps1=0.2, eps2=0.9, warmup=0))
    updates = {"A": [1.0, 0.1], "B": [0.9, -0.1], "C": [-1.0, 0.0], "D": [-0.8, 0.1]}
    server.aggregate(sent(updates), 1, "train")
    assert server.summary() == {
        "clusters": [["A", "B"], ["C", "D"]],
        "splits": [{"round": 1, "cluster": 0, "into": [["A", "B"], ["C", "D"]]}],
    }
    assert model_of(server, "A") == pytest.approx([0.95, 0.0])
    assert model_of(server, "D") == pytest.approx([-0.9, 0.05])
    scalars = server.log_scalars()
    assert scalars["clusters"] == 2
    assert [scalars[f"cluster/{client}"] for client in CLIENTS] == [0, 0, 1, 1]
    assert scalars["mean_update_norm/cluster-0"] == pytest.approx(math.hypot(0.025, 0.025))
    assert scalars["max_update_norm/cluster-0"] == pytest.approx(math.hypot(1.0, 0.1))
    # Clusters of two stay. What counts in the next round is the distance to the cluster's own model.
    server.aggregate(sent({"A": [1.95, 0], "B": [-0.05, 0], "C": [-0.9, 0.05], "D": [-0.9, 0.05]}), 2, "train")
    assert len(server.summary()["clusters"]) == 2
    assert server.log_scalars()["mean_update_norm/cluster-0"] == pytest.approx(0, abs=1e-6)
    assert server.log_scalars()["max_update_norm/cluster-0"] == pytest.approx(1)


@pytest.mark.parametrize(
    "settings", [{"eps1": 0.03}, {"eps2": 1.1}, {"warmup": 1}, {"min_clients": 5}], ids=lambda s: next(iter(s))
)
def test_does_not_split_otherwise(settings: dict[str, Any]) -> None:
    server = begun(GCFL(**{"eps1": 0.2, "eps2": 0.9, "warmup": 0, **settings}))
    server.aggregate(sent({"A": [1.0, 0.1], "B": [0.9, -0.1], "C": [-1.0, 0.0], "D": [-0.8, 0.1]}), 1, "train")
    assert server.summary() == {"clusters": [CLIENTS], "splits": []}
    assert model_of(server, "B") == pytest.approx([0.025, 0.025])


def test_samples_weigh_within_a_cluster_only() -> None:
    server = begun(GCFL(eps1=1.0, eps2=0.5, warmup=0))
    uploads = sent({"A": [1.0, 0.0], "B": [2.0, 0.0]}, samples=1) | sent({"C": [-1.0, 0.0]}, samples=1000)
    uploads |= sent({"D": [-2.0, 0.0]}, samples=3000)
    server.aggregate(uploads, 1, "train")
    assert model_of(server, "A") == [1.5, 0.0]
    assert model_of(server, "C") == [-1.75, 0.0]


def test_an_absent_client_counts_with_its_last_update() -> None:
    server = begun(GCFL(eps1=0.2, eps2=0.9, warmup=1))
    server.aggregate(sent({"A": [1.0, 0], "B": [1.0, 0], "C": [-1.0, 0]}), 1, "train")
    server.aggregate(sent({"A": [1.0, 0], "B": [1.0, 0], "C": [-1.0, 0]}), 2, "train")
    assert len(server.summary()["clusters"]) == 1  # nothing is known of D
    middle = model_of(server, "A")[0]
    server.aggregate(sent({"A": [middle + 1, 0], "D": [middle - 1, 0]}), 3, "train")
    assert server.summary()["clusters"] == [["A", "B"], ["C", "D"]]


@pytest.mark.parametrize("kind", [GCFL, partial(GCFLPlus, sequence_length=1)])
@pytest.mark.parametrize("heard", [False, True])
def test_who_is_left_out_does_not_count(kind: Callable[..., GCFL], heard: bool) -> None:
    """Neither by never having sent anything nor by its last update, which would move the mean for ever."""
    aggregator = begun(kind(warmup=1, eps1=0.5))
    apart = {"B": [1.0, 0.0], "C": [-1.0, 0.0], "D": [-1.0, 0.1]}
    aggregator.aggregate(sent({"A": [0.0, 9.0], **apart} if heard else apart), 1, "train")
    aggregator.excluded = {"A"}
    weights = {client: np.add(model_of(aggregator, client), update).tolist() for client, update in apart.items()}
    aggregator.aggregate(sent(weights), 2, "train")
    first, second = aggregator.summary()["clusters"]
    assert sorted([*first, *second]) == CLIENTS


def test_gcflplus_splits_by_the_histories_of_lengths() -> None:
    """All point apart, so that directions say nothing; A and D have long updates, B and C short ones."""
    server = begun(GCFLPlus(sequence_length=2, eps1=10, eps2=0.1, warmup=0))
    lengths = {"A": 4.0, "B": 1.0, "C": 1.1, "D": 3.9}
    turn = {"A": (1, 0), "B": (0, 1), "C": (-1, 0), "D": (0, -1)}
    for number in (1, 2):
        assert server.summary()["splits"] == []
        at = model_of(server, "A")
        values = {c: [at[i] + lengths[c] * turn[c][i] for i in (0, 1)] for c in CLIENTS}
        server.aggregate(sent(values), number, "train")
    assert server.summary()["clusters"] == [["A", "D"], ["B", "C"]]
    assert server.summary()["splits"][0]["round"] == 2
    assert server.server_state()["_sequences"] == {client: [] for client in CLIENTS}


@pytest.mark.parametrize("kind", [GCFL, GCFLPlus])
def test_state_survives(kind: type[GCFL]) -> None:
    further = {"sequence_length": 1} if kind is GCFLPlus else {}
    one, other = (begun(kind(eps1=10, eps2=0.1, warmup=1, **further)) for _ in range(2))
    first = sent({"A": [1.0, 0.1], "B": [0.9, -0.1], "C": [-1.0, 0.0], "D": [-0.8, 0.1]})
    for number in (1, 2):
        one.aggregate(first, number, "train")
    other.load_server_state(unpack(pack(one.server_state())))
    for aggregator in (one, other):
        aggregator.aggregate(sent({"A": [2.0, 0.0], "D": [1.0, 1.0]}), 3, "train")
    assert pack(one.server_state()).to_bytes() == pack(other.server_state()).to_bytes()
    assert one.log_scalars() == other.log_scalars()
    assert one.summary() == other.summary()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"eps1": -1.0}, "`aggregator.eps1` to be a finite number, 0 or more but got -1"),
        ({"eps2": math.inf}, "`aggregator.eps2` to be a finite number, 0 or more but got inf"),
        ({"warmup": -1}, "`aggregator.warmup` to be 0 or more but got -1"),
        ({"min_clients": 1}, "`aggregator.min_clients` to be 2 or more but got 1"),
        ({"sequence_length": 0}, "`aggregator.sequence_length` to be 1 or more but got 0"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        GCFLPlus(**settings)


# ------------------------------------------------------------------------------------------------------- whole runs
@pytest.mark.parametrize("kind", [GCFL, GCFLPlus])
def test_without_a_split_it_is_fedper(
    kind: type[GCFL],
    graph_federation: Callable[..., Any],
    federate: Callable[..., FederatedTrainer],
    assert_same: Callable[..., None],
) -> None:
    states = []
    for aggregator in (FedPer(), kind(eps1=0.0)):
        trainer: Any = federate(aggregator, rounds=3, evaluate_every=3, enable_checkpointing=False)
        results = trainer.fit(GNN(hidden_channels=4, num_layers=1), graph_federation(features=(3, 4, 5)))
        states.append(([client.state() for client in trainer.engine.clients.values()], results["bytes_per_round"]))
    assert_same(*states)


@pytest.mark.parametrize("kind", [GCFL, GCFLPlus])
def test_nothing_shared(
    kind: type[GCFL], graph_federation: Callable[..., Any], federate: Callable[..., FederatedTrainer]
) -> None:
    trainer: Any = federate(kind(warmup=0), rounds=2, personal=["convs.*"], enable_checkpointing=False)
    results = trainer.fit(GNN(hidden_channels=4, num_layers=1), graph_federation())
    assert results["aggregator"]["splits"] == []


def test_clusters_are_written_down(
    graph_federation: Callable[..., Any], federate: Callable[..., FederatedTrainer]
) -> None:
    trainer: Any = federate(GCFL(eps1=10, eps2=0, warmup=1), rounds=3, logger=True)
    results = trainer.fit(GNN(hidden_channels=4, num_layers=1), graph_federation())
    clusters = results["aggregator"]["clusters"]
    assert sorted(map(len, clusters)) == [1, 2]
    assert [split["round"] for split in results["aggregator"]["splits"]] == [2]
    lines = [json.loads(line) for line in (trainer.run_dir / "history.jsonl").read_text().splitlines()]
    assert [line["server"]["clusters"] for line in lines] == [1, 2, 2]
    alone = next(members[0] for members in clusters if len(members) == 1)
    number = next(n for n, members in enumerate(clusters) if len(members) == 1)
    assert lines[2]["server"][f"cluster/{alone}"] == number
    events = EventAccumulator(str(Path(trainer.run_dir)))
    events.Reload()
    assert [event.value for event in events.Scalars("server/clusters")] == [1, 2, 2]
    assert events.Scalars(f"server/cluster/{alone}")[-1].value == number
    # Who shares a cluster shares its convolutions after the last evaluation, and only they do.
    weights = {n: c.module.state_dict()["convs.0.lin2.weight"] for n, c in trainer.engine.clients.items()}
    for one, other in product(weights, weights):
        together = any(one in members and other in members for members in clusters)
        assert torch.equal(weights[one], weights[other]) == together
