"""The network of FedEgo: reduction layers, and personalization layers over ego-graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from flgraph.errors import expect
from flgraph.models.classifier import Classifier, OptimizerName, at_least_float32
from flgraph.nn import Dropout
from flgraph.nn.conv.ego import EgoSAGEConv, kaiming, take_nodes
from flgraph.nn.sparse.csr import SparseLinear

Labels = Literal["training", "all"]
"""Whose classes are told in mashed ego-graphs."""


@dataclass  # not frozen: Lightning copies batches to convert them
class MashedEgos:
    """Ego-graphs that stand for many: embeddings and labels averaged position by position (FedEgo, Eq. 8).

    Args:
        embedding: reduction embeddings ``[G, P, H]``.
        label: shares of the classes ``[G, P, C]``; zeros where none are told.
        fanouts: neighbours per node, for each hop; empty where there are centers only.
        childless: positions of all hops but the last whose children are not to count ``[G, P']``, bool; ``None`` where
            all do.
    """

    embedding: Tensor
    label: Tensor
    fanouts: tuple[int, ...]
    childless: Tensor | None = None

    def to(self, device: torch.device | str) -> MashedEgos:
        """The same on another device."""
        childless = None if self.childless is None else self.childless.to(device)
        return MashedEgos(self.embedding.to(device), self.label.to(device), self.fanouts, childless)

    def part(self, index: Tensor) -> MashedEgos:
        """Those of the given numbers ``[g]``."""
        childless = None if self.childless is None else self.childless[index]
        return MashedEgos(self.embedding[index], self.label[index], self.fanouts, childless)


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
        - **input:** ``[B, P, hidden_channels]``, or ``[n, hidden_channels]`` and ``index [B, P]``, and perhaps
          ``childless``, see :class:`~flgraph.nn.EgoSAGEConv`
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
        p = self.dropout(p, rectify=not self.linear)
        logits: Tensor = self.classifier(p[:, 0])
        return logits


class FedEgo(Classifier):
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
        lr: learning rate.
        weight_decay: weight decay (an L2 penalty, except with ``adamw``).
        optimizer: ``adam``, ``adamw`` or ``sgd``.

    Shapes:
        - **input:** a :class:`~flgraph.data.EgoBatch`: ``x [n, in_channels]``, ``index [B, P]``
        - **output:** logits ``[B, num_classes]``

    Raises:
        InputError: a hyper-parameter or a batch cannot be used.
    """

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
        lr: float = 0.01,
        weight_decay: float = 0.0,
        optimizer: OptimizerName = "adam",
    ) -> None:
        super().__init__(in_channels, num_classes, lr, weight_decay, optimizer)
        self.save_hyperparameters()
        sizes = {"hidden_channels": hidden_channels, "num_layers": num_layers}
        for name, size in {**sizes, "num_reduction_layers": num_reduction_layers}.items():
            expect(size >= 1, f"model.{name}", "a positive integer", size)
        expect(0 <= dropout < 1, "model.dropout", "at least 0 and less than 1", dropout)
        self.hidden_channels, self.num_layers = hidden_channels, num_layers
        self.linear, self.ego = linear, ego
        if self.is_template:
            return
        self.reduction = Reduction(
            in_channels, hidden_channels, num_reduction_layers, 0 if ego else num_layers, dropout
        )
        self.personalization = Personalization(hidden_channels, num_classes, num_layers, linear, ego, dropout)

    def forward(self, batch: Any) -> Tensor:
        """Logits of the centers ``[B, num_classes]``."""
        self.check_sizes()
        if not self.ego:
            return self.personalization(self.embed(batch), ())
        self._check(batch)
        # A row per node, not per position: the first GraphSAGE layer then maps a node that recurs once, too.
        nodes = self.reduction.nodes(self._features(batch))
        return self.personalization(nodes, batch.fanouts, batch.index, batch.childless)

    def embed(self, batch: Any) -> Tensor:
        """Reduction embeddings of all positions ``[B, P, H]``; of the centers alone (``P`` = 1) where not ``ego``."""
        self._check(batch)
        return self.reduction(self._features(batch), batch.index, batch.fanouts, batch.childless)

    def _check(self, batch: Any) -> None:
        egos = all(hasattr(batch, name) for name in ("x", "index", "fanouts"))
        wanted = "one whose batches are ego-graphs, such as flgraph.data.NodeFederation,"
        expect(egos, "data", wanted, f"batches of type {type(batch).__name__}")
        deep = len(batch.fanouts) >= self.num_layers
        expect(deep, "data.fanouts", f"{self.num_layers} hops or more, as `model.num_layers` says,", batch.fanouts)

    def _features(self, batch: Any) -> Tensor:
        fits = batch.x.dim() == 2 and batch.x.size(1) == self.in_channels
        expect(fits, "batch.x", f"of shape [nodes, {self.in_channels}]", list(batch.x.shape))
        return batch.x

    @torch.no_grad()
    def mash(self, batch: Any, mixup: bool = True, labels: Labels = "training") -> MashedEgos:
        """One ego-graph that stands for a batch: the mean of every position's embeddings and labels (Eq. 8).

        Below a node that is ``childless`` there is nothing: zeros in the mean of the embeddings, as the client's own
        layers take it, and left out of the mean of the labels.

        Args:
            batch: a :class:`~flgraph.data.EgoBatch`.
            mixup: whether to average; otherwise the first ego-graph of the batch as it is (the paper's "w/o Mixup").
            labels: which nodes' classes are averaged: those of ``training`` nodes, as the batch tells (all where it
                does not), zeros at positions without any; or of ``all``, where a position that no ego-graph has a node
                at keeps the classes that stand there.

        Returns:
            ``embedding [1, P, H]`` and ``label [1, P, C]``.
        """
        embedding = at_least_float32(self.embed(batch))
        positions = embedding.size(1)
        label = F.one_hot(batch.labels[:, :positions], self.num_classes).to(embedding.dtype)
        told = label.new_ones(*label.shape[:2], 1)
        if self.ego and batch.childless is not None and bool(batch.childless.any()):
            told = _below(batch.childless, batch.fanouts).logical_not().to(embedding.dtype).unsqueeze(2)
            embedding = embedding * told
        known = getattr(batch, "trained", None)
        if labels == "training" and known is not None:
            told = told * known[:, :positions].to(told.dtype).unsqueeze(2)
        if mixup:
            embedding, count = embedding.mean(0, keepdim=True), told.sum(0, keepdim=True)
            alike = label.mean(0, keepdim=True) if labels == "all" else 0.0
            label = torch.where(count > 0, (label * told).sum(0, keepdim=True) / count.clamp(min=1), alike)
        elif labels == "training":
            label = label * told
        return MashedEgos(embedding[:1], label[:1], tuple(batch.fanouts) if self.ego else ())


