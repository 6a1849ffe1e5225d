from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flgraph.errors import InputError
from flgraph.nn import EgoSAGEConv, children_mean


def children(position: int, fanouts: tuple[int, ...]) -> list[int]:
    """Positions of a node's children, counted hop by hop."""
    start, width = 0, 1
    for k in fanouts:
        if position < start + width:
            first = start + width + (position - start) * k
            return list(range(first, first + k))
        start, width = start + width, width * k
    raise AssertionError(position)


@pytest.mark.parametrize("fanouts", [(6, 6), (2,), (3, 2, 4), (1, 1), (2, 5)])
def test_layer_is_the_formula_node_by_node(fanouts: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    conv = EgoSAGEConv(4, 3).double()
    positions = 1 + sum(int(torch.tensor(fanouts[: h + 1]).prod()) for h in range(len(fanouts)))
    inner = positions - int(torch.tensor(fanouts).prod())
    p = torch.randn(5, positions, 4, dtype=torch.float64)
    out = conv(p, fanouts)
    assert out.shape == (5, inner, 3)
    for ego in range(5):
        for position in range(inner):
            mean = torch.stack([p[ego, child] for child in children(position, fanouts)]).mean(0)
            expected = (
                conv.lin_self.weight @ p[ego, position] + conv.lin_neighbour.weight @ mean + conv.lin_neighbour.bias
            )
            torch.testing.assert_close(out[ego, position], expected)
    assert str(conv) == "EgoSAGEConv(4, 3)"


@pytest.mark.parametrize("fanouts", [(6, 6), (2,), (3, 2, 4)])
def test_nodes_that_recur_are_mapped_once(fanouts: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    conv = EgoSAGEConv(4, 3).double()
    positions = 1 + sum(int(torch.tensor(fanouts[: h + 1]).prod()) for h in range(len(fanouts)))
    x = torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
    index = torch.randint(7, (5, positions))
    mapped: list[int] = []
    handle = conv.lin_self.register_forward_pre_hook(lambda module, given: mapped.append(given[0].size(0)))
    out = conv(x, fanouts, index)
    handle.remove()
    inner = index[:, : -int(torch.tensor(fanouts).prod())]
    assert mapped == [inner.unique().numel()]
    expected = conv(x[index], fanouts)
    torch.testing.assert_close(out, expected)
    weights = torch.randn_like(out)
    wanted = [x, *conv.parameters()]
    for one, other in zip(
        torch.autograd.grad((out * weights).sum(), wanted),
        torch.autograd.grad((expected * weights).sum(), wanted),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_two_layers_reach_the_center() -> None:
    one, two = EgoSAGEConv(4, 4), EgoSAGEConv(4, 2)
    assert two(one(torch.randn(3, 43, 4), (6, 6)), (6,)).shape == (3, 1, 2)


def test_wrong_shape_is_refused() -> None:
    with pytest.raises(InputError, match="Expected `p` to be of 43 positions but got 42"):
        children_mean(torch.zeros(2, 42, 3), (6, 6))
    with pytest.raises(InputError, match="of 1 positions"):
        children_mean(torch.zeros(2, 3, 3), ())


def test_initialisation() -> None:
    torch.manual_seed(0)
    conv = EgoSAGEConv(400, 300)
    conv.reset_parameters()
    for linear in (conv.lin_self, conv.lin_neighbour):
        assert float(linear.weight.detach().std()) == pytest.approx((2 / 400) ** 0.5, rel=0.02)
    assert conv.lin_self.bias is None
    assert isinstance(conv.lin_neighbour.bias, Tensor)
    assert not conv.lin_neighbour.bias.detach().any()
