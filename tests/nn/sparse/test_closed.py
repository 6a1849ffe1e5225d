"""Layers in bfloat16 against dense formulas in float64."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from flgraph.nn import Adjacency, GCNConv, GINConv, OneHot, WeightedAdjacency
from flgraph.nn.sparse.twins import TwinAdjacency

pytestmark = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="a processor without bf16 instructions"
)
NODES = 300


def random_matrix(symmetric: bool, loops: bool) -> Tensor:
    a = torch.rand(NODES, NODES) < 0.01
    a = a | a.t() if symmetric else a
    a[:10, :10] = ~torch.eye(10, dtype=torch.bool)  # twins
    return a if loops else a.fill_diagonal_(False)


def made(a: Tensor, kind: str) -> Adjacency:
    receiver, sender = a.nonzero().t()
    if kind == "directed":
        return Adjacency.from_edges(torch.stack([sender, receiver]), NODES)
    make = TwinAdjacency if kind == "twins" else Adjacency
    return make.from_sorted(torch.stack([receiver, sender]), NODES, symmetric=True)


def dense_gin(conv: GINConv, a: Tensor, x: Tensor) -> Tensor:
    return conv.lin2(torch.relu(conv.lin1((a + torch.eye(NODES)) @ x)))


def dense_gcn(conv: GCNConv, a: Tensor, x: Tensor) -> Tensor:
    closed = a.clone().fill_diagonal_(1)
    scale = closed.sum(1).rsqrt()
    return scale.unsqueeze(1) * closed * scale @ conv.lin(x) + conv.bias


@pytest.mark.parametrize("kind", ["symmetric", "directed", "twins", "no edges"])
@pytest.mark.parametrize("conv", [GINConv, GCNConv])
@pytest.mark.parametrize("first", ["one input", "two inputs", "maps before", "one-hots"])
def test_dense(kind: str, conv: type[GINConv | GCNConv], first: str) -> None:
    torch.manual_seed(0)
    a = random_matrix(kind != "directed", loops=kind != "twins") & (kind != "no edges")
    adj = made(a, kind)
    layer = conv(12, 8)
    x, extra, before = torch.randn(NODES, 12).bfloat16().float(), None, []
    given = x
    if first == "two inputs":
        given, extra = x[:, :7], x[:, 7:]
    elif first in ("maps before", "one-hots"):
        before = [torch.nn.Linear(12, 7), torch.nn.Linear(12, 5)]
        extra = x
        if first == "one-hots":
            given = OneHot(torch.randint(12, (NODES,)), 12)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(given, adj, extra, before=before, activation="tanh")
    layers = torch.nn.ModuleList([layer, *before])
    found = torch.autograd.grad(out.float().square().sum(), list(layers.parameters()))
    exact = copy.deepcopy(layers).double()
    rows = (given() if isinstance(given, OneHot) else x).double()
    if before:
        rows = torch.cat([exact[1](rows), exact[2](x.double())], dim=1)
    dense = dense_gin if conv is GINConv else dense_gcn
    expected = torch.tanh(dense(exact[0], a.double(), rows))
    gradients = torch.autograd.grad(expected.square().sum(), list(exact.parameters()))
    for mine, theirs in zip([out, *found], [expected, *gradients], strict=True):
        assert float((mine.double() - theirs).detach().norm()) <= 0.03 * float(theirs.detach().norm())


def test_weights_and_their_transpose() -> None:
    torch.manual_seed(0)
    pattern = random_matrix(symmetric=True, loops=True)
    weights = torch.rand(NODES, NODES) * pattern
    row, col = pattern.nonzero().t()
    rowptr = torch.cat([torch.zeros(1, dtype=torch.long), pattern.sum(1).cumsum(0)])
    adj = WeightedAdjacency(rowptr, col, weights[row, col], weights.t()[row, col])
    conv = GINConv(12, 8)
    x = torch.randn(NODES, 12).bfloat16().float().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        out = conv(x, adj)
    found = torch.autograd.grad(out.float().square().sum(), [x, *conv.parameters()])
    exact, y = copy.deepcopy(conv).double(), x.detach().double().requires_grad_()
    expected = dense_gin(exact, weights.double(), y)
    gradients = torch.autograd.grad(expected.square().sum(), [y, *exact.parameters()])
    for mine, theirs in zip([out, *found], [expected, *gradients], strict=True):
        assert float((mine.double() - theirs).detach().norm()) <= 0.03 * float(theirs.detach().norm())


def test_twins_are_dropped_one_by_one() -> None:
    torch.manual_seed(0)
    clique = ~torch.eye(NODES, dtype=torch.bool)
    conv, x = GINConv(12, 8), torch.ones(NODES, 12)
    torch.nn.init.ones_(conv.lin2.bias)
    for dtype in (torch.float32, torch.bfloat16):
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            out = conv(x, made(clique, "twins"), activation="relu_dropout")
            plain = conv(x, made(clique, "twins"), activation="relu")
        share = (out > 0).float().mean(dim=0)
        assert ((share > 0.3) & (share < 0.7))[plain[0] > 0].all()
