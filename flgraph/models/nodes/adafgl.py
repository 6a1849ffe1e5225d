"""A graph convolutional network that goes on alone from what it learned with others (AdaFGL)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from flgraph.models.base import expect_positive
from flgraph.models.classifier import labels_of
from flgraph.models.nodes.classifier import NodeClassifier
from flgraph.nn import Adjacency, SparseGCNConv, at_least_float32, gcn_matrix, inverse_sqrt
from flgraph.nn.batches import TensorBatch, WholeGraph


@dataclass
class Knowledge(TensorBatch):
    """What a client keeps of the common model.

    Args:
        nodes: numbers of the client's nodes in the graph that its own was cut from ``[N]``; batches of them are meant.
        soft: the common model's class probabilities ``[N, C]``.
        homophily: how far the client's labels can be told from its neighbours', from 0 to 1.
    """

    nodes: Tensor
    soft: Tensor
    homophily: float


class AdaFGL(NodeClassifier[WholeGraph]):
    r"""A GCN at first; after :meth:`use_knowledge`, two parts that know its predictions :math:`\hat P` (AdaFGL).

    `"AdaFGL: A New Paradigm for Federated Node Classification with Topology Heterogeneity"
    <https://arxiv.org/abs/2401.11750>`_, with the formulas of OpenFGL's code. Features are spread :math:`K` times,
    :math:`[X, \hat A' X, \dots, \hat A'^K X]`, by the normalised adjacency of
    :math:`\frac{1}{2} A + \frac{1}{2} [\hat P \hat P^\top > 0.999]` (rows of :math:`\mathrm{softmax}(\hat P)` of length
    1). Of these

    - an MLP gives logits :math:`H`; its loss is :math:`\mathrm{CE}(H) + \mathrm{MSE}(H, \hat P)`, and
      :math:`y_1 = (\mathrm{softmax}(H) + \mathrm{softmax}(\hat P)) / 2`;
    - one MLP gives logits, one of plain features others, and a third ones that are sent along positive and negative
      relations between nodes, which it finds itself (:class:`RelationMessages`); the loss is the sum of the three
      cross-entropies, and :math:`y_2` the mean of the three softmaxes.

    Both losses are added up. The prediction is :math:`h y_1 + (1 - h) y_2`, where :math:`h` is the client's homophily.
    Relations between all pairs of nodes take memory by the square of a client's nodes.

    Args:
        in_channels: columns of the features; -1: given by the data.
        num_classes: number of classes; -1: given by the data.
        hidden_channels: columns of all hidden layers.
        steps: :math:`K`.
        kwargs: see :class:`~flgraph.models.nodes.classifier.NodeClassifier`.

    Shapes:
        - **input:** a :class:`~flgraph.nn.batches.WholeGraph`
        - **output:** logits of the nodes ``index``, ``[n, num_classes]``; logarithms of probabilities later on
    """

    tasks: ClassVar[tuple[str, ...]] = ("multiclass",)

    def __init__(
        self, in_channels: int = -1, num_classes: int = -1, hidden_channels: int = 64, steps: int = 3, **kwargs: Any
    ) -> None:
        super().__init__(in_channels, num_classes, hidden_channels, **kwargs)
        expect_positive(steps=steps)
        self.steps = steps
        self.knowledge: Knowledge | None = None
        self._spread: tuple[Tensor, Adjacency, Tensor] | None = None  # features, edges, and what they gave
        if not self.is_template:
            sizes = (in_channels, hidden_channels, num_classes)
            self.extractor = torch.nn.ModuleList(SparseGCNConv(*size) for size in pairwise(sizes))
            spread, dropout = (steps + 1) * in_channels, self.dropout.p
            deep = (hidden_channels, hidden_channels, num_classes)
            self.smooth = PReLUNet((spread, *sizes[1:]), dropout)
            self.unlike_smooth = PReLUNet((spread, *deep), dropout)
            self.unlike_own = PReLUNet((in_channels, *deep), dropout)
            self.messages = RelationMessages(PReLUNet((spread, *deep), dropout))

    # ----------------------------------------------------------------------------------------------------- knowledge
    def use_knowledge(self, knowledge: Knowledge | None) -> None:
        """Sets what the module learns from later on, for batches of these nodes; it is in checkpoints."""
        self.knowledge, self._spread = knowledge, None

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds the knowledge, so that the module gives the same logits wherever it is loaded."""
        checkpoint["knowledge"] = None if self.knowledge is None else dict(vars(self.knowledge.to("cpu")))

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Puts it back."""
        stored = checkpoint.get("knowledge")
        self.use_knowledge(None if stored is None else Knowledge(**stored))

    def __getstate__(self) -> dict[str, Any]:
        """Without the features it has spread, which a copy spreads anew: sparse tensors cannot be copied deeply."""
        return {**super().__getstate__(), "_spread": None}

    def known(self, batch: WholeGraph) -> Knowledge | None:
        """The knowledge of the batch's nodes; nothing where they are another graph's."""
        if self.knowledge is None:
            return None
        if self.knowledge.nodes.device != batch.nodes.device:
            self.use_knowledge(self.knowledge.to(batch.nodes.device))
        return self.knowledge if torch.equal(self.knowledge.nodes, batch.nodes) else None

    # --------------------------------------------------------------------------------------------------------- parts
    def encode(self, batch: WholeGraph) -> Tensor:
        """What the GCN's second convolution gets."""
        self.check_batch(batch, WholeGraph)
        return self.dropout(self.extractor[0](batch.x, gcn_matrix(batch.adj)), rectify=True)

    def head(self, encoded: Tensor, batch: WholeGraph) -> Tensor:
        """The GCN's logits of the nodes ``batch.index``."""
        logits: Tensor = self.extractor[1](encoded, gcn_matrix(batch.adj))
        return logits.index_select(0, batch.index)

    def forward(self, batch: WholeGraph) -> Tensor:
        """Logits of the nodes ``batch.index``."""
        known = self.known(batch)
        if known is None:
            return super().forward(batch)
        return self.mixed(self.parts(batch, known), known).log().index_select(0, batch.index)

    def parts(self, batch: WholeGraph, known: Knowledge) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Logits of all nodes by the first part, and the three by the second."""
        self.check_batch(batch, WholeGraph)
        dense = batch.x.to_dense() if batch.x.layout == torch.sparse_csr else batch.x
        if self._spread is None or self._spread[0] is not batch.x or self._spread[1] is not batch.adj:
            self._spread = batch.x, batch.adj, spread_features(dense, batch.adj, known.soft, self.steps)
        spread = self._spread[2]
        return self.smooth(spread), self.unlike_own(dense), self.unlike_smooth(spread), self.messages(spread)

    def mixed(self, parts: Sequence[Tensor], known: Knowledge) -> Tensor:
        """Probabilities of all nodes ``[N, C]``, of what :meth:`parts` returned."""
        shares = [at_least_float32(part).softmax(dim=1) for part in parts]
        alike, others = (shares[0] + known.soft.softmax(dim=1)) / 2, torch.stack(shares[1:]).mean(dim=0)
        return (known.homophily * alike + (1 - known.homophily) * others).clamp(
            min=1e-12
        )  # of which there are logarithms

    def training_step(self, batch: WholeGraph, batch_idx: int = 0) -> Tensor:
        """Cross-entropy of the GCN, or later the sum of both parts' losses; logged is that of the prediction."""
        known = self.known(batch)
        if known is None:
            return super().training_step(batch, batch_idx)
        parts = [at_least_float32(part) for part in self.parts(batch, known)]
        index, labels = batch.index, self._labels(batch, labels_of(batch).numel())
        self._score(self.mixed(parts, known).log().index_select(0, index), labels, "train")
        losses = [self._weighted_loss(part.index_select(0, index), labels) for part in parts]
        return torch.stack([*losses, F.mse_loss(parts[0], known.soft.to(parts[0]))]).sum()


