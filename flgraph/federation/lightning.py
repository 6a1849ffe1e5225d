"""Lightning's Trainer, made to fit again and again: a client's over its turns, a server's over its rounds."""

from __future__ import annotations

import functools
import importlib.metadata
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from inspect import isgeneratorfunction, signature
from itertools import chain, islice
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.utilities import registry
from pytorch_lightning.core.optimizer import _configure_optimizers
from pytorch_lightning.plugins import Precision
from pytorch_lightning.profilers import PassThroughProfiler
from pytorch_lightning.strategies import SingleDeviceStrategy
from pytorch_lightning.trainer import call
from pytorch_lightning.trainer.states import TrainerFn, TrainerStatus
from torch import Tensor

from flgraph.errors import InputError

WHERE = ("accelerator", "devices", "strategy", "plugins")
"""Arguments that say where a Trainer computes; all others may change what comes out."""


def refused_by_lightning(arguments: Mapping[str, Any], error: Exception, prefix: str = "trainer.") -> InputError:
    """Lightning's objection to one of its arguments as an error of ours; it names the argument in many ways.

    Args:
        arguments: what Lightning was given.
        error: its objection.
        prefix: what stands before the arguments' names for the user.
    """
    objection = " ".join(str(error).split()).removesuffix(".")
    named = [key for key in arguments if re.search(rf"`{key}\b", objection)]
    named += [key for key in arguments if re.search(rf"\b{key}\b", objection, re.IGNORECASE)]
    if not named:
        return InputError(f"{prefix}*", "arguments that Lightning takes", objection)
    return InputError(f"{prefix}{named[0]}", "one that Lightning takes here", f"{arguments[named[0]]!r}: {objection}")


class PersistentTrainer(pl.Trainer):
    """A Trainer that is fitted again and again; see :func:`persistent_trainer`."""

    whole_epochs: int | None = None
    """How many epochs all its fits have together, where that is known."""

    @property
    def estimated_stepping_batches(self) -> int | float:
        """Steps of all fits together, by which schedulers of a fixed length are made: one turn is not their end."""
        epochs = self.fit_loop.max_epochs
        self.fit_loop.max_epochs = self.whole_epochs or epochs
        try:
            return super().estimated_stepping_batches
        finally:
            self.fit_loop.max_epochs = epochs


def persistent_trainer(
    callbacks: Sequence[pl.Callback], arguments: Mapping[str, Any], whole_epochs: int | None = None
) -> pl.Trainer:
    """A silent Trainer without epochs yet; :func:`fit_more` gives it some.

    Args:
        callbacks: in the order of their calls.
        arguments: further ones of :class:`pytorch_lightning.Trainer`.
        whole_epochs: how many epochs all its fits will have together, where that is known.
    """
    with _entry_points_read_once():
        trainer = PersistentTrainer(
            **{"profiler": _NoProfiler(), **arguments},
            max_epochs=0,
            callbacks=list(callbacks),
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            inference_mode=False,  # who is evaluated before training may keep tensors, and train with them later
        )
    trainer.whole_epochs = whole_epochs
    return trainer


@contextmanager
def _entry_points_read_once() -> Iterator[None]:
    """Each new Trainer asks every installed package for callbacks of its own, which takes longer than all the rest."""
    reader: Any = registry
    if getattr(reader, "entry_points", None) is not importlib.metadata.entry_points:  # a Lightning that reads otherwise
        yield
        return
    reader.entry_points = _entry_points
    try:
        yield
    finally:
        reader.entry_points = importlib.metadata.entry_points


_entry_points = functools.cache(importlib.metadata.entry_points)


class _NoProfiler(PassThroughProfiler):
    """Lightning's own makes a generator for each of the hundred calls of hooks that a step has."""

    def profile(self, action_name: str) -> Any:
        return _NOTHING


_NOTHING = nullcontext()


def fit_more(trainer: pl.Trainer, module: pl.LightningModule, loader: Any, epochs: int) -> dict[str, float]:
    """Trains ``epochs`` more, and returns the metrics that the module logged."""
    trainer.fit_loop.max_epochs = trainer.current_epoch + epochs
    with flushing_denormals():
        if _goes_on(trainer, module, loader):
            call._call_and_handle_interrupt(trainer, _fit_again, trainer, module, loader)
        else:
            trainer.fit(module, train_dataloaders=loader)
    metrics = trainer.callback_metrics
    return _same_everywhere(
        trainer, {name: float(metrics[name]) for name in sorted(metrics) if not name.endswith("_step")}
    )


