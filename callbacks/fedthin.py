"""FedThin: FedAvg of a model that learns to do with few neighbours; a method of this package."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.nn import functional as F

from flgraph.callbacks.fedavg import FedAvg
from flgraph.callbacks.further_loss import AddsLoss
from flgraph.callbacks.prototypes import evaluating_client
from flgraph.errors import expect
from flgraph.federation.client import Client
from flgraph.models.classifier import Classifier
from flgraph.nn import at_least_float32
from flgraph.nn.batches import SampledGraph, WholeGraph
from flgraph.nn.thinning import drop_edges, drop_features


class FedThin(AddsLoss, FedAvg):
    r"""FedAvg whose clients train on thinned graphs, and are taught by the common model on their whole graphs.

    A client's graph is denser than what a common model is asked about elsewhere: nodes of other graphs have few
    neighbours or none, and words that no training node has. So in each step a client draws a graph :math:`\tilde G`
    from its own, :math:`G`: edges are left out with probability ``edges``, features set to zero with probability
    ``features``. Before it trains, the common model :math:`\bar w` that it was sent classifies all nodes :math:`V` of
    :math:`G`, without dropout and whether their labels are known or not. The client minimises

    .. math::
        \frac{1}{|B|} \sum_{i \in B} -\log \mathrm{softmax}(z_w(\tilde G)_i + \tau \log \pi)_{y_i} +
        \frac{\mu}{|V|} \sum_{i \in V} \sum_c -p_{\bar w}(c \mid G)_i \log p_w(c \mid \tilde G)_i,

    where :math:`B` are the training nodes of the step, :math:`z_w` the model's logits, :math:`p_w` their softmax, and
    :math:`\pi` the shares of the classes among the client's training nodes (a class that it lacks counts one node). The
    server does what it does in FedAvg, and gets nothing else.

    Thinning is DropEdge (Rong et al., ICLR 2020) and dropout of the input; the shift by :math:`\pi` is logit adjustment
    (Menon et al., ICLR 2021), for clients FedLC (Zhang et al., ICML 2022); the second term is distillation from a model
    to itself on a harder input, as in semi-supervised learning by consistency.

    Goes with :class:`flgraph.models.NodeGCN` and other models of whole graphs, and data such as
    :class:`flgraph.data.WholeGraphFederation`, whose edges have no features.

    Args:
        edges: probability of an edge to be left out.
        features: probability of a feature to be set to zero.
        mu: :math:`\mu`.
        tau: :math:`\tau`; with 0 for all four it is FedAvg.
        kwargs: see :class:`FedAvg`.
    """

    needs_classes = True

    def __init__(
        self, edges: float = 0.5, features: float = 0.7, mu: float = 1.0, tau: float = 0.5, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        expect(0 <= edges <= 1, "aggregator.edges", "from 0 to 1", edges)
        expect(0 <= features < 1, "aggregator.features", "0 or more and less than 1", features)
        for name, value in (("mu", mu), ("tau", tau)):
            expect(0 <= value < float("inf"), f"aggregator.{name}", "a finite number, 0 or more", value)
        self.edges, self.features, self.mu, self.tau = edges, features, mu, tau
        self._model: Any = None  # the client half's in a turn: its model,
        self._taught: Tensor | None = None  # what the common model says of all its nodes, [N, C],
        self._prior: Tensor | None = None  # and how often it has each class, [C]

    # ----------------------------------------------------------------------------------------------- client half
    @property
    def adds_loss(self) -> bool:
        return self.mu > 0

    def local_update(self, client: Client, round: int, exchange: str) -> None:
        """Asks the common model, counts classes, and trains."""
        data: Any = client.data
        fits = all(hasattr(data, name) for name in ("graph", "train"))
        expect(fits, "data", "of nodes, such as flgraph.data.WholeGraphFederation,", type(data).__name__)
        if self.mu > 0:
            with evaluating_client(client) as prepared:
                batch = prepared(data.graph.batch(torch.arange(data.graph.num_nodes)))
                self._taught = at_least_float32(client.module(batch)).softmax(dim=1)
        if self.tau > 0:
            counts = torch.bincount(data.graph.y[data.train], minlength=data.graph.num_classes).clamp(min=1)
            self._prior = self.tau * (counts / data.train.numel()).log()
        super().local_update(client, round, exchange)
        self._taught = self._prior = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Gives the model its losses."""
        super().on_train_start(trainer, pl_module)
        expect(isinstance(pl_module, Classifier), "model", "a classifier for FedThin", type(pl_module).__name__)
        self._model = pl_module
        self._model.log_prior = self._prior

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leaves the model as it was."""
        super().on_train_end(trainer, pl_module)
        self._model.log_prior = None
        self._model = None

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, idx: int) -> None:
        """Puts a thinned graph in place of the whole one; batches are made anew for each step."""
        whole = isinstance(batch, WholeGraph) and not isinstance(batch, SampledGraph) and batch.edge_attr is None
        wanted = "one whose batches are whole graphs without features of edges, such as WholeGraphFederation,"
        expect(whole, "data", wanted, f"batches of type {type(batch).__name__}")
        batch.adj, batch.x = drop_edges(batch.adj, self.edges), drop_features(batch.x, self.features)

    def further_loss(self, batch: WholeGraph, encoded: Tensor) -> Tensor:
        """Cross-entropy of what the model says of all nodes of the thinned graph against what it was taught."""
        assert self._taught is not None
        everywhere = replace(batch, index=torch.arange(len(batch.nodes), device=batch.index.device))
        logits = at_least_float32(self._model(everywhere))
        return self.mu * F.cross_entropy(logits, self._taught.to(logits))
