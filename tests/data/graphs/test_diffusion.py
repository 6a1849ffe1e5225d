from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import GDC
from torch_geometric.utils import to_dense_adj, to_undirected

from flgraph.data import Diffusion, FlatGraphs, diffused
from flgraph.errors import InputError

pytestmark = pytest.mark.usefixtures("own_cache")

PLAIN = {"sparsify": "none", "normalize": False}


def graphs(directed: bool = False) -> list[Data]:
    """Sizes with repeats, among them one node without edges, two components, and an isolated node."""
    generator = torch.Generator().manual_seed(0)
    edges = [torch.randint(0, n, (2, 2 * n), generator=generator) for n in (7, 5, 7, 12)]
    edges += [torch.zeros(2, 0, dtype=torch.long), torch.tensor([[0, 1, 3, 4], [1, 2, 4, 5]])]
    sizes = (7, 5, 7, 12, 1, 7)
    result = []
    for size, pairs in zip(sizes, edges, strict=True):
        pairs = pairs[:, pairs[0] != pairs[1]]
        pairs = pairs.unique(dim=1) if directed else to_undirected(pairs, num_nodes=size)
        result.append(Data(x=torch.rand(size, 2), edge_index=pairs, y=torch.tensor([0])))
    return result


def dense(how: Diffusion, given: list[Data]) -> list[Tensor]:
    flat = FlatGraphs.from_pyg(given)
    flat = flat.with_views({"diffused": diffused(flat, how)})
    return [flat.batch(torch.tensor([i])).diffused.matrix(torch.float32).to_dense() for i in range(len(given))]


@pytest.mark.parametrize("kind", ["ppr", "heat"])
def test_formula(kind: Any) -> None:
    """alpha sum_k (1 - alpha)^k T^k, and sum_k e^-t t^k / k! T^k, both as series."""
    given = graphs()
    found = dense(Diffusion(kind=kind, alpha=0.2, time=3.0, **PLAIN), given)  # type: ignore[arg-type]
    for graph, matrix in zip(given, found, strict=True):
        n = graph.num_nodes or 0
        looped = torch.eye(n, dtype=torch.float64)
        looped[graph.edge_index[0], graph.edge_index[1]] += 1
        scale = looped.sum(1).rsqrt()
        transition, power = scale[:, None] * looped * scale, torch.eye(n, dtype=torch.float64)
        total, factor = torch.zeros_like(power), 0.2 if kind == "ppr" else torch.tensor(-3.0).double().exp()
        for k in range(200):
            total = total + factor * power
            power = power @ transition
            factor = factor * (0.8 if kind == "ppr" else 3.0 / (k + 1))
        torch.testing.assert_close(matrix.double(), total, atol=1e-6, rtol=1e-5)
    assert found[4].tolist() == [[pytest.approx(1.0)]]


CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"kind": "heat", "time": 2.0}, {"diffusion_kwargs": {"method": "heat", "t": 2.0}}),
    ({"eps": 0.04}, {"sparsification_kwargs": {"method": "threshold", "eps": 0.04}}),
    ({"alpha": 0.3, "self_loop": 0.5}, {"diffusion_kwargs": {"method": "ppr", "alpha": 0.3}, "self_loop_weight": 0.5}),
    ({"normalize": False}, {"normalization_out": None}),
]


@pytest.mark.parametrize(("ours", "theirs"), CASES)
@pytest.mark.parametrize("directed", [False, True])
def test_equals_pyg(ours: dict[str, Any], theirs: dict[str, Any], directed: bool) -> None:
    given = graphs(directed)[:4]
    for graph, matrix in zip(given, dense(Diffusion(**ours), given), strict=True):
        transform = GDC(**{key: dict(value) if isinstance(value, dict) else value for key, value in theirs.items()})
        done = transform(graph.clone())
        expected = to_dense_adj(done.edge_index, edge_attr=done.edge_attr, max_num_nodes=graph.num_nodes)[0].t()
        torch.testing.assert_close(matrix, expected.float(), atol=1e-5, rtol=1e-4)


