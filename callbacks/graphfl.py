"""GraphFL: Wang et al., "GraphFL: A Federated Learning Framework for Semi-Supervised Node Classification", 2020."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.func import functional_call

from flgraph.callbacks.fedavg import FedAvg
from flgraph.callbacks.gradients import loss_of, silent
from flgraph.errors import InputError, expect
from flgraph.federation.client import Client
from flgraph.federation.payload import Payload
from flgraph.federation.received import expect_group
from flgraph.federation.routes import UploadKind
from flgraph.nn import at_least_float32

_FEW = 20
"""Records of which a gradient says much of each."""


@runtime_checkable
class FewShot(Protocol):
    """Client data that can draw a support set and a query set."""

    def support_query(self, num_nodes: int) -> tuple[Any, Any]:
        """Two disjoint random sets of ``num_nodes`` nodes, as batches of the kind that training takes.

        Fewer where there are not enough. Drawn anew at each call from torch's default
        generator, which the client's turn has seeded.
        """


class GraphFL(FedAvg):
    r"""Model-agnostic meta-learning for the common weights, then FedAvg from there.

    A round has two exchanges. In ``"meta"``, client :math:`m` adapts the common weights :math:`w` to a support set and
    sends the gradient of its query loss, taken through the adaptation (MAML, Finn et al., 2017):

    .. math::
        w_m' = w - \alpha \nabla L_m^{\mathrm{support}}(w), \qquad
        g_m = \nabla_w L_m^{\mathrm{query}}(w_m')
            = (I - \alpha \nabla^2 L_m^{\mathrm{support}}(w)) \, \nabla L_m^{\mathrm{query}}(w_m');

    with ``first_order`` the bracket is left out. The server steps along the mean :math:`\sum_m \frac{|D_m|}{N} g_m`.
    In ``"train"``, clients train for their local epochs from there, and the server averages their weights.

    Works with any module whose ``training_step`` returns the loss, and that has automatic optimization. Dropout is
    active in the meta exchange as in training; buffers keep their values. Support and query set come from the client's
    data (:class:`FewShot`), or else are the first two batches of the training loader.

    Args:
        num_nodes: nodes in the support set, and in the query set (the paper's FedEgo comparison: 100; its code: 80).
        inner_steps: gradient steps on the support set.
        inner_lr: their length :math:`\alpha`.
        first_order: whether to leave out second derivatives, for layers that have none, or to save half of the time.
        meta_lr: learning rate of the server.
        meta_optimizer: ``"sgd"`` or ``"adam"``, whose state the server keeps.
        kwargs: see :class:`FedAvg`.
    """

    extra_tensors: ClassVar[Mapping[str, UploadKind]] = {"gradient/*": "gradient"}
    server_attributes = ("_moments",)

    def __init__(
        self,
        num_nodes: int = 100,
        inner_steps: int = 1,
        inner_lr: float = 0.01,
        first_order: bool = False,
        meta_lr: float = 0.01,
        meta_optimizer: Literal["sgd", "adam"] = "sgd",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        expect(num_nodes >= 1, "aggregator.num_nodes", "1 or more", num_nodes)
        expect(inner_steps >= 1, "aggregator.inner_steps", "1 or more", inner_steps)
        expect(0 <= inner_lr < float("inf"), "aggregator.inner_lr", "a finite number, 0 or more", inner_lr)
        expect(0 <= meta_lr < float("inf"), "aggregator.meta_lr", "a finite number, 0 or more", meta_lr)
        expect(meta_optimizer in ("sgd", "adam"), "aggregator.meta_optimizer", "sgd or adam", meta_optimizer)
        self.num_nodes, self.first_order = num_nodes, first_order
        self.inner_steps, self.inner_lr = inner_steps, inner_lr
        self.meta_lr, self.meta_optimizer = meta_lr, meta_optimizer
        self._moments: dict[str, dict[str, Tensor]] = {}  # the meta optimizer's state, by parameter
        self._gradients: dict[str, Tensor] = {}  # the client half's, between work and upload

    @property
    def reveals(self) -> str:
        if self.num_nodes >= _FEW:
            return ""
        return f"The server gets gradients of {self.num_nodes} records each, and can work out single ones."

    def exchanges(self, round: int) -> Sequence[str]:
        return ("meta", "train") if round else ()

    # ----------------------------------------------------------------------------------------------- server half
    def check_upload(self, client: str, upload: Payload, round: int, exchange: str) -> None:
        """Weights; or gradients of shared tensors, of their shapes."""
        if exchange != "meta":
            return self.check_shared(client, upload)
        self.check_samples(client, upload)
        gradients, own = upload.group("gradient"), self.owners.get(client, ())
        # Which of them are parameters, and not buffers, the server learns from what most clients send.
        known = {name: self.shared[name] for name in gradients if name in own and name in self.shared}
        shapes = {name: tensor.shape for name, tensor in known.items() if tensor.is_floating_point()}
        expect_group(gradients, shapes, f"upload` of client `{client}")

    def sums_suffice(self, round: int, exchange: str) -> bool:
        return exchange != "meta"

    def aggregate(self, uploads: Mapping[str, Payload], round: int, exchange: str) -> Mapping[str, Tensor]:
        if exchange != "meta":
            return super().aggregate(uploads, round, exchange)
        sent = {client: upload.group("gradient") for client, upload in uploads.items()}
        counts = Counter(name for own in sent.values() for name in own)
        gradients = {
            client: {name: gradient for name, gradient in own.items() if 2 * counts[name] > len(sent)}
            for client, own in sent.items()
        }
        return self._meta_step(self.combine(gradients, self.client_weights(uploads)))

    def _meta_step(self, gradients: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        wide = {name: at_least_float32(self.shared[name]) for name in gradients}  # Adam's eps is 0 in float16
        parameters = {name: tensor.clone().requires_grad_() for name, tensor in wide.items()}
        if not parameters:
            return {}
        kind = torch.optim.Adam if self.meta_optimizer == "adam" else torch.optim.SGD
        optimizer = kind(parameters.values(), lr=self.meta_lr)
        for name, parameter in parameters.items():
            for key, moment in self._moments.get(name, {}).items():  # of another type where clients' precision differs
                optimizer.state[parameter][key] = moment.clone() if key == "step" else moment.to(parameter, copy=True)
            parameter.grad = gradients[name].to(parameter)
        optimizer.step()
        for name, parameter in parameters.items():
            state = optimizer.state[parameter].items()
            self._moments[name] = {key: value for key, value in state if isinstance(value, Tensor)}
        return {name: parameter.detach().to(self.shared[name].dtype) for name, parameter in parameters.items()}

    # ----------------------------------------------------------------------------------------------- client half
    def local_update(self, client: Client, round: int, exchange: str) -> None:
        """The meta-gradient, or local training."""
        if exchange == "meta":
            self._gradients = self.meta_gradients(client)
        else:
            super().local_update(client, round, exchange)

    def upload(self, client: Client, round: int, exchange: str) -> Payload | None:
        if exchange != "meta":
            return super().upload(client, round, exchange)
        gradients = {name: self._gradients[name] for name in client.routing.shared if name in self._gradients}
        self._gradients = {}
        return Payload({"gradient": gradients}, self.sample_count(client))

    def meta_gradients(self, client: Client) -> dict[str, Tensor]:
        """:math:`g_m`, by the names of parameters."""
        return self.adapted_gradients(client, self.inner_steps)

    def adapted_gradients(self, client: Client, steps: int) -> dict[str, Tensor]:
        """The gradient of the query loss after ``steps`` on the support loss, with respect to the weights before."""
        module, trainer = client.module, client.trainer
        automatic = module.automatic_optimization
        expect(automatic, "model", "a module with automatic optimization for GraphFL", "one with manual optimization")
        module.to(trainer.strategy.root_device)
        if module._trainer is None:  # before the first training
            module.trainer = trainer
        trainer.precision_plugin.convert_module(module)
        sets = self._sets(client.data)
        converted = (trainer.precision_plugin.convert_input(batch) for batch in sets)
        support, query = (module.transfer_batch_to_device(batch, module.device, 0) for batch in converted)
        try:
            with trainer.precision_plugin.train_step_context(), silent(module):
                return meta_gradients(module, support, query, self.inner_lr, steps, self.first_order)
        except RuntimeError as error:
            if "once_differentiable" not in str(error):
                raise
            once = "true for a model with layers that can be differentiated only once"
            raise InputError("aggregator.first_order", once, False) from error

    def _sets(self, data: Any) -> tuple[Any, Any]:
        if isinstance(data, FewShot):
            return data.support_query(self.num_nodes)
        loader = data.train_dataloader()
        batches = iter(loader)
        support = next(batches, None)
        expect(support is not None, "data", "one with training batches for support and query sets", "none")
        query = next(batches, None)
        return support, next(iter(loader)) if query is None else query


def meta_gradients(
    module: pl.LightningModule, support: Any, query: Any, lr: float, steps: int = 1, first_order: bool = False
) -> dict[str, Tensor]:
    """Gradient of the query loss after some gradient steps on the support loss, with respect to the present weights.

    The module's weights and buffers stay as they are; dropout acts where the module is in training mode.

    Args:
        module: any whose ``training_step`` returns the loss.
        support: the batch of the steps.
        query: the batch of the loss afterwards.
        lr: length of a step.
        steps: number of steps; 0 for the plain gradient of the query loss.
        first_order: whether to take the steps as not depending on the weights.

    Returns:
        Name to gradient of every parameter that is trained; zeros where the loss does not depend on it.
    """
    step = _Step(module)
    once = {name for name, _ in module.named_parameters()}
    tied = [name for name, _ in module.named_parameters(remove_duplicate=False) if name not in once]
    expect(not tied, "model", "one without tied parameters for a meta step", tied)
    trained = {name: parameter for name, parameter in step.named_parameters() if parameter.requires_grad}
    start = [parameter.detach().clone().requires_grad_() for parameter in trained.values()]
    # Copies: what training_step writes into buffers, such as running means, is not to stay.
    buffers = {name: buffer.clone() for name, buffer in step.named_buffers()}

    def loss(weights: Sequence[Tensor], batch: Any) -> Tensor:
        value: Tensor = functional_call(step, {**dict(zip(trained, weights, strict=True)), **buffers}, (batch,))
        return value

    weights = start
    for _ in range(steps):
        along = torch.autograd.grad(loss(weights, support), weights, create_graph=not first_order, allow_unused=True)
        weights = [w if g is None else w - lr * g for w, g in zip(weights, along, strict=True)]
        if first_order:
            weights = [w.detach().requires_grad_() for w in weights]
    # Not autograd.grad: on its way to given tensors it passes by, without a word, what cannot be differentiated twice.
    loss(weights, query).backward()
    leaves = weights if first_order else start
    found = {name: torch.zeros_like(w) if w.grad is None else w.grad for name, w in zip(trained, leaves, strict=True)}
    return {name.removeprefix("module."): gradient for name, gradient in found.items()}


class _Step(torch.nn.Module):
    """``training_step`` as ``forward``, which :func:`torch.func.functional_call` can call with other weights."""

    def __init__(self, module: pl.LightningModule) -> None:
        super().__init__()
        self.module = module

    def forward(self, batch: Any) -> Tensor:
        return loss_of(self.module, batch)