class PReLUNet(torch.nn.Module):
    """Linear layers with a learned PReLU and dropout between them; Glorot weights with gain for ReLU, zero biases.

    Args:
        sizes: columns of input, hidden layers and output.
        dropout: probability of a zero after each hidden layer.
    """

    def __init__(self, sizes: tuple[int, ...], dropout: float) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(*size) for size in pairwise(sizes))
        self.prelu, self.dropout = torch.nn.PReLU(), torch.nn.Dropout(dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new weights."""
        torch.nn.init.constant_(self.prelu.weight, 0.25)
        for layer in self.layers:
            torch.nn.init.xavier_uniform_(layer.weight, gain=torch.nn.init.calculate_gain("relu"))  # type: ignore[arg-type]
            torch.nn.init.zeros_(layer.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """``[n, sizes[-1]]`` of ``x [n, sizes[0]]``."""
        for layer in self.layers[:-1]:
            x = self.dropout(self.prelu(layer(x)))
        out: Tensor = self.layers[-1](x)
        return out


class RelationMessages(torch.nn.Module):
    r"""Logits that are sent along relations which they show themselves.

    Of logits :math:`H`, :math:`R_{ij} = \cos(\mathrm{softmax}(h_i), \mathrm{softmax}(h_j))` and 0 on the diagonal.
    Above its mean :math:`m`, a relation becomes :math:`(R - m) / (\max R - m)`, otherwise :math:`-R / m`, on the
    diagonal 1. With a PReLU :math:`\sigma`,
    :math:`(\mathrm{softmax}(\sigma(R) H) - \mathrm{softmax}(\sigma(-R) H) + H) / 2`.

    Args:
        net: what makes logits.
    """

    def __init__(self, net: PReLUNet) -> None:
        super().__init__()
        self.net = net

    def reset_parameters(self) -> None:
        """Draws new weights."""
        self.net.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        """``[n, C]``."""
        logits = self.net(x)
        relations = likeness(logits)
        mean, most = relations.mean(), relations.max()
        least = 1e-12  # a graph of one node has no relations
        above, below = (relations - mean) / (most - mean).clamp(min=least), -relations / mean.clamp(min=least)
        itself = torch.eye(len(relations), dtype=torch.bool, device=relations.device)
        scaled = torch.where(relations > mean, above, below).masked_fill(itself, 1.0)
        toward = (self.net.prelu(scaled) @ logits).softmax(dim=1)
        away = (self.net.prelu(-scaled) @ logits).softmax(dim=1)
        return (toward - away + logits) / 2


def likeness(logits: Tensor) -> Tensor:
    """Cosines between softmaxes of rows ``[n, n]``, 0 on the diagonal."""
    rows = F.normalize(logits.softmax(dim=1), dim=1)
    return (rows @ rows.t()).fill_diagonal_(0.0)


@torch.no_grad()
def spread_features(x: Tensor, adj: Adjacency, soft: Tensor, steps: int) -> Tensor:
    r""":math:`[X, \hat A' X, \dots, \hat A'^K X]`, see :class:`AdaFGL`.

    Args:
        x: features ``[N, F]``.
        adj: the client's graph.
        soft: :math:`\hat P`, ``[N, C]``.
        steps: :math:`K`.

    Returns:
        ``[N, (K + 1) F]``.
    """
    dense = 0.5 * (likeness(soft) > 0.999).to(x.dtype)
    dense.index_put_((adj.row, adj.col), dense.new_tensor(0.5), accumulate=True)
    dense.diagonal().add_(1.0)
    scale = inverse_sqrt(dense.sum(dim=1))
    dense = scale.unsqueeze(1) * dense * scale
    parts = [x]
    for _ in range(steps):
        parts.append(dense @ parts[-1])
    return torch.cat(parts, dim=1)
