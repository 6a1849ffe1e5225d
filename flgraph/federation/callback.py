"""Hooks of the federated loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytorch_lightning as pl

if TYPE_CHECKING:
    from flgraph.federation.trainer import FederatedTrainer


class FederatedCallback(pl.Callback):
    """A Lightning callback that also listens to rounds.

    The object given to ``FederatedTrainer(callbacks=...)`` lives with the server, and its round hooks are called there.
    If it (or any plain Lightning callback in that list) overrides one of Lightning's own hooks, every client's Trainer
    gets a copy of its own, made before the first round, and Lightning calls that copy's hooks during the client's
    turns.

    What ``state_dict`` of the object on the server returns is kept in checkpoints and comes back through
    ``load_state_dict``; it may hold what JSON can. The copies' states are kept as well, by Lightning's rules.
    """

    def on_federation_start(self, trainer: FederatedTrainer) -> None:
        """Called by the trainer once, before the first round of this call of ``fit`` (after a resume, too).

        What is shared has been agreed on; what an algorithm exchanges before round 1 has not been exchanged yet.
        """

    def on_round_start(self, trainer: FederatedTrainer) -> None:
        """Called before a round's clients are asked; ``trainer.current_round`` counts from 1."""

    def on_round_end(self, trainer: FederatedTrainer) -> None:
        """Called after a round was aggregated and, if it was its turn, evaluated; ``trainer.record`` is its record.

        Set ``trainer.should_stop = True`` here to make this the last round.
        """

    def on_last_round_end(self, trainer: FederatedTrainer) -> None:
        """Called in the last round when it was evaluated and recorded, before its checkpoint and the results.

        What clients hold after it is what stays; ``trainer.history.final`` may name another evaluation to report.
        """

    def on_federation_end(self, trainer: FederatedTrainer) -> None:
        """Called once after the last round, when results are written."""

    def on_federation_exception(self, trainer: FederatedTrainer, error: BaseException) -> None:
        """Called when ``fit`` ends with an error; the error is raised again afterwards."""


_PER_CLIENT_HOOKS = [
    name
    for name in dir(pl.Callback)
    if name.startswith(("on_", "setup", "teardown")) and callable(getattr(pl.Callback, name))
]


def acts_in_clients(callback: pl.Callback) -> bool:
    """Whether a callback overrides any of Lightning's own hooks, and so belongs into the clients' Trainers."""
    return any(getattr(type(callback), name) is not getattr(pl.Callback, name) for name in _PER_CLIENT_HOOKS)
