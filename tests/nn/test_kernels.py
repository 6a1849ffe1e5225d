"""A kernel of graphs against colours as nested tuples, and ridge regression against regressions without each row."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from flgraph.nn import leave_one_out_ridge, wl_kernel


def test_two_paths_and_a_triangle_by_hand() -> None:
    """Features all alike: both colourings are the same, and without a step only the number of nodes counts."""
    edges = torch.tensor([[0, 1, 1, 2, 3, 4, 4, 5, 6, 7, 7, 8, 8, 6], [1, 0, 2, 1, 4, 3, 5, 4, 7, 6, 8, 7, 6, 8]])
    batch = torch.arange(3).repeat_interleave(3)
    x = torch.ones(9, 2)
    assert torch.allclose(wl_kernel(x, edges, batch, 3, steps=0), torch.ones(3, 3).double())
    one, two, three = math.log(2), math.log(3), math.log(4)
    path = math.sqrt(three**2 + one**2 + two**2)  # three nodes; then a middle and two ends
    triangle = math.sqrt(2) * three  # three nodes; then three with two neighbours each, as a path's middle has
    found = wl_kernel(x, edges, batch, 3, steps=1)
    assert found[0, 1].item() == pytest.approx(1.0)
    assert found[0, 2].item() == pytest.approx((three * three + one * three) / (path * triangle))


def test_kernel_is_that_of_nested_colours() -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = [1, 4, 6, 5, 7]
    batch = torch.repeat_interleave(torch.tensor(sizes))
    x = torch.randint(3, (len(batch), 1), generator=generator)
    edges = torch.randint(len(batch), (2, 90), generator=generator)
    edges = edges[:, batch[edges[0]] == batch[edges[1]]]  # one direction, loops and repeats among them
    rows: list[Counter[object]] = [Counter() for _ in sizes]
    for kind, start in (("features", x[:, 0].tolist()), ("alike", [0] * len(batch))):
        colours: list[object] = [(kind, value) for value in start]
        for step in range(4):
            if step:
                heard: list[list[object]] = [[] for _ in colours]
                for source, target in edges.t().tolist():
                    heard[target].append(colours[source])
                colours = [(own, tuple(sorted(near, key=repr))) for own, near in zip(colours, heard, strict=True)]
            for node, colour in enumerate(colours):
                rows[int(batch[node])][step, colour] += 1
    every = sorted({colour for row in rows for colour in row}, key=repr)
    table = torch.tensor([[math.log1p(row[colour]) for colour in every] for row in rows]).double()
    unit = table / table.norm(dim=1, keepdim=True)
    assert torch.allclose(wl_kernel(x, edges, batch, len(sizes)), unit @ unit.t(), atol=1e-6)


def test_graphs_without_edges_or_nodes() -> None:
    found = wl_kernel(torch.ones(3, 1), torch.empty(2, 0, dtype=torch.long), torch.tensor([0, 0, 2]), 3)
    assert torch.allclose(found, torch.tensor([[1.0, 0, 1], [0, 0, 0], [1, 0, 1]]).double())
    assert bool(leave_one_out_ridge(found, torch.tensor([0, 1, -1]), 2).isfinite().all())


def test_ridge_is_that_without_the_row() -> None:
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(9, 4, generator=generator).double()
    kernel, known = rows @ rows.t(), torch.tensor([0, 2, -1, 1, 0, 1, -1, 2, 0])
    own = (known >= 0).nonzero()[:, 0]
    labels = torch.nn.functional.one_hot(known[own], 3).double() - 1 / 3
    found = leave_one_out_ridge(kernel, known, 3, ridge=0.3)
    for row in range(9):
        others = own != row
        left = kernel[own[others]][:, own[others]] + 0.3 * torch.eye(int(others.sum())).double()
        expected = kernel[row, own[others]] @ torch.linalg.solve(left, labels[others])
        assert torch.allclose(found[row].double(), expected, atol=1e-6)
    assert found.dtype == torch.float32


def test_nothing_known() -> None:
    kernel = torch.eye(3).double()
    assert torch.equal(leave_one_out_ridge(kernel, torch.full((3,), -1), 2), torch.zeros(3, 2))
    alone = leave_one_out_ridge(kernel, torch.tensor([1, -1, -1]), 2)  # its own label says nothing, and looks like none
    assert torch.equal(alone, torch.zeros(3, 2))


def test_any_number_of_threads_gives_the_same_bits() -> None:
    generator, before = torch.Generator().manual_seed(0), torch.get_num_threads()
    rows = torch.rand(900, 50, generator=generator).double()
    known = torch.randint(-1, 3, (900,), generator=generator)
    kernel = rows @ rows.t()
    try:
        torch.set_num_threads(1)
        one = leave_one_out_ridge(kernel, known, 3)
        torch.set_num_threads(2)
        two = leave_one_out_ridge(kernel, known, 3)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(one, two)
