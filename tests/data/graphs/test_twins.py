"""Batches of graphs with many twins against the same batches without."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from flgraph.data import FlatGraphs, read_tu
from flgraph.data.graphs.container import WIDE
from flgraph.data.graphs.lazy import LazyStorage
from flgraph.data.graphs.twins import Twins
from flgraph.models import GNN, FedStar
from flgraph.nn import OneHot, TwinAdjacency, make_conv

INDEX = [[0, 1, 2, 3, 4, 5, 6], [6, 0], [2], [3, 3, 1, 3], [4, 0, 4], [5]]


def dense_and_sparse() -> list[Data]:
    """Cliques, a path, single nodes, a graph without edges, and one between."""
    matrices = [
        ~torch.eye(12, dtype=torch.bool),
        torch.zeros(1, 1, dtype=torch.bool),
        torch.diag(torch.ones(8), 1).bool() | torch.diag(torch.ones(8), -1).bool(),
        torch.zeros(4, 4, dtype=torch.bool),
        torch.block_diag(~torch.eye(9, dtype=torch.bool), torch.zeros(1, 1), ~torch.eye(15, dtype=torch.bool)).bool(),
        ~torch.eye(2, dtype=torch.bool),
        torch.rand(20, 20, generator=torch.Generator().manual_seed(0)) < 0.3,
    ]
    matrices[-1] = (matrices[-1] | matrices[-1].t()).fill_diagonal_(False)
    generator = torch.Generator().manual_seed(1)
    dataset = []
    for number, a in enumerate(matrices):
        order = torch.randperm(a.size(0), generator=generator)
        x, s = torch.randn(a.size(0), 3, generator=generator), torch.randn(a.size(0), 2, generator=generator)
        dataset.append(Data(x=x, edge_index=a[order][:, order].nonzero().t(), y=torch.tensor([number % 2]), s=s))
    return dataset


def flatten(dataset: list[Data], twins: bool | None = None) -> FlatGraphs:
    flat = FlatGraphs.from_pyg(dataset, "toy").with_tensors({"s": torch.cat([data.s for data in dataset])})
    return flat if twins is None else force(flat, twins)


def force(flat: FlatGraphs, twins: bool) -> FlatGraphs:
    """The same graphs, with twins whether they pay or not, or without."""
    same = flat.with_tensors({})
    same.twins = Twins.find(flat.edge_index, flat.node_ptr, flat.edge_ptr) if twins else None
    assert twins == (same.twins is not None)
    return same


def pending(batch: Batch) -> bool:
    return isinstance(batch._store, LazyStorage) and "edge_index" in batch._store._later


@pytest.mark.parametrize("index", INDEX)
def test_batch_is_pygs(index: list[int]) -> None:
    dataset = dense_and_sparse()
    flat = flatten(dataset, twins=True)
    assert Twins.find(flat.edge_index, flat.node_ptr, flat.edge_ptr) is not None
    for batch in (flat.batch(torch.tensor(index)), force(flat.select(index), True).batch()):
        theirs = Batch.from_data_list([dataset[number] for number in index])
        assert pending(batch)
        for key in ("x", "edge_index", "y", "batch", "ptr", "s"):
            assert batch[key].dtype == theirs[key].dtype, key
            assert torch.equal(batch[key], theirs[key]), key
        assert (batch.num_graphs, batch.num_nodes, batch.num_edges) == (
            theirs.num_graphs,
            theirs.num_nodes,
            theirs.num_edges,
        )
        for one, two in zip(batch.to_data_list(), theirs.to_data_list(), strict=True):
            for key in ("x", "edge_index", "y", "s"):
                assert torch.equal(one[key], two[key]), key


@pytest.mark.parametrize("step", [1, 40, 1 << 21])
def test_graphs_may_be_looked_at_in_parts(step: int) -> None:
    flat = flatten(dense_and_sparse())
    whole = Twins.find(flat.edge_index, flat.node_ptr, flat.edge_ptr)
    parts = Twins.find(flat.edge_index.int(), flat.node_ptr, flat.edge_ptr, step)
    assert whole is not None
    assert parts is not None
    for name, value in vars(whole).items():
        other = getattr(parts, name)
        assert torch.equal(value, other) if isinstance(value, Tensor) else value == other, name


def test_used_where_they_pay() -> None:
    clique, path = dense_and_sparse()[0], dense_and_sparse()[2]
    assert isinstance(flatten([clique, clique]).batch().adj, TwinAdjacency)
    assert flatten([path, path]).twins is None
    flat = flatten([clique, path, clique])
    batch = flat.batch()
    assert isinstance(batch.adj, TwinAdjacency)
    assert flat.nbytes > flatten([clique, path, clique], twins=False).nbytes
    assert flat.with_tensors({}).twins is flat.twins
    moved = flat.to("meta")
    assert moved.twins is not None
    assert moved.twins.neighbour.device.type == "meta"


def test_graphs_that_have_no_twins() -> None:
    a = ~torch.eye(12, dtype=torch.bool)
    directed, looped = a.clone(), a.clone()
    directed[0, 1] = False
    looped[3, 3] = True
    x, y, s = torch.ones(12, 1), torch.tensor([0]), torch.ones(12, 2)
    twice = torch.cat([a.nonzero().t(), a.nonzero().t()], dim=1)
    for edge_index in (directed.nonzero().t(), looped.nonzero().t(), twice):
        flat = flatten([Data(x=x, edge_index=edge_index, y=y, s=s), dense_and_sparse()[0].update({"x": x})])
        assert flat.twins is None
        assert not isinstance(flat.batch().adj, TwinAdjacency)
        assert flat.batch().num_edges == edge_index.size(1) + 132
    # The last edge of one graph and the first of the next may look the same.
    pair = Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0, 1], [1, 0]]), y=y, s=torch.ones(2, 2))
    half = Data(x=torch.ones(2, 1), edge_index=torch.tensor([[1, 0], [0, 1]]), y=y, s=torch.ones(2, 2))
    flat = flatten([pair, half, half])
    assert Twins.find(flat.edge_index, flat.node_ptr, flat.edge_ptr) is not None
    assert flatten(dense_and_sparse()).select([]).twins is None


@pytest.mark.parametrize("model", [GNN, FedStar])
@pytest.mark.parametrize("conv", ["gin", "gcn", "sage"])
@pytest.mark.parametrize("pool", ["sum", "max"])
def test_models_compute_the_same(model: type[GNN] | type[FedStar], conv: str, pool: str) -> None:
    flat = flatten(dense_and_sparse())
    sizes = {"structure_channels": 2, "feature_conv": conv} if model is FedStar else {"conv": conv}
    module = model(in_channels=3, num_classes=2, hidden_channels=8, dropout=0.0, pool=pool, **sizes).double()  # type: ignore[arg-type]
    results = []
    for twins in (True, False):
        batch = force(flat, twins).batch(torch.tensor([6, 0, 1, 4, 2, 3]))
        loss = module.training_step(batch)
        results.append([loss, *torch.autograd.grad(loss, module.parameters())])
        assert pending(batch) == twins
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("model", [GNN, FedStar])
@pytest.mark.parametrize("conv", ["gin", "gcn", "sage"])
def test_wide_one_hots_are_not_made_tensors(model: type[GNN] | type[FedStar], conv: str) -> None:
    flat = flatten(dense_and_sparse())
    generator = torch.Generator().manual_seed(0)
    flat.x = torch.eye(WIDE, dtype=torch.uint8)[torch.randint(WIDE, (flat.num_nodes,), generator=generator)]
    plain = flat.with_tensors({})
    plain.one_hot = None
    sizes = {"structure_channels": 2, "feature_conv": conv} if model is FedStar else {"conv": conv}
    module = model(in_channels=WIDE, num_classes=2, hidden_channels=8, dropout=0.0, **sizes).double()  # type: ignore[arg-type]
    results = []
    for graphs in (flat, plain):
        batch = graphs.batch(torch.tensor([6, 0, 1, 4, 2, 3]))
        batch = module.transfer_batch_to_device(batch, torch.device("cpu"), 0)
        loss = module.training_step(batch)
        results.append([loss, *torch.autograd.grad(loss, module.parameters())])
        assert isinstance(module.features(graphs.batch()), OneHot) == (graphs is flat)
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs)
    index = torch.tensor([3, 0])
    assert torch.equal(flat.batch(index).x, plain.batch(index).x)
    assert flat.batch(index).x.dtype == torch.float32
    assert flat.batch(index).num_features == WIDE
    # Once somebody has the tensor, and may change it, it is what counts.
    batch = flat.batch(index)
    batch.x.zero_()
    changed = module(batch)
    same = plain.batch(index)
    same.x.zero_()
    torch.testing.assert_close(changed, module(same))
    moved = module.transfer_batch_to_device(flat.batch(index), torch.device("meta"), 0)
    assert moved.x.device.type == "meta"


@pytest.mark.parametrize("change", ["two", "none", "count", "negative", "float", "narrow"])
def test_other_features_are_made_tensors(change: str) -> None:
    flat = flatten(dense_and_sparse())
    flat.x = torch.eye(WIDE, dtype=torch.int8)[torch.arange(flat.num_nodes) % WIDE]
    assert flat.with_tensors({}).one_hot is not None
    row = {"two": [1, 1], "none": [0, 0], "count": [2, 0], "negative": [1, -1]}.get(change)
    if row:
        flat.x[5] = 0
        flat.x[5, :2] = torch.tensor(row, dtype=torch.int8)
    flat.x = flat.x.float() if change == "float" else flat.x[:, :-1] if change == "narrow" else flat.x
    if change == "narrow":
        flat.x[flat.x.sum(1) == 0, 0] = 1
    assert flat.one_hot is None
    assert torch.equal(flat.batch().x, flat.x.float())


# ------------------------------------------------------------------------------------------------- edges made later
def test_moving_a_batch_does_not_make_its_edges() -> None:
    flat = flatten(dense_and_sparse(), twins=True)
    expected, batch = flat.batch().edge_index, flat.batch()
    assert pending(batch.to("cpu"))
    assert pending(batch.contiguous())
    assert torch.equal(batch.edge_index, expected)
    assert not pending(batch)
    moved = flat.batch().to("meta")
    assert pending(moved)
    assert moved.edge_index.device.type == "meta"
    assert moved.adj.classes.device.type == "meta"


def test_whatever_looks_at_a_whole_batch_makes_its_edges() -> None:
    flat = flatten(dense_and_sparse(), twins=True)
    expected = flat.batch().edge_index
    for same in (copy.copy(flat.batch()), copy.deepcopy(flat.batch()), pickle.loads(pickle.dumps(flat.batch()))):
        assert torch.equal(same.edge_index, expected)
    assert "edge_index" in flat.batch()
    assert "edge_index" in flat.batch().keys()  # noqa: SIM118 - another method
    assert torch.equal(flat.batch().to_dict()["edge_index"], expected)
    assert torch.equal(flat.batch().get("edge_index"), expected)
    assert f"edge_index=[2, {expected.size(1)}]" in str(flat.batch())
    assert flat.batch().clone().num_edges == expected.size(1)
    doubled = flat.batch().apply(lambda tensor: tensor * 2, "edge_index")
    assert torch.equal(doubled.edge_index, 2 * expected)


def test_edges_can_be_replaced_or_removed_before_they_are_made() -> None:
    flat, other = flatten(dense_and_sparse(), twins=True), torch.tensor([[0], [1]])
    batch = flat.batch()
    batch.edge_index = other
    assert torch.equal(batch.edge_index, other)
    batch = flat.batch()
    del batch.edge_index
    assert batch.edge_index is None
    batch = flat.batch()
    batch.edge_index = None
    assert "edge_index" not in batch


# --------------------------------------------------------------------------------------------------------- real data
@pytest.mark.parametrize("name", ["IMDB-BINARY", "IMDB-MULTI", "PROTEINS"])
def test_real_data(data_root: Path, name: str) -> None:
    flat = read_tu(name, str(data_root))
    assert (flat.twins is not None) == (name != "PROTEINS")
    index = torch.randperm(len(flat), generator=torch.Generator().manual_seed(1))[:128]
    ours, theirs = force(flat, True).batch(index), force(flat, False).batch(index)
    x = torch.randn(ours.num_nodes, 6, dtype=torch.double)
    for conv in (make_conv(kind, 6, 4).double() for kind in ("gin", "gcn", "sage")):
        results = []
        for batch in (ours, theirs):
            out = conv(x, batch.adj)
            results.append([out, *torch.autograd.grad(out.square().mean(), conv.parameters())])
        for mine, other in zip(*results, strict=True):
            torch.testing.assert_close(mine, other)
    assert torch.equal(ours.edge_index, theirs.edge_index)
    assert torch.equal(ours.adj.rowptr, theirs.adj.rowptr)
    assert torch.equal(ours.adj.degree, theirs.adj.degree)
