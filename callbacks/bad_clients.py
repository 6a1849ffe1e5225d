"""Clients that attack a simulated federation, to see what a method stands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import pytorch_lightning as pl
import torch
from torch import Tensor

from flgraph.errors import expect
from flgraph.federation.budget import AddsNoise
from flgraph.federation.callback import FederatedCallback, Run
from flgraph.federation.template import expect_classes
from flgraph.models.classifier import labels_of

Attack = Literal["nan", "sign_flip", "scaled", "label_flip", "replacement"]
_OF_LABELS = ("label_flip", "replacement")


class BadClients(FederatedCallback):
    r"""Some clients train badly, or spoil what their training gave before it is sent.

    ``--trainer.callbacks '[{class_path: BadClients, init_args: {clients: [north], attack: sign_flip}}]'`` lets the
    client ``north`` send the opposite of its update. Where :math:`w_0` are the weights before a training and :math:`w`
    those after it, a bad client goes on with

    - ``"nan"``: no numbers;
    - ``"sign_flip"``: :math:`w_0 - \mathrm{factor} \cdot (w - w_0)`;
    - ``"scaled"``: :math:`w_0 + \mathrm{factor} \cdot (w - w_0)`;
    - ``"label_flip"``: what it learned with class :math:`C - 1 - y` for :math:`y` (Tolpegin et al., ESORICS 2020);
    - ``"replacement"``: ``"scaled"``, of what it learned with class ``target`` for all others: with a factor of the
      number of clients the mean becomes its own model (Bagdasaryan et al., AISTATS 2020).

    Acts on what is trained, and so on all methods whose clients send weights, whatever is done to an upload after that.
    Attacks on labels change the batches of training: not what else an algorithm takes of a client's data.

    Args:
        clients: names of the bad ones.
        attack: see above.
        factor: see above.
        target: the class of ``"replacement"``.

    Raises:
        InputError: an argument cannot be used, a name is none of a client, or the attack is one on labels beside noise
            that hides records.
    """

    def __init__(
        self, clients: Sequence[str], attack: Attack = "sign_flip", factor: float = 1.0, target: int = 0
    ) -> None:
        expect(bool(clients) and not isinstance(clients, str), "BadClients.clients", "names of clients", clients)
        expect(attack in get_args(Attack), "BadClients.attack", f"one of {', '.join(get_args(Attack))}", attack)
        expect(0 < factor < math.inf, "BadClients.factor", "a finite number above 0", factor)
        expect(type(target) is int and target >= 0, "BadClients.target", "a class, 0 or more", target)
        self.clients, self.attack, self.factor, self.target = list(clients), attack, factor, target
        self._before: dict[str, Tensor] = {}
        self._labels: Tensor | None = None

    def on_federation_start(self, trainer: Run) -> None:
        names = trainer.federated_data.clients if trainer.federated_data is not None else []
        for name in self.clients:
            expect(name in names, "BadClients.clients", f"among {', '.join(names)}", name)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.client in self.clients:
            callbacks: Any = trainer.callbacks  # type: ignore[attr-defined]
            alone = any(isinstance(own, AddsNoise) and own.unit == "record" for own in callbacks)
            wanted = "one that leaves labels as they are, as noise that hides records takes these one by one,"
            expect(not (alone and self.attack in _OF_LABELS), "BadClients.attack", wanted, self.attack)
            self._before = {name: tensor.detach().clone() for name, tensor in pl_module.state_dict().items()}

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if self.client not in self.clients or self.attack not in _OF_LABELS:
            return
        expect_classes(pl_module, f"BadClients with {self.attack}")
        self._labels = labels_of(batch)
        flipped = pl_module.num_classes - 1 - self._labels
        batch.y = flipped if self.attack == "label_flip" else torch.full_like(self._labels, self.target)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Gives the batch its labels back: it may be one of all epochs, and of evaluations."""
        if self._labels is not None:
            batch.y, self._labels = self._labels, None

    @torch.no_grad()
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.client not in self.clients or self.attack == "label_flip":
            return
        factor = {"nan": math.nan, "sign_flip": -self.factor}.get(self.attack, self.factor)
        for name, tensor in pl_module.state_dict().items():
            if tensor.is_floating_point():
                before = self._before[name]
                tensor.copy_(before + factor * (tensor - before))
        self._before = {}
