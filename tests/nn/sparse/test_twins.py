"""Sums over classes of twins against the dense matrices that they stand for."""

from __future__ import annotations

import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flgraph.nn import Adjacency, ConcatLinear, GCNConv, GINConv, OneHot, SAGEConv, TwinAdjacency, gcn_norm, make_conv
from flgraph.nn.sparse.twins import find_twins


def cliques(num_nodes: int, num_cliques: int, seed: int) -> Tensor:
    """Symmetric matrix of overlapping random cliques, with nodes in random order; some nodes are in none."""
    generator = torch.Generator().manual_seed(seed)
    a = torch.zeros(num_nodes, num_nodes, dtype=torch.bool)
    for _ in range(num_cliques):
        size = int(torch.randint(1, num_nodes + 1, (1,), generator=generator))
        chosen = torch.randperm(num_nodes, generator=generator)[:size]
        a[chosen.unsqueeze(1), chosen] = True
    return a.fill_diagonal_(False)


def noisy(num_nodes: int, share: float, seed: int) -> Tensor:
    a = torch.rand(num_nodes, num_nodes, generator=torch.Generator().manual_seed(seed)) < share
    return a.triu(1) | a.triu(1).t()


MATRICES = {
    "nothing": torch.zeros(0, 0, dtype=torch.bool),
    "single node": torch.zeros(1, 1, dtype=torch.bool),
    "no edges": torch.zeros(5, 5, dtype=torch.bool),
    "pair": ~torch.eye(2, dtype=torch.bool),
    "clique": ~torch.eye(7, dtype=torch.bool),
    "path": torch.diag(torch.ones(5, dtype=torch.bool), 1) | torch.diag(torch.ones(5, dtype=torch.bool), -1),
    "two cliques": torch.block_diag(~torch.eye(4, dtype=torch.bool), ~torch.eye(3, dtype=torch.bool)).bool(),
    **{f"cliques {seed}": cliques(3 + 2 * seed, 1 + seed % 4, seed) for seed in range(12)},
    **{f"noise {seed}": noisy(2 + seed, 0.1 * seed, seed) for seed in range(1, 10)},
}


@pytest.fixture(params=MATRICES.values(), ids=MATRICES.keys())
def matrix(request: pytest.FixtureRequest) -> Tensor:
    dense: Tensor = request.param
    return dense


def adjacencies(matrix: Tensor) -> tuple[TwinAdjacency, Adjacency]:
    edges, n = matrix.nonzero().t(), matrix.size(0)
    return TwinAdjacency.from_sorted(edges, n), Adjacency.from_sorted(edges, n, symmetric=True)


def test_classes_are_the_equal_closed_neighbourhoods(matrix: Tensor) -> None:
    classes, first = find_twins(matrix.nonzero().t(), matrix.size(0))
    closed = matrix | torch.eye(matrix.size(0), dtype=torch.bool)
    same = (closed.unsqueeze(0) == closed.unsqueeze(1)).all(2)
    assert torch.equal(classes.unsqueeze(0) == classes.unsqueeze(1), same)
    assert torch.equal(first, same.long().argmax(1) == torch.arange(matrix.size(0)) if matrix.numel() else first)
    assert torch.equal(classes[first], torch.arange(int(first.sum())))


def test_equal_sums_alone_make_no_twins(monkeypatch: pytest.MonkeyPatch, matrix: Tensor) -> None:
    # Every number is the same: all nodes of one degree collide.
    monkeypatch.setattr(torch, "randint", lambda *args, **kwargs: torch.ones(args[2], dtype=torch.long))
    classes, _ = find_twins(matrix.nonzero().t(), matrix.size(0))
    closed = matrix | torch.eye(matrix.size(0), dtype=torch.bool)
    together = classes.unsqueeze(0) == classes.unsqueeze(1)
    assert bool((closed.unsqueeze(0) == closed.unsqueeze(1)).all(2)[together].all())


