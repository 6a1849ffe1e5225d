"""What client halves have in common that change gradients, or compute some of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor
from torch.nn import Parameter

from flgraph.errors import expect


def scaler_of(trainer: pl.Trainer) -> torch.amp.GradScaler | None:
    """What multiplies losses, and so gradients, lest they vanish in float16; ``None`` in other precisions."""
    return getattr(trainer.precision_plugin, "scaler", None)


def overflowed(trainer: pl.Trainer, gradients: Iterable[Tensor]) -> bool:
    """Whether a gradient in float16 is not finite: Lightning then leaves the step out, and lowers its scale."""
    return scaler_of(trainer) is not None and not all(bool(gradient.isfinite().all()) for gradient in gradients)


def stepped(module: pl.LightningModule, optimizer: torch.optim.Optimizer) -> dict[str, Parameter]:
    """The parameters that an optimizer is about to step, by name; with several optimizers each has its own.

    None where no step is made: the model gave no loss for the batch, or its gradients have :func:`overflowed`.

    Args:
        module: the model.
        optimizer: one of its optimizers.
    """
    stepping = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    found = {name: p for name, p in module.named_parameters() if id(p) in stepping and p.requires_grad}
    gradients = [p.grad for p in found.values() if p.grad is not None]
    return found if gradients and not overflowed(module.trainer, gradients) else {}


def add_gradient(parameter: Parameter, gradient: Tensor, factor: float = 1.0) -> None:
    """Adds to a parameter's gradient, which is ``None`` where the batch did not use it; a sparse one becomes dense.

    Args:
        parameter: of any shape.
        gradient: of the same shape; may be kept.
        factor: of the gradient.
    """
    if parameter.grad is None:
        parameter.grad = gradient.mul(factor)
    elif parameter.grad.is_sparse:
        parameter.grad = gradient.mul(factor).add_(parameter.grad)
    else:
        parameter.grad.add_(gradient, alpha=factor)


def loss_of(module: pl.LightningModule, batch: Any) -> Tensor:
    """The loss that the module's ``training_step`` returns for a batch.

    Raises:
        InputError: it returns none.
    """
    takes_index = is_param_in_hook_signature(module.training_step, "batch_idx", min_args=2)  # as Lightning asks it
    result = module.training_step(*((batch, 0) if takes_index else (batch,)))
    loss = result["loss"] if isinstance(result, Mapping) else result
    expect(
        isinstance(loss, Tensor), "model.training_step", "one that returns the loss, for this algorithm,", type(loss)
    )
    assert isinstance(loss, Tensor)
    return loss


@contextmanager
def silent(module: pl.LightningModule) -> Iterator[None]:
    """Lets ``training_step`` log into nothing: Lightning's own ``log`` fails outside of its loops."""
    shadows = {name: (lambda *args, **kwargs: None) for name in ("log", "log_dict")}
    vars(module).update(shadows)
    try:
        yield
    finally:
        for name in shadows:
            del vars(module)[name]
