from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

from flgraph.data import NodeGraph
from flgraph.nn import Adjacency, GCNConv, SAGEConv

# 0 -> 1, 0 -> 2, 2 -> 1, 3 -> 3; node 4 alone; unsorted.
EDGES = torch.tensor([[2, 0, 3, 0], [1, 2, 3, 1]])
SYMMETRIC = torch.tensor([[0, 0, 1, 1, 2, 2], [1, 2, 0, 2, 0, 1]])


def dense(edges: Tensor, nodes: int) -> Tensor:
    """Row i counts the messages that node i receives from each node."""
    matrix = torch.zeros(nodes, nodes, dtype=torch.double)
    for source, target in edges.t().tolist():
        matrix[target, source] += 1
    return matrix


def test_rows_list_senders() -> None:
    adj = Adjacency.from_edges(EDGES, 5)
    assert adj.rowptr.tolist() == [0, 0, 2, 3, 4, 4]
    assert adj.col.tolist() == [0, 2, 0, 3]
    assert adj.num_nodes == 5
    assert adj.degree.flatten().tolist() == [0.0, 2.0, 1.0, 1.0, 0.0]
    assert str(adj) == "Adjacency(num_nodes=5, num_edges=4)"


@pytest.mark.parametrize(
    "edges",
    [EDGES, SYMMETRIC, EDGES[:, :0], torch.tensor([[0, 0], [1, 1]]), torch.randint(5, (2, 40))],
    ids=["directed", "symmetric", "none", "repeated", "random"],
)
def test_sum_is_the_product_with_the_matrix(edges: Tensor) -> None:
    adj, matrix = Adjacency.from_edges(edges, 5), dense(edges, 5)
    x = torch.randn(5, 3, dtype=torch.double, requires_grad=True)
    out = adj.sum(x)
    torch.testing.assert_close(out, matrix @ x)
    weight = torch.randn(5, 3, dtype=torch.double)
    (out * weight).sum().backward()
    torch.testing.assert_close(x.grad, matrix.t() @ weight)
    assert torch.autograd.gradcheck(adj.sum, (x,))


def test_symmetric_needs_no_transpose() -> None:
    adj = Adjacency.from_sorted(SYMMETRIC, 3, symmetric=True)
    assert adj.transposed is None
    x = torch.randn(3, 2, dtype=torch.double, requires_grad=True)
    torch.testing.assert_close(adj.sum(x), dense(SYMMETRIC, 3) @ x)
    assert torch.autograd.gradcheck(adj.sum, (x,))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_float32(dtype: torch.dtype) -> None:
    # 256 + 1 + ... + 1 would stay 256 in bfloat16.
    star = torch.stack([torch.arange(300), torch.zeros(300, dtype=torch.long)])
    x = torch.ones(300, 1, dtype=dtype)
    x[0] = 256
    out = Adjacency.from_edges(star, 300).sum(x)
    assert out.dtype == dtype
    assert out[0].item() == torch.tensor(555.0).to(dtype).item()


def test_sum_under_autocast() -> None:
    adj, x = Adjacency.from_edges(EDGES, 5), torch.randn(5, 3)
    with torch.autocast("cpu", torch.bfloat16):
        out = adj.sum(x)
    assert torch.equal(out, adj.sum(x))


def test_moving_to_the_same_device_is_free() -> None:
    adj = Adjacency.from_edges(EDGES, 5)
    assert adj.to("cpu") is adj
    moved = adj.to("meta")
    assert moved.col.device.type == "meta"
    assert moved.transposed is not None


def test_what_an_evaluation_made_is_of_use_in_training() -> None:
    """Lightning's sanity check is in inference mode, whose tensors cannot be kept for gradients of gradients."""
    edges = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    graph = NodeGraph.from_pyg(Data(x=torch.eye(3), edge_index=edges, y=torch.arange(3)))
    sage, gcn = SAGEConv(3, 2), GCNConv(3, 2)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        sage(graph.x, graph.adj)
        gcn(graph.x, graph.adj)
    x = graph.x.clone().requires_grad_()
    for conv in (sage, gcn):
        with torch.autocast("cpu", torch.bfloat16):
            conv(x, graph.adj).sum().backward()
    (gradient,) = torch.autograd.grad(sage(x, graph.adj).square().sum(), x, create_graph=True)
    gradient.square().sum().backward()
    assert sage.lin_l.weight.grad is not None


def test_gradients_of_large_graphs_with_edges_in_int32() -> None:
    n = 70_000
    edges = torch.randint(n, (2, 4 * n), generator=torch.Generator().manual_seed(0))
    found = []
    for kind in (torch.int32, torch.int64):
        x = torch.arange(float(n)).view(-1, 1).requires_grad_()
        (Adjacency.from_edges(edges.to(kind), n).sum(x) * torch.arange(float(n)).view(-1, 1)).sum().backward()
        found.append(x.grad)
    assert torch.equal(*found)
