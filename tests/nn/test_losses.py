from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from flgraph.errors import InputError
from flgraph.nn import instance_contrast, jsd_contrast, model_contrast, softmax_distillation, squared_distillation


def rows(count: int, seed: int, columns: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, columns, generator=generator, dtype=torch.float64)


def literal_instance(U: Tensor, V: Tensor, temperature: float, cosine: bool) -> Tensor:
    """FCLG, Eq. 5 and 6, sum by sum."""

    def score(a: Tensor, b: Tensor) -> Tensor:
        return (a @ b) / ((a.norm() * b.norm()) if cosine else 1)

    def loss(place: int, one: list[Tensor], other: list[Tensor]) -> Tensor:
        u, v = one[place], other[place]
        total = torch.zeros((), dtype=torch.float64)
        for z in [*one, *other]:
            if z is not u:
                total = total + (score(u, z) / temperature).exp()
        return (total / (score(u, v) / temperature).exp()).log()

    us, vs = list(U), list(V)
    both = [loss(i, us, vs) + loss(i, vs, us) for i in range(len(us))]
    return torch.stack(both).sum() / (2 * len(us))


@pytest.mark.parametrize("temperature", [0.1, 0.5, 2.0])
@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_instance_contrast(similarity: str, temperature: float) -> None:
    """Value and gradients."""
    u, v = rows(5, 0).requires_grad_(), rows(5, 1).requires_grad_()
    found = instance_contrast(u, v, temperature, similarity)  # type: ignore[arg-type]
    expected = literal_instance(u, v, temperature, similarity == "cosine")
    torch.testing.assert_close(found, expected)
    for one, other in zip(torch.autograd.grad(found, (u, v)), torch.autograd.grad(expected, (u, v)), strict=True):
        torch.testing.assert_close(one, other)


def test_a_single_graph_has_no_negatives() -> None:
    u = rows(1, 0).requires_grad_()
    loss = instance_contrast(u, rows(1, 1))
    assert loss == 0
    loss.backward()
    assert torch.equal(u.grad, torch.zeros(1, 4, dtype=torch.float64))  # type: ignore[arg-type]


def test_large_inner_products_do_not_overflow() -> None:
    assert torch.isfinite(instance_contrast(1e4 * rows(6, 0), 1e4 * rows(6, 1), 0.1, "dot"))


@pytest.mark.parametrize("temperature", [0.2, 1.0])
def test_model_contrast(temperature: float) -> None:
    """FCLG, Eq. 7 and 8, row by row."""
    current, toward, away = rows(6, 0).requires_grad_(), rows(6, 1), rows(6, 2)
    terms = []
    for u, s, c in zip(current, toward, away, strict=True):
        near = (F.cosine_similarity(u, s, dim=0) / temperature).exp()
        far = (F.cosine_similarity(u, c, dim=0) / temperature).exp()
        terms.append(((near + far) / near).log())
    expected = torch.stack(terms).mean()
    found = model_contrast(current, toward, away, temperature)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, current), torch.autograd.grad(expected, current))


def test_model_contrast_of_equal_models_is_constant() -> None:
    """So the first local epoch, whose previous model is the global one, has nothing to learn from it."""
    current, other = rows(6, 0).requires_grad_(), rows(6, 1)
    loss = model_contrast(current, other, other)
    assert loss.item() == pytest.approx(math.log(2))
    loss.backward()
    assert torch.equal(current.grad, torch.zeros_like(current))  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_softmax_distillation(temperature: float) -> None:
    """FCLG, Eq. 2, class by class."""
    current, toward = rows(6, 0).requires_grad_(), rows(6, 1)
    total = torch.zeros((), dtype=torch.float64)
    for u, s in zip(current, toward, strict=True):
        own, other = (u / temperature).softmax(0), (s / temperature).softmax(0)
        for p, q in zip(other, own, strict=True):
            total = total + p * (p.log() - q.log()) / 6
    found = softmax_distillation(current, toward, temperature)
    torch.testing.assert_close(found, total)
    torch.testing.assert_close(torch.autograd.grad(found, current), torch.autograd.grad(total, current))


def test_squared_distillation() -> None:
    """FCLG, Eq. 3, number by number."""
    current, toward = rows(3, 0), rows(3, 1)
    expected = sum((current[i, c] - toward[i, c]) ** 2 for i in range(3) for c in range(4)) / 3
    torch.testing.assert_close(squared_distillation(current, toward), expected)


def test_jsd_contrast() -> None:
    """InfoGraph's estimate, pair by pair."""
    graph = torch.tensor([0, 0, 1, 1, 1, 2])
    local, summary = rows(6, 0).requires_grad_(), rows(3, 1).requires_grad_()
    positives, negatives = [], []
    for node in range(6):
        for number in range(3):
            score = local[node] @ summary[number]
            if graph[node] == number:
                positives.append(math.log(2) - (1 + (-score).exp()).log())
            else:
                negatives.append((1 + (-score).exp()).log() + score - math.log(2))
    expected = torch.stack(negatives).mean() - torch.stack(positives).mean()
    found = jsd_contrast(local, summary, graph)
    torch.testing.assert_close(found, expected)
    for one, other in zip(
        torch.autograd.grad(found, (local, summary)), torch.autograd.grad(expected, (local, summary)), strict=True
    ):
        torch.testing.assert_close(one, other)
    alone = jsd_contrast(local, summary[:1], torch.zeros(6, dtype=torch.long))  # has no negatives
    assert alone == 0
    assert not torch.autograd.grad(alone, local)[0].any()


def test_refusals() -> None:
    with pytest.raises(InputError, match="`temperature` to be a positive number"):
        instance_contrast(rows(2, 0), rows(2, 1), 0.0)
    with pytest.raises(InputError, match="`similarity` to be cosine or dot"):
        instance_contrast(rows(2, 0), rows(2, 1), 1.0, "none")  # type: ignore[arg-type]