def path(n: int) -> Data:
    """A path with a triangle at one end, which has no symmetry but that of the triangle's tip."""
    ends = torch.arange(n - 1)
    pairs = torch.cat([torch.stack([ends, ends + 1]), torch.tensor([[0, 0, 1], [2, 4, 5]])], dim=1)
    return Data(x=torch.ones(n, 1), edge_index=to_undirected(pairs), y=torch.tensor([0]))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"sparsify": "topk", "top_k": 3}, {"method": "topk", "k": 3, "dim": 0}),
        ({"avg_degree": 3}, {"method": "threshold", "avg_degree": 3}),
    ],
)
def test_sparser_equals_pyg(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    given = path(11)
    (matrix,) = dense(Diffusion(**ours), [given])
    done = GDC(sparsification_kwargs=theirs)(given.clone())
    expected = to_dense_adj(done.edge_index, edge_attr=done.edge_attr, max_num_nodes=11)[0].t()
    torch.testing.assert_close(matrix, expected, atol=1e-5, rtol=1e-4)
    assert 0 < int((matrix != 0).sum()) <= 11 * 5
    torch.testing.assert_close(matrix.sum(1), torch.ones(11))


def test_components_stay_apart() -> None:
    """Nodes 0-1-2, 3-4-5 and 6 of the last graph."""
    for kind in ("ppr", "heat"):
        matrix = dense(Diffusion(kind=kind), graphs())[5]  # type: ignore[arg-type]
        component = torch.tensor([0, 0, 0, 1, 1, 1, 2])
        assert torch.equal(matrix != 0, component[:, None] == component)
        assert matrix[6, 6] == 1


def test_batches_sum_what_nodes_receive() -> None:
    """Weights, and the gradient through the transpose; repeats of a graph are allowed."""
    given = graphs(directed=True)
    flat = FlatGraphs.from_pyg(given)
    flat = flat.with_views({"diffused": diffused(flat, Diffusion(sparsify="topk", top_k=3))})
    index = torch.tensor([3, 0, 5, 0])
    matrices = dense(Diffusion(sparsify="topk", top_k=3), given)
    whole = torch.block_diag(*(matrices[i] for i in index.tolist()))
    assert not torch.equal(whole, whole.t())
    for batch in (flat.batch(index), flat.select([3, 0, 5]).batch(torch.tensor([0, 1, 2, 1]))):
        assert batch.diffused.num_nodes == batch.x.size(0)
        x = torch.randn(whole.size(0), 3, requires_grad=True)
        total = batch.diffused.sum(x)
        torch.testing.assert_close(total, whole @ x)
        total.sin().sum().backward()
        torch.testing.assert_close(x.grad, whole.t() @ total.cos().detach())
    assert flat.batch(index).graph_index.tolist() == [3, 0, 5, 0]


def test_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    given = FlatGraphs.from_pyg(graphs())
    first = diffused(given, Diffusion())

    def refuse(*args: Any) -> None:
        raise AssertionError

    monkeypatch.setattr("flgraph.data.graphs.diffusion._compute", refuse)
    again = diffused(given, Diffusion())
    assert all(torch.equal(one, again.tensors[name]) for name, one in first.tensors.items())
    with pytest.raises(AssertionError):
        diffused(given, Diffusion(alpha=0.2))


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"kind": "cold"}, "diffusion.kind"),
        ({"alpha": 0.0}, "diffusion.alpha"),
        ({"time": -1.0}, "diffusion.time"),
        ({"sparsify": "some"}, "diffusion.sparsify"),
        ({"eps": 0.0}, "diffusion.eps"),
        ({"top_k": 0}, "diffusion.top_k"),
        ({"self_loop": -1.0}, "diffusion.self_loop"),
        *(({name: float("inf")}, f"diffusion.{name}") for name in ("time", "eps", "self_loop")),
    ],
)
def test_refusals(wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError, match=f"Expected `{field}` to be"):
        Diffusion(**wrong)