def test_it_is_the_same_matrix(matrix: Tensor) -> None:
    twins, plain = adjacencies(matrix)
    assert twins.num_nodes == plain.num_nodes
    for ours, theirs in (
        (twins.rowptr, plain.rowptr),
        (twins.col, plain.col),
        (twins.degree, plain.degree),
        (twins.matrix(torch.double).to_dense(), matrix.double()),
    ):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)
    for ours, theirs in zip(gcn_norm(twins, torch.double), gcn_norm(plain, torch.double), strict=True):
        torch.testing.assert_close(ours, theirs)
    inner = twins.quotient
    p = (twins.classes.unsqueeze(1) == torch.arange(inner.num_nodes)).double()
    b = inner.matrix(torch.double).to_dense() + torch.eye(inner.num_nodes, dtype=torch.double)
    assert torch.equal(p @ b @ p.t(), matrix.double() + torch.eye(matrix.size(0), dtype=torch.double))


@settings(max_examples=60, deadline=None)
@given(num_nodes=st.integers(1, 14), groups=st.lists(st.sets(st.integers(0, 13), min_size=2), max_size=6))
def test_random_unions_of_cliques(num_nodes: int, groups: list[set[int]]) -> None:
    matrix = torch.zeros(14, 14, dtype=torch.bool)
    for group in groups:
        matrix[torch.tensor([[i] for i in group]), torch.tensor([list(group)])] = True
    matrix = matrix.fill_diagonal_(False)[:num_nodes, :num_nodes]
    twins, plain = adjacencies(matrix)
    assert torch.equal(twins.rowptr, plain.rowptr)
    assert torch.equal(twins.col, plain.col)
    x = torch.randn(num_nodes, 2, dtype=torch.double)
    torch.testing.assert_close(twins.sum(x), matrix.double() @ x)
    test_classes_are_the_equal_closed_neighbourhoods(matrix)


def test_sum_is_the_product_with_the_matrix(matrix: Tensor) -> None:
    twins, _ = adjacencies(matrix)
    x = torch.randn(matrix.size(0), 3, dtype=torch.double, requires_grad=True)
    weight = torch.randn(matrix.size(0), 3, dtype=torch.double)
    out = twins.sum(x)
    torch.testing.assert_close(out, matrix.double() @ x)
    (out * weight).sum().backward()
    torch.testing.assert_close(x.grad, matrix.double() @ weight)
    if x.numel():
        assert torch.autograd.gradcheck(twins.sum, (x,))
        assert torch.autograd.gradgradcheck(lambda v: twins.spread(twins.merge(v)), (x,))


@pytest.mark.parametrize("name", ["gin", "gcn", "sage"])
@pytest.mark.parametrize("two_inputs", [False, True])
@pytest.mark.parametrize("folded", [False, True])
def test_layers(name: str, two_inputs: bool, folded: bool, matrix: Tensor) -> None:
    twins, plain = adjacencies(matrix)
    conv = make_conv(name, 5, 4).double()
    n = matrix.size(0)
    x, extra = torch.randn(n, 3 if two_inputs else 5, dtype=torch.double), torch.randn(n, 2, dtype=torch.double)
    weight = torch.randn(n, 4, dtype=torch.double)
    before = [torch.nn.Linear(x.size(1), 3 if two_inputs else 5).double()] if folded else []
    before += [torch.nn.Linear(2, 2).double()] if folded and two_inputs else []
    maps = [parameter for linear in before for parameter in linear.parameters()]
    results = []
    for adj in (twins, plain):
        ours = x.clone().requires_grad_()
        out = conv(ours, adj, extra if two_inputs else None, before=before)
        results.append([out, *torch.autograd.grad((out * weight).sum(), [ours, *maps, *conv.parameters()])])
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("name", ["gin", "gcn", "sage"])
@pytest.mark.parametrize("two_inputs", [False, True])
@pytest.mark.parametrize("folded", [False, True])
def test_one_hots(name: str, two_inputs: bool, folded: bool) -> None:
    torch.manual_seed(0)
    twins, plain = adjacencies(cliques(30, 4, 1))
    one_hot = OneHot(torch.randint(7, (30,)), 7)
    extra = torch.randn(30, 2, dtype=torch.double) if two_inputs else None
    before = [torch.nn.Linear(7, 3).double()] if folded else []
    before += [torch.nn.Linear(2, 2).double()] if folded and two_inputs else []
    conv = make_conv(name, (3 if folded else 7) + (2 if two_inputs else 0), 4).double()
    maps = [parameter for linear in before for parameter in linear.parameters()]
    results = []
    for x, adj in ((one_hot, twins), (one_hot, plain), (one_hot().double(), plain)):
        out = conv(x, adj, extra, before=before)
        results.append([out, *torch.autograd.grad(out.square().sum(), [*maps, *conv.parameters()])])
    for mine, theirs, dense in zip(*results, strict=True):
        torch.testing.assert_close(mine, dense)
        torch.testing.assert_close(theirs, dense)
    linear = ConcatLinear(9 if two_inputs else 7, 4)
    extra = None if extra is None else extra.float()
    torch.testing.assert_close(linear(one_hot, extra), linear(one_hot(), extra))
    with torch.autocast("cpu", torch.bfloat16):
        ours, theirs = linear(one_hot, extra), linear(one_hot(), extra)
    assert ours.dtype == theirs.dtype == torch.bfloat16
    torch.testing.assert_close(ours, theirs, rtol=0.02, atol=0.02)


