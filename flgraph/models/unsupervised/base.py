"""What all models have in common that learn one embedding per graph without labels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F
from torch_geometric.data import Data

from flgraph.errors import InputError, expect
from flgraph.models.base import FurtherLoss, SizedModule, expect_sizes
from flgraph.models.classifier import labels_of
from flgraph.models.graphs import inputs
from flgraph.nn import WeightedAdjacency, at_least_float32, graph_pool

EmbeddingName = Literal["raw", "unit", "log"]


def embedded(graphs: Tensor, how: EmbeddingName) -> Tensor:
    r"""Embeddings made of representations ``[B, C]``.

    Args:
        graphs: sums over nodes.
        how: ``raw``, the sums; ``unit``, their direction; ``log``, :math:`\mathrm{sign}(u) \log(1 + |u|)`: sums grow
            with the graphs, and K-means on them separates a few large graphs from the rest.
    """
    if how == "unit":
        return F.normalize(graphs, dim=1)
    return graphs.sign() * graphs.abs().log1p() if how == "log" else graphs


class Encoded(NamedTuple):
    """Representations of the nodes ``[N, C]`` and of the graphs ``[B, C]`` of a batch."""

    nodes: Tensor
    graphs: Tensor


def _is_single(batch: Data) -> bool:
    return isinstance(batch, Data) and getattr(batch, "num_graphs", 1) == 1  # a graph that is no batch has no number


class GraphEmbedding(SizedModule, ABC):
    """One embedding per graph, learned without labels: a base for modules with a contrastive loss.

    Labels are read where embeddings are judged, and nowhere else. Logs ``loss`` of each epoch under ``train/`` and
    ``val/``. In a test, K-means makes as many clusters of all embeddings as there are classes: ``accuracy`` and ``f1``
    (macro) after the best matching of clusters and classes, ``nmi``, ``ari`` and ``silhouette`` are logged under
    ``test/``, of a second test loader under ``global_test/``; nothing where nobody has labelled the graphs. ``predict``
    gives embeddings ``[B, C]``.

    A batch of a single graph has no negatives, and is passed over in training and validation.

    Args:
        in_channels: columns of the node features; -1: given by the data.
        num_classes: number of clusters in a test; -1: given by the data; 0: no labels to compare them with.
        embedding: what is made of a graph's representation, see :func:`embedded`.
        probe: whether tests also log ``probe``, the accuracy of logistic regression on the embeddings over five folds.
        readout: if positive, tests also log ``readout_accuracy`` and ``readout_f1``: the same of the embeddings of the
            last ``readout`` models that were tested, this one included, joined with the graphs' sizes by
            :func:`~flgraph.models.unsupervised.clustering.joined`; and ``size_accuracy`` and ``size_f1``, of the
            logarithms of the numbers of nodes alone. The weights of those models are a part of checkpoints.
        kwargs: see :class:`~flgraph.models.base.SizedModule`.
    """

    predicted: ClassVar[str] = "embeddings"
    """What ``predict`` gives; no probabilities."""

    further_loss: FurtherLoss | None = None
    """Added to the loss in training, where somebody sets it; no part of the model's state."""

    def __init__(
        self,
        in_channels: int = -1,
        num_classes: int = -1,
        embedding: EmbeddingName = "raw",
        probe: bool = False,
        readout: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        expect_sizes(in_channels=in_channels, num_classes=num_classes or -1)
        expect(embedding in get_args(EmbeddingName), "model.embedding", "raw, unit or log", embedding)
        expect(readout >= 0, "model.readout", "0 or more", readout)
        self.in_channels, self.num_classes, self.embedding = in_channels, num_classes, embedding
        self.probe, self.readout = probe, readout
        self._tested: list[dict[str, Tensor]] = []  # states of the models for the read-out, the newest last

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

    def training_step(self, batch: Data, batch_idx: int = 0) -> Tensor | None:
        """The module's own loss, and :attr:`further_loss` if there is one, of the batch and :class:`Encoded`."""
        if _is_single(batch):
            self.collect("passed over", batch_idx)
            return None
        loss, encoded = self.contrast(batch)
        if self.further_loss is None:
            losses = {"loss": loss}
        else:
            further = self.further_loss(batch, encoded)
            losses = {"intra": loss, "inter": further, "loss": loss + further}
        self._collect(encoded, losses, "train")
        return losses["loss"]

    def validation_step(self, batch: Data, batch_idx: int = 0) -> Tensor | None:
        """The module's own loss."""
        if _is_single(batch):
            return None
        loss, encoded = self.contrast(batch)
        self._collect(encoded, {"loss": loss}, "val")
        return loss

    def on_train_epoch_end(self) -> None:
        """Logs the losses.

        Raises:
            InputError: all batches were passed over.
        """
        if self._collected.pop("passed over", None) and "train" not in self._collected:
            raise InputError("data", "one with two graphs in a training batch, negatives of each other,", "one in each")
        super().on_train_epoch_end()

    @property
    def validation_names(self) -> tuple[str, ...] | None:
        """The loss, unless a subclass has steps of its own."""
        return ("loss",) if type(self).validation_step is GraphEmbedding.validation_step else None

    def _collect(self, encoded: Encoded, losses: Mapping[str, Tensor], stage: str) -> None:
        self.collect(stage, (encoded.graphs.size(0), {name: loss.detach() for name, loss in losses.items()}))

    def test_step(self, batch: Data, batch_idx: int = 0, dataloader_idx: int = 0) -> None:
        """Collects the embeddings for the end of the epoch."""
        labels = labels_of(batch)
        expect(not labels.is_floating_point(), "batch.y", "classes, which clusters are compared with,", labels.dtype)
        parts = [at_least_float32(self(batch)), labels.view(-1)]
        if self.readout:
            several = [at_least_float32(functional_call(self, state, (batch,))) for state in self._tested]
            graph, count = inputs.graph_of_nodes(batch, parts[0].device)
            parts += [torch.cat(several, dim=1), torch.bincount(graph, minlength=count)]
        self.collect(self.test_stage(dataloader_idx), tuple(parts))

    # -------------------------------------------------------------------------------------------- earlier models
    def on_test_epoch_start(self) -> None:
        """Adds the weights to those of the read-out, unless they are the ones that were tested last."""
        super().on_test_epoch_start()
        if not self.readout:
            return
        now = {name: tensor.detach().clone() for name, tensor in self.state_dict().items()}
        before = [{name: tensor.to(self.device) for name, tensor in state.items()} for state in self._tested]
        if before and all(torch.equal(tensor, before[-1][name]) for name, tensor in now.items()):
            before.pop()
        self._tested = [*before, now][-self.readout :]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds what the read-out needs."""
        super().on_save_checkpoint(checkpoint)
        if self.readout:
            checkpoint["tested"] = self._tested

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Puts back what :meth:`on_save_checkpoint` added.

        Raises:
            InputError: what was saved is of another model.
        """
        super().on_load_checkpoint(checkpoint)
        self._tested = list(checkpoint.get("tested", []))
        shapes = {name: tensor.shape for name, tensor in self.state_dict().items()}
        for state in self._tested:
            fits = {name: tensor.shape for name, tensor in state.items()} == shapes
            expect(fits, "tested` of the checkpoint", "models of the same tensors", "others")

    def predict_step(self, batch: Data, batch_idx: int = 0) -> Tensor:
        """Embeddings ``[B, C]``."""
        return at_least_float32(self(batch))

    # ---------------------------------------------------------------------------------------------------- metrics
    def epoch_metrics(self, stage: str, parts: list[Any]) -> dict[str, Tensor | float]:
        """Mean losses over graphs; in a test how their clusters agree with labels."""
        if stage in ("train", "val"):
            counts, first = [count for count, _ in parts], parts[0][1]
            weights = torch.tensor(counts, dtype=torch.float32, device=first["loss"].device)
            stacked = {name: torch.stack([losses[name] for _, losses in parts]).float() for name in first}
            return {name: (losses * weights).sum() / weights.sum() for name, losses in stacked.items()}
        embeddings, labels, *further = (torch.cat(part) for part in zip(*parts, strict=True))
        finite = bool(torch.isfinite(embeddings).all())
        expect(finite, "embeddings", "finite (a smaller `model.lr` may help)", "NaN or infinity")
        from flgraph.models.unsupervised import clustering  # slow to import

        if self.num_classes == 0:  # there is nothing to compare clusters with
            return {}
        metrics = clustering.clustering_metrics(embeddings, labels, self.num_classes)
        if self.probe:
            metrics["probe"] = clustering.probe_accuracy(embeddings, labels)
        if self.readout:
            several, nodes = further
            for kind, points in (("readout", clustering.joined(several, nodes)), ("size", clustering.sizes(nodes))):
                found = clustering.clustering_metrics(points, labels, self.num_classes)
                metrics |= {f"{kind}_{name}": found[name] for name in ("accuracy", "f1")}
        return dict(metrics)

    # ------------------------------------------------------------------------------------- what models read of a batch
    def view(self, batch: Data, name: str = "diffused") -> WeightedAdjacency:
        """The batch's further edges of this name.

        Raises:
            InputError: it has none.
        """
        inputs.expect_graphs(batch)
        view: WeightedAdjacency | None = batch.get(name)
        if view is None:
            wanted = "the second view of the graphs (`--data.diffusion.kind ppr` makes it)"
            raise InputError(f"batch.{name}", wanted, "none")
        return view

    def pooled(self, batch: Data, nodes: Tensor) -> Tensor:
        """Sums over the nodes of each graph ``[B, C]``, float32 at least."""
        graph, count = inputs.graph_of_nodes(batch, nodes.device)
        return graph_pool(at_least_float32(nodes), graph, count)
