"""Who gets which nodes: the rules of each partition, told by plain loops, and what cannot be satisfied."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data

from flgraph.data import (
    NodeGraph,
    NodePartition,
    dirichlet,
    label_skew,
    louvain,
    louvain_balanced,
    louvain_plus,
    metis,
    metis_plus,
    partition_statistics,
    read_nodes,
)
from flgraph.data.splits import fewest_for, stratified_split
from flgraph.errors import InputError

SMALL: dict[str, Any] = {"num_test": 10, "major_labels": 2}
OTHERS: list[Callable[..., NodePartition]] = [louvain, louvain_balanced, metis, dirichlet]


def graph(n: int = 400, edges: int = 1200, classes: int = 5, seed: int = 0, undirected: bool = True) -> NodeGraph:
    generator = torch.Generator().manual_seed(seed)
    data = Data(
        x=torch.ones(n, 1),
        edge_index=torch.randint(n, (2, edges), generator=generator),
        y=torch.randint(classes, (n,), generator=generator),
    )
    return NodeGraph.from_pyg(data, "toy", classes, undirected)


def cliques(sizes: list[int], joined: bool = False) -> NodeGraph:
    """Complete graphs side by side, each of one label; one complete graph if joined."""
    network = nx.disjoint_union_all([nx.complete_graph(size) for size in sizes])
    network = nx.complete_graph(sum(sizes)) if joined else network
    y = [label for label, size in enumerate(sizes) for _ in range(size)]
    edges = torch.tensor(list(network.edges), dtype=torch.long).view(-1, 2).t()
    return NodeGraph.from_pyg(Data(x=torch.ones(len(y), 1), edge_index=edges, y=torch.tensor(y)), "cliques")


def same(one: NodePartition, other: NodePartition) -> bool:
    def tensors(partition: NodePartition) -> list[Any]:
        return [partition.global_test, *(part for client in partition.clients for part in vars(client).values())]

    return all(torch.equal(a, b) for a, b in zip(tensors(one), tensors(other), strict=True))


def parts(partition: NodePartition, exclusive: bool = False) -> list[tuple[set[int], ...]]:
    """Nodes, training, validation and test of each client, checked to be a split, but for others' exclusive tests."""
    found = []
    tests = [client.test for client in partition.clients]
    for client in partition.clients:
        four = (client.nodes, client.train, client.val, client.test)
        nodes, train, val, test = (set(part.tolist()) for part in four)
        others = {node for other in tests if other is not client.test for node in other.tolist()}
        assert len(nodes) == client.nodes.numel()
        assert nodes - train - val - test <= (others if exclusive else set())
        assert sum(map(len, (train, val, test))) == len(train | val | test)
        assert not exclusive or not (train | val | test) & others
        assert client.nodes.tolist() == sorted(nodes)
        assert not nodes & set(partition.global_test.tolist())
        found.append((nodes, train, val, test))
    return found


# ---------------------------------------------------------------------------------------------------------- label skew
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.booleans(), st.booleans(), st.sampled_from(["graph", "pool"]))
def test_label_skew_follows_its_rules(seed: int, exclusive: bool, undirected: bool, local_of: Any) -> None:
    g = graph(undirected=undirected, seed=seed % 7)
    dealt = label_skew(g, 4, seed=seed, exclusive_test=exclusive, local_of=local_of, **SMALL)
    assert dealt.global_test.numel() == 120
    edges = g.edge_index.t().tolist()
    asked = 120 if local_of == "graph" else 84
    earlier: set[int] = set()
    for nodes, _, val, test in parts(dealt, exclusive):
        linked = {node for edge in edges if set(edge) <= nodes for node in edge}
        assert nodes == linked  # nobody is left without an edge
        assert len(nodes) <= asked
        assert len(test) == 10
        wanted = int(0.2 * len(nodes) + 0.5)
        assert len(val) <= wanted if exclusive else len(val) == wanted
        if exclusive:
            assert not nodes & earlier
            earlier |= test


def test_majors_are_frequent() -> None:
    g = graph(4000, 400000, 10)  # dense, so that nobody is dropped
    for client in label_skew(g, 3, major_labels=3, major_rate=0.8, local_fraction=0.1, num_test=50).clients:
        assert client.nodes.numel() == 400
        counts = Counter(g.y[client.nodes].tolist()).most_common()
        assert 320 + 10 < sum(count for _, count in counts[:3]) < 320 + 40  # of the other 80 three tenths or less
        assert min(count for _, count in counts[:3]) > max(count for _, count in counts[3:])
        assert len(counts) == 10


