from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch_geometric import nn as pyg

from flgraph.nn import Adjacency, SAGEConv, SparseSAGEConv

RANDOM = torch.randint(30, (2, 80), generator=torch.Generator().manual_seed(3))
LITERAL = torch.tensor([[0, 1, 1, 2, 2], [1, 0, 2, 1, 3]])


def test_hand_worked() -> None:
    conv = SAGEConv(1, 1)
    with torch.no_grad():
        conv.lin_l.weight.fill_(2.0)
        conv.lin_r.weight.fill_(10.0)
        conv.lin_r.bias.fill_(1.0)
    out = conv(torch.tensor([[1.0], [2.0], [3.0], [4.0], [5.0]]), Adjacency.from_edges(LITERAL, 5))
    # Means of senders: 2, (1 + 3) / 2, 2, 3, none.
    assert out.flatten().tolist() == [15.0, 25.0, 35.0, 47.0, 51.0]


@pytest.mark.parametrize(("edges", "nodes"), [(LITERAL, 5), (RANDOM, 30), (LITERAL[:, :0], 4)])
def test_equals_pyg(edges: Tensor, nodes: int, assert_like_pyg: Callable[..., None]) -> None:
    torch.manual_seed(0)
    conv, twin = SAGEConv(6, 3).double(), pyg.SAGEConv(6, 3).double()
    pairs = [
        (conv.lin_l.weight, twin.lin_l.weight),
        (conv.lin_r.bias, twin.lin_l.bias),
        (conv.lin_r.weight, twin.lin_r.weight),
    ]
    with torch.no_grad():
        for ours, theirs in pairs:
            theirs.copy_(ours)
    assert_like_pyg(conv, twin, edges, nodes, pairs)


@pytest.mark.parametrize("conv", [SAGEConv(1, 1), SparseSAGEConv(1, 1)])
def test_a_mean_fits_where_its_sum_does_not(conv: SAGEConv | SparseSAGEConv) -> None:
    """A hub of 5,000 neighbours of value 20: float16 holds no more than 65,504."""
    with torch.no_grad():
        for parameter in conv.parameters():
            parameter.fill_(1.0)
    edges = torch.stack([torch.arange(1, 5001), torch.zeros(5000, dtype=torch.long)])
    x, adj = torch.full((5001, 1), 20.0, dtype=torch.float16), Adjacency.from_edges(edges, 5001)
    conv = conv.half()
    out = conv(x, adj) if isinstance(conv, SAGEConv) else conv([x], adj)
    assert out[:2].flatten().tolist() == [41.0, 21.0]


def test_repr() -> None:
    assert str(SAGEConv(8, 4)) == "SAGEConv(8, 4)"


@pytest.mark.parametrize(("edges", "nodes"), [(LITERAL, 5), (RANDOM, 30), (LITERAL[:, :0], 4)])
def test_of_sparse_blocks_equals_pyg(edges: Tensor, nodes: int) -> None:
    """The first rows sparse, the others dense."""
    torch.manual_seed(0)
    conv, twin = SparseSAGEConv(6, 3), pyg.SAGEConv(6, 3)
    with torch.no_grad():
        twin.lin_r.weight.copy_(conv.weight[:, :3].t())
        twin.lin_l.weight.copy_(conv.weight[:, 3:].t())
        twin.lin_l.bias.copy_(conv.bias)
    x = torch.randn(nodes, 6) * (torch.rand(nodes, 6) < 0.4)
    last = x[nodes - 2 :].clone().requires_grad_()
    y = x.clone().requires_grad_()
    out = conv([x[: nodes - 2].to_sparse_csr(), last], Adjacency.from_edges(edges, nodes))
    expected = twin(y, edges)
    torch.testing.assert_close(out, expected)
    out.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(conv.weight.grad, torch.cat([twin.lin_r.weight.grad.t(), twin.lin_l.weight.grad.t()], 1))
    torch.testing.assert_close(conv.bias.grad, twin.lin_l.bias.grad)
    torch.testing.assert_close(last.grad, y.grad[nodes - 2 :])
    assert str(conv) == "SparseSAGEConv(6, 3)"
