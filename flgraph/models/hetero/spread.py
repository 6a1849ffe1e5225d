"""The network of FedSpread: relational graph convolutions beside label spreading."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flgraph.errors import expect
from flgraph.models.hetero.rgcn import RGCN
from flgraph.nn.batches import HeteroBatch
from flgraph.nn.propagation import leave_one_out_spreading
from flgraph.nn.sparse.adjacency import lasting

SMOOTHING = 0.01
"""How much of the classes' shares is added to a node's votes; one voter's is 1 at most."""


class SpreadRGCN(RGCN):
    r"""An :class:`RGCN` that also hears what class the training nodes around a node are of.

    To the logits of the RGCN are added those of label spreading,

    .. math::
        s \log \frac{v_{ic} + \epsilon \pi_c}{(\sum_{c^{\prime}} v_{ic^{\prime}} + \epsilon) \, \pi_c},

    where :math:`v_{ic}` are the votes for class :math:`c`, a node's own not among them
    (:func:`~flgraph.nn.propagation.leave_one_out_spreading`), :math:`\pi_c` is the share of the class among training
    nodes, and :math:`\epsilon` is :data:`SMOOTHING`. Where no votes arrive nothing is added. Names and numbers of types
    play no part in it, so that the one parameter more, ``trust`` (:math:`s`), is of no schema.

    Args:
        trust: the first :math:`s`; then it is trained.
        alpha: how far labels spread: share of the neighbours in each of ten steps, below 1.
        kwargs: see :class:`RGCN`.

    Shapes:
        - **input:** a :class:`~flgraph.nn.batches.HeteroBatch`
        - **output:** logits of the nodes ``index``, ``[n, num_classes]``

    Raises:
        InputError: a hyper-parameter or a batch cannot be used.
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
        """The logits of label spreading ``[N, C]``, found once for a graph and its known labels."""
        derived, key = batch.relations.derived, ("label spreading", self.alpha)
        known, heard = derived.get(key, (None, batch.known))
        if known is None or not torch.equal(known, batch.known):
            with lasting(), torch.no_grad(), torch.autocast(batch.known.device.type, enabled=False):
                heard = self._spread(batch)
            derived[key] = batch.known, heard
        return heard

    def _spread(self, batch: HeteroBatch) -> Tensor:
        edges = torch.stack([batch.relations.source, batch.relations.target])
        votes = leave_one_out_spreading(edges, batch.known, self.num_classes, self.alpha)
        counts = torch.bincount(batch.known[batch.known >= 0], minlength=self.num_classes)
        share = counts / counts.sum().clamp(min=1)
        heard = (votes + SMOOTHING * share) / ((votes.sum(1, keepdim=True) + SMOOTHING) * share)
        return heard.log().where(share > 0, 0.0)  # of classes that no training node is of nothing can be said