def test_rates_at_their_ends() -> None:
    g = graph(4000, 400000, 10)
    arguments: dict[str, Any] = {"local_fraction": 0.1, "num_test": 50, "major_labels": 2}
    for client in label_skew(g, 3, major_rate=1.0, **arguments).clients:
        assert g.y[client.nodes].unique().numel() == 2
    for client in label_skew(g, 3, major_rate=0.0, **arguments).clients:  # as random as can be
        assert torch.bincount(g.y[client.nodes], minlength=10).max() < 0.2 * client.nodes.numel()


def test_where_frequent_labels_are_rare_others_fill_up() -> None:
    g = cliques([10, 10, 10], joined=True)
    client = label_skew(g, 1, 0.8, 0.0, major_labels=1, major_rate=0.8, num_test=5).clients[0]
    assert torch.bincount(g.y[client.nodes]).max() == 10  # all of the one label, which should have given 19
    assert client.nodes.numel() == 24


def test_a_client_gets_what_the_pool_still_has() -> None:
    g = cliques([20, 20], joined=True)
    dealt = label_skew(g, 4, 1.0, 0.0, major_labels=1, major_rate=0.8, num_test=8, exclusive_test=True)
    assert [client.nodes.numel() for client in dealt.clients] == [40, 32, 24, 16]


def test_test_nodes_are_scattered_and_training_nodes_shared() -> None:
    dealt = label_skew(graph(), 4, local_fraction=0.6, exclusive_test=True, **SMALL)
    (_, one, _, _), (_, two, _, _), *_ = parts(dealt, exclusive=True)
    assert one & two
    ranks = torch.searchsorted(dealt.clients[0].nodes, dealt.clients[0].test)
    assert ranks.tolist() != sorted(ranks.tolist())


def test_training_nodes_may_be_few() -> None:
    """What is left over is the client's all the same: as neighbours."""
    full, few, many = (label_skew(graph(), 3, num_train=count, **SMALL).clients for count in (None, 7, 10**6))
    for one, other, all_of_them in zip(full, few, many, strict=True):
        assert other.train.tolist() == one.train[:7].tolist()
        assert all_of_them.train.tolist() == one.train.tolist()
        for part in ("nodes", "val", "test"):
            assert torch.equal(getattr(one, part), getattr(other, part))


def test_nodes_for_query_sets_are_among_those_that_are_left() -> None:
    full, few = (label_skew(graph(), 3, num_train=a, num_query=b, **SMALL).clients for a, b in ((None, 0), (4, 3)))
    for one, other in zip(full, few, strict=True):
        assert one.query.numel() == 0
        assert other.query.tolist() == one.train[4:7].tolist()
        for part in ("nodes", "val", "test"):
            assert torch.equal(getattr(one, part), getattr(other, part))


# -------------------------------------------------------------------------------------------------- all the partitions
@pytest.mark.parametrize("partitioner", [*OTHERS, label_skew])
def test_seeds_decide(partitioner: Callable[..., NodePartition]) -> None:
    g = graph()
    arguments = SMALL if partitioner is label_skew else {}
    torch.manual_seed(0)
    one = partitioner(g, 3, seed=5, **arguments)
    torch.manual_seed(1)
    assert same(one, partitioner(g, 3, seed=5, **arguments))
    assert not same(one, partitioner(g, 3, seed=6, **arguments))


@pytest.mark.parametrize("partitioner", OTHERS)
@pytest.mark.parametrize("undirected", [True, False])
@pytest.mark.parametrize("num_clients", [1, 4])
def test_disjoint_parts_cover_the_pool(
    partitioner: Callable[..., NodePartition], undirected: bool, num_clients: int
) -> None:
    g = graph(undirected=undirected)
    dealt = partitioner(g, num_clients, global_fraction=0.1, fractions=(0.5, 0.2, 0.3))
    found = parts(dealt)
    assert len(found) == num_clients
    together = [node for nodes, *_ in found for node in nodes] + dealt.global_test.tolist()
    assert sorted(together) == list(range(400))
    assert dealt.global_test.numel() == 40
    for nodes, train, val, test in found:
        for part, fraction in ((train, 0.5), (val, 0.2), (test, 0.3)):
            assert abs(len(part) - fraction * len(nodes)) <= 2


