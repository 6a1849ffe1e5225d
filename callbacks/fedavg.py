"""FedAvg: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from torch import Tensor

from flgraph.errors import expect
from flgraph.federation.aggregation import weighted_mean
from flgraph.federation.aggregator import Aggregator
from flgraph.federation.payload import Payload
from flgraph.federation.routes import Route, shared


class FedAvg(Aggregator):
    r"""Averages what clients have in common: :math:`\bar w = \sum_m \frac{|D_m|}{N} w_m` (FedStar, Eq. 4).

    By default every parameter and buffer that all clients hold in the same shape is shared; across data sets with
    different features and classes, input and output layers so stay with the client.

    Args:
        weighting: ``"samples"`` weighs clients by their number of training samples, ``"uniform"`` alike.
        optimizer_state: whether clients keep their optimizers' state over rounds.
    """

    def __init__(
        self,
        weighting: Literal["samples", "uniform"] = "samples",
        optimizer_state: Literal["keep", "reset"] = "keep",
    ) -> None:
        super().__init__(optimizer_state)
        expect(weighting in ("samples", "uniform"), "aggregator.weighting", "samples or uniform", weighting)
        self.weighting = weighting
        self._weights: dict[str, Tensor] = {}
        self._payload = Payload()

    def routes(self) -> list[Route]:
        return shared("*", mismatch="personal")

    # ----------------------------------------------------------------------------------------------- server half
    def start(self, initial: Mapping[str, Tensor], clients: Sequence[str]) -> None:
        self._set(dict(initial))

    def download(self, client: str, round: int, exchange: str) -> Payload | None:
        if len(self.holders[client]) == len(self._weights):
            return self._payload
        return Payload({name: self._weights[name] for name in self.holders[client]})

    def aggregate(self, uploads: Mapping[str, Payload], round: int, exchange: str) -> None:
        self._set({**self._weights, **weighted_mean(uploads, self.client_weights(uploads))})

    def client_weights(self, uploads: Mapping[str, Payload]) -> dict[str, float]:
        """How much each client counts in a mean, by ``weighting``; not normalised."""
        if self.weighting == "uniform":
            return dict.fromkeys(uploads, 1.0)
        return {client: float(upload.scalars["num_samples"]) for client, upload in uploads.items()}

    def server_state(self) -> Payload:
        return self._payload

    def load_server_state(self, state: Payload) -> None:
        self._set(dict(state.tensors))

    def _set(self, weights: dict[str, Tensor]) -> None:
        self._weights, self._payload = weights, Payload(weights)  # one payload for all: it is serialised once
