from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flgraph.nn import SparseLinear, sparse_matmul, transpose_csr
from flgraph.nn.sparse import csr as csr_module


def rows(n: int, m: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    dense = torch.randn(n, m, generator=generator, dtype=dtype)
    dense[torch.rand(n, m, generator=generator) < 0.7] = 0
    dense[n // 2] = 0  # a row without words
    return dense


@pytest.mark.parametrize("shape", [(7, 5), (1, 3), (4, 1)])
def test_equals_the_dense_map(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    layer = SparseLinear(shape[1], 6).double()
    torch.nn.init.normal_(layer.bias)
    dense = rows(*shape)
    torch.testing.assert_close(layer(dense), torch.nn.functional.linear(dense, layer.weight.t(), layer.bias))
    gradients = []
    for x in (dense, dense.to_sparse_csr()):
        layer.zero_grad()
        out = layer(x)
        out.sin().sum().backward()
        gradients.append((out.detach(), layer.weight.grad, layer.bias.grad))
    torch.testing.assert_close(gradients[1], gradients[0])


def test_can_be_differentiated_twice() -> None:
    """Meta-learning needs the gradient of a gradient."""
    matrix = rows(6, 4).to_sparse_csr()
    dense = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    function = lambda d: sparse_matmul(matrix, d).sin()  # noqa: E731
    assert torch.autograd.gradcheck(function, dense)
    assert torch.autograd.gradgradcheck(function, dense)


def test_transpose() -> None:
    dense = rows(5, 8)
    assert torch.equal(transpose_csr(dense.to_sparse_csr()).to_dense(), dense.t())


def test_nothing_but_zeros() -> None:
    layer = SparseLinear(3, 2)
    out = layer(torch.zeros(4, 3).to_sparse_csr())
    torch.testing.assert_close(out, layer.bias.expand(4, 2))
    out.sum().backward()
    assert torch.equal(layer.weight.grad, torch.zeros(3, 2))


def test_half_precision_is_summed_in_float32() -> None:
    layer = SparseLinear(5, 3).bfloat16()
    dense = rows(6, 5, dtype=torch.float32)
    out = layer(dense.to_sparse_csr())
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), layer.float()(dense), atol=0.05, rtol=0.05)


def test_initialisation() -> None:
    torch.manual_seed(0)
    layer = SparseLinear(300, 400)
    assert float(layer.weight.detach().std()) == pytest.approx((2 / 300) ** 0.5, rel=0.02)
    assert not layer.bias.detach().any()
    assert str(layer) == "SparseLinear(300, 400)"


def test_a_transpose_is_made_once_and_goes_with_its_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    before = csr_module.transpose_csr

    def counted(matrix: torch.Tensor) -> torch.Tensor:
        made.append(1)
        return before(matrix)

    monkeypatch.setattr(csr_module, "transpose_csr", counted)
    matrix, dense = rows(6, 4).to_sparse_csr(), torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    kept = len(csr_module._transposes)
    for _ in range(3):
        sparse_matmul(matrix, dense).sin().sum().backward()
    assert len(made) == 1
    del matrix
    assert len(csr_module._transposes) == kept
