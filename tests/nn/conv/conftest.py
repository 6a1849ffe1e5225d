from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor

from flgraph.nn import Adjacency

Pairs = Iterable[tuple[Tensor, Tensor]]


@pytest.fixture
def assert_like_pyg() -> Callable[..., None]:
    """Compares a layer of six columns with PyG's on a random graph: outputs, and gradients of input and weights."""

    def check(conv: torch.nn.Module, twin: torch.nn.Module, edges: Tensor, nodes: int, weights: Pairs) -> None:
        x = torch.randn(nodes, 6, dtype=torch.double, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        out, expected = conv(x, Adjacency.from_edges(edges, nodes)), twin(y, edges)
        torch.testing.assert_close(out, expected)
        out.square().sum().backward()
        expected.square().sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
        for ours, theirs in weights:
            torch.testing.assert_close(ours.grad, theirs.grad)

    return check
