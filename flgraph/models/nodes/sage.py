"""GraphSAGE on a whole graph, for nodes; with a generator of missing neighbours, too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from flgraph.errors import expect
from flgraph.models.classifier import Classifier, OptimizerName, at_least_float32
from flgraph.models.graphs.inputs import expect_whole_graph
from flgraph.nn import Adjacency, Dropout, ImpairedGraph, NeighGen, SparseSAGEConv
from flgraph.nn.neighgen import feature_loss, first_ones, mend, nearest_of_own
from flgraph.nn.sparse.csr import take_rows


class NodeSAGE(Classifier):
    r"""Two GraphSAGE layers with ReLU and dropout between them, on a whole graph at once.

    `"Inductive Representation Learning on Large Graphs" <https://arxiv.org/abs/1706.02216>`_, with the mean of all
    neighbours. Under :class:`flgraph.callbacks.FedAvg` this is the FedSage of `"Subgraph Federated Learning with
    Missing Neighbor Generation" <https://arxiv.org/abs/2106.13430>`_, without sampling.

    Args:
        in_channels: columns of the features.
        num_classes: number of classes.
        hidden_channels: columns between the layers.
        dropout: probability of a zero after the first layer.
        lr: learning rate.
        weight_decay: weight decay (an L2 penalty, except with ``adamw``).
        optimizer: ``adam``, ``adamw`` or ``sgd``.

    Shapes:
        - **input:** a :class:`~flgraph.data.WholeGraph`: ``x [N, in_channels]``, ``adj``, ``nodes [N]``, ``index [n]``
        - **output:** logits of the nodes ``index``, ``[n, num_classes]``
    """

    def __init__(
        self,
        in_channels: int = -1,
        num_classes: int = -1,
        hidden_channels: int = 64,
        dropout: float = 0.5,
        lr: float = 0.01,
        weight_decay: float = 0.0,
        optimizer: OptimizerName = "adam",
    ) -> None:
        super().__init__(in_channels, num_classes, lr, weight_decay, optimizer)
        self.save_hyperparameters()
        expect(hidden_channels >= 1, "model.hidden_channels", "a positive integer", hidden_channels)
        expect(0 <= dropout < 1, "model.dropout", "at least 0 and less than 1", dropout)
        if self.is_template:
            return
        self.convs = torch.nn.ModuleList(
            [SparseSAGEConv(in_channels, hidden_channels), SparseSAGEConv(hidden_channels, num_classes)]
        )
        self.dropout = Dropout(dropout)

    def forward(self, batch: Any) -> Tensor:
        """Logits of the nodes ``batch.index``."""
        self.check_sizes()
        expect_whole_graph(batch, self.in_channels)
        return self.classify([batch.x], batch.adj).index_select(0, batch.index)

    def classify(self, blocks: Sequence[Tensor], adj: Adjacency) -> Tensor:
        """Logits of all nodes of a graph, whose features may come in several blocks."""
        logits: Tensor = self.convs[1]([self.dropout(self.convs[0](blocks, adj), rectify=True)], adj)
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
    :meth:`settle` the generator stays as it is, and only the classifier learns, from the whole graph mended once
    (FedSage+).

    The graph of a second test loader (``global_test``) is taken as it is: nothing was cut from it.

    Args:
        in_channels: columns of the features; the generated ones lie between -1 and 1.
        num_classes: number of classes.
        hidden_channels: columns between the layers, of classifier and generator.
        fgen_channels: columns of the layers within the generator of features; the published code has 256 and 2048.
        max_neighbours: neighbours generated for a node at most.
        hide: share of the nodes that are hidden from the generator.
        count_weight: :math:`\lambda^d`.
        feature_weight: :math:`\lambda^f`.
        label_weight: :math:`\lambda^c`.
        dropout: probability of a zero after the first layer, in the generator, too.
        lr: learning rate of the classifier.
        generator_lr: learning rate of the generator.
        weight_decay: weight decay (an L2 penalty, except with ``adamw``).
        optimizer: ``adam``, ``adamw`` or ``sgd``.

    Shapes:
        - **input:** a :class:`~flgraph.data.WholeGraph`: ``x [N, in_channels]``, ``adj``, ``nodes [N]``, ``index [n]``
        - **output:** logits of the nodes ``index``, ``[n, num_classes]``
    """

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
        lr: float = 0.01,
        generator_lr: float = 0.001,
        weight_decay: float = 0.0,
        optimizer: OptimizerName = "adam",
    ) -> None:
        super().__init__(in_channels, num_classes, hidden_channels, dropout, lr, weight_decay, optimizer)
        sound = all(channels >= 1 for channels in fgen_channels)
        expect(sound, "model.fgen_channels", "positive integers", list(fgen_channels))
        expect(max_neighbours >= 1, "model.max_neighbours", "a positive integer", max_neighbours)
        expect(0 < hide < 1, "model.hide", "above 0 and less than 1", hide)
        expect(0 <= generator_lr < float("inf"), "model.generator_lr", "a finite number, 0 or more", generator_lr)
        weights = {"count_weight": count_weight, "feature_weight": feature_weight, "label_weight": label_weight}
        for name, weight in weights.items():
            expect(0 <= weight < float("inf"), f"model.{name}", "a finite number, 0 or more", weight)
        self.hide, self.generator_lr = hide, generator_lr
        self.count_weight, self.feature_weight, self.label_weight = count_weight, feature_weight, label_weight
        self.draw_seed = 0
        self.settled = False
        self._whole = False  # whether graphs are taken as they are
        self._impaired: tuple[Adjacency, ImpairedGraph] | None = None  # of which graph, and what came of it
        self._mended: tuple[Tensor, Adjacency, Tensor, Adjacency] | None = None
        if not self.is_template:
            self.generator = NeighGen(in_channels, hidden_channels, fgen_channels, max_neighbours, dropout)

    def draw_from(self, seed: int) -> None:
        """Sets the seed of the hidden nodes and of the noise in generated neighbours; 0 if never called."""
        self.draw_seed, self._impaired, self._mended = seed, None, None

    def settle(self, settled: bool = True) -> None:
        """Keeps the generator as it is from now on: only the classifier is trained. Or trains both again."""
        self.settled, self._mended = settled, None
        self.generator.requires_grad_(not settled)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The generator's parameters, with a learning rate of their own, and the others."""
        rest = [parameter for name, parameter in self.named_parameters() if not name.startswith("generator.")]
        return [{"params": rest}, {"params": list(self.generator.parameters()), "lr": self.generator_lr}]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds what the weights do not tell."""
        checkpoint["neighgen"] = {"draw_seed": self.draw_seed, "settled": self.settled}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Puts it back."""
        told = checkpoint.get("neighgen", {})
        self.draw_from(told.get("draw_seed", 0))
        self.settle(bool(told.get("settled")))

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As of any module; graphs are mended anew."""
        self._mended = None
        return super().load_state_dict(*args, **kwargs)

    # ------------------------------------------------------------------------------------------------------ steps
    def forward(self, batch: Any) -> Tensor:
        """Logits of the nodes ``batch.index``, in the graph mended."""
        if self._whole:
            return super().forward(batch)
        self.check_sizes()
        expect_whole_graph(batch, self.in_channels)
        generated, adj = self._mend(batch)
        return self.classify([batch.x, generated], adj).index_select(0, batch.index)

    def training_step(self, batch: Any, batch_idx: int = 0) -> Tensor:
        """The loss of generator and classifier together; once settled, the classifier's cross-entropy."""
        return super().training_step(batch, batch_idx) if self.settled else self._joint_step(batch)

    def test_step(self, batch: Any, batch_idx: int = 0, dataloader_idx: int = 0) -> Tensor:
        """Cross-entropy of a test batch."""
        with self._as_it_is(dataloader_idx > 0):
            return super().test_step(batch, batch_idx, dataloader_idx)

    def impaired(self, batch: Any) -> ImpairedGraph:
        """The batch's graph with a share of the nodes hidden, always the same ones."""
        if self._impaired is None or self._impaired[0] is not batch.adj:
            n = batch.adj.num_nodes
            order = torch.randperm(n, generator=torch.Generator().manual_seed(self.draw_seed))
            hidden = torch.zeros(n, dtype=torch.bool)
            hidden[order[: min(round(self.hide * n), n - 1)]] = True
            self._impaired = batch.adj, ImpairedGraph.of(batch.adj, hidden.to(batch.adj.col.device))
        return self._impaired[1]

    def _joint_step(self, batch: Any) -> Tensor:
        self.check_sizes()
        expect_whole_graph(batch, self.in_channels)
        graph = self.impaired(batch)
        x = take_rows(batch.x, graph.visible)
        z, missing = self.generator(x, graph.adj)
        counts = graph.missing
        number = at_least_float32(missing)
        count_loss = F.smooth_l1_loss(number, counts.to(number.dtype))
        told = self.generator.round(missing)
        wanted = (counts > 0) | (
            told > 0
        )  # where neighbours are hidden, to learn their features, or told to be missing
        features = self.generator.fgen(noisy(z[wanted]))
        learned = features[first_ones(counts[wanted], features.size(1))]
        nearest = nearest_of_own(learned.detach(), batch.x, graph.candidates(features.size(1)))
        features_loss = feature_loss(learned, batch.x, nearest) / counts.numel()
        added = features[first_ones(told[wanted], features.size(1))].to(self._dtype_of_weights)
        label_loss = self._label_loss(batch, graph, [x, added], mend(graph.adj, told))
        self.log("train/count_loss", count_loss.detach(), batch_size=1)
        self.log("train/feature_loss", features_loss.detach(), batch_size=1)
        # None is left when the generator makes the same neighbour for every node.
        spread = learned.detach().float().std(0, correction=0).mean() if len(learned) else learned.new_zeros(())
        self.log("train/feature_spread", spread, batch_size=1)
        return self.count_weight * count_loss + self.feature_weight * features_loss + self.label_weight * label_loss

    def _label_loss(self, batch: Any, graph: ImpairedGraph, blocks: Sequence[Tensor], adj: Adjacency) -> Tensor:
        place = torch.full((batch.adj.num_nodes,), -1, device=adj.col.device)
        place[graph.visible] = torch.arange(graph.visible.numel(), device=place.device)
        index = place[batch.index]
        logits = at_least_float32(self.classify(blocks, adj))
        labels = self._labels(batch, index.numel())
        if not bool((index >= 0).any()):
            return logits.sum() * 0.0  # all training nodes are hidden
        return self._score(logits[index[index >= 0]], labels[index >= 0], "train")

    def _mend(self, batch: Any) -> tuple[Tensor, Adjacency]:
        """Generated neighbours' features ``[M, in_channels]``, and the adjacency of ``N + M`` nodes."""
        known = self._mended
        if self.settled and known is not None and known[0] is batch.x and known[1] is batch.adj:
            return known[2:]
        with torch.no_grad(), self._without_dropout():
            z, missing = self.generator(batch.x, batch.adj)
            counts = self.generator.round(missing)
            some = counts > 0
            generated = self.generator.features(self._noised(z)[some], counts[some]).to(self._dtype_of_weights)
        adj = mend(batch.adj, counts)
        if self.settled:
            self._mended = batch.x, batch.adj, generated, adj
        return generated, adj

    @property
    def _dtype_of_weights(self) -> torch.dtype:
        return next(self.convs.parameters()).dtype

    def _noised(self, z: Tensor) -> Tensor:
        """Representations with noise that is always the same."""
        return z + torch.randn(z.shape, generator=torch.Generator().manual_seed(self.draw_seed)).to(z)

    def published(self, batch: Any) -> tuple[Tensor, Tensor]:
        """What others need, with the weights of fGen, to tell how like their nodes the generated neighbours are.

        Args:
            batch: as in training.

        Returns:
            Representations with noise, always the same, of the visible nodes that have hidden neighbours
            ``[n, hidden_channels]``, and how many neighbours of each count ``[n]``.
        """
        graph = self.impaired(batch)
        with torch.no_grad(), self._without_dropout():
            z, _ = self.generator(take_rows(batch.x, graph.visible), graph.adj)
        counts = graph.missing
        return self._noised(z)[counts > 0], counts[counts > 0].clamp(max=self.generator.fgen.max_neighbours)

    @contextmanager
    def _without_dropout(self) -> Iterator[None]:
        training = self.generator.training
        self.generator.eval()
        try:
            yield
        finally:
            self.generator.train(training)

    @contextmanager
    def _as_it_is(self, whole: bool) -> Iterator[None]:
        self._whole = whole
        try:
            yield
        finally:
            self._whole = False


def noisy(z: Tensor) -> Tensor:
    """Representations with Gaussian noise of unit variance."""
    return z + torch.randn_like(z)