class Reduction(torch.nn.Module):
    """Reduction layers: linear maps with ReLU of every distinct node, then GraphSAGE layers if there are any.

    Args:
        in_channels: columns of the features.
        hidden_channels: columns of all layers.
        num_layers: linear layers.
        num_convs: GraphSAGE layers.
        dropout: probability of a zero after each layer.

    Shapes:
        - **input:** ``x [n, in_channels]``, ``index [B, P]``, perhaps ``childless``, see
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


class EgoHead(Classifier):
    """Personalization layers alone, trained on mashed ego-graphs with soft labels: FedEgo's global model (Eq. 10).

    Args:
        hidden_channels: columns of the embeddings.
        num_classes: number of classes.
        num_layers: see :class:`FedEgo`, as for all that follow.
        linear: see there.
        ego: see there.
        dropout: see there.
        lr: see there.
        weight_decay: see there.
        optimizer: see there.

    Shapes:
        - **input:** :class:`MashedEgos` of ``G`` ego-graphs
        - **output:** logits of the centers ``[G, num_classes]``
    """

    def __init__(
        self,
        hidden_channels: int,
        num_classes: int,
        num_layers: int = 2,
        linear: bool = False,
        ego: bool = True,
        dropout: float = 0.5,
        lr: float = 0.01,
        weight_decay: float = 0.0,
        optimizer: OptimizerName = "adam",
    ) -> None:
        super().__init__(hidden_channels, num_classes, lr, weight_decay, optimizer)
        self.save_hyperparameters()
        self.personalization = Personalization(hidden_channels, num_classes, num_layers, linear, ego, dropout)

    def forward(self, batch: MashedEgos) -> Tensor:
        """Logits of the centers."""
        embedding = batch.embedding.to(self.personalization.classifier.weight.dtype)  # clients may have another
        logits: Tensor = self.personalization(embedding, batch.fanouts, childless=batch.childless)
        return logits

    def training_step(self, batch: MashedEgos, batch_idx: int = 0) -> Tensor:
        """Cross-entropy with the centers' soft labels."""
        logits = at_least_float32(self(batch))
        loss = F.cross_entropy(logits, batch.label[:, 0].to(logits.dtype))
        self.log("train/loss", loss, on_step=False, on_epoch=True, batch_size=batch.label.size(0))
        return loss


def _below(childless: Tensor, fanouts: Sequence[int]) -> Tensor:
    """Which positions ``[B, P]`` are below one of ``childless [B, P']``, at any depth."""
    hop = childless.new_zeros(childless.size(0), 1)
    hops, start = [hop], 0
    for k in fanouts:
        end = start + hop.size(1)
        hop, start = (hop | childless[:, start:end]).repeat_interleave(k, dim=1), end
        hops.append(hop)
    return torch.cat(hops, dim=1)


def _initialise(module: torch.nn.Module) -> None:
    for child in module.modules():
        if isinstance(child, torch.nn.Linear):
            kaiming(child)
        elif isinstance(child, SparseLinear):
            child.reset_parameters()
