"""Functions of the Laplacian at edges, against dense matrices, and sums by receiver against loops."""

from __future__ import annotations

import pytest
import torch

from flgraph.errors import InputError
from flgraph.nn import Adjacency
from flgraph.nn.spectral import EigenvalueEncoder, SpectralConv, laplacian_spectra, sum_by_row

PATH_AND_PAIR = torch.tensor([[0, 1, 1, 2, 3, 4], [1, 0, 2, 1, 4, 3]])
"""A path of three nodes, a pair, and a node alone."""


def graphs() -> tuple[Adjacency, torch.Tensor]:
    return Adjacency.from_sorted(PATH_AND_PAIR, 6, symmetric=True), torch.tensor([0, 3, 5, 6])


def test_spectra_by_hand() -> None:
    """Paths of three and of two nodes have the eigenvalues 0, 1, 3 and 0, 2."""
    values, products = laplacian_spectra(*graphs())
    for found, expected in zip(values, ([0, 1, 3], [0, 2], [0]), strict=True):
        assert torch.allclose(found, torch.tensor(expected).float(), atol=1e-6)
    assert [list(product.shape) for product in products] == [[4, 3], [2, 2], [0, 1]]
    # f(L) = L has -1 at every edge, f(L) = 1 nothing; f = L squared has -(d_i + d_j) at an edge of no triangle.
    for found, product in zip(values[:2], products[:2], strict=True):
        assert torch.allclose(product @ found, torch.tensor(-1.0), atol=1e-5)
        assert torch.allclose(product.sum(dim=1), torch.tensor(0.0), atol=1e-5)
    assert torch.allclose(products[0] @ values[0].square(), torch.tensor(-3.0), atol=1e-5)
    assert torch.allclose(products[1] @ values[1].square(), torch.tensor(-2.0), atol=1e-5)


def test_graphs_without_edges_are_read() -> None:
    adj = Adjacency.from_sorted(torch.empty(2, 0, dtype=torch.long), 2, symmetric=True)
    values, products = laplacian_spectra(adj, torch.tensor([0, 2]))
    assert values[0].tolist() == [0, 0]
    assert products[0].shape == (0, 2)
    assert not sum_by_row(torch.empty(0, 3), adj).any()


def test_sums_by_receiver() -> None:
    adj, _ = graphs()
    values = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)).double()
    for receiver in range(6):
        assert torch.allclose(sum_by_row(values, adj)[receiver], values[PATH_AND_PAIR[0] == receiver].sum(dim=0))


def test_a_convolution_is_a_loop() -> None:
    adj, _ = graphs()
    torch.manual_seed(0)
    conv, x, weights = SpectralConv(4, 0.0).eval(), torch.randn(6, 4), torch.rand(6, 4)
    expected = x.clone()
    for edge, (receiver, sender) in enumerate(PATH_AND_PAIR.t().tolist()):
        expected[receiver] += weights[edge] * torch.nn.functional.gelu(conv.message(x[sender]))
    assert torch.allclose(conv(x, adj, weights), expected + conv.ffn(expected), atol=1e-6)


def test_eigenvalues_are_encoded() -> None:
    encoder = EigenvalueEncoder(4)
    e = torch.tensor([0.0, 0.02, 3.0])
    angle = 100 * e.unsqueeze(1) / torch.tensor([1.0, 10_000.0**0.5])
    rows = torch.cat([e.unsqueeze(1), angle.sin(), angle.cos()], dim=1)
    assert torch.allclose(encoder(e), encoder.lin(rows), atol=1e-5)
    with pytest.raises(InputError, match="an even number"):
        EigenvalueEncoder(5)


def test_a_spectrum_of_an_evaluation_is_good_for_training() -> None:
    """It is kept; what is made in inference mode takes part in no backward pass."""
    ring = Adjacency.from_edges(torch.tensor([[*range(9)], [*range(1, 9), 0]]), 9)
    with torch.inference_mode():
        laplacian_spectra(ring, torch.tensor([0, 9]))
    _, (product,) = laplacian_spectra(ring, torch.tensor([0, 9]))
    assert not product.is_inference()
