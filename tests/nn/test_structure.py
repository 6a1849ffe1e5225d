"""Structure embeddings against dense matrix powers in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flgraph.errors import InputError
from flgraph.nn import structure
from flgraph.nn.structure import degree_one_hot, random_walk_return, structure_embedding


def make_graphs(sizes: list[int], density: float, directed: bool, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Random graphs (self-loops included where directed) as flat tensors; about one node in five is isolated."""
    generator = torch.Generator().manual_seed(seed)
    edges, node_ptr, edge_ptr = [], [0], [0]
    for n in sizes:
        a = torch.rand(n, n, generator=generator) < density
        alone = torch.rand(n, generator=generator) < 0.2
        a[alone], a[:, alone] = False, False
        if not directed:
            a = a.triu(1) | a.triu(1).T
        edges.append(a.nonzero().T)
        node_ptr.append(node_ptr[-1] + n)
        edge_ptr.append(edge_ptr[-1] + edges[-1].size(1))
    return torch.cat(edges, dim=1), torch.tensor(node_ptr), torch.tensor(edge_ptr)


def reference(edge_index: Tensor, node_ptr: Tensor, edge_ptr: Tensor, dim: int) -> Tensor:
    rows = []
    for g in range(node_ptr.numel() - 1):
        n = int(node_ptr[g + 1] - node_ptr[g])
        source, target = edge_index[:, edge_ptr[g] : edge_ptr[g + 1]].long()
        a = torch.zeros(n, n, dtype=torch.float64)
        a[source, target] = 1.0
        degree = a.sum(dim=0)
        p = a @ torch.diag(torch.where(degree > 0, 1 / degree, 0.0))
        rows.append(torch.stack([torch.linalg.matrix_power(p, k).diagonal() for k in range(1, dim + 1)], dim=1))
    return torch.cat(rows)


@pytest.fixture(params=["auto", "dense", "sparse"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Forces one of the two ways to compute."""
    if request.param != "auto":
        monkeypatch.setattr(structure, "_DENSE_GAIN", 10**9 if request.param == "dense" else 0)
    return str(request.param)


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("dim", [1, 2, 5, 16])
@pytest.mark.parametrize("budget", [1_000_000, 700])
def test_random_walk(path: str, directed: bool, dim: int, budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structure, "_BUDGET", budget)
    graphs = make_graphs([7, 1, 30, 2, 5, 0, 64, 12, 33, 3], 0.15, directed)
    result = random_walk_return(*graphs, dim)
    assert result.dtype == torch.float32
    assert result.shape == (157, dim)
    torch.testing.assert_close(result.double(), reference(*graphs, dim), atol=2e-6, rtol=1e-5)


def test_large_sparse_graph_takes_the_sparse_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structure, "_dense_returns", None)
    graphs = make_graphs([600], 0.008, directed=False)
    torch.testing.assert_close(random_walk_return(*graphs, 16).double(), reference(*graphs, 16), atol=2e-6, rtol=1e-5)


def test_order_of_dense_graphs_is_kept() -> None:
    graphs = make_graphs([40, 3, 25, 3, 40, 8], 0.6, directed=False)
    torch.testing.assert_close(random_walk_return(*graphs, 6).double(), reference(*graphs, 6), atol=2e-6, rtol=1e-5)


def test_repeated_edges_and_int32(path: str) -> None:
    edge_index, node_ptr, edge_ptr = make_graphs([9, 14, 4], 0.4, directed=True)
    twice = edge_index.repeat_interleave(2, dim=1).int()
    expected = random_walk_return(edge_index, node_ptr, edge_ptr, 7)
    assert torch.equal(random_walk_return(twice, node_ptr, edge_ptr * 2, 7), expected)


def test_no_edges_at_all(path: str) -> None:
    empty = torch.zeros(2, 0, dtype=torch.long)
    result = random_walk_return(empty, torch.tensor([0, 1, 4]), torch.zeros(3, dtype=torch.long), 4)
    assert torch.equal(result, torch.zeros(4, 4))


def test_triangle_by_hand() -> None:
    edge_index = torch.tensor([[0, 0, 1, 1, 2, 2], [1, 2, 0, 2, 0, 1]])
    result = random_walk_return(edge_index, torch.tensor([0, 3]), torch.tensor([0, 6]), 4)
    assert torch.allclose(result, torch.tensor([0.0, 0.5, 0.25, 0.375]).expand(3, 4))


def test_threads_are_given_back() -> None:
    before = torch.get_num_threads()
    random_walk_return(*make_graphs([6], 0.5, directed=False), 2)
    assert torch.get_num_threads() == before


def test_degree_is_clipped() -> None:
    result = degree_one_hot(torch.tensor([0, 1, 2, 3, 9]), 3)
    assert result.tolist() == [[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]]
    assert result.dtype == torch.float32


def test_embedding_kinds() -> None:
    graphs = make_graphs([6, 11], 0.4, directed=False)
    walk = random_walk_return(*graphs, 4)
    n = walk.size(0)
    both = structure_embedding(*graphs, "rwse+dse", dse_dim=3, rwse_dim=4)
    assert torch.equal(both[:, :4], walk)
    shift = graphs[1][:-1].repeat_interleave(graphs[2].diff())
    assert torch.equal(both[:, 4:], degree_one_hot(torch.bincount(graphs[0][0] + shift, minlength=n), 3))
    assert torch.equal(structure_embedding(*graphs, "rwse", rwse_dim=4), walk)
    assert torch.equal(structure_embedding(*graphs, "dse", dse_dim=3), both[:, 4:])
    assert torch.equal(structure_embedding(*graphs, "ones", dse_dim=3, rwse_dim=4), torch.ones(n, 7))
    assert structure_embedding(*graphs).shape == (n, 32)


def test_errors() -> None:
    graphs = make_graphs([3], 0.5, directed=False)
    with pytest.raises(InputError, match=r"Expected `kind` to be one of .* but got 'rw'"):
        structure_embedding(*graphs, "rw")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="Expected `rwse_dim` to be 1 or more but got 0"):
        structure_embedding(*graphs, rwse_dim=0)
    with pytest.raises(InputError, match="Expected `dse_dim` to be 1 or more but got 0"):
        structure_embedding(*graphs, dse_dim=0)
