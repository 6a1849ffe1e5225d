"""Ego-graphs: their shape and order, that every neighbour is equally likely, and batches against plain indexing."""

from __future__ import annotations

from typing import Any

import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric.data import Data

from flgraph.data import EgoBatch, EgoLoader, NodeGraph, sample_ego_graphs
from flgraph.data.nodes.batching import hop_offsets
from flgraph.errors import InputError


def graph(n: int = 60, edges: int = 90, seed: int = 0, undirected: bool = True, sparse: bool = True) -> NodeGraph:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 20, generator=generator)
    return NodeGraph.from_pyg(
        Data(
            x=x * (x < 0.2) if sparse else x,
            edge_index=torch.randint(n, (2, edges), generator=generator),
            y=torch.randint(3, (n,), generator=generator),
        ),
        num_classes=3,
        undirected=undirected,
    )


def neighbours(g: NodeGraph) -> list[set[int]]:
    """The nodes that send to each node, by a loop over edges; a node without any is its own neighbour."""
    found: list[set[int]] = [set() for _ in range(g.num_nodes)]
    for source, target in g.edge_index.t().tolist():
        found[target].add(source)
    return [members or {node} for node, members in enumerate(found)]


# ------------------------------------------------------------------------------------------------------------ sampling
@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 40),
    st.integers(0, 60),
    st.lists(st.integers(1, 9), max_size=3),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_children_are_neighbours_in_the_documented_places(
    n: int, edges: int, fanouts: list[int], undirected: bool, seed: int
) -> None:
    g = graph(n, edges, seed, undirected)
    centers = torch.randint(n, (7,), generator=torch.Generator().manual_seed(seed))
    egos = sample_ego_graphs(g.rowptr, g.col, centers, fanouts)
    ends = hop_offsets(fanouts)
    assert egos.shape == (7, ends[-1])
    assert egos.dtype == torch.int64
    assert torch.equal(egos[:, 0], centers)
    allowed = neighbours(g)
    for row in egos.tolist():
        for hop, k in enumerate(fanouts):
            for j in range(ends[hop + 1] - ends[hop]):
                parent = row[ends[hop] + j]
                first = ends[hop + 1] + j * k
                assert set(row[first : first + k]) <= allowed[parent]


def test_default_shape_is_that_of_the_paper() -> None:
    g = graph()
    assert sample_ego_graphs(g.rowptr, g.col, torch.arange(5)).shape == (5, 1 + 6 + 36)
    assert hop_offsets((6, 6)) == [0, 1, 7, 43]
    assert hop_offsets(()) == [0, 1]


def test_every_neighbour_is_equally_likely() -> None:
    g = graph(12, 40, seed=4)
    torch.manual_seed(1)
    egos = sample_ego_graphs(g.rowptr, g.col, torch.arange(12).repeat(400), (5, 3))
    first = egos[:, 1:6]
    for node in range(12):
        drawn = torch.bincount(first[egos[:, 0] == node].flatten(), minlength=12)
        members = sorted(neighbours(g)[node])
        assert int(drawn.sum()) == int(drawn[members].sum()) == 2000
        if len(members) > 1:
            assert scipy.stats.chisquare(drawn[members].numpy()).pvalue > 1e-4
    # Draws of different children of one parent do not depend on each other.
    pairs = torch.stack([first[:, 0], first[:, 1]])[:, egos[:, 0] == int(g.degree.argmax())]
    table = torch.zeros(12, 12).index_put_((pairs[0], pairs[1]), torch.ones(1), accumulate=True)
    table = table[table.sum(1) > 0][:, table.sum(0) > 0]
    assert scipy.stats.chi2_contingency(table.numpy()).pvalue > 1e-4


def test_isolated_nodes_are_their_own_neighbours() -> None:
    rowptr, col = torch.tensor([0, 0, 1, 2, 2]), torch.tensor([2, 1])  # 1 - 2, and 0 and 3 alone
    egos = sample_ego_graphs(rowptr, col, torch.tensor([0, 3, 1]), (3, 2))
    assert egos[:2].tolist() == [[0] * 10, [3] * 10]
    assert egos[2].tolist() == [1, 2, 2, 2, 1, 1, 1, 1, 1, 1]
    assert sample_ego_graphs(torch.zeros(3, dtype=torch.long), col[:0], torch.tensor([1]), (2, 2)).tolist() == [[1] * 7]


def test_no_centers_give_no_egos() -> None:
    g = graph()
    assert sample_ego_graphs(g.rowptr, g.col, torch.arange(0)).shape == (0, 43)


def test_seeds_decide() -> None:
    g = graph()
    centers = torch.arange(g.num_nodes)

    def drawn(seed: int) -> Tensor:
        return sample_ego_graphs(g.rowptr, g.col, centers, generator=torch.Generator().manual_seed(seed))

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))
    torch.manual_seed(3)
    before = sample_ego_graphs(g.rowptr, g.col, centers)
    drawn(5)  # leaves the default generator alone
    torch.manual_seed(3)
    assert torch.equal(before, sample_ego_graphs(g.rowptr, g.col, centers))


