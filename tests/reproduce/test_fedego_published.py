"""FedEgo's clients as its authors drew them: what they are, and that they are the ones of the paper."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from flgraph.callbacks import Local
from flgraph.data import NodeGraph, read_nodes
from flgraph.errors import InputError
from flgraph.federation.client import Client
from flgraph.models import FedEgo
from flgraph.reproduce import load_study
from flgraph.reproduce.fedego.published import (
    PublishedNodeDataModule,
    PublishedNodeFederation,
    PublishedWholeGraphFederation,
    _connected,
    authors_label_skew,
)
from flgraph.reproduce.settings import resolve

SEEDS = (1027, 1107, 2333, 9973)
SMALL: dict[str, Any] = {"num_test": 10, "major_labels": 2}


def graph(nodes: int = 300, edges: int = 900, classes: int = 5, alone: int = 20) -> NodeGraph:
    """A random graph; the last ``alone`` nodes have no edges."""
    network = nx.gnm_random_graph(nodes - alone, edges, seed=1)
    index = torch.tensor(list(network.edges)).t()
    y = torch.arange(nodes) % classes
    return NodeGraph.from_pyg(Data(x=torch.ones(nodes, 1), edge_index=index, y=y), "toy", classes)


def neighbours(g: NodeGraph) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {node: set() for node in range(g.num_nodes)}
    for a, b in g.edge_index.t().tolist():
        found[a].add(b)
        found[b].add(a)
    return found


def test_rules_of_the_partition() -> None:
    g, beside = graph(), neighbours(graph())
    dealt = authors_label_skew(g, 3, 0.25, seed=7, **SMALL)
    with_edges = sum(bool(others) for others in beside.values())
    assert dealt.global_test.numel() == int(0.3 * with_edges)
    gone = set(dealt.global_test.tolist())
    for client in dealt.clients:
        nodes = set(client.nodes.tolist())
        train, val, test = (set(part.tolist()) for part in (client.train, client.val, client.test))
        assert not nodes & gone
        assert all(beside[node] & nodes for node in nodes)
        assert (train | val | test, len(train) + len(val) + len(test)) == (nodes, len(nodes))
        assert (len(test), len(val)) == (10, int(0.2 * len(nodes)))
        assert len(nodes) <= int(0.25 * with_edges)
        frequent = torch.bincount(g.y[client.nodes], minlength=5).sort(descending=True).values
        assert int(frequent[:2].sum()) >= 0.7 * len(nodes)
        gone |= test


def test_the_seed_decides_and_global_generators_do_not() -> None:
    def draws(seed: int) -> list[list[int]]:
        np.random.seed(0)
        before = np.random.get_state(legacy=False)["state"]["key"].tolist()
        random.seed(0)
        python = random.getstate()
        dealt = authors_label_skew(graph(), 3, 0.4, seed=seed, **SMALL)
        assert np.random.get_state(legacy=False)["state"]["key"].tolist() == before
        assert random.getstate() == python
        return [dealt.global_test.tolist(), *(client.train.tolist() for client in dealt.clients)]

    assert draws(7) == draws(7)
    assert draws(7) != draws(8)


def test_nodes_enter_the_set_pair_by_pair() -> None:
    """In the order of a loop over all pairs, on which the order of the set may depend."""
    beside = neighbours(graph())
    drawn = np.random.RandomState(3).permutation(280)[:120].tolist()
    expected: set[int] = set()
    for one in drawn:
        for other in drawn:
            if other in beside[one]:
                expected.add(one)
                expected.add(other)
    assert _connected(drawn, [sorted(beside[node]) for node in range(280)]) == list(expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"local_fraction": 0}, "`data.local_fraction` to be above 0"),
        ({"local_fraction": 0.001}, "`data.local_fraction` to be large enough for client `client-1` to have an edge"),
        ({"major_labels": 6}, "`data.major_labels` to be between 1 and the 5 labels of toy but got 6"),
        ({"num_test": 300}, "`data.num_test` to be below"),
        ({"num_query": -1}, "`data.num_query` to be 0 or more"),
        ({"val_fraction": 0.999}, "`data.val_fraction` to be small enough for client `client-1`"),
        ({"num_clients": 0}, "`data.num_clients` to be 1 or more"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"^Expected {message}"):
        authors_label_skew(graph(), **{"num_clients": 2, **SMALL, **arguments})


def test_a_graph_without_edges() -> None:
    g = NodeGraph(torch.ones(4, 1), torch.empty(2, 0, dtype=torch.long), torch.arange(4) % 2, 2, "dust")
    with pytest.raises(InputError, match=r"`data\.dataset` to be a graph with edges but got 'dust'"):
        authors_label_skew(g, 2)


def test_as_a_federation() -> None:
    data = PublishedNodeFederation(graph(), num_clients=3, partition_seed=7, num_train=20, **SMALL)
    data.setup()
    expected = authors_label_skew(graph(), 3, num_train=20, seed=7, **SMALL)
    assert [data.client(name).train.numel() for name in data.clients] == [20, 20, 20]
    whole = PublishedWholeGraphFederation(graph(), num_clients=3, partition_seed=7, num_train=20, **SMALL)
    whole.setup()
    for name, client in zip(data.clients, expected.clients, strict=True):
        assert torch.equal(client.nodes[data.client(name).train], client.train)
        assert torch.equal(client.nodes[whole.client(name).train], client.train)


def test_nodes_without_neighbours_have_nothing_below_them() -> None:
    with pytest.raises(InputError, match=r"`data\.isolated` to be one of self, none but got 'both'"):
        PublishedNodeFederation(graph(), isolated="both")
    for isolated in ("self", "none"):
        data = PublishedNodeFederation(graph(), num_clients=2, isolated=isolated, **SMALL)
        data.setup()
        own = data.client("client-1")
        assert own.settings["isolated"] == isolated
        _, everywhere = own.test_dataloader()
        alone = own.global_graph.degree == 0
        assert bool(alone.any())
        for batch in everywhere:
            assert (batch.childless is None) == (isolated == "self")
            if batch.childless is not None:
                assert int(batch.childless[:, 0].sum()) == int(alone.sum())


def published() -> PublishedNodeDataModule:
    g = graph()
    g.x = torch.rand(g.num_nodes, 7)
    data = PublishedNodeFederation(g, num_clients=2, fanouts=[3, 2], **SMALL)
    data.setup()
    return data.client("client-1")


def test_evaluation_that_samples_anew_is_that_of_its_round() -> None:
    """A split's sample depends on seed, client, round and split; so does not what else is evaluated."""

    class Drawn(FedEgo):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val/drawn", float(batch.x.size(0)), batch_size=1)

        def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            self.log("test/drawn", float(batch.x.size(0)), batch_size=1)

    own = published()
    client = Client(
        "client-1", Drawn(**own.model_args, hidden_channels=4), own, Local(), trainer_args={"accelerator": "cpu"}
    )
    client.fit(1)
    both = client.evaluate(("val", "test"), 3)
    assert client.evaluate(("test",), 3).items() <= both.items()
    assert any(client.evaluate(("val", "test"), round) != both for round in range(4, 12))
    first, second = (torch.cat(client.predict().batches) for _ in range(2))
    assert torch.equal(first, second)


