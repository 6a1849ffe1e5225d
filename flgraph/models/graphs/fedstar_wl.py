"""FedStar's network beside a graph kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from flgraph.errors import InputError, expect
from flgraph.models.graphs.fedstar import FedStar


class FedStarWL(FedStar):
    r"""A :class:`FedStar` whose logits also get the scores of a graph kernel.

    To the logits are added :math:`s` times the scores of kernel ridge regression with a Weisfeiler-Lehman kernel, which
    the data brings along (``wl_scores``, see :func:`~flgraph.data.graphs.scores.wl_scores`). A training graph's own
    label has no part in its scores (stacking: Wolpert, "Stacked Generalization", Neural Networks 1992).

    Args:
        trust: the first :math:`s`; then it is trained, by the optimizer's steps.
        kwargs: see :class:`FedStar`.

    Shapes:
        - **input:** as :class:`FedStar`, with ``wl_scores [B, num_classes]``
        - **output:** logits ``[B, num_classes]``

    Raises:
        InputError: a hyper-parameter or a batch cannot be used.
    """

    def __init__(self, trust: float = 3.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        expect(0 <= trust < float("inf"), "model.trust", "a finite number, 0 or more", trust)
        if not self.is_template:
            self.trust = torch.nn.Parameter(torch.tensor([float(trust)]))

    def head(self, encoded: Tensor, batch: Data) -> Tensor:
        """Logits ``[B, num_classes]``."""
        scores, shape = batch.get("wl_scores"), [len(encoded), self.num_classes]
        if scores is None or list(scores.shape) != shape:
            got = "none" if scores is None else list(scores.shape)
            raise InputError("batch.wl_scores", f"of shape {shape}, as data with `wl_scores: true` has them,", got)
        return super().head(encoded, batch) + self.trust * scores.to(encoded.dtype)
