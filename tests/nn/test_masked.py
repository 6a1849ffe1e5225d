from __future__ import annotations

import torch

from flgraph.nn import Adjacency, SparseGCNConv, gcn_matrix
from flgraph.nn.conv.masked import MaskedGCNConv, MaskedLinear


def test_masked_convolution() -> None:
    """The layer without a mask, of the product of weights and mask; outside of training small entries count as 0."""
    torch.manual_seed(0)
    matrix = gcn_matrix(Adjacency.from_sorted(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), 3, symmetric=True))
    layer, plain, x = MaskedGCNConv(4, 2, prune=0.1), SparseGCNConv(4, 2), torch.rand(3, 4)
    assert bool((layer.mask == 1).all())
    mask = torch.tensor([[0.05, 2.0], [-0.05, -1.0], [0.1, 0.5], [0.0, 1.0]])
    with torch.no_grad():
        layer.mask.copy_(mask)
        layer.bias.copy_(torch.tensor([1.0, -1.0]))
        plain.bias.copy_(layer.bias)
        plain.weight.copy_(layer.weight * mask)
    assert torch.equal(layer(x, matrix), plain(x, matrix))
    with torch.no_grad():
        plain.weight.copy_(layer.weight * torch.tensor([[0.0, 2.0], [0.0, -1.0], [0.1, 0.5], [0.0, 1.0]]))
    assert torch.equal(layer.eval()(x, matrix), plain(x, matrix))
    layer.reset_parameters()
    assert bool((layer.mask == 1).all())
    assert str(layer) == "MaskedGCNConv(4, 2)"


def test_masked_linear() -> None:
    torch.manual_seed(0)
    layer, x = MaskedLinear(3, 2, prune=0.1), torch.rand(5, 3)
    mask = torch.tensor([[0.05, 2.0, 1.0], [1.0, -0.05, 0.5]])
    with torch.no_grad():
        layer.mask.copy_(mask)
    assert torch.allclose(layer(x), x @ (layer.weight * mask).t() + layer.bias)
    kept = mask.masked_fill(mask.abs() < 0.1, 0.0)
    assert torch.allclose(layer.eval()(x), x @ (layer.weight * kept).t() + layer.bias)
