"""What a client's training graphs say of the class of each of its graphs."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from flgraph.data.cache import cached, content_key
from flgraph.data.graphs.container import FlatGraphs
from flgraph.nn.kernels import leave_one_out_ridge, wl_kernel

_VERSION = 1
"""Part of the cache's key; raise it when results change."""


def wl_scores(graphs: FlatGraphs, train: Tensor, num_classes: int, cache_dir: str | Path | None = None) -> Tensor:
    """Scores of each graph's classes by kernel ridge regression with a Weisfeiler-Lehman kernel.

    Labels of training graphs are used and no others; a training graph's own is not (:func:`~flgraph.nn.wl_kernel`,
    :func:`~flgraph.nn.leave_one_out_ridge`). Found once, and then read from the cache. The kernel of G graphs takes
    8 G² bytes while it is found.

    Args:
        graphs: the client's graphs, of one class each.
        train: numbers of the training graphs.
        num_classes: C.
        cache_dir: see :func:`flgraph.data.cache.cache_folder`.

    Returns:
        ``[G, C]``, float32, on the device of the graphs.
    """
    index = train.cpu()
    x, edges, node_ptr = graphs.x.cpu(), graphs._global_edges().cpu(), graphs.node_ptr.cpu()
    known = torch.full((len(graphs),), -1).index_copy(0, index, graphs.y.cpu()[index])

    def compute() -> dict[str, Tensor]:
        kernel = wl_kernel(x, edges, torch.repeat_interleave(node_ptr.diff()), len(graphs))
        return {"scores": leave_one_out_ridge(kernel, known, num_classes)}

    key = content_key("wl scores", _VERSION, x, edges, node_ptr, known, num_classes)
    return cached(key, compute, cache_dir)["scores"].to(graphs.x.device)
