from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch_geometric.nn import RGCNConv as PyGConv

import flgraph.nn.conv.rgcn as rgcn
from flgraph.nn import BasisRGCNConv, RelationMean, Relations, RGCNConv, basis_product


def typed_edges(nodes: int, counts: list[int], seed: int = 0) -> list[Tensor]:
    """Edges of each type, some of them twice; the last two nodes have none."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, max(1, nodes - 2), (2, count), generator=generator) for count in counts]


def relations_of(edges: list[Tensor], nodes: int, rows: Tensor | None = None, num_rows: int | None = None) -> Relations:
    parts = [part[:, (part[1] * nodes + part[0]).argsort()] for part in edges]
    ptr = torch.tensor([0, *(part.size(1) for part in parts)]).cumsum(0)
    return Relations.of(torch.cat(parts, dim=1), ptr, nodes, rows, num_rows)


def literal(x: Tensor, edges: list[Tensor], weights: list[Tensor]) -> Tensor:
    """Relation by relation, node by node."""
    out = x.new_zeros(x.size(0), weights[0].size(1))
    for (source, target), weight in zip(edges, weights, strict=True):
        for node in target.unique().tolist():
            mean = x[source[target == node]].mean(0)
            out = out.index_add(0, torch.tensor([node]), (mean @ weight).unsqueeze(0))
    return out


def leaves(*shapes: tuple[int, ...], seed: int = 1) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


def compare(one: Tensor, other: Tensor, inputs: list[Tensor]) -> None:
    torch.testing.assert_close(one, other)
    weight = torch.randn(one.shape, generator=torch.Generator().manual_seed(2), dtype=one.dtype)
    got = torch.autograd.grad((one * weight).sum(), inputs, retain_graph=True)
    nothing = sum((part * 0).sum() for part in inputs)  # where there are no edges
    wanted = torch.autograd.grad((other * weight).sum() + nothing, inputs, retain_graph=True)
    torch.testing.assert_close(got, wanted)


@settings(max_examples=25, deadline=None)
@given(
    nodes=st.integers(1, 9),
    counts=st.lists(st.integers(0, 12), min_size=1, max_size=5),
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3)),
    seed=st.integers(0, 1000),
    first=st.booleans(),
    at_once=st.integers(1, 3),
)
def test_equals_a_loop_over_relations(
    nodes: int, counts: list[int], sizes: tuple[int, int, int], seed: int, first: bool, at_once: int
) -> None:
    """Values and gradients in float64, in both orders, with empty relations, repeated edges and isolated nodes."""
    (inner, outer, count), edges = sizes, typed_edges(nodes, counts, seed)
    x, coefficients, bases = leaves((nodes, inner), (len(counts), count), (count, inner, outer), seed=seed)
    made = relations_of(edges, nodes)
    expected = literal(x, edges, list(torch.einsum("rb,bio->rio", coefficients, bases)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rgcn, "aggregate_first", lambda *args: first)
        patch.setattr(rgcn, "block_size", lambda *args: at_once)
        out = basis_product(x, coefficients, bases, made)
        compare(out, expected, [x, coefficients, bases])
        index = torch.randperm(nodes, generator=torch.Generator().manual_seed(seed))[: (nodes + 1) // 2]
        part = basis_product(x, coefficients, bases, made.into(index))
    compare(part, expected[index], [x, coefficients, bases])
    (weight,) = leaves((len(counts), inner, outer), seed=seed)
    own = RGCNConv(inner, outer, len(counts)).double()
    own.weight.data.copy_(weight)
    compare(own(x, made), literal(x, edges, list(own.weight)), [x, own.weight])
    compare(own(x, made.into(index)), literal(x, edges, list(own.weight))[index], [x, own.weight])
    compare(made.mean_sum(x), literal(x, edges, [torch.eye(inner, dtype=x.dtype)] * len(counts)), [x])


def test_weights_that_types_share() -> None:
    """Means are over each type, though two of them have the same weight."""
    edges, rows = typed_edges(8, [10, 6, 9]), torch.tensor([0, 1, 0])
    x, coefficients, bases = leaves((8, 3), (2, 2), (2, 3, 4))
    made = relations_of(edges, 8, rows, 2)
    weights = torch.einsum("rb,bio->rio", coefficients, bases)
    compare(
        basis_product(x, coefficients, bases, made), literal(x, edges, list(weights[rows])), [x, bases, coefficients]
    )
    own = RGCNConv(3, 4, 2).double()
    compare(own(x, made), literal(x, edges, list(own.weight[rows])), [x, own.weight])


@pytest.mark.parametrize("bases", [None, 3])
def test_equals_pyg(bases: int | None) -> None:
    torch.manual_seed(0)
    edges = typed_edges(30, [40, 0, 60, 25])
    made = relations_of(edges, 30)
    theirs = PyGConv(5, 7, 4, num_bases=bases, aggr="mean", root_weight=False)
    ours = BasisRGCNConv(5, 7, 4, bases) if bases else RGCNConv(5, 7, 4)
    torch.nn.init.normal_(ours.bias)
    theirs.bias.data.copy_(ours.bias)
    if isinstance(ours, BasisRGCNConv):
        theirs.weight.data.copy_(ours.bases)
        theirs.comp.data.copy_(ours.coefficients)
    else:
        theirs.weight.data.copy_(ours.weight)
    x = torch.randn(30, 5)
    kind = torch.repeat_interleave(torch.tensor([part.size(1) for part in edges]))
    expected, out = theirs(x, torch.cat(edges, dim=1), kind), ours(x, made)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    expected.sin().sum().backward()
    out.sin().sum().backward()
    torch.testing.assert_close(ours.bias.grad, theirs.bias.grad, rtol=1e-4, atol=1e-5)
    mine = ours.bases if isinstance(ours, BasisRGCNConv) else ours.weight
    torch.testing.assert_close(mine.grad, theirs.weight.grad, rtol=1e-4, atol=1e-5)


def test_without_edges_there_is_the_bias() -> None:
    made = relations_of(typed_edges(4, [0, 0]), 4)
    x = torch.randn(4, 3)
    for layer in (BasisRGCNConv(3, 3, 2, 2), RGCNConv(3, 3, 2), RelationMean(3)):
        torch.nn.init.normal_(layer.bias)
        out = layer(x, made)
        assert torch.equal(out, layer.bias.expand(4, 3))
        out.sum().backward()
        assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in layer.parameters())


class Sizes(TorchDispatchMode):
    """Notes how many numbers the largest tensor has that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for part in out if isinstance(out, tuple | list) else [out]:
            if isinstance(part, Tensor) and part.layout == torch.strided:
                self.largest = max(self.largest, part.numel())
        return out