_CALLED = (
    *("on_fit_start", "on_train_start", "on_train_epoch_start", "on_train_batch_start", "on_before_zero_grad"),
    *("on_before_backward", "on_after_backward", "on_before_optimizer_step", "on_train_batch_end"),
    *("on_train_epoch_end", "on_train_end", "on_fit_end"),
)
"""Hooks that :func:`_fit_again` calls, of callbacks first and then of the module."""

_PREPARING = ("setup", "teardown")
_DECIDING = (
    *("prepare_data", "val_dataloader", "configure_model", "configure_sharded_model", "configure_callbacks"),
    *("on_train_batch_start", "on_before_batch_transfer", "on_after_batch_transfer", "backward", "optimizer_step"),
    *("optimizer_zero_grad", "configure_gradient_clipping"),
)
"""What a module may do in a ``fit`` that :func:`_fit_again` does not let it."""


def _goes_on(trainer: Any, module: pl.LightningModule, loader: Any) -> bool:
    """Whether :func:`_fit_again` does the same as ``fit``, which was the last thing done, with this loader."""
    fit = trainer.fit_loop
    return (
        fit._combined_loader is not None
        and fit._data_source.instance is loader
        and trainer.strategy.model is module
        and isinstance(trainer.strategy, KeepOnDevice)
        and type(trainer.precision_plugin) is Precision
        and isinstance(trainer.profiler, _NoProfiler)
        and isgeneratorfunction(getattr(type(loader), "__iter__", None))
        and len(loader) == fit.max_batches > 0
        and (trainer.accumulate_grad_batches, trainer.max_steps, trainer.limit_train_batches) == (1, -1, 1.0)
        and not (trainer.gradient_clip_val or trainer.lr_scheduler_configs or trainer._detect_anomaly)
        and module.automatic_optimization
        and _is_usual(type(module).training_step)
        and not _overrides(module, pl.LightningModule, _PREPARING + _DECIDING)
        and not any(_overrides(callback, pl.Callback, _PREPARING) for callback in trainer.callbacks)
    )


@functools.cache
def _is_usual(step: Any) -> bool:
    return list(signature(step).parameters)[2:] == ["batch_idx"]


def _overrides(one: Any, base: type, names: Iterable[str]) -> bool:
    return any(getattr(type(one), name, None) is not getattr(base, name, None) for name in names)


