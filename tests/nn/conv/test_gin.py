from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import Linear, ReLU, Sequential
from torch_geometric import nn as pyg

from flgraph.errors import InputError
from flgraph.nn import Adjacency, ConcatLinear, GCNConv, GINConv, SAGEConv, make_conv

# Nodes 0-1-2 in a path, 3 with one arrow from 2, 4 alone.
LITERAL = torch.tensor([[0, 1, 1, 2, 2], [1, 0, 2, 1, 3]])


def random_edges(nodes: int = 30, edges: int = 80) -> Tensor:
    return torch.randint(nodes, (2, edges), generator=torch.Generator().manual_seed(3))


def pyg_twin(conv: GINConv) -> pyg.GINConv:
    first, second = Linear(conv.in_channels, conv.hidden_channels), Linear(conv.hidden_channels, conv.out_channels)
    twin = pyg.GINConv(Sequential(first, ReLU(), second)).double()  # draws new weights
    first.load_state_dict(conv.lin1.state_dict())
    second.load_state_dict(conv.lin2.state_dict())
    return twin


def test_hand_worked() -> None:
    conv = GINConv(1, 1)
    with torch.no_grad():
        for parameter, value in zip(conv.parameters(), (2.0, -5.0, 10.0, 1.0), strict=True):
            parameter.fill_(value)
    out = conv(torch.tensor([[1.0], [2.0], [3.0], [4.0], [0.0]]), Adjacency.from_edges(LITERAL, 5))
    # Sums with oneself: 3, 6, 5, 7, 0; twice that minus 5: 1, 7, 5, 9, -5; ReLU, times 10, plus 1.
    assert out.flatten().tolist() == [11.0, 71.0, 51.0, 91.0, 1.0]


@pytest.mark.parametrize(("edges", "nodes"), [(LITERAL, 5), (random_edges(), 30), (LITERAL[:, :0], 4)])
def test_equals_pyg(edges: Tensor, nodes: int, assert_like_pyg: Callable[..., None]) -> None:
    torch.manual_seed(0)
    conv = GINConv(6, 3, hidden_channels=4).double()
    twin = pyg_twin(conv)
    assert_like_pyg(conv, twin, edges, nodes, zip(conv.parameters(), twin.parameters(), strict=True))


@pytest.mark.parametrize("kind", ["gin", "gcn", "sage"])
def test_extra_stands_to_the_right(kind: str) -> None:
    torch.manual_seed(0)
    adj = Adjacency.from_edges(random_edges(), 30)
    one = make_conv(kind, 7, 3).double()
    two = copy.deepcopy(one)
    x = torch.randn(30, 5, dtype=torch.double, requires_grad=True)
    extra = torch.randn(30, 2, dtype=torch.double, requires_grad=True)
    together = torch.cat([x, extra], dim=1).detach().requires_grad_()
    out, expected = one(x, adj, extra), two(together, adj)
    torch.testing.assert_close(out, expected)
    out.square().sum().backward()
    expected.square().sum().backward()
    assert x.grad is not None
    assert extra.grad is not None
    torch.testing.assert_close(torch.cat([x.grad, extra.grad], dim=1), together.grad)
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize("kind", ["gin", "gcn", "sage"])
def test_gradients(kind: str) -> None:
    torch.manual_seed(0)
    adj = Adjacency.from_edges(LITERAL, 5)
    conv = make_conv(kind, 3, 2).double()
    x = torch.randn(5, 2, dtype=torch.double, requires_grad=True)
    extra = torch.randn(5, 1, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, extra, *_: conv(x, adj, extra), (x, extra, *conv.parameters()))


@pytest.mark.parametrize("kind", ["gin", "gcn", "sage"])
def test_permuted_nodes_give_permuted_rows(kind: str) -> None:
    torch.manual_seed(0)
    edges, x = random_edges(), torch.randn(30, 5, dtype=torch.double)
    order = torch.randperm(30)  # new node i is old node order[i]
    conv = make_conv(kind, 5, 4).double()
    out = conv(x, Adjacency.from_edges(edges, 30))
    permuted = conv(x[order], Adjacency.from_edges(order.argsort()[edges], 30))
    torch.testing.assert_close(permuted, out[order])


@pytest.mark.parametrize("kind", ["gin", "gcn", "sage"])
def test_autocast(kind: str) -> None:
    torch.manual_seed(0)
    adj, x, extra = Adjacency.from_edges(random_edges(), 30), torch.randn(30, 5), torch.randn(30, 3)
    conv = make_conv(kind, 8, 4)
    expected = conv(x, adj, extra)
    with torch.autocast("cpu", torch.bfloat16):
        out = conv(x, adj, extra)
    torch.testing.assert_close(out.float(), expected, atol=0.1, rtol=0.05)
    out.float().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in conv.parameters())


@pytest.mark.parametrize("kind", ["gin", "gcn", "sage"])
def test_reset_parameters(kind: str) -> None:
    torch.manual_seed(0)
    conv = make_conv(kind, 8, 4)
    before = copy.deepcopy(conv.state_dict())
    conv.reset_parameters()
    assert any(not torch.equal(before[name], value) for name, value in conv.state_dict().items())
    torch.manual_seed(1)
    conv.reset_parameters()
    again = copy.deepcopy(conv.state_dict())
    torch.manual_seed(1)
    conv.reset_parameters()
    assert all(torch.equal(again[name], value) for name, value in conv.state_dict().items())


def test_initialised_as_linear() -> None:
    torch.manual_seed(0)
    conv = GINConv(8, 4)
    torch.manual_seed(0)
    expected = [*Linear(8, 4).parameters(), *Linear(4, 4).parameters()]
    assert all(torch.equal(a, b) for a, b in zip(conv.parameters(), expected, strict=True))


def test_concat_linear_alone_is_linear() -> None:
    layer = ConcatLinear(5, 3)
    x = torch.randn(4, 5)
    assert torch.equal(layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias))
    torch.testing.assert_close(layer(x[:, :2], x[:, 2:]), layer(x))


def test_make_conv() -> None:
    for name, kind in (("gin", GINConv), ("gcn", GCNConv), ("sage", SAGEConv)):
        assert type(make_conv(name, 2, 3)) is kind
    with pytest.raises(InputError, match=r"Expected `model.conv` to be one of gcn, gin, sage but got 'gat'\."):
        make_conv("gat", 2, 3, field="model.conv")


def test_repr() -> None:
    assert str(GINConv(8, 4)) == "GINConv(8, 4, hidden_channels=4)"
