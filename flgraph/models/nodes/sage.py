"""GraphSAGE on a whole graph, for nodes; with a generator of missing neighbours, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from flgraph.errors import expect
from flgraph.models.base import expect_finite, expect_positive
from flgraph.models.nodes.classifier import NodeClassifier
from flgraph.nn import Adjacency, ImpairedGraph, NeighGen, SparseSAGEConv, at_least_float32
from flgraph.nn.batches import WholeGraph
from flgraph.nn.modes import evaluating, keeping_modes
from flgraph.nn.neighgen import feature_loss, first_ones, mend, nearest_of_own
from flgraph.nn.sparse.csr import take_rows


class NodeSAGE(NodeClassifier[WholeGraph]):
    r"""Two GraphSAGE layers with ReLU and dropout between them, on a whole graph at once.

    `"Inductive Representation Learning on Large Graphs" <https://arxiv.org/abs/1706.02216>`_, with the mean of all
    neighbours. Under :class:`flgraph.callbacks.FedAvg` this is the FedSage of `"Subgraph Federated Learning with
    Missing Neighbor Generation" <https://arxiv.org/abs/2106.13430>`_, without sampling.

    Args:
        in_channels: columns of the features; -1: given by the data.
        num_classes: number of classes; -1: given by the data.
        hidden_channels: columns between the layers.
        kwargs: see :class:`~flgraph.models.nodes.classifier.NodeClassifier`.

    Shapes:
        - **input:** a :class:`~flgraph.nn.batches.WholeGraph`
        - **output:** logits of the nodes ``index``, ``[n, num_classes]``
    """

    takes_samples: ClassVar[bool] = True

    def __init__(self, in_channels: int = -1, num_classes: int = -1, hidden_channels: int = 64, **kwargs: Any) -> None:
        super().__init__(in_channels, num_classes, hidden_channels, **kwargs)
        if not self.is_template:
            sizes = ((in_channels, hidden_channels), (hidden_channels, num_classes))
            self.convs = torch.nn.ModuleList(SparseSAGEConv(*size) for size in sizes)

    def encode(self, batch: WholeGraph) -> Tensor:
        """What the second layer gets, a row per node ``[N, hidden_channels]``."""
        self.check_batch(batch, WholeGraph)
        return self.hidden(*self.graph(batch))

    def head(self, encoded: Tensor, batch: WholeGraph) -> Tensor:
        """Logits of the nodes ``batch.index``."""
        return self.classify(encoded, self.graph(batch)[1]).index_select(0, batch.index)

    def graph(self, batch: WholeGraph) -> tuple[Sequence[Tensor], Adjacency]:
        """The features, which may come in several blocks, and the adjacency that the layers are applied to."""
        return [batch.x], batch.adj

    def hidden(self, blocks: Sequence[Tensor], adj: Adjacency) -> Tensor:
        """The first layer's representations of all nodes."""
        return self.dropout(self.convs[0](blocks, adj), rectify=True)

    def classify(self, hidden: Tensor, adj: Adjacency) -> Tensor:
        """Logits of all nodes."""
        logits: Tensor = self.convs[1]([hidden], adj)
        return logits


