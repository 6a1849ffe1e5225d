"""The network of FedEgo: reduction layers, and personalization layers over ego-graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from flgraph.errors import expect
from flgraph.models.base import SizedModule, expect_positive
from flgraph.models.nodes.classifier import NodeClassifier
from flgraph.nn import Dropout, EgoSAGEConv, SparseLinear, at_least_float32
from flgraph.nn.batches import EgoBatch, TensorBatch
from flgraph.nn.conv.ego import below, kaiming, take_nodes


@dataclass
class MashedEgoGraphs(TensorBatch):
    """Ego-graphs that stand for many: embeddings and labels averaged position by position (FedEgo, Eq. 8).

    Args:
        embedding: reduction embeddings ``[G, P, H]``.
        label: shares of the classes ``[G, P, C]``; zeros at positions without any.
        fanouts: neighbours per node, for each hop; empty where there are centers only.
        childless: see :class:`~flgraph.nn.batches.EgoBatch`.
    """

    embedding: Tensor
    label: Tensor
    fanouts: tuple[int, ...]
    childless: Tensor | None = None

    def part(self, index: Tensor) -> MashedEgoGraphs:
        """Those of the given numbers ``[g]``."""
        childless = None if self.childless is None else self.childless[index]
        return MashedEgoGraphs(self.embedding[index], self.label[index], self.fanouts, childless)


class Personalization(torch.nn.Module):
    """Personalization layers: GraphSAGE over ego-graphs, or linear layers on centers, and a linear classifier.

    Args:
        hidden_channels: columns of the input and of all hidden layers.
        num_classes: columns of the output.
        num_layers: number of layers before the classifier; as many hops are needed.
        linear: no ReLU between the layers (the linear variant, for which Theorem 4.1 holds).
        ego: GraphSAGE over ego-graphs; otherwise linear layers on the centers alone.
        dropout: probability of a zero after each hidden layer.

    Shapes:
        - **input:** see :class:`~flgraph.nn.EgoSAGEConv`
        - **output:** ``[B, num_classes]``
    """

    def __init__(
        self, hidden_channels: int, num_classes: int, num_layers: int, linear: bool, ego: bool, dropout: float
    ) -> None:
        super().__init__()
        self.linear, self.ego = linear, ego
        make = EgoSAGEConv if ego else torch.nn.Linear
        self.layers = torch.nn.ModuleList(make(hidden_channels, hidden_channels) for _ in range(num_layers))
        self.classifier = torch.nn.Linear(hidden_channels, num_classes, bias=False)
        self.dropout = Dropout(dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Kaiming-normal weights and zero biases."""
        _initialise(self)

    def forward(
        self, p: Tensor, fanouts: Sequence[int], index: Tensor | None = None, childless: Tensor | None = None
    ) -> Tensor:
        """Logits of the centers."""
        logits: Tensor = self.classifier(self.encode(p, fanouts, index, childless))
        return logits

    def encode(
        self, p: Tensor, fanouts: Sequence[int], index: Tensor | None = None, childless: Tensor | None = None
    ) -> Tensor:
        """What the classifier gets of the centers, ``[B, hidden_channels]``."""
        remaining = list(fanouts)
        expect(not self.ego or len(remaining) >= len(self.layers), "fanouts", f"{len(self.layers)} hops", remaining)
        for number, layer in enumerate(self.layers, start=1):
            if self.ego:
                p, index = layer(p, remaining, index, childless), None
                remaining.pop()
            else:
                p = layer(p[:, :1])
            if number < len(self.layers) and not self.linear:
                p = p.relu()
        return self.dropout(p, rectify=not self.linear)[:, 0]


