"""A model that fails where the smaller of two data sets is trained, in the second round."""

from __future__ import annotations

from typing import Any

import torch

from flgraph.models import GNN


class Failing(GNN):
    def training_step(self, batch: Any, batch_idx: int = 0) -> torch.Tensor:
        if self.trainer.current_epoch == 1 and batch.num_graphs < 10:
            raise RuntimeError("out of luck")
        return super().training_step(batch, batch_idx)
