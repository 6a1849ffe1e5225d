"""What client halves have in common that send means of representations, and let those of all clients classify."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, get_args

import pytorch_lightning as pl
from torch import Tensor

from flgraph.errors import expect
from flgraph.federation.aggregator import Aggregator
from flgraph.federation.client import Client
from flgraph.models.classifier import Classifier
from flgraph.nn import at_least_float32
from flgraph.nn.modes import evaluating

Inference = Literal["head", "prototypes"]

MOST = 100_000
"""Classes, and columns of representations."""


class SendsPrototypes(Aggregator):
    """Prototypes of few records are not sent; in evaluations those that were received may classify."""

    min_samples: int
    inference: Inference
    _received: dict[str, Tensor]

    def set_prototypes(self, min_samples: int, inference: Inference) -> None:
        """Checks and sets both arguments; nothing is received yet."""
        expect(min_samples >= 1, "aggregator.min_samples", "1 or more", min_samples)
        expect(inference in get_args(Inference), "aggregator.inference", "head or prototypes", inference)
        self.min_samples, self.inference, self._received = min_samples, inference, {}

    @property
    def reveals(self) -> str:
        if self.min_samples > 1:
            return ""
        return "The server gets the representation of a record that is the only one of its class in a client."

    @abstractmethod
    def votes(self, module: Classifier[Any], rows: Tensor) -> Tensor:
        """Logits of what the model makes of records before its last layer ``[N, D]``, by what was received."""

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lets prototypes classify, if they are to."""
        if self.inference == "prototypes" and self._received:
            assert isinstance(pl_module, Classifier)
            vars(pl_module)["head"] = partial(self._votes, pl_module)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leaves the model as it was."""
        vars(pl_module).pop("head", None)

    on_test_start = on_predict_start = on_validation_start
    on_test_end = on_predict_end = on_validation_end

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Leaves the model as it was."""
        self.on_validation_end(trainer, pl_module)

    def _votes(self, module: Classifier[Any], encoded: Tensor, batch: Any) -> Tensor:
        rows = at_least_float32(module.rows(encoded, batch))
        self._received = {name: tensor.to(rows.device) for name, tensor in self._received.items()}
        return self.votes(module, rows)

    def check_columns(self, prototypes: Tensor, rows: Tensor) -> None:
        """Refuses prototypes that are of other columns than the model's representations."""
        fits = prototypes.size(1) == rows.size(1)
        wanted = f"one with prototypes of {rows.size(1)} columns, as the model has them,"
        expect(fits, "download", wanted, prototypes.size(1))


@contextmanager
def evaluating_client(client: Client) -> Iterator[Callable[[Any], Any]]:
    """Within, a client's classifier has no dropout, no gradient, and the run's precision.

    What it gives takes a batch to where the model is.
    """
    module, precision = client.module, client.trainer.precision_plugin
    expect(isinstance(module, Classifier), "model", "a classifier", type(module).__name__)
    precision.convert_module(module.to(client.trainer.strategy.root_device))  # as Lightning does when it first trains
    with evaluating(module), precision.forward_context():
        yield lambda given: module.transfer_batch_to_device(precision.convert_input(given), module.device, 0)