class FedEgo(NodeClassifier[EgoBatch]):
    r"""Node classification on ego-graphs of a fixed shape, with layers to share and layers to personalize.

    `"FedEgo: Privacy-preserving Personalized Federated Graph Learning with Ego-graphs"
    <https://arxiv.org/abs/2208.13685>`_, Sections 4.1.1, 4.1.3. Every node's features go through the reduction
    layers (Eq. 7, ``reduction.*``); the personalization layers (Eq. 9, ``personalization.*``) are GraphSAGE over its
    ego-graph and a linear classifier.

    Features may be sparse; a node that an ego-graph has twice is reduced once.

    Args:
        in_channels: columns of the node features; -1: given by the data.
        num_classes: number of classes; -1: given by the data.
        hidden_channels: columns of all hidden layers.
        num_reduction_layers: linear layers with ReLU before the personalization.
        num_layers: GraphSAGE layers; ego-graphs must have as many hops.
        linear: no ReLU in the personalization layers (the paper's FedEgo-Linear).
        ego: where the GraphSAGE layers are: in the personalization (true), or in the reduction, with linear layers for
            personalization, so that only the embeddings of centers can be shared (false, the paper's "w/o EGO").
        dropout: probability of a zero after each hidden layer.
        kwargs: see :class:`~flgraph.models.base.SizedModule`.

    Shapes:
        - **input:** a :class:`~flgraph.nn.batches.EgoBatch`
        - **output:** logits ``[B, num_classes]``
    """

    tasks: ClassVar[tuple[str, ...]] = ("multiclass",)

    def __init__(
        self,
        in_channels: int = -1,
        num_classes: int = -1,
        hidden_channels: int = 512,
        num_reduction_layers: int = 1,
        num_layers: int = 2,
        linear: bool = False,
        ego: bool = True,
        dropout: float = 0.5,
        **kwargs: Any,
    ) -> None:
        super().__init__(in_channels, num_classes, hidden_channels, dropout, **kwargs)
        expect_positive(num_layers=num_layers, num_reduction_layers=num_reduction_layers)
        self.num_layers, self.linear, self.ego = num_layers, linear, ego
        if self.is_template:
            return
        self.reduction = Reduction(
            in_channels, hidden_channels, num_reduction_layers, 0 if ego else num_layers, dropout
        )
        self.personalization = Personalization(hidden_channels, num_classes, num_layers, linear, ego, dropout)

    def encode(self, batch: EgoBatch) -> Tensor:
        """What the classifier gets of the centers ``[B, hidden_channels]``."""
        if not self.ego:
            return self.personalization.encode(self.embed(batch), ())
        self._check(batch)
        # A row per node, not per position: the first GraphSAGE layer then maps a node that recurs once, too.
        return self.personalization.encode(self.reduction.nodes(batch.x), batch.fanouts, batch.index, batch.childless)

    def head(self, encoded: Tensor, batch: EgoBatch) -> Tensor:
        """Logits of the centers ``[B, num_classes]``."""
        logits: Tensor = self.personalization.classifier(encoded)
        return logits

    def embed(self, batch: EgoBatch) -> Tensor:
        """Reduction embeddings of all positions ``[B, P, H]``; of the centers alone (``P`` = 1) where not ``ego``."""
        self._check(batch)
        return self.reduction(batch.x, batch.index, batch.fanouts, batch.childless)

    def _check(self, batch: EgoBatch) -> None:
        self.check_batch(batch, EgoBatch)
        deep = len(batch.fanouts) >= self.num_layers
        expect(deep, "data.fanouts", f"{self.num_layers} hops or more, as `model.num_layers` says,", batch.fanouts)

    @torch.no_grad()
    def mash(self, batch: EgoBatch, mixup: bool = True) -> MashedEgoGraphs:
        """One ego-graph that stands for a batch: the mean of every position's embeddings and labels (Eq. 8).

        Labels are averaged over training nodes, where the batch says which these are. Below a node that is
        ``childless`` embeddings are zero, as the client's own layers take their mean, and there are no labels.

        Args:
            batch: ego-graphs.
            mixup: whether to average; otherwise the first ego-graph of the batch as it is (the paper's "w/o Mixup").

        Returns:
            ``embedding [1, P, H]`` and ``label [1, P, C]``, zeros where there are no labels.
        """
        embedding = at_least_float32(self.embed(batch))
        positions = embedding.size(1)
        label = F.one_hot(batch.labels[:, :positions], self.num_classes).to(embedding.dtype)
        counted = label.new_ones(*label.shape[:2], 1)
        if self.ego and batch.childless is not None:
            counted = below(batch.childless, batch.fanouts).logical_not().to(embedding.dtype).unsqueeze(2)
            embedding = embedding * counted
        if batch.trained is not None:
            counted = counted * batch.trained[:, :positions].to(counted.dtype).unsqueeze(2)
        label = label * counted
        if mixup:
            embedding, count = embedding.mean(0, keepdim=True), counted.sum(0, keepdim=True)
            label = label.sum(0, keepdim=True) / count.clamp(min=1)
        return MashedEgoGraphs(embedding[:1], label[:1], tuple(batch.fanouts) if self.ego else ())


