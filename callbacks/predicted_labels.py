"""Which classes clients predict, as in FedEgo's Figure 7 (b)."""

from __future__ import annotations

import warnings
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from flgraph.errors import expect
from flgraph.federation.callback import FederatedCallback
from flgraph.federation.template import expect_classes


class PredictedLabels(FederatedCallback):
    """Logs the shares of the classes among a client's predictions of the test data, and among the true labels.

    They are metrics of the client, ``STAGE/predicted_C`` and ``STAGE/true_C`` for each class C, so that they stand in
    ``results.json``, ``history.jsonl`` and TensorBoard, whatever the engine. By default they are of the global test
    data, which belong to no client; with ``stage="test"`` the label distribution of each client's own test data goes
    to the server.

    Args:
        stage: which of the module's ``test_stages``, for example ``"test"`` or ``"global_test"``. A warning says where
            the data has none of it.

    Raises:
        InputError: a module's ``forward`` does not return logits, or it has no test stage of that name.
    """

    def __init__(self, stage: str = "global_test") -> None:
        self.stage = stage
        self._logits: Any = None
        self._hook: RemovableHandle | None = None
        self._predicted: list[Tensor] = []
        self._true: list[Tensor] = []

    def on_test_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Listens to the module's forward pass."""
        stages = getattr(pl_module, "test_stages", ("test",))
        expect(self.stage in stages, "callbacks.stage", f"one of {', '.join(stages)}", self.stage)
        expect_classes(pl_module, "PredictedLabels")
        self._predicted, self._true = [], []
        self._release()  # of a test that was broken off
        self._hook = pl_module.register_forward_hook(self._keep)

    def on_test_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Takes the classes of a batch."""
        logits, self._logits = self._logits, None
        stage_of = getattr(pl_module, "test_stage", None)
        first = "test" if dataloader_idx == 0 else None
        if (stage_of(dataloader_idx) if stage_of else first) != self.stage:
            return
        fits = isinstance(logits, Tensor) and logits.dim() == 2
        expect(fits, f"{type(pl_module).__name__}.forward", "to return logits [N, classes]", type(logits).__name__)
        self._predicted.append(torch.bincount(logits.argmax(dim=1), minlength=logits.size(1)))
        self._true.append(torch.bincount(batch.y.view(-1), minlength=logits.size(1)))

    def on_test_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Logs the shares."""
        self._release()
        if not self._predicted:
            warnings.warn(f"PredictedLabels has nothing to log: the data has no `{self.stage}`.", stacklevel=2)
        for name, counts in (("predicted", self._predicted), ("true", self._true)):
            if counts:
                total = torch.stack(counts).sum(dim=0)
                shares = (total / total.sum()).tolist()
                values = {f"{self.stage}/{name}_{label}": share for label, share in enumerate(shares)}
                pl_module.log_dict(values, batch_size=1)

    def _release(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _keep(self, module: torch.nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._logits = output
