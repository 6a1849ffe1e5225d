"""Batch normalisation of batches of any size."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class BatchNorm(nn.BatchNorm1d):
    """:class:`torch.nn.BatchNorm1d` that in training, too, takes a single row.

    One row has no variance, and PyTorch refuses it. A batch of one graph with one node is such a row. It is normalised
    by the running statistics, and leaves them as they are, as PyG's ``allow_single_element`` does.
    """

    def forward(self, input: Tensor) -> Tensor:
        """The rows ``[N, num_features]`` normalised."""
        if self.training and len(input) <= 1:
            return F.batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        return super().forward(input)