def test_evaluation_may_sample_anew() -> None:
    """The nodes stay in their order, their neighbours do not; the run's generator decides."""
    own = published()

    def passes(seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        loader = own.val_dataloader()
        return [torch.cat([batch.x.to_dense()[batch.index] for batch in loader]) for _ in range(2)]

    first, second = passes(0)
    assert torch.equal(first[:, 0], second[:, 0])
    assert not torch.equal(first, second)
    assert all(torch.equal(one, other) for one, other in zip((first, second), passes(0), strict=True))


@pytest.mark.parametrize(
    ("name", "megabytes"),
    [
        ("Cora", {8: 8872, 16: 5856, 32: 4346, 64: 3591, 128: 3226}),
        ("CiteSeer", {8: 14129, 16: 10711, 32: 9003, 64: 8133, 128: 7705}),
    ],
)
def test_megabytes_of_the_papers_table_7(name: str, megabytes: dict[int, int], data_root: Path) -> None:
    """What the authors' clients sent in 200 rounds, the mean over their four seeds, counts their batches.

    Per client and round the reduction layer in float32, and for each batch a mashed ego-graph of 43 positions: 512
    columns and the classes in float32, a byte for whether it is a center, and 42 edges in int64.
    """
    g = read_nodes(name, data_root)
    dealt = [authors_label_skew(g, 5, 0.5, num_test=200, seed=seed) for seed in SEEDS]
    layer = 4 * 512 * (g.num_features + 1)
    ego = 43 * (4 * (512 + g.num_classes) + 1) + 2 * 42 * 8
    for batch, told in megabytes.items():
        batches = [sum(math.ceil(one.train.numel() / batch) for one in part.clients) for part in dealt]
        sent = 200 * (5 * layer + ego * sum(batches) / len(SEEDS)) / 2**20
        assert sent == pytest.approx(told, abs=1)


@pytest.mark.parametrize("seed", SEEDS)
def test_as_many_clients_as_the_paper_has(seed: int, data_root: Path) -> None:
    """The arguments of the study of FedEgo's Table 8, for the most clients."""
    study = load_study("fedego/table8")
    data = resolve(study.run("35", "FedEgo", seed).args)["data"]["init_args"]
    given = {key: data[key] for key in ("partition_seed", "num_clients", "num_test", "local_fraction")}
    assert given == {"partition_seed": seed, "num_clients": 35, "num_test": 100, "local_fraction": 0.2}
    dealt = authors_label_skew(read_nodes("DBLP", data_root), 35, 0.2, num_test=100, seed=seed)
    assert min(client.train.numel() for client in dealt.clients) > 900