def _fit_again(trainer: Any, module: pl.LightningModule, loader: Any) -> None:
    """Steps, hooks and counts of ``trainer.fit``, which finds out anew each time what there is to do.

    That takes as long as two steps of a small model.
    """
    fit, steps, logged = trainer.fit_loop, trainer.fit_loop.epoch_loop, trainer._logger_connector
    owners: list[tuple[Any, type, tuple[Any, ...]]] = [
        (own, pl.Callback, (trainer, module)) for own in trainer.callbacks
    ]
    owners.append((module, pl.LightningModule, ()))
    hooks = {
        name: [partial(getattr(own, name), *given) for own, base, given in owners if _overrides(own, base, [name])]
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
    """A batch of :func:`_fit_again`."""
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


def evaluate(trainer: pl.Trainer, module: pl.LightningModule, loaders: Iterable[tuple[str, Any]]) -> dict[str, float]:
    """The metrics of ``trainer.validate`` and ``trainer.test``.

    A Trainer prepares for a pass as long as a small model needs for ten batches. So a module that can say so itself is
    asked instead, unless something wants to see the Trainer's way.

    Args:
        trainer: the module's.
        module: one with ``measures`` and ``measure``, as :class:`~flgraph.models.classifier.Classifier` has them, or
            any other.
        loaders: ``val`` or ``test``, and that split's loader or list of loaders.
    """
    measuring: Any = module
    if getattr(module, "measures", False) and trainer.strategy.model is module and not _is_seen(trainer):
        module.zero_grad()
        batches = _batches(trainer, measuring, loaders)
        metrics: dict[str, float] = measuring.measure(batches, trainer.precision_plugin.val_step_context)
        return metrics
    metrics = {}
    for split, loader in loaders:
        run = trainer.validate if split == "val" else trainer.test
        for result in run(module, dataloaders=loader, verbose=False):
            metrics |= _same_everywhere(trainer, result)
    return metrics


def _batches(trainer: pl.Trainer, module: Any, loaders: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    for split, given in loaders:
        for number, loader in enumerate(given if isinstance(given, list) else [given]):
            stage = split if split == "val" else module.test_stage(number, given)
            for batch in loader:
                own = trainer.precision_plugin.convert_input(batch)
                yield stage, module.transfer_batch_to_device(own, trainer.strategy.root_device, number)


def _same_everywhere(trainer: pl.Trainer, metrics: Mapping[str, float]) -> dict[str, float]:
    """Means over the processes of a Trainer, where it has several (``ddp``), each with its data."""
    if trainer.world_size == 1:
        return dict(metrics)
    values = torch.tensor(list(metrics.values()), dtype=torch.float32, device=trainer.strategy.root_device)
    means = trainer.strategy.reduce(values, reduce_op="mean")
    return dict(zip(metrics, torch.as_tensor(means).tolist(), strict=True))


_SEEING = [
    name
    for name in dir(pl.Callback)
    if name.startswith(("on_validation_", "on_test_", "on_exception", "setup", "teardown"))
]


def _is_seen(trainer: pl.Trainer) -> bool:
    """Whether callbacks, other processes, limits or a profiler have to do with how the Trainer evaluates."""
    profiler = trainer.profiler  # type: ignore[attr-defined]
    limits = (trainer.limit_val_batches, trainer.limit_test_batches)
    if trainer.world_size > 1 or limits != (1.0, 1.0) or not isinstance(profiler, PassThroughProfiler):
        return True
    return any(
        getattr(type(callback), name) is not getattr(pl.Callback, name)
        for callback in trainer.callbacks  # type: ignore[attr-defined]
        for name in _SEEING
    )


def is_empty(loader: Any) -> bool:
    """Whether a loader is known to have nothing."""
    try:
        return len(loader) == 0
    except TypeError:  # a loader of a stream has no length
        return False


def load_loop(trainer: pl.Trainer, state: dict[str, Any]) -> None:
    """Puts back the state of a :func:`persistent_trainer`'s ``fit_loop``, which is that between two fits."""
    trainer.fit_loop.load_state_dict(state)
    trainer.fit_loop._combined_loader = None  # the next fit is one of Lightning's own
    # Were the next fit a restart to Lightning, it would iterate over the loader once less, and each time takes a random
    # number where that is torch's own.
    trainer.fit_loop.restarting = False
    trainer.fit_loop.on_iteration_done()


class OptimizerStates(pl.Callback):
    """Carries optimizers and schedulers from one ``fit`` to the next: Lightning makes new ones in each.

    Args:
        keep: whether to; otherwise every fit begins anew.
    """

    def __init__(self, keep: bool = True) -> None:
        self.keep = keep
        self.optimizers: list[dict[str, Any]] = []
        self.schedulers: list[dict[str, Any]] = []

    def swap(self, states: Mapping[str, Any]) -> dict[str, Any]:
        """Puts others in place of the present ones, and returns these; without any the next fit begins anew."""
        before = {"optimizers": self.optimizers, "schedulers": self.schedulers}
        self.optimizers, self.schedulers = states.get("optimizers", []), states.get("schedulers", [])
        return before

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Puts the states into the new optimizers."""
        for optimizer, state in zip(trainer.optimizers, self.optimizers, strict=bool(self.optimizers)):
            optimizer.load_state_dict(state)
        for config, state in zip(trainer.lr_scheduler_configs, self.schedulers, strict=bool(self.schedulers)):
            config.scheduler.load_state_dict(state)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Takes the states of the optimizers that are about to go."""
        if self.keep:
            self.optimizers = [optimizer.state_dict() for optimizer in trainer.optimizers]
            self.schedulers = [config.scheduler.state_dict() for config in trainer.lr_scheduler_configs]


class KeepOnDevice(SingleDeviceStrategy):
    """One device, without the way to the CPU and back.

    Lightning moves model and optimizers to the CPU at the end of every ``fit``, ``validate`` and ``test``, and back to
    the device at the beginning of the next. A client does all three in every round.
    """

    strategy_name = "keep_on_device"

    def model_to_device(self) -> None:
        """Moves the model if it is elsewhere, as it is the first time."""
        assert self.model is not None
        tensors = chain(self.model.parameters(), self.model.buffers())
        if any(tensor.device != self.root_device for tensor in tensors):
            super().model_to_device()

    def teardown(self) -> None:
        """Leaves everything where it is."""
        self.precision_plugin.teardown()
        self.checkpoint_io.teardown()


@contextmanager
def flushing_denormals() -> Iterator[None]:
    """Within, numbers below a float's usual range count as zero, in this thread and in those that it starts first.

    They are called denormal, or subnormal (IEEE 754), and :func:`torch.set_flush_denormal` is the switch. Adam's mean
    gradient of a weight that gets none any more shrinks by a tenth a step (``beta_1`` is 0.9). After some 800 steps it
    is below the usual range, where rounding keeps it for ever and some processors are slow: ``benchmarks/denormals.py``
    measures an optimizer's step. What is lost is below 1.2e-38 (float32), far below what Adam adds to the divisor.

    Outside, everything is as it was: other parts of a program may want these numbers.
    """
    smallest = torch.finfo(torch.float32).tiny
    before = not (torch.tensor(smallest) * 0.5).item()  # PyTorch can set it, but does not tell it
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
