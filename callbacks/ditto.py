"""Ditto: Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from flgraph.callbacks.fedprox import FedProx
from flgraph.errors import expect
from flgraph.federation.client import Client
from flgraph.federation.payload import Payload


class Ditto(FedProx):
    r"""FedAvg, beside which each client trains a model of its own that is drawn to the global one (Algorithm 1).

    In a round a client trains the model that it was sent and uploads it, as in FedAvg; then, for as many epochs, its
    own, :math:`v`, on :math:`L_m(v) + \frac{\lambda}{2} \lVert v - \bar w \rVert^2` with :math:`\bar w` what it was
    sent. That one it uses, is evaluated with, and leaves in its checkpoint. Both begin with what the client
    is sent first; both have optimizers, schedulers and counts of epochs of their own, and their own version of layers
    that are not shared.

    Args:
        lam: :math:`\lambda`; 0 trains own models alone.
        kwargs: see :class:`FedAvg`.
    """

    client_attributes = ("_begun", "_common", "_states")

    def __init__(self, lam: float = 0.1, **kwargs: Any) -> None:
        super().__init__(mu=0.0, **kwargs)
        expect(0 <= lam < float("inf"), "aggregator.lam", "a finite number, 0 or more", lam)
        self.lam = self.mu = lam
        # The client half's: whether it has trained, what of the common model is not shared, its optimizers and counts.
        self._begun = False
        self._common: dict[str, Tensor] = {}
        self._states: dict[str, Any] = {}
        self._trained: dict[str, Tensor] = {}  # in a turn: what is to be uploaded

    # ----------------------------------------------------------------------------------------------- server half
    def sums_suffice(self, round: int, exchange: str) -> bool:
        return True

    def check_upload(self, client: str, upload: Payload, round: int, exchange: str) -> None:
        self.check_shared(client, upload)

    # ----------------------------------------------------------------------------------------------- client half
    def install(self, client: Client, download: Payload) -> None:
        """Begins with it; later the client goes on with its own model."""
        if not self._begun:
            super().install(client, download)

    def local_update(self, client: Client, round: int, exchange: str) -> None:
        """Trains the common model, and then the client's own."""
        module = client.module
        own = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        states = client.swap_training(self._states)
        module.load_state_dict({**own, **self._common})
        client.expect_whole(client.last_download)  # or else the own model's other tensors would be uploaded
        client.load_shared(client.last_download.group())
        client.fit()
        self._trained = {name: tensor.clone() for name, tensor in client.shared_tensors().items()}
        self._common = {name: t.clone() for name, t in module.state_dict().items() if name not in self._trained}
        self._states = client.swap_training(states)
        module.load_state_dict(own)
        super().local_update(client, round, exchange)
        self._begun = True

    def upload(self, client: Client, round: int, exchange: str) -> Payload | None:
        trained, self._trained = self._trained, {}
        return Payload(trained, self.sample_count(client))
