"""FedStar's network, asked together with a graph kernel."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch_geometric.data import Data

from flgraph.errors import InputError, expect
from flgraph.models.graphs.fedstar import FedStar


class FedStarWL(FedStar):
    r"""A :class:`FedStar` that is asked together with a graph kernel.

    It is trained as :class:`FedStar`. In evaluation and prediction the scores of kernel ridge regression with a
    Weisfeiler-Lehman kernel, times ``trust``, are added to its logits: the product of two experts. The data brings the
    scores along (``wl_scores``, see :func:`~flgraph.data.graphs.scores.wl_scores`).

    Args:
        trust: weight of the scores.
        kwargs: see :class:`FedStar`.

    Shapes:
        - **input:** as :class:`FedStar`, with ``wl_scores [B, num_classes]``
        - **output:** logits ``[B, num_classes]``

    Raises:
        InputError: a hyper-parameter or a batch cannot be used.
    """

    def __init__(self, trust: float = 8.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        expect(0 <= trust < float("inf"), "model.trust", "a finite number, 0 or more", trust)
        self.trust = trust

    def head(self, encoded: Tensor, batch: Data) -> Tensor:
        """Logits ``[B, num_classes]``."""
        logits = super().head(encoded, batch)
        scores = batch.get("wl_scores")
        if scores is None or scores.shape != logits.shape:
            got = "none" if scores is None else list(scores.shape)
            wanted = f"of shape {list(logits.shape)}, as data with `wl_scores: true` has them,"
            raise InputError("batch.wl_scores", wanted, got)
        return logits if self.training else logits + self.trust * scores.to(logits.dtype)
