"""A graph convolutional network that learns from a second view of its graph, too (FGGP)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import RelaxedBernoulli
from torch.nn import functional as F

from flgraph.errors import expect
from flgraph.models.base import expect_share
from flgraph.models.classifier import labels_of
from flgraph.models.nodes.gcn import NodeGCN
from flgraph.nn import SparseGCNConv, at_least_float32, inverse_sqrt
from flgraph.nn.batches import WholeGraph
from flgraph.nn.losses import instance_contrast
from flgraph.nn.prototypes import class_means
from flgraph.nn.sparse.csr import rows_times


class FGGP(NodeGCN):
    r"""A GCN of two layers; after :meth:`use_view`, it trains on a sampled view of its graph besides (FGGP).

    `"Federated Graph Learning under Domain Shift with Generalizable Prototypes"
    <https://ojs.aaai.org/index.php/AAAI/article/view/29468>`_ (AAAI 2024), with the formulas of the published code
    (github GuanchengWan/FGGP). Let :math:`A_u` be the graph with further edges, ones on its diagonal. Two more
    convolutions give :math:`Z = \mathrm{relu}(\hat A_u \hat A_u X W_1 W_2)` and

    .. math::
        S = Z Z^\top, \qquad P = \alpha \frac{S}{\max S} + (1 - \alpha) A_u.

    The view :math:`A'` is drawn of :math:`P` (a relaxed Bernoulli variable, rounded with a straight-through gradient).
    The loss is the sum of

    - the cross-entropies of the training nodes in the graph and in the view;
    - :func:`~flgraph.nn.instance_contrast` between prototypes in the one and in the other: means of
      representations by class, weighed by how sure the model is. Nodes without a label take the class that the
      model gives them in the graph, those with one count 1;
    - the weighted binary cross-entropy of :math:`S`, as logits, against :math:`A_u`.

    The view takes memory by the square of a client's nodes.

    Args:
        in_channels: columns of the features; -1: given by the data.
        num_classes: number of classes; -1: given by the data.
        hidden_channels: columns between the layers.
        alpha: :math:`\alpha`.
        temperature: of the contrast.
        kwargs: see :class:`~flgraph.models.nodes.classifier.NodeClassifier`.

    Shapes:
        - **input:** a :class:`~flgraph.nn.batches.WholeGraph`
        - **output:** logits of the nodes ``index``, ``[n, num_classes]``
    """

    takes_samples: ClassVar[bool] = False

    def __init__(
        self,
        in_channels: int = -1,
        num_classes: int = -1,
        hidden_channels: int = 64,
        alpha: float = 0.5,
        temperature: float = 0.5,
        **kwargs: Any,
    ) -> None:
        super().__init__(in_channels, num_classes, hidden_channels, **kwargs)
        expect_share(alpha=alpha)
        expect(0 < temperature < float("inf"), "model.temperature", "a positive, finite number", temperature)
        self.alpha, self.temperature = alpha, temperature
        self.edges: Tensor | None = None
        if not self.is_template:
            sizes = ((in_channels, hidden_channels), (hidden_channels, hidden_channels))
            self.augment = torch.nn.ModuleList(SparseGCNConv(*size) for size in sizes)

    def use_view(self, edges: Tensor | None) -> None:
        """Sets :math:`A_u` ``[N, N]`` for the training to come; a GCN without it. No part of its state."""
        self.edges = edges

    def training_step(self, batch: WholeGraph, batch_idx: int = 0) -> Tensor:
        """The sum of the losses; logged is the cross-entropy in the graph."""
        if self.edges is None:
            return super().training_step(batch, batch_idx)
        everything = replace(batch, index=torch.arange(len(batch.nodes), device=batch.index.device))
        rows = self.encode(batch)
        logits = at_least_float32(self.head(rows, everything))
        labels = self._labels(batch, labels_of(batch).numel())
        loss = self._score(logits.index_select(0, batch.index), labels, "train")
        edges = self.edges.to(logits)
        likeness, view = self.view(batch.x, edges)
        other = self.dropout(_spread(self.convs[0], batch.x, view), rectify=True)
        loss = loss + self._weighted_loss(_spread(self.convs[1], other, view).index_select(0, batch.index), labels)
        sure, guessed = logits.softmax(dim=1).max(dim=1)
        guessed, sure = guessed.index_copy(0, batch.index, labels), sure.index_fill(0, batch.index, 1.0)
        there = guessed.unique()
        plain, seen = (class_means(at_least_float32(z), guessed, sure, self.num_classes)[there] for z in (rows, other))
        return loss + instance_contrast(seen, plain, self.temperature) + edge_loss(likeness, edges)

    def view(self, x: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        """How alike nodes are, :math:`S`, and the normalised adjacency of a view that is drawn; ``[N, N]`` both."""
        matrix = _normalised(edges)
        hidden = x
        for conv in self.augment:
            hidden = _spread(conv, hidden, matrix)
        hidden = hidden.relu()
        likeness = hidden @ hidden.t()
        share = self.alpha * likeness / (likeness.max() + 1e-6) + (1 - self.alpha) * edges
        drawn = RelaxedBernoulli(likeness.new_tensor(1.0), probs=share, validate_args=False).rsample()
        drawn = drawn + (drawn.round() - drawn).detach()
        upper = drawn.triu(1)
        return likeness, _normalised(upper + upper.t() + torch.eye(len(edges), device=edges.device))


def edge_loss(likeness: Tensor, edges: Tensor) -> Tensor:
    r"""Cross-entropy of :math:`S` against edges, which count as much as all pairs without one.

    Args:
        likeness: logits ``[N, N]``.
        edges: ones and zeros ``[N, N]``.
    """
    pairs, joined = edges.numel(), edges.sum()
    apart = (pairs - joined).clamp(min=1.0)  # a graph of which all nodes are joined has none
    return pairs / (2 * apart) * F.binary_cross_entropy_with_logits(likeness, edges, pos_weight=apart / joined)


def _normalised(edges: Tensor) -> Tensor:
    scale = inverse_sqrt(edges.sum(dim=1))
    return scale.unsqueeze(1) * edges * scale


def _spread(conv: Any, x: Tensor, matrix: Tensor) -> Tensor:
    """A convolution with a dense matrix, in float32 at least."""
    return at_least_float32(matrix @ at_least_float32(rows_times(x.to(conv.weight.dtype), conv.weight)) + conv.bias)
