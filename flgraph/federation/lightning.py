"""Lightning's Trainer, made to fit again and again: a client's over its turns, a server's over its rounds."""

from __future__ import annotations

import copy
import functools
import importlib.metadata
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain
from typing import Any, TypeVar

import pytorch_lightning as pl
import torch
from lightning_fabric.utilities import registry
from pytorch_lightning.profilers import PassThroughProfiler
from pytorch_lightning.strategies import SingleDeviceStrategy
from pytorch_lightning.trainer import call

from flgraph.errors import InputError
from flgraph.federation.fit_again import fit_again, goes_on
from flgraph.hooks import overrides
from flgraph.nn.modes import keeping_modes

Module = TypeVar("Module", bound=pl.LightningModule)

WHERE = ("accelerator", "devices", "strategy", "plugins")
"""Arguments that say where a Trainer computes; all others may change what comes out."""


def refused_by_lightning(arguments: Mapping[str, Any], error: Exception, prefix: str = "trainer.") -> InputError:
    """Lightning's objection to one of its arguments as an error of ours; it names the argument in many ways.

    Args:
        arguments: what Lightning was given.
        error: its objection.
        prefix: what stands before the arguments' names for the user.
    """
    objection = " ".join(str(error).split()).rstrip(".!")
    named = [key for key in arguments if re.search(rf"`(Trainer\()?{key}\b", objection)]
    named += [key for key in arguments if re.search(rf"\b{key}\b", objection, re.IGNORECASE)]
    chosen = {key: value for key, value in arguments.items() if isinstance(value, str) and value != "auto"}
    named += [key for key, value in chosen.items() if re.search(rf"\b{re.escape(value)}\b", objection, re.IGNORECASE)]
    if not named:
        return InputError(f"{prefix}*", "arguments that Lightning takes", objection)
    return InputError(f"{prefix}{named[0]}", "one that Lightning takes here", f"{arguments[named[0]]!r}: {objection}")


class PersistentTrainer(pl.Trainer):
    """A Trainer that is fitted again and again; see :func:`persistent_trainer`."""

    whole_epochs: int | None = None
    """How many epochs all its fits have together, where that is known."""

    given_accumulation: int = 1
    """``accumulate_grad_batches`` as it was made with."""

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
    trainer.whole_epochs, trainer.given_accumulation = whole_epochs, trainer.accumulate_grad_batches
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
    if isinstance(trainer, PersistentTrainer):  # a GradientAccumulationScheduler left its own, and would refuse it
        trainer.accumulate_grad_batches = trainer.given_accumulation
    with flushing_denormals():
        ours = isinstance(trainer.strategy, KeepOnDevice) and isinstance(trainer.profiler, _NoProfiler)  # type: ignore[attr-defined]
        if ours and goes_on(trainer, module, loader):
            call._call_and_handle_interrupt(trainer, fit_again, trainer, module, loader)
        else:
            trainer.fit(module, train_dataloaders=loader)
    return dict(sorted(_logged(trainer).items()))


def _logged(trainer: pl.Trainer) -> dict[str, float]:
    metrics = trainer.callback_metrics
    # What is logged on steps and on epochs is there as NAME, NAME_step and NAME_epoch.
    again = {f"{name.removesuffix('_epoch')}_step" for name in metrics if name.endswith("_epoch")}
    return _same_everywhere(trainer, {name: float(value) for name, value in metrics.items() if name not in again})


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
        with keeping_modes(module):  # Lightning does not, where one fails
            run(module, dataloaders=loader, verbose=False)
        metrics |= _logged(trainer)
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
    return any(overrides(callback, pl.Callback, _SEEING) for callback in trainer.callbacks)  # type: ignore[attr-defined]


def is_empty(loader: Any) -> bool:
    """Whether a loader is known to have nothing."""
    try:
        return len(loader) == 0
    except TypeError:  # a loader of a stream has no length
        return False


def load_loop(trainer: pl.Trainer, state: dict[str, Any]) -> None:
    """Puts back the state of a :func:`persistent_trainer`'s ``fit_loop``, which is that between two fits."""
    load_counts(trainer, state)
    trainer.fit_loop._combined_loader = None  # the next fit is one of Lightning's own


def load_counts(trainer: pl.Trainer, state: dict[str, Any]) -> None:
    """Puts back how many epochs and steps a ``fit_loop`` has made; the next fit goes on with its loader."""
    trainer.fit_loop.load_state_dict(state)
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


def copy_of(module: Module) -> Module:
    """A copy that shares no weights, and knows no Trainer, which is no part of the model."""
    parts: list[dict[str, Any]] = [vars(part) for part in module.modules()]
    attached = [{name: own.pop(name) for name in list(own) if name in ("_trainer", "_fabric")} for own in parts]
    try:
        twin = copy.deepcopy(module)
    finally:
        for own, held in zip(parts, attached, strict=True):
            own.update(held)
    for part, held in zip(twin.modules(), attached, strict=True):
        vars(part).update(dict.fromkeys(held))
    return twin
