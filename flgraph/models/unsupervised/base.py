"""What all models have in common that learn one embedding per graph without labels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable
from typing import ClassVar, Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Data

from flgraph.errors import InputError, expect
from flgraph.models.base import OptimizerName, SizedModule
from flgraph.models.classifier import at_least_float32
from flgraph.models.graphs import inputs
from flgraph.models.unsupervised.clustering import clustering_metrics, probe_accuracy
from flgraph.nn import WeightedAdjacency

EmbeddingName = Literal["raw", "unit", "log"]


def embedded(graphs: Tensor, kind: EmbeddingName) -> Tensor:
    r"""Embeddings made of representations ``[B, C]``.

    Args:
        graphs: sums over nodes.
        kind: ``raw``, the sums; ``unit``, their direction; ``log``, :math:`\mathrm{sign}(u) \log(1 + |u|)`: sums grow
            with the graphs, and K-means on them tells a few large graphs from all others.
    """
    if kind == "unit":
        return F.normalize(graphs, dim=1)
    return graphs.sign() * graphs.abs().log1p() if kind == "log" else graphs


class Encoded(NamedTuple):
    """Representations of the nodes ``[N, C]`` and of the graphs ``[B, C]`` of a batch."""

    nodes: Tensor
    graphs: Tensor


FurtherLoss = Callable[[Data, Encoded], Tensor]
"""A scalar from a training batch and its representations, with a gradient."""


class GraphEmbedding(SizedModule, ABC):
    """One embedding per graph, learned without labels: a base for modules with a contrastive loss.

    Labels are read where embeddings are judged, and nowhere else. Logs ``loss`` of each epoch under ``train/`` and
    ``val/``. In a test, K-means makes as many clusters of all embeddings as there are classes: ``accuracy`` and ``f1``
    (macro) after the best matching of clusters and classes, ``nmi``, ``ari`` and ``silhouette`` are logged under
    ``test/``, of a second test loader under ``global_test/``. ``predict`` gives embeddings ``[B, C]``.

    Args:
        in_channels: columns of the node features; -1: given by the data.
        num_classes: number of clusters in a test; -1: given by the data.
        lr: learning rate.
        weight_decay: weight decay (an L2 penalty, except with ``adamw``).
        optimizer: ``adam``, ``adamw`` or ``sgd``.
        embedding: what is made of a graph's representation, see :func:`embedded`.
        cluster_seed: of K-means.
        cluster_restarts: how often K-means begins anew in a test.
        probe: whether tests also log ``probe``, the accuracy of logistic regression on the embeddings over five folds.

    Raises:
        InputError: a hyper-parameter or a batch cannot be used.
    """

    predicted: ClassVar[str] = "embeddings"
    """What ``predict`` gives; no probabilities."""

    further_loss: FurtherLoss | None = None
    """Added to the loss in training, where somebody sets it; no part of the model's state."""

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        lr: float,
        weight_decay: float,
        optimizer: OptimizerName,
        embedding: EmbeddingName = "raw",
        cluster_seed: int = 0,
        cluster_restarts: int = 10,
        probe: bool = False,
    ) -> None:
        super().__init__(in_channels, num_classes, lr, weight_decay, optimizer)
        expect(embedding in get_args(EmbeddingName), "model.embedding", "raw, unit or log", embedding)
        self.embedding = embedding
        expect(cluster_restarts >= 1, "model.cluster_restarts", "1 or more", cluster_restarts)
        expect(0 <= cluster_seed < 2**32, "model.cluster_seed", "between 0 and 2^32 - 1", cluster_seed)
        self.cluster_seed, self.cluster_restarts, self.probe = cluster_seed, cluster_restarts, probe
        self._losses: dict[str, list[tuple[int, Tensor]]] = defaultdict(list)
        self._embedded: dict[str, list[tuple[Tensor, Tensor]]] = defaultdict(list)

    # ---------------------------------------------------------------------------------------- what a subclass must say
    @abstractmethod
    def encode(self, batch: Data) -> Encoded:
        """Representations of a batch; those of the graphs become the embeddings."""

    @abstractmethod
    def contrast(self, batch: Data) -> tuple[Tensor, Encoded]:
        """The module's own loss of a batch, and the representations of :meth:`encode` that were computed for it."""

    # ------------------------------------------------------------------------------------------------------ steps
    def forward(self, batch: Data) -> Tensor:
        """Embeddings ``[B, C]``."""
        return embedded(self.encode(batch).graphs, self.embedding)

    def training_step(self, batch: Data, batch_idx: int = 0) -> Tensor:
        """The module's own loss, and :attr:`further_loss` if there is one."""
        loss, encoded = self.contrast(batch)
        count = encoded.graphs.size(0)
        if self.further_loss is not None:
            further = self.further_loss(batch, encoded)
            self._losses["train/intra"].append((count, loss.detach()))
            self._losses["train/inter"].append((count, further.detach()))
            loss = loss + further
        self._losses["train/loss"].append((count, loss.detach()))
        return loss

    def validation_step(self, batch: Data, batch_idx: int = 0) -> Tensor:
        """The module's own loss."""
        loss, encoded = self.contrast(batch)
        self._losses["val/loss"].append((encoded.graphs.size(0), loss.detach()))
        return loss

    def test_step(self, batch: Data, batch_idx: int = 0, dataloader_idx: int = 0) -> None:
        """Keeps the embeddings for the end of the epoch."""
        labels = batch.get("y")
        if labels is None:
            raise InputError("Expected `batch.y` to be one class per graph but the batch has none.")
        self._embedded[self.test_stage(dataloader_idx)].append((at_least_float32(self(batch)), labels.view(-1)))

    def predict_step(self, batch: Data, batch_idx: int = 0) -> Tensor:
        """Embeddings ``[B, C]``."""
        return at_least_float32(self(batch))

    # ---------------------------------------------------------------------------------------------------- metrics
    def on_train_epoch_start(self) -> None:
        """Forgets what an interrupted epoch left."""
        self._losses.clear()

    def on_validation_epoch_start(self) -> None:
        """Forgets what an interrupted epoch left (but not the training epoch that this may be a part of)."""
        self._losses.pop("val/loss", None)

    def on_test_epoch_start(self) -> None:
        """Forgets what an interrupted epoch left."""
        self._embedded.clear()

    def on_train_epoch_end(self) -> None:
        """Logs ``train/loss``; with a further loss its two parts, too, ``train/intra`` and ``train/inter``."""
        self._log_losses("train/")

    def on_validation_epoch_end(self) -> None:
        """Logs ``val/loss``."""
        self._log_losses("val/")

    def on_test_epoch_end(self) -> None:
        """Clusters the embeddings of each loader."""
        for stage in self.test_stages:
            parts = self._embedded.pop(stage, [])
            if not parts:
                continue
            embeddings, labels = (torch.cat(part) for part in zip(*parts, strict=True))
            finite = bool(torch.isfinite(embeddings).all())
            expect(finite, "embeddings", "finite (a smaller `model.lr` may help)", "NaN or infinity")
            metrics = clustering_metrics(embeddings, labels, self.num_classes, self.cluster_seed, self.cluster_restarts)
            if self.probe:
                metrics["probe"] = probe_accuracy(embeddings, labels, self.cluster_seed)
            self.log_dict({f"{stage}/{name}": value for name, value in metrics.items()}, batch_size=1)

    def _log_losses(self, prefix: str) -> None:
        for name in [name for name in self._losses if name.startswith(prefix)]:
            counts, losses = zip(*self._losses.pop(name), strict=True)
            weights = torch.tensor(counts, dtype=torch.float32, device=losses[0].device)
            mean = (torch.stack(losses).float() * weights).sum() / weights.sum()
            self.log(name, mean, batch_size=1)

    # ------------------------------------------------------------------------------------- what models read of a batch
    def view(self, batch: Data, name: str = "diffused") -> WeightedAdjacency:
        """The batch's further edges of this name.

        Raises:
            InputError: it has none.
        """
        inputs.expect_graphs(batch)
        edges = batch.get(name)
        if edges is None:
            raise InputError(
                f"Expected `batch.{name}` to be the second view of the graphs but the batch has none; "
                "`FlatGraphs.with_views` adds it, and PartitionedGraphFederation has it."
            )
        view: WeightedAdjacency = edges
        return view

    def pooled(self, batch: Data, nodes: Tensor) -> Tensor:
        """Sums over the nodes of each graph ``[B, C]``."""
        graph, count = inputs.graph_of_nodes(batch, nodes.device)
        wide = at_least_float32(nodes)
        return wide.new_zeros(count, nodes.size(1)).index_add_(0, graph, wide)