@pytest.mark.parametrize("partitioner", [louvain, metis])
def test_communities_stay_whole(partitioner: Callable[..., NodePartition]) -> None:
    sizes = [30, 31, 29, 15, 15]  # four groups of about 30 can be made
    dealt = partitioner(cliques(sizes), 4, fractions=(1.0, 0.0, 0.0))
    assert sorted(client.nodes.numel() for client in dealt.clients) == [29, 30, 30, 31]
    statistics = partition_statistics(cliques(sizes), dealt)
    assert [client["edges_cut"] for client in statistics["clients"].values()] == [0] * 4


def test_large_communities_are_cut_to_an_equal_share() -> None:
    """Of 60 nodes in one clique and 12 in another, four clients of 18 each."""
    dealt = louvain_balanced(cliques([60, 12]), 4, fractions=(1.0, 0.0, 0.0))
    assert [client.nodes.numel() for client in dealt.clients] == [18, 18, 18, 18]
    small = set(range(60, 72))
    assert [client for client in dealt.clients if small <= set(client.nodes.tolist())]


@pytest.mark.parametrize("partitioner", [louvain_plus, metis_plus])
def test_like_communities_come_together(partitioner: Callable[..., NodePartition]) -> None:
    """Four cliques of two labels: each client has one label's, however unequal they are."""
    g = cliques([20, 10, 14, 6])
    g.y.copy_(torch.tensor([0] * 20 + [1] * 10 + [0] * 14 + [1] * 6))
    dealt = partitioner(g, 2, fractions=(1.0, 0.0, 0.0))
    assert sorted(client.nodes.numel() for client in dealt.clients) == [16, 34]
    assert all(g.y[client.nodes].unique().numel() == 1 for client in dealt.clients)
    assert same(dealt, partitioner(g, 2, fractions=(1.0, 0.0, 0.0)))
    with pytest.raises(InputError, match=r"at most 2, the communities with other label shares"):
        partitioner(g, 3)


def test_metis_cuts_few_edges_and_balances() -> None:
    network = nx.grid_2d_graph(20, 20)
    edges = torch.tensor(list(nx.convert_node_labels_to_integers(network).edges)).t()
    g = NodeGraph.from_pyg(Data(x=torch.ones(400, 1), edge_index=edges, y=torch.zeros(400)))
    statistics = partition_statistics(g, metis(g, 4))["clients"].values()
    assert max(client["nodes"] for client in statistics) <= 104
    assert sum(client["edges_cut"] for client in statistics) / 2 <= 60  # the best is 40, a random one 570


def test_clients_without_edges() -> None:
    none = torch.empty(2, 0, dtype=torch.long)
    g = NodeGraph.from_pyg(Data(x=torch.ones(30, 1), edge_index=none, y=torch.arange(30) % 3), "empty")
    for partitioner in OTHERS:
        assert sum(len(nodes) for nodes, *_ in parts(partitioner(g, 3))) == 30
    with pytest.raises(InputError) as caught:
        label_skew(g, 2, num_test=0)
    message = "Expected `data.local_fraction` to be large enough for client `client-1` to have an edge but got 0.3."
    assert str(caught.value) == message


# ---------------------------------------------------------------------------------------------------------- statistics
@pytest.mark.parametrize("undirected", [True, False])
def test_statistics_are_those_of_loops(undirected: bool) -> None:
    g = graph(undirected=undirected)
    dealt = label_skew(g, 3, **SMALL)
    statistics = partition_statistics(g, dealt)
    network = (nx.Graph if undirected else nx.DiGraph)()
    network.add_nodes_from(range(400))
    network.add_edges_from(g.edge_index.t().tolist())
    union = {node for _, train, _, _ in parts(dealt) for node in train}
    overall = Counter(int(g.y[node]) for node in union)
    emds = []
    for (nodes, train, val, test), shown in zip(parts(dealt), statistics["clients"].values(), strict=True):
        own = Counter(int(g.y[node]) for node in train)
        emds.append(sum(abs(own[c] / len(train) - overall[c] / len(union)) for c in range(5)))
        assert shown == {
            "nodes": len(nodes),
            "edges": network.subgraph(nodes).number_of_edges(),
            "edges_cut": sum((a in nodes) != (b in nodes) for a, b in network.edges),
            "train": len(train),
            "val": len(val),
            "test": len(test),
            "train_labels": [own[c] for c in range(5)],
            "emd": pytest.approx(emds[-1]),
        }
    held = set(dealt.global_test.tolist())
    assert statistics["global_test"] == {
        "nodes": 120,
        "edges": network.subgraph(held).number_of_edges(),
        "labels": [sum(int(g.y[node]) == c for node in held) for c in range(5)],
    }
    assert statistics["mean_emd"] == pytest.approx(sum(emds) / 3)
    assert list(statistics["clients"]) == ["client-1", "client-2", "client-3"]
    assert list(partition_statistics(g, dealt, ["a", "b", "c"])["clients"]) == ["a", "b", "c"]


