"""Flat graphs against PyG's own batches."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from flgraph.data.graphs.container import FlatGraphs, edge_order
from flgraph.errors import InputError

INDEX = [[0, 1, 2, 3, 4, 5], [5, 0], [2], [3, 3, 1, 3], [4, 0, 4]]


def make_dataset(undirected: bool, shuffle: bool = False) -> list[Data]:
    """Graphs of 6, 1, 9, 4, 2 and 12 nodes; graph 3 has no edge."""
    generator = torch.Generator().manual_seed(1)
    dataset = []
    for number, n in enumerate((6, 1, 9, 4, 2, 12)):
        a = torch.rand(n, n, generator=generator) < (0.0 if number == 3 else 0.35)
        if undirected:
            a = a.triu(1) | a.triu(1).T
        edge_index = a.nonzero().T
        if shuffle:
            edge_index = edge_index[
                :, torch.randperm(edge_index.size(1), generator=torch.Generator().manual_seed(number))
            ]
        x, s = torch.randn(n, 3, generator=generator), torch.randn(n, 2, generator=generator)
        dataset.append(Data(x=x, edge_index=edge_index, y=torch.tensor([number % 3]), s=s, g=x.sum().view(1, 1)))
    return dataset


def flatten(dataset: list[Data], int32: bool = False) -> FlatGraphs:
    flat = FlatGraphs.from_pyg(dataset, "toy")
    return FlatGraphs(
        flat.x,
        flat.edge_index.int() if int32 else flat.edge_index,
        flat.y,
        flat.node_ptr,
        flat.edge_ptr,
        name="toy",
        node_tensors={"s": torch.cat([data.s for data in dataset])},
        graph_tensors={"g": torch.cat([data.g for data in dataset])},
    )


def assert_same_batch(ours: Batch, theirs: Batch) -> None:
    for key in ("x", "edge_index", "y", "batch", "ptr", "s", "g"):
        assert ours[key].dtype == theirs[key].dtype, key
        assert torch.equal(ours[key], theirs[key]), key
    assert ours.num_graphs == theirs.num_graphs
    assert ours.num_nodes == theirs.num_nodes
    for one, two in zip(ours.to_data_list(), theirs.to_data_list(), strict=True):
        for key in ("x", "edge_index", "y", "s", "g"):
            assert torch.equal(one[key], two[key]), key


@pytest.mark.parametrize("index", INDEX)
@pytest.mark.parametrize("int32", [False, True])
@pytest.mark.parametrize("undirected", [False, True])
def test_batch_is_pygs(index: list[int], int32: bool, undirected: bool) -> None:
    dataset = make_dataset(undirected)
    flat = flatten(dataset, int32)
    assert flat.undirected == undirected
    batch = flat.batch(torch.tensor(index))
    assert_same_batch(batch, Batch.from_data_list([dataset[number] for number in index]))
    assert_same_batch(flat.select(index).batch(), Batch.from_data_list([dataset[number] for number in index]))
    for number in range(len(index)):
        assert torch.equal(batch[number].x, dataset[index[number]].x)


@pytest.mark.parametrize("undirected", [False, True])
def test_adjacency_sum(undirected: bool) -> None:
    batch = flatten(make_dataset(undirected), int32=True).batch(torch.tensor([2, 5, 3, 2]))
    n = batch.num_nodes
    dense = torch.zeros(n, n)
    dense[batch.edge_index[1], batch.edge_index[0]] = 1.0  # row: receiver, column: sender
    x = torch.randn(n, 5, requires_grad=True)
    out = batch.adj.sum(x)
    torch.testing.assert_close(out, dense @ x)
    weight = torch.randn(n, 5)
    (grad,) = torch.autograd.grad((out * weight).sum(), x)
    torch.testing.assert_close(grad, dense.T @ weight)
    torch.testing.assert_close(batch.adj.degree, dense.sum(dim=1, keepdim=True))


def test_from_pyg_sorts() -> None:
    sorted_edges = flatten(make_dataset(undirected=False))
    shuffled = flatten(make_dataset(undirected=False, shuffle=True))
    assert torch.equal(sorted_edges.edge_index, shuffled.edge_index)
    edge_index = torch.tensor([[1, 0, 0, 1, 0], [0, 1, 0, 1, 0]], dtype=torch.int32)
    expected = [[0, 0, 1, 0, 1], [0, 1, 0, 0, 1]]
    order = edge_order(edge_index, torch.tensor([0, 2, 4]), torch.tensor([0, 3, 5]))
    assert edge_index[:, order].tolist() == expected


def test_whole_numbers_become_float_in_batches() -> None:
    flat = flatten(make_dataset(True))
    flat.x = torch.ones(flat.num_nodes, 4, dtype=torch.uint8)
    flat.node_tensors["s"] = torch.ones(flat.num_nodes, 1, dtype=torch.bool)
    assert flat.batch().x.dtype == flat.batch().s.dtype == flat[0].x.dtype == flat[0].s.dtype == torch.float32
    assert flat.select([1, 2]).x.dtype == torch.uint8


def test_items_and_properties() -> None:
    dataset = make_dataset(False)
    flat = flatten(dataset, int32=True)
    for number in (0, 3, -1):
        for key in ("x", "edge_index", "y", "s", "g"):
            assert torch.equal(flat[number][key], dataset[number][key])
    with pytest.raises(IndexError):
        flat[6]
    assert (len(flat), flat.num_nodes, flat.num_features, flat.num_classes) == (6, 34, 3, 3)
    degrees = [torch.bincount(data.edge_index[0], minlength=data.num_nodes) for data in dataset]
    assert torch.equal(flat.degrees(), torch.cat(degrees))
    tensors: list[Tensor] = [flat.x, flat.edge_index, flat.y, flat.node_ptr, flat.edge_ptr]
    tensors += [flat.node_tensors["s"], flat.graph_tensors["g"]]
    assert flat.nbytes == sum(tensor.nbytes for tensor in tensors)
    assert str(flat).startswith("FlatGraphs(toy: 6 graphs, 34 nodes, ")


def test_to() -> None:
    flat = flatten(make_dataset(False))
    assert flat.to("cpu") is flat
    moved = flat.to("meta")
    assert moved.x.device.type == moved.edge_index.device.type == moved.node_tensors["s"].device.type == "meta"
    assert moved.undirected == flat.undirected
    batch = flat.batch()
    assert batch.to("cpu").adj is not None


@pytest.mark.parametrize(
    "device",
    ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))],
)
def test_batch_on_device(device: str) -> None:
    dataset = make_dataset(False)
    flat = flatten(dataset, int32=True).to(device)
    batch = flat.batch(torch.tensor([3, 1, 5], device=device))
    assert batch.x.device.type == device
    assert_same_batch(batch.cpu(), Batch.from_data_list([dataset[number] for number in (3, 1, 5)]))


def test_select_of_nothing() -> None:
    assert len(flatten(make_dataset(True)).select([])) == 0


# ------------------------------------------------------------------------------------------------------------ errors
def toy(**changes: object) -> Data:
    fields: dict[str, object] = {"x": torch.ones(2, 1), "edge_index": torch.tensor([[0], [1]]), "y": torch.tensor([0])}
    return Data(**{**fields, **changes})


@pytest.mark.parametrize(
    ("dataset", "sentence"),
    [
        ([], "Expected `toy` to be one graph or more but got none"),
        (
            [toy(x=torch.ones(0, 1), edge_index=torch.empty(2, 0).long())] * 2,
            "Expected `toy` to be graphs with nodes but got none with any",
        ),
        ([toy(), toy(x=None)], "Expected `toy.x` to be a tensor but got None in graph 1"),
        ([toy(y=None)], "Expected `toy.y` to be a tensor but got None in graph 0"),
        (
            [toy(y=torch.tensor([0, 1]))],
            "Expected `toy.y` to be one class .* but got 2 values in graph 0",
        ),
        ([toy(y=torch.tensor([0.5]))], "Expected `toy.y` to be whole numbers"),
        ([toy(y=torch.tensor([-1]))], "Expected `toy.y` to be 0 or more but got -1"),
        ([toy(y=torch.tensor([10**9]))], "Expected `toy.y` to be classes below 100000 but got 1000000000"),
        (
            [toy(), toy(x=torch.ones(2, 3))],
            r"Expected `toy.x` to be of equally many features in all graphs but got \[1, 3\]",
        ),
        ([toy(x=torch.ones(2, 1) * 1j)], "`toy.x` to be a dense tensor of real numbers but got torch.complex64"),
        ([toy(x=torch.ones(2, 1).to_sparse())], "`toy.x` to be a dense tensor .* torch.sparse_coo in graph 0"),
        ([toy(), toy(x=torch.tensor([[1.0], [float("nan")]]))], "to be finite but got NaN or infinity in graph 1"),
        (
            [toy(), toy(edge_index=torch.tensor([[0], [2]]))],
            r"`toy.edge_index` to be edges between nodes 0 to 1 but got \[0, 2\] in graph 1",
        ),
        (
            [toy(), toy(edge_index=torch.tensor([[0.0], [1.0]]))],
            r"`toy.edge_index` to be node numbers of an integer type but got torch.float32 in graph 1",
        ),
        ([toy(edge_index=torch.empty(0))], r"`toy.edge_index` to be of shape \[2, E\] but got \[0\] in graph 0"),
        (
            [toy(edge_index=torch.zeros(3, 2).long())],
            r"`toy.edge_index` to be of shape \[2, E\] but got \[3, 2\] in graph 0",
        ),
        ([toy(y=torch.tensor([float("inf")]))], "Expected `toy.y` to be whole numbers"),
        (
            [toy(edge_index=torch.tensor([[-1], [0]]))],
            r"`toy.edge_index` to be edges between nodes 0 to 1 but got \[-1, 0\] in graph 0",
        ),
    ],
)
def test_errors(dataset: list[Data], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        FlatGraphs.from_pyg(dataset, "toy")


def test_a_graph_without_edges_may_have_them_of_any_type() -> None:
    """As `torch.empty(2, 0)` makes them."""
    graphs = FlatGraphs.from_pyg([toy(edge_index=torch.empty(2, 0)), toy()], "toy")
    assert graphs.edge_index.tolist() == [[0], [1]]
    assert graphs.edge_index.dtype == torch.long


def test_errors_of_tensors() -> None:
    flat = flatten(make_dataset(True))
    parts = (flat.x, flat.edge_index, flat.y, flat.node_ptr, flat.edge_ptr)
    with pytest.raises(InputError, match=r"Expected `g.s` to be of 34 rows but got 3"):
        FlatGraphs(*parts, name="g", node_tensors={"s": torch.ones(3, 1)})
    with pytest.raises(InputError, match=r"Expected `graphs.edge_index` to be of shape \[2, E\] but got"):
        FlatGraphs(flat.x, flat.edge_index[0], *parts[2:])
    one_way = FlatGraphs.from_pyg([toy(x=torch.ones(3, 1), edge_index=torch.tensor([[0, 1], [1, 2]]))], "g")
    x, edges, *rest = one_way.x, one_way.edge_index, one_way.y, one_way.node_ptr, one_way.edge_ptr
    with pytest.raises(InputError, match="to be sorted by source and target but got edges that are not"):
        FlatGraphs(x, edges.flip(1), *rest, name="g")
    with pytest.raises(InputError, match="both directions, as `undirected` says, but got edges in one"):
        FlatGraphs(x, edges, *rest, name="g", undirected=True)
    for wrong in (0, 2, 3, 4):
        cut = [part[:-1] if number == wrong else part for number, part in enumerate(parts)]
        with pytest.raises(
            InputError,
            match=r"`graphs.(node|edge)_ptr` to be (rising from 0 to|of shape \[\d+\] and int64)",
        ):
            FlatGraphs(*cut)
