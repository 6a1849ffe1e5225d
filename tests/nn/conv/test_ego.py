from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flgraph.errors import InputError
from flgraph.nn import EgoSAGEConv, children_mean
from flgraph.nn.conv.ego import children_mean_of_nodes


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


@pytest.mark.parametrize("fanouts", [(6, 6), (2,), (3, 2, 4)])
@pytest.mark.parametrize("num_nodes", [7, 500])  # fewer and more than there are positions with children
@pytest.mark.parametrize("some_childless", [False, True])
def test_averages_without_a_row_per_position(fanouts: tuple[int, ...], num_nodes: int, some_childless: bool) -> None:
    torch.manual_seed(0)
    conv = EgoSAGEConv(4, 3).double()
    torch.nn.init.normal_(conv.lin_neighbour.bias)
    positions = 1 + sum(int(torch.tensor(fanouts[: h + 1]).prod()) for h in range(len(fanouts)))
    x = torch.randn(num_nodes, 4, dtype=torch.float64)
    index = torch.randint(num_nodes, (5, positions))
    inner = positions - int(torch.tensor(fanouts).prod())
    childless = torch.rand(5, inner) < 0.5 if some_childless else None
    torch.testing.assert_close(children_mean_of_nodes(x, index, fanouts), children_mean(x[index], fanouts))
    with torch.no_grad():
        inferred = conv(x, fanouts, index, childless)
    torch.testing.assert_close(inferred, conv(x, fanouts, index, childless))
    torch.testing.assert_close(inferred, conv(x[index], fanouts, childless=childless))


def test_the_mean_of_children_can_be_differentiated_twice() -> None:
    """Meta-learning does."""
    torch.manual_seed(0)
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    index = torch.randint(4, (2, 9))
    assert torch.autograd.gradgradcheck(lambda p: children_mean_of_nodes(p, index, (2, 3)).square(), x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_inference_in_half_precision(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    conv, x, index = EgoSAGEConv(4, 3), torch.randn(7, 4), torch.randint(7, (5, 7))
    expected = conv(x, (2, 2), index)
    with torch.no_grad(), torch.autocast("cpu", dtype):
        mixed = conv(x, (2, 2), index)
        assert mixed.dtype == dtype
        torch.testing.assert_close(mixed.float(), expected, rtol=0.05, atol=0.05)
        torch.testing.assert_close(conv.to(dtype)(x.to(dtype), (2, 2), index).float(), expected, rtol=0.05, atol=0.05)


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
