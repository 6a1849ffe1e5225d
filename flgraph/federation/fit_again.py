"""A Trainer's later fits with the same module and loader: the same steps, without what Lightning prepares each time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from functools import partial
from inspect import isgeneratorfunction, signature
from itertools import islice
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import GradientAccumulationScheduler
from pytorch_lightning.plugins import Precision
from pytorch_lightning.trainer.states import TrainerFn, TrainerStatus
from torch import Tensor

from flgraph.hooks import overrides

_HELD_AGAINST = "2.6."
"""The versions of Lightning whose private parts these are, by tests; with others a later fit is an ordinary one."""

_CALLED = (
    *("on_fit_start", "on_train_start", "on_train_epoch_start", "on_train_batch_start", "on_before_zero_grad"),
    *("on_before_backward", "on_after_backward", "on_before_optimizer_step", "on_train_batch_end"),
    *("on_train_epoch_end", "on_train_end", "on_fit_end"),
)
"""Hooks that :func:`fit_again` calls, of callbacks first and then of the module."""

_PREPARING = ("setup", "teardown")
_DECIDING = (
    *("prepare_data", "val_dataloader", "configure_model", "configure_sharded_model"),
    *("on_train_batch_start", "on_before_batch_transfer", "on_after_batch_transfer", "backward", "optimizer_step"),
    *("optimizer_zero_grad", "configure_gradient_clipping"),
)
"""What a module may do in a ``fit`` that :func:`fit_again` does not let it."""


def goes_on(trainer: Any, module: pl.LightningModule, loader: Any) -> bool:
    """Whether :func:`fit_again` does the same as ``fit``, which was the last thing done, with this loader."""
    fit = trainer.fit_loop
    return (
        pl.__version__.startswith(_HELD_AGAINST)
        and fit._combined_loader is not None
        and fit._data_source.instance is loader
        and trainer.strategy.model is module
        and type(trainer.precision_plugin) is Precision
        and _is_simple(loader)
        and len(loader) == fit.max_batches > 0
        and (trainer.accumulate_grad_batches, trainer.max_steps, trainer.limit_train_batches) == (1, -1, 1.0)
        and not (trainer.gradient_clip_val or trainer.lr_scheduler_configs or trainer._detect_anomaly)
        and module.automatic_optimization
        and all(optimizer.param_groups for optimizer in trainer.optimizers)  # Lightning's stand-in for none has none
        and _is_usual(type(module).training_step)
        and not overrides(module, pl.LightningModule, _PREPARING + _DECIDING)
        and not any(overrides(callback, pl.Callback, _PREPARING) for callback in trainer.callbacks)
        and not any(isinstance(callback, GradientAccumulationScheduler) for callback in trainer.callbacks)
    )


@functools.cache
def _is_usual(step: Any) -> bool:
    return list(signature(step).parameters)[2:] == ["batch_idx"]


def _is_simple(loader: Any) -> bool:
    """Whether it is known how many batches there are, and whether beginning to iterate changes nothing."""
    generates = isgeneratorfunction(getattr(type(loader), "__iter__", None)) and hasattr(type(loader), "__len__")
    return generates and not (hasattr(loader, "sampler") or hasattr(loader, "batch_sampler"))


def fit_again(trainer: Any, module: pl.LightningModule, loader: Any) -> None:
    """Steps, hooks and counts of ``trainer.fit``, which finds out anew each time what there is to do.

    That takes as long as two steps of a small model.
    """
    from pytorch_lightning.core.optimizer import _configure_optimizers  # private: other versions may lack it

    fit, steps, logged = trainer.fit_loop, trainer.fit_loop.epoch_loop, trainer._logger_connector
    owners: list[tuple[Any, type, tuple[Any, ...]]] = [
        (own, pl.Callback, (trainer, module)) for own in trainer.callbacks
    ]
    owners.append((module, pl.LightningModule, ()))
    hooks = {
        name: [partial(getattr(own, name), *given) for own, base, given in owners if overrides(own, base, [name])]
        for name in _CALLED
    }

    def hook(name: str, *further: Any) -> None:
        for own in hooks[name]:
            module._current_fx_name = name  # by which Lightning knows how to treat what is logged there
            own(*further)

    trainer.state.fn, trainer.state.status, trainer.training = TrainerFn.FITTING, TrainerStatus.RUNNING, True
    trainer.should_stop = False
    logged.reset_results()
    logged.reset_metrics()
    configured: Any = module.configure_optimizers()
    one = isinstance(configured, torch.optim.Optimizer)
    trainer.strategy.optimizers = [configured] if one else _configure_optimizers(configured)[0]
    hook("on_fit_start")
    module.zero_grad()
    fit.epoch_progress.current.completed = fit.epoch_progress.current.processed
    hook("on_train_start")
    while not fit.done:
        fit.epoch_progress.increment_ready()
        hook("on_train_epoch_start")
        fit.epoch_progress.increment_started()
        steps.reset()
        for number, batch in enumerate(islice(loader, fit.max_batches)):
            _train(trainer, module, batch, number, hook)
            if trainer.should_stop and fit._can_stop_early:
                break
        logged.epoch_end_reached()
        fit.epoch_progress.increment_processed()
        hook("on_train_epoch_end")
        logged.on_epoch_end()
        logged.reset_results()
        fit.epoch_progress.increment_completed()
    hook("on_train_end")
    logged.teardown()
    hook("on_fit_end")
    module._current_fx_name = None
    trainer.state.status, trainer.training = TrainerStatus.FINISHED, False


def _train(trainer: Any, module: pl.LightningModule, batch: Any, number: int, hook: Callable[..., None]) -> None:
    """A batch of :func:`fit_again`."""
    steps, logged, (optimizer,) = trainer.fit_loop.epoch_loop, trainer._logger_connector, trainer.optimizers
    progress, done = steps.batch_progress, steps.automatic_optimization.optim_progress.optimizer
    output: Any = None

    def closure() -> Any:
        nonlocal output
        module._current_fx_name = "training_step"
        output = module.training_step(batch, number)
        loss: Tensor | None = output["loss"] if isinstance(output, Mapping) else output
        done.zero_grad.increment_ready()
        hook("on_before_zero_grad", optimizer)
        done.zero_grad.increment_started()
        optimizer.zero_grad()
        done.zero_grad.increment_completed()
        further = output if isinstance(output, Mapping) else {}
        output = {} if loss is None else {**further, "loss": loss.detach()}
        if loss is not None:
            hook("on_before_backward", loss)
            loss.backward()  # type: ignore[no-untyped-call]
            hook("on_after_backward")
        hook("on_before_optimizer_step", optimizer)
        return output.get("loss")

    batch = module.transfer_batch_to_device(batch, trainer.strategy.root_device, 0)
    progress.is_last_batch = number + 1 == trainer.fit_loop.max_batches
    progress.increment_ready()
    logged.on_batch_start(batch)
    hook("on_train_batch_start", batch, number)
    progress.increment_started()
    done.step.increment_ready()
    optimizer.step(closure)
    done.step.increment_completed()
    progress.increment_processed()
    hook("on_train_batch_end", output, batch, number)
    logged.on_batch_end()
    progress.increment_completed()
    steps._batches_that_stepped += 1
