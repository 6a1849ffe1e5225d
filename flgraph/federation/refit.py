"""A Lightning Trainer that fits again and again: a client's over its turns, a server's over its rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytorch_lightning as pl

from flgraph.federation.denormals import flushing_denormals


def lasting_trainer(callbacks: Sequence[pl.Callback], arguments: Mapping[str, Any]) -> pl.Trainer:
    """A silent Trainer without epochs yet; :func:`fit_more` gives it some.

    Args:
        callbacks: in the order of their calls.
        arguments: further ones of :class:`pytorch_lightning.Trainer`.
    """
    return pl.Trainer(
        **arguments,
        max_epochs=0,
        callbacks=list(callbacks),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        inference_mode=False,  # who is evaluated before training may keep tensors, and must be able to train with them
    )


def fit_more(trainer: pl.Trainer, module: pl.LightningModule, loader: Any, epochs: int) -> dict[str, float]:
    """Trains ``epochs`` more, and returns the metrics that the module logged."""
    trainer.fit_loop.max_epochs = trainer.current_epoch + epochs
    with flushing_denormals():
        trainer.fit(module, train_dataloaders=loader)
    metrics = trainer.callback_metrics
    return {name: float(metrics[name]) for name in sorted(metrics) if not name.endswith("_step")}


def load_loop(trainer: pl.Trainer, state: dict[str, Any]) -> None:
    """Puts back the state of a :func:`lasting_trainer`'s ``fit_loop``, which is that between two fits."""
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

    def forget(self) -> None:
        """Lets the next fit begin anew."""
        self.optimizers, self.schedulers = [], []

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
