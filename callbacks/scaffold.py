"""SCAFFOLD: Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum
from typing import Any, ClassVar

import pytorch_lightning as pl
import torch
from torch import Tensor

from flgraph.callbacks.gradients import add_gradient, stepped
from flgraph.callbacks.server_step import ServerStep
from flgraph.errors import expect
from flgraph.federation.client import Client
from flgraph.federation.payload import Payload
from flgraph.federation.received import expect_group
from flgraph.federation.routes import UploadKind
from flgraph.nn import at_least_float32


class SCAFFOLD(ServerStep):
    r"""FedAvg whose clients correct their gradients by how these differ from the mean over clients (Algorithm 1).

    Client :math:`i` has a control variate :math:`c_i`, the server :math:`c`, their mean over all clients; all begin
    with zero. In local training gradients are

    .. math::
        g_i(y) - c_i + c,

    and afterwards :math:`c_i` is the mean of the uncorrected gradients of the training. For plain SGD that is the
    paper's Option II, :math:`c_i - c + (x - y_i) / (K \eta_l)`, put differently: of the :math:`K` steps each moves by
    :math:`\eta_l (g_i - c_i + c)`. It needs no learning rate, so that momentum, Adam and schedules go with it, of which
    the paper says nothing. Up go the weights and :math:`c_i`; the server goes :math:`\eta_g` of the way to the clients'
    mean.

    The paper sends the change of :math:`c_i` and adds it to :math:`c`. The server here keeps the last :math:`c_i` of
    every client: one that is refused is made good by the next, and those of clients that are left out go with them.
    ``combine`` makes :math:`c` of them, as it makes the weights.

    Where clients count by their samples, :math:`c` is the mean with the same weights (the paper has none); a client
    that has not been heard of counts with a zero variate and a mean weight, as in the paper. Tensors that are not
    shared, buffers and complex parameters have no variates.

    Args:
        server_lr: :math:`\eta_g`.
        kwargs: see :class:`~flgraph.callbacks.server_step.ServerStep`.
    """

    extra_tensors: ClassVar[Mapping[str, UploadKind]] = {"control/*": "gradient"}
    server_attributes = ("_variates", "_weights", "_clients")
    client_attributes = ("_own",)

    def __init__(self, server_lr: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        expect(0 < server_lr < float("inf"), "aggregator.server_lr", "a finite number above 0", server_lr)
        self.server_lr = server_lr
        self._variates: dict[str, dict[str, Tensor]] = {}  # c_i of the clients heard of
        self._weights: dict[str, float] = {}  # theirs, when they were first heard of
        self._clients: list[str] = []  # that the first round began with
        self._own: dict[str, Tensor] = {}  # c_i of the client half
        # In a turn: c - c_i, the sum of gradients, how many they are, and whose they are.
        self._correction: dict[str, Tensor] = {}
        self._gradients: dict[str, Tensor] = {}
        self._steps: dict[str, int] = {}
        self._names: frozenset[str] = frozenset()

    # ----------------------------------------------------------------------------------------------- server half
    def start(self, initial: Mapping[str, Tensor], clients: Sequence[str]) -> None:
        super().start(initial, clients)
        self._clients = list(clients)

    @property
    def control(self) -> dict[str, Tensor]:
        """:math:`c`, by the names of parameters; float64, and empty before the first round."""
        weights = {client: self._weights[client] for client in self._variates if client not in self.excluded}
        number = sum(client not in self.excluded for client in self._clients)
        total = number * fsum(weights.values()) / max(1, len(weights))
        known = {c: {name: own.double() for name, own in self._variates[c].items()} for c in weights}
        means = self.combine(known, weights) if known else {}
        heard = {name: fsum(weights[client] for client, own in known.items() if name in own) for name in means}
        return {name: mean * (heard[name] / total) for name, mean in means.items()}

    def download(self, client: str, round: int, exchange: str | None) -> Payload | None:
        names = tuple(name for name in self.owners[client] if name in self.shared)
        return self.payload(names, lambda: {**{name: self.shared[name] for name in names}, **self._sent(names)})

    def _sent(self, names: Sequence[str]) -> dict[str, Any]:
        control = {name: tensor.float() for name, tensor in self.control.items() if name in names}
        return {"control": control} if control else {}

    def check_upload(self, client: str, upload: Payload, round: int, exchange: str) -> None:
        """What FedAvg asks for, and variates of shared tensors."""
        self.check_shared(client, upload)
        control, own = upload.group("control"), self.owners.get(client, ())
        known = {name: self.shared[name] for name in control if name in own and name in self.shared}
        shapes = {name: tensor.shape for name, tensor in known.items() if tensor.is_floating_point()}
        expect_group(control, shapes, f"upload` of client `{client}")

    def aggregate(self, uploads: Mapping[str, Payload], round: int, exchange: str) -> Mapping[str, Tensor]:
        means, weights = super().aggregate(uploads, round, exchange), self.client_weights(uploads)
        for client in sorted(uploads):
            self._weights.setdefault(client, weights[client])
            self._variates[client] = {**self._variates.get(client, {}), **uploads[client].group("control")}
        if self.server_lr == 1:
            return means
        return {
            name: torch.lerp(self.shared[name].to(mean), mean, self.server_lr) if self.is_stepped(name) else mean
            for name, mean in means.items()
        }

    # ----------------------------------------------------------------------------------------------- client half
    def local_update(self, client: Client, round: int, exchange: str) -> None:
        """Local training with corrected gradients."""
        control, shared = client.last_download.group("control"), client.shared_tensors()
        known = {name: shared[name].shape for name in control if name in shared}
        expect_group(control, known, f"download` of client `{client.name}")
        self._names = frozenset(name for name, tensor in shared.items() if tensor.is_floating_point())
        zero = torch.zeros(())
        self._correction = {
            name: control.get(name, zero) - self._own.get(name, zero) for name in sorted({*control, *self._own})
        }
        self._gradients, self._steps = {}, {}
        super().local_update(client, round, exchange)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Moves the corrections to where the model is."""
        parameters = dict(pl_module.named_parameters())
        self._correction = {name: t.to(parameters[name]) for name, t in self._correction.items() if name in parameters}

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Adds the gradients up, and corrects them."""
        for name, parameter in stepped(pl_module, optimizer).items():
            if name not in self._names:
                continue
            self._steps[name] = self._steps.get(name, 0) + 1
            if name not in self._gradients:
                self._gradients[name] = torch.zeros_like(at_least_float32(parameter.detach()))
            if parameter.grad is not None:
                self._gradients[name] += parameter.grad
            if name in self._correction:
                add_gradient(parameter, self._correction[name])

    def upload(self, client: Client, round: int, exchange: str) -> Payload | None:
        after = {name: total.cpu() / self._steps[name] for name, total in self._gradients.items()}
        # What is not finite is refused, and would spoil all later turns, too.
        finite = {name: own for name, own in after.items() if bool(own.isfinite().all())}
        self._own, self._correction, self._gradients = {**self._own, **finite}, {}, {}
        return Payload({**client.shared_tensors(), "control": after}, self.sample_count(client))
