"""FCLG: Li et al., "Federated Contrastive Learning of Graph-Level Representations", 2023."""

from __future__ import annotations

import math
import warnings
from functools import cache
from typing import Any, Literal, get_args

import pytorch_lightning as pl
import torch
from torch import Tensor

from flgraph.callbacks.fedavg import FedAvg
from flgraph.callbacks.further_loss import AddsLoss
from flgraph.errors import expect
from flgraph.federation.client import Client
from flgraph.models.graphs.inputs import expect_graphs
from flgraph.models.unsupervised.base import Encoded, GraphEmbedding
from flgraph.nn import model_contrast, softmax_distillation, squared_distillation
from flgraph.nn.modes import evaluating
from flgraph.nn.sparse.adjacency import gather_ranges, offsets

Inter = Literal["contrast", "kl", "mse", "none"]
Level = Literal["graph", "node"]


class FCLG(AddsLoss, FedAvg):
    r"""FedAvg of encoders that clients train by two contrasts (Algorithm 1): between graphs, and between models.

    The first, :math:`l_{\mathrm{intra}}`, is the model's own loss. The second compares what the model makes of a graph,
    :math:`u^t`, with what the global model made of it, :math:`u_s`, and with what the model itself made of it one local
    epoch ago, :math:`u_c^{t-1}`; clients minimise :math:`l_{\mathrm{intra}} + l_{\mathrm{inter}}` (Eq. 9) with the
    mean over graphs of (Eq. 7)

    .. math::
        l_{\mathrm{inter}} = \log \frac{\exp(\cos(u^t, u_s) / \tau') + \exp(\cos(u^t, u_c^{t-1}) / \tau')}
        {\exp(\cos(u^t, u_s) / \tau')}.

    In the first epoch of a round :math:`u_c^0 = u_s`: the term is the constant :math:`\log 2`, without a gradient. So
    it takes two local epochs to have an effect.

    Both are functions of a graph that do not change during an epoch, evaluated without dropout and with the running
    statistics of batch normalisation. The weights at the beginning of epoch ``t`` *are* those of epoch ``t - 1``, and
    before the first epoch the global ones: so the client makes no copy of a model, and one pass over its graphs before
    each epoch gives all that the epoch needs.

    The paper's variants: ``level="node"`` is FCLG-H (Eq. 8), ``inter="none"`` Intra-FedAvg, ``"kl"`` Intra-KL (Eq. 2),
    ``"mse"`` Intra-MSE (Eq. 3).

    Goes with :class:`flgraph.models.FCLG`, or any :class:`flgraph.models.GraphEmbedding`.

    Args:
        inter: what is added to the model's own loss: ``contrast``, ``kl`` or ``mse`` to the global model's
            representations, or ``none``.
        level: of the representations compared, ``graph`` or ``node``.
        temperature: :math:`\tau'`; for ``kl`` that of the softmax.
        weight: factor of the added term; 1 in the paper.
        kwargs: see :class:`FedAvg`.
    """

    def __init__(
        self,
        inter: Inter = "contrast",
        level: Level = "graph",
        temperature: float = 0.5,
        weight: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        expect(inter in get_args(Inter), "aggregator.inter", "contrast, kl, mse or none", inter)
        expect(level in get_args(Level), "aggregator.level", "graph or node", level)
        expect(0 < temperature < float("inf"), "aggregator.temperature", "a positive, finite number", temperature)
        expect(0 <= weight < float("inf"), "aggregator.weight", "a finite number, 0 or more", weight)
        self.inter, self.level, self.temperature, self.weight = inter, level, temperature, weight
        # Client half, in a turn: batches of all its graphs, and what the global model and that of an epoch ago make of
        # them.
        self._graphs: list[Any] | None = None
        self._global: Tensor | None = None
        self._previous: Tensor | None = None
        self._node_ptr = torch.zeros(1, dtype=torch.long)

    @property
    def name(self) -> str:
        """``fclg``, ``fclg-h``, ``intra-fedavg``, ``intra-kl`` or ``intra-mse``."""
        kind = {"contrast": "fclg", "none": "intra-fedavg"}.get(self.inter, f"intra-{self.inter}")
        return kind + ("-h" if self.level == "node" else "")

    # ----------------------------------------------------------------------------------------------- client half
    def local_update(self, client: Client, round: int, exchange: str) -> None:
        fits = isinstance(client.module, GraphEmbedding)
        expect(fits, "model", "a GraphEmbedding, such as flgraph.models.FCLG,", type(client.module).__name__)
        if self.inter == "contrast" and client.local_epochs < 2:
            _warn_once()
        self._graphs = None if self.inter == "none" else list(client.data.predict_dataloader())
        super().local_update(client, round, exchange)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """The model is the global one; nothing is known of an earlier epoch."""
        self._global = self._previous = None
        super().on_train_start(trainer, pl_module)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Notes what the weights at the beginning of the epoch make of every graph (lines 11 and 16)."""
        if self._graphs is None:
            return
        if self._global is None:
            self._global = self._represent(pl_module)
        elif self.inter == "contrast":
            self._previous = self._represent(pl_module)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leaves the model as it was."""
        super().on_train_end(trainer, pl_module)
        self._graphs = self._global = self._previous = None

    @property
    def adds_loss(self) -> bool:
        return self._graphs is not None

    def further_loss(self, batch: Any, encoded: Encoded) -> Tensor:
        """The added term of a batch."""
        current = encoded.graphs if self.level == "graph" else encoded.nodes
        if self.inter == "contrast" and self._previous is None:
            return current.new_tensor(self.weight * math.log(2))
        rows = self._rows(batch)
        assert self._global is not None
        toward = self._global.index_select(0, rows)
        if self.inter == "kl":
            loss = softmax_distillation(current, toward, self.temperature)
        elif self.inter == "mse":
            loss = squared_distillation(current, toward)
        else:
            assert self._previous is not None
            loss = model_contrast(current, toward, self._previous.index_select(0, rows), self.temperature)
        return self.weight * loss

    def _rows(self, batch: Any) -> Tensor:
        """Where the batch's graphs, or their nodes, are among all of the client."""
        index: Tensor = batch.graph_index
        return index if self.level == "graph" else gather_ranges(self._node_ptr, index)[0]

    def _represent(self, module: pl.LightningModule) -> Tensor:
        """A row for each of the client's graphs, or nodes, in the order of its data."""
        assert isinstance(module, GraphEmbedding)
        batches = self._graphs or []
        for batch in batches:
            expect_graphs(batch)
        known = all(batch.get("graph_index") is not None for batch in batches)
        expect(known, "batch.graph_index", "the numbers of its graphs in the client's data", None)
        with evaluating(module):
            parts = [module.encode(batch) for batch in batches]
        if self.level == "graph":
            return torch.cat([part.graphs for part in parts])
        self._node_ptr = offsets(torch.cat([batch.ptr.diff() for batch in batches]))
        return torch.cat([part.nodes for part in parts])


@cache
def _warn_once() -> None:
    warnings.warn(
        "FCLG's inter-contrast compares with the previous local epoch and has no effect with 1 local epoch; "
        "clients train by the intra-contrast alone.",
        stacklevel=2,
    )
