"""What held-out links compete with."""

from __future__ import annotations

from collections.abc import Callable

import torch
from pytorch_lightning.utilities.rank_zero import rank_zero_warn
from torch import Tensor


def draw_apart(draw: Callable[[], Tensor], base: Tensor, taken: Tensor) -> Tensor:
    """Nodes that sources are not joined to, drawn until none is.

    After 100 draws a node stays even if it is joined: a source may be joined to all. A warning tells how many do.

    Args:
        draw: draws nodes ``[P, k]``.
        base: ``[P, 1]``; added to a node it gives the key of the pair.
        taken: keys of the pairs that are joined.
    """
    found = draw()
    for _ in range(100):
        joined = torch.isin(base + found, taken)
        if not bool(joined.any()):
            return found
        found = torch.where(joined, draw(), found)
    joined = torch.isin(base + found, taken)
    if bool(joined.any()):
        what = f"{int(joined.sum())} of {joined.numel()} negatives of held-out links are links, or the source itself"
        rank_zero_warn(f"{what}: their sources are joined to nearly all nodes. Metrics of these links mean little.")
    return found