def test_one_client_has_no_distance_to_itself() -> None:
    g = graph()
    assert partition_statistics(g, dirichlet(g, 1))["mean_emd"] == 0


# -------------------------------------------------------------------------------------------------------------- errors
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_clients": 0}, "`data.num_clients` to be 1 or more but got 0."),
        ({"num_clients": 401}, "`data.num_clients` to be at most 400, the nodes of toy, but got 401."),
        ({"local_fraction": 0}, "`data.local_fraction` to be above 0 and at most 1 but got 0."),
        ({"global_fraction": 1.0}, "`data.global_fraction` to be 0 or more and below 1 but got 1.0."),
        ({"global_fraction": 0.999}, "`data.global_fraction` to be small enough to leave nodes of toy but got 0.999."),
        ({"major_labels": 6}, "`data.major_labels` to be between 1 and the 5 labels of toy but got 6."),
        ({"major_labels": 0}, "`data.major_labels` to be between 1 and the 5 labels of toy but got 0."),
        ({"major_rate": 1.2}, "`data.major_rate` to be between 0 and 1 but got 1.2."),
        ({"num_train": 0}, "`data.num_train` to be 1 or more, or null for all but got 0."),
        ({"num_query": -1}, "`data.num_query` to be 0 or more but got -1."),
        ({"num_query": 1}, "`data.num_query` to be at most 0, the nodes that `data.num_train` leaves to client `clien"),
        ({"num_test": -1}, "`data.num_test` to be 0 or more but got -1."),
        ({"val_fraction": 1.0}, "`data.val_fraction` to be 0 or more and below 1 but got 1.0."),
        ({"val_fraction": 0.999}, "`data.val_fraction` to be small enough for client `client-1` to have a training "),
        ({"local_of": "client"}, "`data.local_of` to be one of graph, pool but got 'client'."),
        ({"seed": -1}, "`data.partition_seed` to be between 0 and 2^32 - 1 but got -1."),
    ],
)
def test_label_skew_refuses(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        label_skew(graph(), **{"num_clients": 2, **SMALL, **arguments})
    assert str(caught.value).startswith(f"Expected {message}")


def test_too_few_nodes_for_the_tests() -> None:
    with pytest.raises(InputError, match=r"`data.num_test` to be below \d+, the nodes .* client `client-1` has but"):
        label_skew(graph(), 2, num_test=300)
    with pytest.raises(
        InputError, match=r"`data.num_test` to be below \d+, the nodes .* client `client-[234]` has but"
    ):
        label_skew(graph(), 4, num_test=90, major_labels=2, local_fraction=0.4, exclusive_test=True)


def test_others_may_test_on_all_training_nodes() -> None:
    few: dict[str, Any] = {"num_test": 3, "num_train": 1, "exclusive_test": True}
    message = "`data.num_test` to be small enough for client `client-1` to have a training node that no other client"
    with pytest.raises(InputError, match=message):
        label_skew(cliques([12]), 3, 1.0, 0.0, major_labels=1, major_rate=1.0, seed=0, **few)


def test_the_pool_may_run_out_of_labels() -> None:
    g = cliques([3, 3, 3])
    message = "Expected `data.major_labels` to be at most 1, the labels left for client `client-2`, but got 3."
    with pytest.raises(InputError, match=message):  # all nodes but one are test nodes of the first client
        label_skew(g, 2, 1.0, 0.0, major_rate=1.0, num_test=8, val_fraction=0, exclusive_test=True)


@pytest.mark.parametrize("partitioner", OTHERS)
def test_others_refuse(partitioner: Callable[..., NodePartition]) -> None:
    g = cliques([5, 5])
    with pytest.raises(InputError, match=r"Expected `data.num_clients` to be at most 10, the nodes outside of"):
        partitioner(g, 11)
    with pytest.raises(InputError, match=r"Expected `data.fractions` to be three numbers"):
        partitioner(g, 1, fractions=(0.5, 0.1, 0.1))
    with pytest.raises(
        InputError, match=r"`data.fractions` to be .* leave samples for the training set .* `client-1`\.$"
    ):
        partitioner(cliques([1]), 1, fractions=(0.1, 0.1, 0.8))


def test_dirichlet_draws_until_every_split_has_nodes() -> None:
    g = cliques([50, 50, 50, 50])
    for seed in range(20):
        for client in dirichlet(g, 8, alpha=0.2, seed=seed).clients:
            assert min(client.train.numel(), client.val.numel(), client.test.numel()) >= 1


@pytest.mark.parametrize(("fractions", "fewest"), [((0.6, 0.2, 0.2), 3), ((0.9, 0.05, 0.05), 11), ((1, 0, 0), 1)])
def test_the_fewest_nodes_that_can_be_split(fractions: tuple[float, float, float], fewest: int) -> None:
    stratified_split(torch.zeros(fewest, dtype=torch.long), fractions)
    for count in range(1, fewest):
        with pytest.raises(InputError, match="to leave samples for the"):
            stratified_split(torch.zeros(count, dtype=torch.long), fractions)
    assert fewest_for(fractions, 100) == fewest
    assert fewest_for(fractions, 2) == min(2, fewest)


@pytest.mark.parametrize("cut", OTHERS)
@pytest.mark.parametrize("fractions", [[0.8, 0.2], [], [0.4, 0.2, 0.2, 0.2], [0.0, 0.5, 0.5]])
def test_fractions_are_three(cut: Callable[..., NodePartition], fractions: list[float]) -> None:
    with pytest.raises(InputError, match=r"Expected `data\.fractions` to be three numbers of 0 or more that sum to 1"):
        cut(cliques([5, 5]), 2, fractions=fractions)


def test_dirichlet_needs_a_draw_that_fits() -> None:
    with pytest.raises(InputError, match=r"`data.alpha` to be large enough for 9 clients of at least 1 samples"):
        dirichlet(cliques([5, 5]), 9, alpha=0.01)
    with pytest.raises(InputError, match=r"`data.alpha` to be a positive number but got -1\.$"):
        dirichlet(cliques([5, 5]), 2, alpha=-1)


@pytest.mark.parametrize("partitioner", [louvain, louvain_plus])
def test_louvain_needs_enough_communities(partitioner: Callable[..., NodePartition]) -> None:
    message = "Expected `data.num_clients` to be at most 2, the communities of cliques, but got 3."
    with pytest.raises(InputError, match=message):
        partitioner(cliques([5, 5]), 3)


@pytest.mark.parametrize("partitioner", [metis, metis_plus])
def test_metis_says_what_is_missing(partitioner: Callable[..., NodePartition], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pymetis", None)
    with pytest.raises(InputError, match=r"which needs `pip install 'flgraph\[metis\]'`.$"):
        partitioner(graph(), 2)


# ----------------------------------------------------------------------------------------------------------- real data
@pytest.mark.parametrize(("name", "num_clients", "local"), [("Cora", 5, 0.3), ("CiteSeer", 5, 0.3), ("DBLP", 10, 0.2)])
def test_settings_of_the_paper_can_be_had(name: str, num_clients: int, local: float, data_root: Path) -> None:
    g = read_nodes(name, data_root)
    for seed in range(5):
        dealt = label_skew(g, num_clients, local, seed=seed)
        assert all(client.test.numel() == 300 for client in dealt.clients)
        assert min(client.train.numel() for client in dealt.clients) > 100


@pytest.mark.parametrize("name", ["Cora", "CiteSeer"])
def test_published_settings_can_be_had(name: str, data_root: Path) -> None:
    dealt = label_skew(read_nodes(name, data_root), 5, 0.5, num_test=200, exclusive_test=True)
    assert all(client.test.numel() == 200 for client in dealt.clients)
