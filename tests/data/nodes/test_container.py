"""One graph: its form, its subgraphs against PyG's, and rows of sparse features against dense ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import coalesce, remove_self_loops, subgraph, to_undirected

from flgraph.data import NodeGraph
from flgraph.data.checks import sorted_edges
from flgraph.data.nodes.container import normalize_rows, sparse_rows
from flgraph.errors import InputError
from flgraph.nn.sparse.csr import take_rows


def raw(n: int = 50, edges: int = 120, seed: int = 0) -> Data:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 16, generator=generator)
    edge_index = torch.randint(n, (2, edges), generator=generator)
    return Data(x=x * (x < 0.15), edge_index=edge_index, y=torch.randint(4, (n,), generator=generator))


# -------------------------------------------------------------------------------------------------------- construction
@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(0, 120), st.booleans(), st.integers(0, 2**31))
def test_edges_are_pygs(n: int, edges: int, undirected: bool, seed: int) -> None:
    data = raw(n, edges, seed)
    g = NodeGraph.from_pyg(data, undirected=undirected)
    expected = remove_self_loops(data.edge_index)[0]
    expected = to_undirected(expected, num_nodes=n) if undirected else coalesce(expected, num_nodes=n)
    assert torch.equal(g.edge_index, expected)
    assert torch.equal(g.degree, torch.bincount(expected[1], minlength=n))
    for node in range(n):
        senders = expected[0][expected[1] == node].tolist()
        assert g.col[g.rowptr[node] : g.rowptr[node + 1]].tolist() == sorted(senders)
    values = torch.rand(n, 3)
    dense = torch.zeros(n, n)
    dense[expected[1], expected[0]] = 1
    torch.testing.assert_close(g.adj.sum(values), dense @ values)


def test_any_layout_of_features() -> None:
    data = raw()
    dense = data.x
    for x in (dense, dense.to_sparse_coo(), dense.to_sparse_csr(), dense.to_sparse_csc(), dense.double()):
        g = NodeGraph.from_pyg(Data(x=x, edge_index=data.edge_index, y=data.y))
        assert g.is_sparse
        assert g.x.dtype == torch.float32
        assert torch.equal(g.x.to_dense(), dense)
    full = NodeGraph.from_pyg(Data(x=torch.rand(50, 3), edge_index=data.edge_index, y=data.y.unsqueeze(1)))
    assert not full.is_sparse
    assert (full.num_nodes, full.num_features, full.num_classes) == (50, 3, 4)
    assert NodeGraph.from_pyg(Data(x=torch.rand(50), edge_index=data.edge_index, y=data.y)).num_features == 1


def test_graphs_without_edges_or_features() -> None:
    none = torch.empty(2, 0, dtype=torch.long)
    g = NodeGraph.from_pyg(Data(x=torch.rand(3, 0), edge_index=none, y=torch.tensor([0, 1, 1])))
    assert (g.num_features, g.edge_index.size(1), g.degree.tolist()) == (0, 0, [0, 0, 0])
    assert g.subgraph(torch.tensor([2, 0])).y.tolist() == [1, 0]
    assert sorted_edges(none, 3).shape == (2, 0)


def test_describes_itself() -> None:
    g = NodeGraph.from_pyg(raw(), "toy")
    assert repr(g) == f"NodeGraph(toy: 50 nodes, {g.edge_index.size(1)} edges, 16 features, 4 classes)"
    assert g.nodes.tolist() == list(range(50))
    other = NodeGraph.from_pyg(raw(), "other name")
    assert g.content == other.content
    assert g.content != NodeGraph.from_pyg(raw(seed=1)).content
    assert g.content != NodeGraph.from_pyg(raw(), num_classes=5).content


# ------------------------------------------------------------------------------------------------------------- subsets
@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(0, 120), st.booleans(), st.data())
def test_subgraph_is_pygs(n: int, edges: int, undirected: bool, data: st.DataObject) -> None:
    g = NodeGraph.from_pyg(raw(n, edges, edges), undirected=undirected)
    index = torch.tensor(data.draw(st.lists(st.integers(0, n - 1), min_size=1, unique=True)))
    cut = g.subgraph(index, "part")
    cut._validate()
    where = subgraph(index, g.edge_index, relabel_nodes=False, num_nodes=n)[0]
    assert {tuple(edge) for edge in index[cut.edge_index].t().tolist()} == {tuple(edge) for edge in where.t().tolist()}
    assert cut.edge_index.size(1) == where.size(1)
    assert torch.equal(cut.x.to_dense(), g.x.to_dense()[index])
    assert torch.equal(cut.y, g.y[index])
    assert torch.equal(cut.nodes, index)
    assert (cut.name, cut.num_classes, cut.undirected) == ("part", g.num_classes, undirected)
    again = cut.subgraph(torch.tensor([index.numel() - 1]))
    assert again.nodes.tolist() == [int(index[-1])]  # as in the first graph


def test_subgraph_by_mask() -> None:
    g = NodeGraph.from_pyg(raw())
    mask = torch.arange(50) % 3 == 0
    assert torch.equal(g.subgraph(mask).nodes, mask.nonzero()[:, 0])


@pytest.mark.parametrize(("index", "what"), [([], "at least one node but got none"), ([1, 1], "one of them twice")])
def test_subgraph_refuses(index: list[int], what: str) -> None:
    with pytest.raises(InputError, match=what):
        NodeGraph.from_pyg(raw()).subgraph(torch.tensor(index, dtype=torch.long))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 49)), st.booleans())
def test_rows_are_gathered_without_densifying(index: list[int], sparse: bool) -> None:
    g = NodeGraph.from_pyg(raw())
    x = g.x if sparse else g.x.to_dense()
    chosen = torch.tensor(index, dtype=torch.long)
    rows = take_rows(x, chosen)
    assert rows.layout == x.layout
    assert torch.equal(rows.to_dense(), g.x.to_dense()[chosen])
    assert torch.equal(g.rows(chosen).to_dense(), rows.to_dense())


def test_normalised_rows_sum_to_one() -> None:
    data = raw()
    data.x[7] = 0
    g = NodeGraph.from_pyg(data).normalized()
    expected = data.x / data.x.sum(dim=1, keepdim=True).clamp(min=1e-30)
    assert g.is_sparse
    torch.testing.assert_close(g.x.to_dense(), expected)
    torch.testing.assert_close(normalize_rows(data.x), expected)
    assert NodeGraph.from_pyg(data).x.to_dense().sum() == data.x.sum()  # the first one is as it was


def test_sparse_only_where_it_pays() -> None:
    x = torch.zeros(4, 4)
    x[0] = 1
    assert sparse_rows(x).layout == torch.sparse_csr
    x[1, 0] = 1
    assert sparse_rows(x).layout == torch.strided


def test_moves() -> None:
    g = NodeGraph.from_pyg(raw())
    assert g.to("cpu") is g
    _ = g.adj
    there = g.to("meta")
    assert {part.device.type for part in (*there.parts.values(), there.rowptr)} == {"meta"}
    assert (there.name, there.num_classes) == (g.name, g.num_classes)


# -------------------------------------------------------------------------------------------------------------- errors
def build(**changes: Any) -> NodeGraph:
    fields: dict[str, Any] = {
        "x": torch.rand(3, 2),
        "edge_index": torch.tensor([[0, 1], [1, 0]]),
        "y": torch.tensor([0, 1, 1]),
        "name": "toy",
    }
    return NodeGraph(**fields | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": torch.tensor([0.0, 1, 1])}, "`toy.y` to be of shape [N] and int64 but got [3], float32."),
        ({"y": torch.arange(0), "x": torch.rand(0, 2)}, "`toy.y` to be the classes of at least one node but got none."),
        ({"y": torch.tensor([0, -1, 1])}, "`toy.y` to be between 0 and 1 but got -1."),
        ({"y": torch.tensor([0, 10**9, 1])}, "`toy.y` to be classes below 100000 but got 1000000000."),
        ({"num_classes": 1}, "`toy.y` to be between 0 and 0 but got 1."),
        ({"x": torch.rand(2, 2)}, "`toy.x` to be of shape [3, F] and float32 but got [2, 2], float32."),
        ({"x": torch.rand(3, 2).double()}, "`toy.x` to be of shape [3, F] and float32 but got [3, 2], float64."),
        ({"x": torch.rand(3, 2).to_sparse_coo()}, "`toy.x` to be dense or sparse CSR but got torch.sparse_coo."),
        ({"x": torch.full((3, 2), torch.nan)}, "`toy.x` to be finite but got NaN or infinity."),
        ({"nodes": torch.arange(2)}, "`toy.nodes` to be of shape [3] and int64 but got [2], int64."),
        ({"edge_index": torch.zeros(3, 1).long()}, "`toy.edge_index` to be of shape [2, E] and int64 but got [3, 1]"),
        ({"edge_index": torch.tensor([[0], [3]])}, "`toy.edge_index` to be edges between nodes 0 to 2 but got [0, 3]."),
        ({"edge_index": torch.tensor([[1, 0], [0, 1]])}, "`toy.edge_index` to be sorted by source and target"),
        ({"edge_index": torch.tensor([[1], [1]])}, "`toy.edge_index` to be sorted by source and target"),
        ({"edge_index": torch.tensor([[0], [1]])}, "`toy.edge_index` to be undirected, every edge in both directions,"),
    ],
)
def test_refuses(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        build(**changes)
    assert str(caught.value).startswith(f"Expected {message}")
    assert str(caught.value).count(". ") == 0


def test_a_directed_graph_need_not_be_symmetric() -> None:
    g = build(edge_index=torch.tensor([[0], [1]]), undirected=False)
    assert g.degree.tolist() == [0, 1, 0]
    assert g.col.tolist() == [0]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (Data(edge_index=torch.zeros(2, 0).long(), y=torch.zeros(1)), "`toy.x` to be a tensor but got None."),
        (Data(x=torch.rand(2, 1), edge_index=torch.zeros(2, 0).long()), "`toy.y` to be a tensor but got None."),
        (
            Data(x=torch.rand(2, 1), edge_index=torch.zeros(2, 0).long(), y=torch.rand(2, 3)),
            "`toy.y` to be of shape [2], one class for each (or `data.task` multilabel or regression), but got [2, 3].",
        ),
        ([raw()], "`toy` to be a torch_geometric.data.Data but got 'list'."),
        (
            Data(x=[[1.0]], edge_index=torch.zeros(2, 0).long(), y=torch.zeros(1)),
            "`toy.x` to be a tensor but got 'list'.",
        ),
        (
            Data(x=torch.rand(3, 1), edge_index=torch.tensor([[2], [1]]), y=torch.zeros(2)),
            "`toy.y` to be of shape [3], one class for each (or `data.task` multilabel or regression), but got [2].",
        ),
        (
            Data(x=torch.rand(2, 1), edge_index=torch.tensor([[0.9], [1.2]]), y=torch.zeros(2)),
            "`toy.edge_index` to be node numbers of an integer type but got torch.float32.",
        ),
        (
            Data(x=torch.rand(2, 1), edge_index=torch.zeros(2, 0).long(), y=torch.tensor([0, torch.inf])),
            "`toy.y` to be whole numbers, one class each (or `data.task` regression), but got others.",
        ),
        (
            Data(x=torch.rand(2, 1).cfloat(), edge_index=torch.zeros(2, 0).long(), y=torch.zeros(2)),
            "`toy.x` to be of real numbers but got torch.complex64.",
        ),
        (
            Data(x=torch.rand(2, 1), edge_index=torch.zeros(2, 0).long(), y=torch.tensor([0.5, 1])),
            "`toy.y` to be whole numbers, one class each (or `data.task` regression), but got others.",
        ),
        (
            Data(x=torch.rand(2, 1), edge_index=torch.zeros(3).long(), y=torch.tensor([0, 1])),
            "`toy.edge_index` to be of shape [2, E] but got [3].",
        ),
        (
            Data(x=torch.rand(2, 1), edge_index=torch.tensor([[-1], [0]]), y=torch.tensor([0, 1])),
            "`toy.edge_index` to be edges between nodes 0 to 1 but got [-1, 0].",
        ),
    ],
)
def test_from_pyg_refuses(data: Data, message: str) -> None:
    with pytest.raises(InputError) as caught:
        NodeGraph.from_pyg(data, "toy")
    assert str(caught.value) == f"Expected {message}"


def test_labels_may_be_whole_floats() -> None:
    data = raw(3, 4)
    data.y = torch.tensor([0.0, 2.0, 1.0])
    y: Tensor = NodeGraph.from_pyg(data).y
    assert y.tolist() == [0, 2, 1]