def test_dense_references() -> None:
    matrix = cliques(20, 4, 3)
    twins, _ = adjacencies(matrix)
    assert twins.quotient.num_nodes < 15
    a, x, eye = matrix.double(), torch.randn(20, 5, dtype=torch.double), torch.eye(20, dtype=torch.double)
    gin, gcn, sage = GINConv(5, 4).double(), GCNConv(5, 4).double(), SAGEConv(5, 4).double()
    h = torch.relu((a + eye) @ x @ gin.lin1.weight.t() + gin.lin1.bias)
    torch.testing.assert_close(gin(x, twins), gin.lin2(h))
    d = (a.sum(1) + 1).rsqrt().diag()
    torch.testing.assert_close(gcn(x, twins), d @ (a + eye) @ d @ x @ gcn.lin.weight.t() + gcn.bias)
    mean = a @ x / a.sum(1, keepdim=True).clamp(min=1)
    torch.testing.assert_close(sage(x, twins), sage.lin_l(mean) + sage.lin_r(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_float32(dtype: torch.dtype) -> None:
    # 256 + 1 + ... + 1 would stay 256 in bfloat16.
    twins, _ = adjacencies(~torch.eye(300, dtype=torch.bool))
    x = torch.ones(300, 1, dtype=dtype)
    x[0] = 256
    out = twins.sum(x)
    assert out.dtype == dtype
    assert out[:2].flatten().tolist() == torch.tensor([299.0, 554.0]).to(dtype).tolist()


@pytest.mark.parametrize("name", ["gin", "gcn", "sage"])
def test_autocast(name: str) -> None:
    torch.manual_seed(0)
    twins, plain = adjacencies(cliques(100, 4, 1))
    conv, x = make_conv(name, 6, 4), torch.randn(100, 6)
    results = []
    for adj, half in ((twins, True), (plain, True), (plain, False)):
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            out = conv(x, adj)
        results.append([out, *torch.autograd.grad(out.float().square().sum(), conv.parameters())])
    for mine, theirs, exact in zip(*results, strict=True):
        assert mine.dtype == theirs.dtype
        for one, other in ((mine, theirs), (mine, exact), (theirs, exact)):
            assert float((one - other).detach().float().norm()) <= 0.05 * float(other.detach().float().norm())
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(twins.sum(x), twins.sum(x.clone()))
        torch.testing.assert_close(twins.sum(x), plain.sum(x))


def test_moving_and_sending() -> None:
    twins, plain = adjacencies(cliques(12, 3, 2))
    assert twins.to("cpu") is twins
    moved = twins.to("meta")
    assert isinstance(moved, TwinAdjacency)
    assert moved.classes.device.type == moved.quotient.col.device.type == moved.quotient.degree.device.type == "meta"
    assert torch.equal(pickle.loads(pickle.dumps(twins)).col, plain.col)
    assert str(twins).startswith("TwinAdjacency(12 nodes in ")


def test_plain_matrices_are_their_own_quotient() -> None:
    _, plain = adjacencies(cliques(12, 3, 2))
    x = torch.randn(12, 2)
    assert plain.quotient is plain
    assert plain.merge(x) is plain.spread(x) is x