class Reduction(torch.nn.Module):
    """Reduction layers: linear maps with ReLU of every distinct node, then GraphSAGE layers if there are any.

    Args:
        in_channels: columns of the features.
        hidden_channels: columns of all layers.
        num_layers: linear layers.
        num_convs: GraphSAGE layers.
        dropout: probability of a zero after each layer.

    Shapes:
        - **input:** ``x [n, in_channels]``; for ``index [B, P]`` and ``childless`` see
          :class:`~flgraph.nn.EgoSAGEConv`
        - **output:** ``[B, P, hidden_channels]``; with GraphSAGE layers ``[B, 1, hidden_channels]``
    """

    def __init__(self, in_channels: int, hidden_channels: int, num_layers: int, num_convs: int, dropout: float) -> None:
        super().__init__()
        widths = [in_channels] + [hidden_channels] * num_layers
        self.layers = torch.nn.ModuleList(SparseLinear(a, b) for a, b in pairwise(widths))
        self.convs = torch.nn.ModuleList(EgoSAGEConv(hidden_channels, hidden_channels) for _ in range(num_convs))
        self.dropout = Dropout(dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Kaiming-normal weights and zero biases."""
        _initialise(self)

    def forward(self, x: Tensor, index: Tensor, fanouts: Sequence[int], childless: Tensor | None = None) -> Tensor:
        """Embeddings of all positions, or of the centers."""
        p, remaining = self.nodes(x), list(fanouts)
        expect(len(remaining) >= len(self.convs), "fanouts", f"{len(self.convs)} hops", remaining)
        if not len(self.convs):
            return take_nodes(p, index)
        for number, conv in enumerate(self.convs):
            p = self.dropout(conv(p, remaining, None if number else index, childless), rectify=True)
            remaining.pop()
        return p[:, :1]

    def nodes(self, x: Tensor) -> Tensor:
        """Embeddings ``[n, hidden_channels]`` of the nodes, by the linear layers alone."""
        for layer in self.layers:
            x = self.dropout(layer(x), rectify=True)
        return x


class EgoHead(SizedModule):
    """Personalization layers alone, trained on mashed ego-graphs with soft labels: FedEgo's global model (Eq. 10).

    Args:
        hidden_channels: columns of the embeddings.
        num_classes: number of classes.
        num_layers: see :class:`FedEgo`, as for all that follow.
        linear: see there.
        ego: see there.
        dropout: see there.
        kwargs: see there.

    Shapes:
        - **input:** :class:`MashedEgoGraphs` of ``G`` ego-graphs
        - **output:** logits of the centers ``[G, num_classes]``
    """

    data_sizes = ()

    def __init__(
        self,
        hidden_channels: int,
        num_classes: int,
        num_layers: int = 2,
        linear: bool = False,
        ego: bool = True,
        dropout: float = 0.5,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        expect_positive(hidden_channels=hidden_channels, num_classes=num_classes, num_layers=num_layers)
        self.personalization = Personalization(hidden_channels, num_classes, num_layers, linear, ego, dropout)

    def forward(self, batch: MashedEgoGraphs) -> Tensor:
        """Logits of the centers."""
        embedding = batch.embedding.to(self.personalization.classifier.weight.dtype)  # clients may have another
        logits: Tensor = self.personalization(embedding, batch.fanouts, childless=batch.childless)
        return logits

    def training_step(self, batch: MashedEgoGraphs, batch_idx: int = 0) -> Tensor:
        """Cross-entropy with the centers' soft labels."""
        logits = at_least_float32(self(batch))
        loss = F.cross_entropy(logits, batch.label[:, 0].to(logits.dtype))
        self.log("train/loss", loss, on_step=False, on_epoch=True, batch_size=batch.label.size(0))
        return loss


def _initialise(module: torch.nn.Module) -> None:
    for child in module.modules():
        if isinstance(child, torch.nn.Linear):
            kaiming(child)
        elif isinstance(child, SparseLinear):
            child.reset_parameters()
