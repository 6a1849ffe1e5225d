"""What client halves have in common that add a loss on representations to their models' own."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Protocol, runtime_checkable

import pytorch_lightning as pl
from torch import Tensor

from flgraph.errors import expect
from flgraph.federation.aggregator import Aggregator
from flgraph.models.base import FurtherLoss


@runtime_checkable
class HasFurtherLoss(Protocol):
    """A module that adds a loss to its own in training where one is set."""

    further_loss: FurtherLoss | None


class AddsLoss(Aggregator):
    """Adds :meth:`further_loss` to the loss of a client's model, for as long as it trains.

    Goes with every model that has a ``further_loss``: all classifiers and graph embeddings of :mod:`flgraph.models`.
    Stands before the algorithm that it is added to: ``class MOON(AddsLoss, FedAvg)``.
    """

    @property
    def adds_loss(self) -> bool:
        """Whether there is anything to add in this turn."""
        return True

    @abstractmethod
    def further_loss(self, batch: Any, encoded: Any) -> Tensor:
        """The loss to add, a scalar with a gradient.

        Args:
            batch: of training.
            encoded: what the model made of it: of a classifier the representations of the labelled graphs or nodes
                ``[B, D]``, see :meth:`flgraph.models.Classifier.rows`; of graph embeddings
                :class:`~flgraph.models.unsupervised.base.Encoded`.
        """

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Sets the model's ``further_loss``."""
        if self.adds_loss:
            wanted = "one with a `further_loss`, such as the classifiers of flgraph.models,"
            expect(isinstance(pl_module, HasFurtherLoss), "model", wanted, type(pl_module).__name__)
            assert isinstance(pl_module, HasFurtherLoss)
            pl_module.further_loss = self.further_loss

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leaves the model as it was."""
        if self.adds_loss and isinstance(pl_module, HasFurtherLoss):
            pl_module.further_loss = None
