from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch_geometric import nn as pyg

from flgraph.nn import Adjacency, DiffusedConv, GCNConv, SparseGCNConv, WeightedAdjacency, gcn_matrix

RANDOM = torch.randint(30, (2, 80), generator=torch.Generator().manual_seed(3))
LITERAL = torch.tensor([[0, 1, 1, 2, 2], [1, 0, 2, 1, 3]])
LOOPS = torch.tensor(
    [[0, 0, 1, 2, 2, 3], [0, 1, 0, 2, 2, 3]]
)  # one loop, none, the same loop twice, nothing but a loop


def test_hand_worked() -> None:
    conv = GCNConv(1, 1)
    with torch.no_grad():
        conv.lin.weight.fill_(2.0)
        conv.bias.fill_(1.0)
    out = conv(torch.tensor([[3.0], [5.0], [7.0]]), Adjacency.from_edges(torch.tensor([[0, 1], [1, 0]]), 3))
    # 0 and 1 have two senders each, themselves included: (3 + 5) / 2; 2 has itself.
    torch.testing.assert_close(out, torch.tensor([[9.0], [9.0], [15.0]]))


@pytest.mark.parametrize(("edges", "nodes"), [(LITERAL, 5), (RANDOM, 30), (LOOPS, 5), (LITERAL[:, :0], 4)])
def test_equals_pyg(edges: Tensor, nodes: int, assert_like_pyg: Callable[..., None]) -> None:
    torch.manual_seed(0)
    conv, twin = GCNConv(6, 3).double(), pyg.GCNConv(6, 3).double()
    torch.nn.init.normal_(conv.bias)
    twin.load_state_dict(conv.state_dict())  # PyG's names
    theirs = dict(twin.named_parameters())
    assert_like_pyg(conv, twin, edges, nodes, [(own, theirs[name]) for name, own in conv.named_parameters()])


def test_initialised_as_pyg() -> None:
    torch.manual_seed(0)
    conv = GCNConv(300, 100)
    bound = (6 / 400) ** 0.5
    assert conv.lin.weight.abs().max() <= bound
    assert conv.lin.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.02)
    assert not conv.bias.any()


def test_repr() -> None:
    assert str(GCNConv(8, 4)) == "GCNConv(8, 4)"
    assert str(SparseGCNConv(8, 4)) == "SparseGCNConv(8, 4)"
    assert str(DiffusedConv(8, 4)) == "DiffusedConv(8, 4)"


@pytest.mark.parametrize("sparse", [True, False])
def test_a_matrix_and_given_weights_make_the_same_map(sparse: bool) -> None:
    torch.manual_seed(0)
    edges = torch.cat([LITERAL, LITERAL.flip(0)], dim=1).unique(dim=1)
    adj, conv, of_matrix = Adjacency.from_edges(edges, 5), GCNConv(6, 3), SparseGCNConv(6, 3)
    torch.nn.init.normal_(conv.bias)
    of_matrix.load_state_dict({"weight": conv.lin.weight.t(), "bias": conv.bias})
    x, matrix = torch.randn(5, 6), gcn_matrix(adj)
    rows = x.to_sparse_csr() if sparse else x
    torch.testing.assert_close(of_matrix(rows, matrix), conv(x, adj))
    torch.testing.assert_close(of_matrix(matrix @ x, None), conv(x, adj))
    diffused = DiffusedConv(6, 3)
    diffused.load_state_dict(conv.state_dict())
    weighted = WeightedAdjacency(matrix.crow_indices(), matrix.col_indices(), matrix.values())
    torch.testing.assert_close(diffused(x, weighted), conv(x, adj))
