"""What a client's training graphs say of the class of each of its graphs."""

from __future__ import annotations

import torch
from torch import Tensor

from flgraph.data.graphs.container import FlatGraphs
from flgraph.nn.kernels import leave_one_out_ridge, wl_kernel


def wl_scores(graphs: FlatGraphs, train: Tensor, num_classes: int) -> Tensor:
    """Scores of each graph's classes by kernel ridge regression with a Weisfeiler-Lehman kernel.

    Labels of training graphs are used and no others; a training graph's own is not (:func:`~flgraph.nn.wl_kernel`,
    :func:`~flgraph.nn.leave_one_out_ridge`). They tell of labels, and are kept in memory alone.

    Args:
        graphs: the client's graphs, of one class each.
        train: numbers of the training graphs.
        num_classes: C.

    Returns:
        ``[G, C]``, float32, on the device of the graphs.
    """
    index = train.cpu()
    known = torch.full((len(graphs),), -1).index_copy(0, index, graphs.y.cpu()[index])
    owner = torch.repeat_interleave(graphs.node_ptr.cpu().diff())
    kernel = wl_kernel(graphs.x.cpu(), graphs._global_edges().cpu(), owner, len(graphs))
    return leave_one_out_ridge(kernel, known, num_classes).to(graphs.x.device)
