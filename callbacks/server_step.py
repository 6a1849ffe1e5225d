"""What server halves have in common that do not simply go where the mean of their clients' weights is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flgraph.callbacks.fedavg import FedAvg
from flgraph.federation.routes import matches


class ServerStep(FedAvg):
    """FedAvg whose server changes the way from its weights to the clients' mean.

    That makes sense for parameters. The server does not see which of the tensors are running statistics of
    normalisation layers, whose variances must not become negative: names tell. These are averaged, and so are integers
    and complex numbers.

    Args:
        statistics: patterns of the tensors that are averaged.
        kwargs: see :class:`FedAvg`.
    """

    def __init__(self, statistics: Sequence[str] = ("*running_mean", "*running_var"), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.statistics = list(statistics)

    def is_stepped(self, name: str) -> bool:
        """Whether the shared tensor of this name is more than averaged."""
        floating = self.shared[name].is_floating_point()
        return floating and not matches(name, self.statistics)
