"""GraphFL: Wang et al., "GraphFL: A Federated Learning Framework for Semi-Supervised Node Classification", 2020."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Protocol, runtime_checkable

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.func import functional_call

from flgraph.callbacks.fedavg import FedAvg
from flgraph.errors import InputError, expect
from flgraph.federation.aggregation import weighted_mean
from flgraph.federation.client import Client
from flgraph.federation.payload import Payload

_META = "meta/"


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

    With ``adaptation="training"`` a client adapts as it trains, for its local epochs and with its own optimizer, whose
    state both exchanges share; :math:`g_m` is the gradient at the weights that it has then, of the first order. So does
    FedEgo's published code, where a client trains on its support set alone, and its query set is never trained on.

    Works with any module whose ``training_step`` returns the loss, and that has automatic optimization. Dropout is
    active in the meta exchange as in training; buffers keep their values. Support and query set come from the client's
    data (:class:`FewShot`), or else are the first two batches of the training loader.

    Args:
        num_nodes: nodes in the support set, and in the query set (the paper's FedEgo comparison: 100; its code: 80).
        adaptation: by ``"steps"`` along the gradient, or by ``"training"`` on all training data.
        inner_steps: gradient steps on the support set.
        inner_lr: their length :math:`\alpha`.
        first_order: whether to leave out second derivatives, for layers that have none, or to save half of the time.
        meta_lr: learning rate of the server.
        meta_optimizer: ``"sgd"`` or ``"adam"``, whose state the server keeps.
        weighting: see :class:`FedAvg`.
        optimizer_state: see :class:`FedAvg`.
    """

    def __init__(
        self,
        num_nodes: int = 100,
        adaptation: Literal["steps", "training"] = "steps",
        inner_steps: int = 1,
        inner_lr: float = 0.01,
        first_order: bool = False,
        meta_lr: float = 0.01,
        meta_optimizer: Literal["sgd", "adam"] = "sgd",
        weighting: Literal["samples", "uniform"] = "samples",
        optimizer_state: Literal["keep", "reset"] = "keep",
    ) -> None:
        super().__init__(weighting, optimizer_state)
        expect(num_nodes >= 1, "aggregator.num_nodes", "1 or more", num_nodes)
        expect(adaptation in ("steps", "training"), "aggregator.adaptation", "steps or training", adaptation)
        sound = first_order or adaptation == "steps"
        expect(sound, "aggregator.first_order", "true for an adaptation by training", first_order)
        expect(inner_steps >= 1, "aggregator.inner_steps", "1 or more", inner_steps)
        expect(0 <= inner_lr < float("inf"), "aggregator.inner_lr", "a finite number, 0 or more", inner_lr)
        expect(0 <= meta_lr < float("inf"), "aggregator.meta_lr", "a finite number, 0 or more", meta_lr)
        expect(meta_optimizer in ("sgd", "adam"), "aggregator.meta_optimizer", "sgd or adam", meta_optimizer)
        self.num_nodes, self.adaptation, self.first_order = num_nodes, adaptation, first_order
        self.inner_steps, self.inner_lr = inner_steps, inner_lr
        self.meta_lr, self.meta_optimizer = meta_lr, meta_optimizer
        self._moments: dict[str, dict[str, Tensor]] = {}  # the meta optimizer's state, by parameter
        self._gradients: dict[str, Tensor] = {}  # the client half's, between work and upload

    def exchanges(self, round: int) -> Sequence[str]:
        return ("meta", "train") if round else ()

    # ----------------------------------------------------------------------------------------------- server half
    def aggregate(self, uploads: Mapping[str, Payload], round: int, exchange: str) -> None:
        if exchange != "meta":
            super().aggregate(uploads, round, exchange)
            return
        self._meta_step(weighted_mean(uploads, self.client_weights(uploads)))

    def _meta_step(self, gradients: Mapping[str, Tensor]) -> None:
        parameters = {name: self._weights[name].clone().requires_grad_() for name in gradients}
        if not parameters:
            return
        kind = torch.optim.Adam if self.meta_optimizer == "adam" else torch.optim.SGD
        optimizer = kind(parameters.values(), lr=self.meta_lr)
        for name, parameter in parameters.items():
            optimizer.state[parameter].update({key: t.clone() for key, t in self._moments.get(name, {}).items()})
            parameter.grad = gradients[name].to(parameter)
        optimizer.step()
        for name, parameter in parameters.items():
            state = optimizer.state[parameter].items()
            self._moments[name] = {key: value for key, value in state if isinstance(value, Tensor)}
        self._set({**self._weights, **{name: parameter.detach() for name, parameter in parameters.items()}})

    def server_state(self) -> Payload:
        moments = {f"{_META}{key}/{name}": t for name, state in self._moments.items() for key, t in state.items()}
        return Payload({**self._weights, **moments})

    def load_server_state(self, state: Payload) -> None:
        self._set({name: tensor for name, tensor in state.tensors.items() if not name.startswith(_META)})
        self._moments = {}
        for path, tensor in state.tensors.items():
            if path.startswith(_META):
                key, _, name = path.removeprefix(_META).partition("/")
                self._moments.setdefault(name, {})[key] = tensor

    # ----------------------------------------------------------------------------------------------- client half
    def local_update(self, client: Client, round: int, exchange: str) -> None:
        """The meta-gradient, or local training."""
        if exchange == "meta":
            self._gradients = self._meta_gradients(client)
        else:
            super().local_update(client, round, exchange)

    def upload(self, client: Client, round: int, exchange: str) -> Payload | None:
        if exchange != "meta":
            return super().upload(client, round, exchange)
        # Under the parameters' own names, so that the guard at the door treats them as it treats the parameters.
        gradients = {name: self._gradients[name] for name in client.routing.shared if name in self._gradients}
        self._gradients = {}
        return Payload(gradients, {"num_samples": client.num_samples})

    def _meta_gradients(self, client: Client) -> dict[str, Tensor]:
        module, trainer = client.module, client.trainer
        sound = module.automatic_optimization
        expect(sound, "model", "a module with automatic optimization for GraphFL", "one with manual optimization")
        steps, start = self.inner_steps, None
        if self.adaptation == "training":
            steps, start = 0, {name: tensor.clone() for name, tensor in module.state_dict().items()}
            client.fit()
        module.to(trainer.strategy.root_device)
        if module._trainer is None:  # before the first training
            module.trainer = trainer
        trainer.precision_plugin.convert_module(module)
        sets = self._sets(client.data)
        converted = (trainer.precision_plugin.convert_input(batch) for batch in sets)
        support, query = (module.transfer_batch_to_device(batch, module.device, 0) for batch in converted)
        try:
            with trainer.precision_plugin.train_step_context(), _silent(module):
                return meta_gradients(module, support, query, self.inner_lr, steps, self.first_order)
        except RuntimeError as error:
            if "once_differentiable" not in str(error):
                raise
            raise InputError(
                "Expected `aggregator.first_order` to be true for a model with layers that can be differentiated only "
                "once but got False."
            ) from error
        finally:
            if start is not None:
                module.load_state_dict(start)

    def _sets(self, data: Any) -> tuple[Any, Any]:
        if isinstance(data, FewShot):
            return data.support_query(self.num_nodes)
        loader = data.train_dataloader()
        batches = iter(loader)
        support = next(batches, None)
        if support is None:
            raise InputError("Expected `data` to have training batches for support and query sets but got none.")
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
        takes_index = "batch_idx" in inspect.signature(self.module.training_step).parameters
        result = self.module.training_step(*((batch, 0) if takes_index else (batch,)))
        loss = result["loss"] if isinstance(result, Mapping) else result
        expect(isinstance(loss, Tensor), "model.training_step", "one that returns the loss, for GraphFL,", type(loss))
        assert isinstance(loss, Tensor)
        return loss


@contextmanager
def _silent(module: pl.LightningModule) -> Iterator[None]:
    """Lets ``training_step`` log into nothing: Lightning's own ``log`` fails outside of its loops."""
    shadows = {name: (lambda *args, **kwargs: None) for name in ("log", "log_dict")}
    vars(module).update(shadows)
    try:
        yield
    finally:
        for name in shadows:
            del vars(module)[name]