@pytest.mark.parametrize("fanouts", [(0,), (6, -1), (2.5,)])
def test_fanouts_must_be_positive(fanouts: tuple[int, ...]) -> None:
    g = graph()
    with pytest.raises(InputError, match=r"Expected `data\.fanouts` to be whole numbers of 1 or more but got"):
        sample_ego_graphs(g.rowptr, g.col, torch.arange(3), fanouts)


# ------------------------------------------------------------------------------------------------------------- batches
@pytest.mark.parametrize("sparse", [True, False])
def test_batch_holds_each_node_once(sparse: bool) -> None:
    g = graph(sparse=sparse)
    assert g.is_sparse is sparse
    egos = sample_ego_graphs(g.rowptr, g.col, torch.arange(9), (3, 2))
    batch = EgoBatch.gather(g.x, g.y, egos, (3, 2))
    dense = batch.x.to_dense() if sparse else batch.x
    whole = g.x.to_dense() if sparse else g.x
    assert batch.x.layout == g.x.layout
    assert dense.size(0) == egos.unique().numel()
    assert torch.equal(dense[batch.index], whole[egos])
    assert torch.equal(batch.labels, g.y[egos])
    assert torch.equal(batch.y, g.y[:9])
    assert (batch.y.numel(), batch.fanouts) == (9, (3, 2))
    there = batch.to("meta")
    assert {part.device.type for part in (there.x, there.index, there.y, there.labels)} == {"meta"}


# ------------------------------------------------------------------------------------------------------------- loaders
def centers(g: NodeGraph, batch: EgoBatch) -> list[int]:
    """Node numbers of the centers, told from features that differ from node to node."""
    rows = batch.x[batch.index[:, 0]]
    return [int((g.x == row).all(dim=1).nonzero()[0, 0]) for row in rows]


def test_loader_visits_all_centers_in_order() -> None:
    g = graph(sparse=False)
    index = torch.randperm(60)[:41]
    loader = EgoLoader(g, index, 16)
    batches = list(loader)
    assert len(loader) == len(batches) == 3
    assert [batch.y.numel() for batch in batches] == [16, 16, 9]
    assert [node for batch in batches for node in centers(g, batch)] == index.tolist()


def test_loader_visits_a_fresh_fraction_per_pass() -> None:
    g = graph(sparse=False)
    index = torch.arange(10, 60)
    loader = EgoLoader(g, index, 4, shuffle=True, fraction=0.2)
    assert len(loader) == 3
    torch.manual_seed(0)
    passes = [[node for batch in loader for node in centers(g, batch)] for _ in range(40)]
    assert all(len(set(visited)) == 10 and set(visited) <= set(range(10, 60)) for visited in passes)
    assert len({tuple(visited) for visited in passes}) == 40
    assert {node for visited in passes for node in visited} == set(range(10, 60))
    torch.manual_seed(0)
    assert [node for batch in loader for node in centers(g, batch)] == passes[0]
    ordered = [node for batch in EgoLoader(g, index, 4, fraction=0.2) for node in centers(g, batch)]
    assert ordered == sorted(ordered)


def test_fraction_leaves_at_least_one() -> None:
    assert EgoLoader(graph(), torch.arange(3), fraction=0.01).num_visited == 1
    assert EgoLoader(graph(), torch.arange(5), fraction=0.5).num_visited == 3
    empty = EgoLoader(graph(), torch.arange(0), fraction=0.5)
    assert (len(empty), list(empty)) == (0, [])


def test_clients_share_the_fixed_ego_graphs_of_a_whole_graph() -> None:
    """Which are the same for all of them; others' seeds and parts of the graph have their own."""
    g = graph()
    everything = torch.arange(g.num_nodes)
    loaders = [EgoLoader(g, everything, 16, fixed=True, seed=seed) for seed in (0, 0, 1)]
    first, same, other = [torch.cat([batch.labels for batch in loader]) for loader in loaders]
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert loaders[0]._ego_graphs is loaders[1]._ego_graphs
    part, alone = (EgoLoader(whole, everything[:30], 16, fixed=True) for whole in (g, graph()))
    assert torch.equal(next(iter(part)).labels, next(iter(alone)).labels)


def test_fixed_egos_do_not_depend_on_pass_or_batch_size() -> None:
    g = graph(sparse=False)
    index = torch.arange(40)

    def nodes(batch_size: int, seed: int = 0) -> Tensor:
        loader = EgoLoader(g, index, batch_size, fixed=True, seed=seed)
        first, second = (torch.cat([batch.x[batch.index] for batch in loader]) for _ in range(2))
        assert torch.equal(first, second)
        return first

    torch.manual_seed(0)
    state = torch.get_rng_state()
    assert torch.equal(nodes(7), nodes(40))
    assert not torch.equal(nodes(7), nodes(7, seed=1))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("data.batch_size", {"batch_size": 0}),
        ("data.epoch_fraction", {"fraction": 0.0}),
        ("data.epoch_fraction", {"fraction": 1.5}),
        ("data.fanouts", {"fanouts": (0, 2)}),
    ],
)
def test_loader_refuses(field: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"^Expected `{field}` to be .* but got .*[.]$"):
        EgoLoader(graph(), torch.arange(5), **arguments)