def test_nothing_is_made_for_each_edge_and_basis(monkeypatch: pytest.MonkeyPatch) -> None:
    """On large graphs no tensor is larger than the edges or a layer's input, forward or backward."""
    monkeypatch.setattr(rgcn, "_BLOCK", 1)
    edges, nodes, channels, bases = 400, 300, 8, 6
    for first in (True, False):
        monkeypatch.setattr(rgcn, "aggregate_first", lambda *args, first=first: first)
        made = relations_of(typed_edges(nodes, [edges] * 30), nodes)
        layer, x = BasisRGCNConv(channels, channels, 30, bases), torch.randn(nodes, channels, requires_grad=True)
        with Sizes() as sizes:
            layer(x, made).sin().sum().backward()
        assert x.grad is not None
        assert 30 * edges <= sizes.largest <= max(30 * edges, nodes * channels) + nodes + 1


def test_edges_into_some_nodes_of_some_nodes() -> None:
    edges = typed_edges(12, [30, 25])
    made, (x,) = relations_of(edges, 12), leaves((12, 3))
    outer, inner = torch.tensor([7, 2, 5, 9]), torch.tensor([3, 0])
    part = made.into(outer).into(inner)
    assert part.num_sources <= made.into(outer).num_sources
    compare(part.mean_sum(x), made.mean_sum(x)[outer[inner]], [x])
    assert made.to("cpu") is made


def test_the_cheaper_order() -> None:
    made = relations_of(typed_edges(50, [200, 100]), 50)
    assert rgcn.aggregate_first(made, 8, 64)
    assert not rgcn.aggregate_first(made, 64, 8)
    assert rgcn.aggregate_first(made.into(torch.tensor([3])), 16, 16)


def test_bases_at_once() -> None:
    """All on small graphs, one on large ones, and blocks of like size in between."""
    made = relations_of(typed_edges(50, [200, 100]), 50)
    assert rgcn.block_size(made, 20, 8, 8) == 20
    assert rgcn.block_size(made, 20, 1 << 20, 8) == 1
    assert rgcn.block_size(made, 20, (1 << 20) // 50 // 8, 8) == 7
    assert rgcn.block_size(made.into(torch.tensor([3])), 1, 8, 8) == 1


def test_half_precision_is_summed_in_float32() -> None:
    made = relations_of(typed_edges(20, [30, 30]), 20)
    x = torch.randn(20, 6)
    for layer in (BasisRGCNConv(6, 6, 2, 3), RGCNConv(6, 6, 2), RelationMean(6)):
        expected = layer(x, made)
        half = layer.bfloat16()(x.bfloat16(), made)
        assert half.dtype == torch.bfloat16
        torch.testing.assert_close(half.float(), expected, atol=0.1, rtol=0.05)
        with torch.autocast("cpu", torch.bfloat16):
            assert layer.float()(x, made).dtype == torch.float32


def test_initialisation() -> None:
    """Coefficients are drawn alike, however many relations there are."""
    torch.manual_seed(0)
    layer = BasisRGCNConv(64, 64, 5000, 20)
    assert float(layer.coefficients.detach().std()) == pytest.approx((2 * 6 / 21 / 3) ** 0.5, rel=0.02)
    assert float(layer.bases.detach().std()) == pytest.approx((2 * 2 / (64 * 64 + 20 * 64)) ** 0.5, rel=0.02)
    assert not layer.bias.detach().any()
    shown = [str(part) for part in (layer, RGCNConv(3, 4, 5), RelationMean(3), relations_of(typed_edges(4, [2]), 4))]
    assert shown == [
        "BasisRGCNConv(64, 64, relations=5000, bases=20)",
        "RGCNConv(3, 4, relations=5)",
        "RelationMean(3)",
        "Relations(edges=2, rows=1, targets=4)",
    ]
