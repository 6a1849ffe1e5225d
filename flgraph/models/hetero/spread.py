"""The network of FedSpread: relational graph convolutions beside label spreading."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flgraph.errors import expect
from flgraph.models.hetero.rgcn import RGCN
from flgraph.nn.batches import HeteroBatch
from flgraph.nn.propagation import votes_of_others
from flgraph.nn.sparse.adjacency import lasting

DOUBT = 0.01
"""As much of the classes' shares each node hears beside the votes."""


class SpreadRGCN(RGCN):
    r"""An :class:`RGCN` that also hears what class the training nodes around a node are of.

    To the logits of the RGCN are added those of label spreading,

    .. math::
        s \log \frac{v_{ic} + \epsilon \pi_c}{(\sum_{c^{\prime}} v_{ic^{\prime}} + \epsilon) \, \pi_c},

    where :math:`v_{ic}` are the votes for class :math:`c` (:func:`~flgraph.nn.propagation.votes_of_others`), a node's
    own not among them, :math:`\pi_c` is the share of the class among training nodes, and :math:`\epsilon` is
    :data:`DOUBT`. Where no votes arrive nothing is added. Names and numbers of types play no part in it, so that the
    one parameter more, ``trust`` (:math:`s`), is of no schema.

    Args:
        trust: the first :math:`s`; then it is trained.
        alpha: how far labels spread: share of the neighbours in each of ten steps, below 1.
        kwargs: see :class:`RGCN`.

    Shapes:
        - **input:** a :class:`~flgraph.nn.batches.HeteroBatch`
        - **output:** logits of the nodes ``index``, ``[n, num_classes]``
    """

    def __init__(self, trust: float = 2.0, alpha: float = 0.9, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        expect(0 <= trust < float("inf"), "model.trust", "a finite number, 0 or more", trust)
        expect(0 <= alpha < 1, "model.alpha", "at least 0 and below 1", alpha)
        self.alpha = alpha
        if not self.is_template:
            self.trust = torch.nn.Parameter(torch.tensor([float(trust)]))

    def head(self, encoded: Tensor, batch: HeteroBatch) -> Tensor:
        """Logits of the nodes ``batch.index``."""
        heard = self._heard(batch).index_select(0, batch.index)
        return super().head(encoded, batch) + self.trust * heard.to(encoded.dtype)

    def _heard(self, batch: HeteroBatch) -> Tensor:
        """The logits of label spreading ``[N, C]``, found once for a graph."""
        derived, key = batch.relations.derived, ("label spreading", self.alpha)
        if key not in derived:
            with lasting(), torch.no_grad(), torch.autocast(batch.known.device.type, enabled=False):
                derived[key] = self._spread(batch)
        found: Tensor = derived[key]
        return found

    def _spread(self, batch: HeteroBatch) -> Tensor:
        edges = torch.stack([batch.relations.source, batch.relations.target])
        votes = votes_of_others(edges, batch.known, self.num_classes, self.alpha)
        counts = torch.bincount(batch.known[batch.known >= 0], minlength=self.num_classes)
        share = counts / counts.sum().clamp(min=1)
        heard = (votes + DOUBT * share) / ((votes.sum(1, keepdim=True) + DOUBT) * share)
        return heard.log().where(share > 0, 0.0)  # of classes that no training node is of nothing can be said