class NeighGenSAGE(NodeSAGE):
    r"""GraphSAGE on a graph that is mended first: a generator adds the neighbours that it takes to be missing.

    `"Subgraph Federated Learning with Missing Neighbor Generation" <https://arxiv.org/abs/2106.13430>`_, Section 4:
    generator and classifier learn together (LocSage+) from the graph with some of its nodes hidden. With
    :math:`\bar V` the visible nodes, :math:`n_v` the number of hidden neighbours of node :math:`v`,
    :math:`\tilde n_v` the number and :math:`\tilde x_v^p` the features that are generated,

    .. math::
        L = \frac{1}{|\bar V|} \sum_{v \in \bar V} \Big( \lambda^d L_1^S(\tilde n_v - n_v)
        + \lambda^f \sum_{p \le n_v} \min_{u} \lVert \tilde x_v^p - x_u \rVert_2^2 \Big) + \lambda^c L^c,

    where :math:`u` runs over the hidden neighbours of :math:`v`, :math:`L_1^S` is the smooth L1 loss and :math:`L^c`
    the cross-entropy of visible training nodes in the visible graph with its generated neighbours. After
    :meth:`freeze_generator` only the classifier learns, from the graph mended once (FedSage+).

    The graph of a second test loader (``global_test``) is taken as it is: nothing was cut from it.

    Args:
        in_channels: columns of the features, the generated ones between -1 and 1; -1: given by the data.
        num_classes: number of classes; -1: given by the data.
        hidden_channels: columns between the layers, of classifier and generator.
        fgen_channels: columns of the layers within the generator of features; the published code has 256 and 2048.
        max_neighbours: neighbours generated for a node at most.
        hide: share of the nodes that are hidden from the generator.
        count_weight: :math:`\lambda^d`.
        feature_weight: :math:`\lambda^f`.
        label_weight: :math:`\lambda^c`.
        dropout: probability of a zero after the first layer, in the generator, too.
        generator_lr: learning rate of the generator.
        kwargs: see :class:`~flgraph.models.base.SizedModule`; ``lr`` is the classifier's.

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
        fgen_channels: Sequence[int] = (256, 512),
        max_neighbours: int = 5,
        hide: float = 0.25,
        count_weight: float = 1.0,
        feature_weight: float = 1.0,
        label_weight: float = 1.0,
        dropout: float = 0.5,
        generator_lr: float = 0.001,
        **kwargs: Any,
    ) -> None:
        super().__init__(in_channels, num_classes, hidden_channels, dropout=dropout, **kwargs)
        fits = all(channels >= 1 for channels in fgen_channels)
        expect(fits, "model.fgen_channels", "positive integers", list(fgen_channels))
        expect_positive(max_neighbours=max_neighbours)
        expect(0 < hide < 1, "model.hide", "above 0 and less than 1", hide)
        expect_finite(generator_lr=generator_lr)
        expect_finite(count_weight=count_weight, feature_weight=feature_weight, label_weight=label_weight)
        self.hide, self.generator_lr = hide, generator_lr
        self.count_weight, self.feature_weight, self.label_weight = count_weight, feature_weight, label_weight
        self.draw_seed = 0
        self.generator_frozen = False
        self._as_it_is = False  # whether graphs are taken as they are
        self._impaired: tuple[Adjacency, ImpairedGraph] | None = None  # of which graph, and what came of it
        self._mended: tuple[Tensor, Adjacency, Tensor, Adjacency] | None = None
        self._graph: tuple[Sequence[Tensor], Adjacency] | None = None  # within ``forward``
        if not self.is_template:
            self.generator = NeighGen(in_channels, hidden_channels, fgen_channels, max_neighbours, dropout)

    def draw_from(self, seed: int) -> None:
        """Sets the seed of the hidden nodes and of the noise in generated neighbours; 0 if never called."""
        self.draw_seed, self._impaired, self._mended = seed, None, None

    def freeze_generator(self, frozen: bool = True) -> None:
        """Leaves the generator as it is from now on: only the classifier is trained. Or trains both again."""
        self.generator_frozen, self._mended = frozen, None
        self.generator.requires_grad_(not frozen)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The generator's parameters, with a learning rate of their own, and the others."""
        rest = [parameter for name, parameter in self.named_parameters() if not name.startswith("generator.")]
        return [{"params": rest}, {"params": list(self.generator.parameters()), "lr": self.generator_lr}]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds what is no weight."""
        checkpoint["neighgen"] = {"draw_seed": self.draw_seed, "settled": self.generator_frozen}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Puts it back."""
        stored = checkpoint.get("neighgen", {})
        self.draw_from(stored.get("draw_seed", 0))
        self.freeze_generator(bool(stored.get("settled")))

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As of any module; graphs are mended anew."""
        self._mended = None
        return super().load_state_dict(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        """Without the graphs it has made, which a copy makes anew: sparse tensors cannot be copied deeply."""
        return {**super().__getstate__(), "_impaired": None, "_mended": None}

    # ------------------------------------------------------------------------------------------------------ steps
    def forward(self, batch: WholeGraph) -> Tensor:
        """Logits of the nodes ``batch.index``, in the graph mended; which is made once for both of its parts."""
        self.check_batch(batch, WholeGraph)
        self._graph = self.graph(batch)
        try:
            return super().forward(batch)
        finally:
            self._graph = None

    def graph(self, batch: WholeGraph) -> tuple[Sequence[Tensor], Adjacency]:
        """The graph mended, with the generated nodes after its own."""
        if self._as_it_is:
            return super().graph(batch)
        if self._graph is not None:
            return self._graph
        generated, adj = self._mend(batch)
        return [batch.x, generated], adj

    def training_step(self, batch: WholeGraph, batch_idx: int = 0) -> Tensor:
        """The loss of generator and classifier together; once that is frozen, the classifier's cross-entropy."""
        return super().training_step(batch, batch_idx) if self.generator_frozen else self._joint_step(batch)

    def test_step(self, batch: WholeGraph, batch_idx: int = 0, dataloader_idx: int = 0) -> Tensor:
        """Cross-entropy of a test batch."""
        self._as_it_is = dataloader_idx > 0
        try:
            return super().test_step(batch, batch_idx, dataloader_idx)
        finally:
            self._as_it_is = False

    def impaired(self, batch: WholeGraph) -> ImpairedGraph:
        """The batch's graph with a share of the nodes hidden, always the same ones."""
        if self._impaired is None or self._impaired[0] is not batch.adj:
            n = batch.adj.num_nodes
            order = torch.randperm(n, generator=torch.Generator().manual_seed(self.draw_seed))
            hidden = torch.zeros(n, dtype=torch.bool)
            hidden[order[: min(round(self.hide * n), n - 1)]] = True
            self._impaired = batch.adj, ImpairedGraph.of(batch.adj, hidden.to(batch.adj.col.device))
        return self._impaired[1]

    def _joint_step(self, batch: WholeGraph) -> Tensor:
        self.check_batch(batch, WholeGraph)
        graph = self.impaired(batch)
        x = take_rows(batch.x, graph.visible)
        z, missing = self.generator(x, graph.adj)
        counts = graph.missing
        number = at_least_float32(missing)
        count_loss = F.smooth_l1_loss(number, counts.to(number.dtype))
        estimate = self.generator.round(missing)
        wanted = (counts > 0) | (estimate > 0)  # neighbours are hidden, to learn their features, or taken to be missing
        features = self.generator.fgen(noisy(z[wanted]))
        learned = features[first_ones(counts[wanted], features.size(1))]
        nearest = nearest_of_own(learned.detach(), batch.x, graph.candidates(features.size(1)))
        features_loss = feature_loss(learned, batch.x, nearest) / counts.numel()
        added = features[first_ones(estimate[wanted], features.size(1))].to(self._dtype_of_weights)
        label_loss = self._label_loss(batch, graph, [x, added], mend(graph.adj, estimate))
        self.log("train/count_loss", count_loss.detach(), batch_size=1)
        self.log("train/feature_loss", features_loss.detach(), batch_size=1)
        # None is left when the generator makes the same neighbour for every node.
        spread = learned.detach().float().std(0, correction=0).mean() if len(learned) else learned.new_zeros(())
        self.log("train/feature_spread", spread, batch_size=1)
        return self.count_weight * count_loss + self.feature_weight * features_loss + self.label_weight * label_loss

    def _label_loss(self, batch: WholeGraph, graph: ImpairedGraph, blocks: Sequence[Tensor], adj: Adjacency) -> Tensor:
        position = torch.full((batch.adj.num_nodes,), -1, device=adj.col.device)
        position[graph.visible] = torch.arange(graph.visible.numel(), device=position.device)
        index = position[batch.index]
        hidden = self.hidden(blocks, adj)
        logits = at_least_float32(self.classify(hidden, adj))
        labels = self._labels(batch, index.numel())
        seen = index >= 0
        if not bool(seen.any()):
            return logits.sum() * 0.0  # all training nodes are hidden
        loss = self._score(logits[index[seen]], labels[seen], "train")
        if self.further_loss is None:
            return loss
        visible = replace(batch, index=batch.index[seen], y=labels[seen])
        return loss + self.further_loss(visible, at_least_float32(hidden[index[seen]]))

    def _mend(self, batch: WholeGraph) -> tuple[Tensor, Adjacency]:
        """Generated neighbours' features ``[M, in_channels]``, and the adjacency of ``N + M`` nodes."""
        mended = self._mended
        if self.generator_frozen and mended is not None and mended[0] is batch.x and mended[1] is batch.adj:
            return mended[2:]
        with evaluating(self.generator):
            z, missing = self.generator(batch.x, batch.adj)
            counts = self.generator.round(missing)
            some = counts > 0
            generated = self.generator.features(self._noised(z)[some], counts[some]).to(self._dtype_of_weights)
        adj = mend(batch.adj, counts)
        if self.generator_frozen:
            self._mended = batch.x, batch.adj, generated, adj
        return generated, adj

    @property
    def _dtype_of_weights(self) -> torch.dtype:
        return next(self.convs.parameters()).dtype

    def _noised(self, z: Tensor) -> Tensor:
        """Representations with noise that is always the same."""
        return z + torch.randn(z.shape, generator=torch.Generator().manual_seed(self.draw_seed)).to(z)

    def generated(self, batch: WholeGraph) -> Tensor:
        """Neighbours that the generator makes for visible nodes with hidden ones, for other clients to compare.

        Args:
            batch: as in training.

        Returns:
            Features of as many as are hidden of each node, at most ``max_neighbours``, without dropout and with noise
            that is always the same ``[m, in_channels]``; differentiable in fGen alone.
        """
        graph, fgen = self.impaired(batch), self.generator.fgen
        counts = graph.missing
        with keeping_modes(self.generator):
            self.generator.eval()
            with torch.no_grad():
                z = self._noised(self.generator(take_rows(batch.x, graph.visible), graph.adj)[0])[counts > 0]
            return fgen(z)[first_ones(counts[counts > 0], fgen.max_neighbours)]


def noisy(z: Tensor) -> Tensor:
    """Representations with Gaussian noise of unit variance."""
    return z + torch.randn(z.shape, dtype=z.dtype).to(z.device)  # the same numbers on every device
