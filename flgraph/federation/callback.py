"""Hooks of the federated loop."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, Self

import pytorch_lightning as pl
from pytorch_lightning.loggers import Logger

from flgraph.console import Console
from flgraph.federation.data import FederatedData
from flgraph.federation.messages import Predictions
from flgraph.hooks import overrides
from flgraph.runs.history import History, RoundRecord


class Run(Protocol):
    """What hooks may use of the :class:`FederatedTrainer` that calls them."""

    rounds: int
    monitor: str
    monitor_mode: Any
    current_round: int
    should_stop: bool
    record: RoundRecord
    history: History
    run_dir: Path | None
    console: Console
    writes: bool

    @property
    def loggers(self) -> list[Logger]:
        """Where metrics go."""

    @property
    def federated_data(self) -> FederatedData | None:
        """The data of the run."""

    @property
    def participants(self) -> list[str]:
        """The clients drawn for the round that is about to begin, but those that a callback has skipped by now."""

    @property
    def simulated(self) -> bool:
        """Whether all clients are of one owner, and what they draw follows from the run's seed."""

    @property
    def shares(self) -> bool:
        """Whether anything but metrics leaves a client."""

    def install(self) -> None:
        """Lets all clients install what is new, as an evaluation does."""

    def predictions(self) -> Iterator[tuple[str, Predictions]]:
        """Client and its predictions with the model that it holds, one client after another."""

    def snapshot(self, clients: Collection[str]) -> None:
        """Lets clients keep a copy of their models as they are, in place of an earlier one."""

    def restore(self, clients: Collection[str]) -> None:
        """Lets clients exchange their models and the copies that :meth:`snapshot` made."""

    def retire(self, clients: Collection[str]) -> None:
        """Lets clients take part in no more rounds; they are evaluated all the same.

        Raises:
            InputError: there is no such client.
        """

    def skip(self, clients: Collection[str]) -> None:
        """Leaves clients out of the round that is about to begin, beside those of other callbacks.

        They are evaluated all the same.

        Raises:
            InputError: there is no such client.
        """


class FederatedCallback(pl.Callback):
    """A Lightning callback that also listens to rounds.

    The object given to ``FederatedTrainer(callbacks=...)`` lives with the server, and its round hooks are called there.
    If it (or any plain Lightning callback in that list) overrides one of Lightning's own hooks, every client's Trainer
    gets a copy of its own, made before the first round, and Lightning calls that copy's hooks during the client's
    turns.

    What ``state_dict`` of the object on the server returns is kept in checkpoints and comes back through
    ``load_state_dict``; it may hold what JSON can. The copies' states are kept as well, by Lightning's rules. A run
    that goes on may have other callbacks, but none of the same class with other arguments of the constructor.
    """

    arguments: Mapping[str, Any]
    """The constructor's arguments by name, defaults included."""

    client: str = ""
    """Of a copy in a client's Trainer: that client."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Notes the arguments."""
        self = super().__new__(cls)
        signature = inspect.signature(cls.__init__)
        bound = signature.bind_partial(self, *args, **kwargs)
        given = dict(zip(signature.parameters, bound.args, strict=False)) | bound.kwargs
        self.arguments = {**defaults(cls), **{name: value for name, value in given.items() if name != "self"}}
        return self

    def train_loader(self, client: Any, loader: Any) -> Any:
        """Of a copy in a client's Trainer: what the client trains on in place of its data's own loader.

        Args:
            client: the :class:`~flgraph.federation.Client`.
            loader: that of its data, or what another callback made of it.
        """
        return loader

    def results(self, trainer: Run) -> Mapping[str, Any]:
        """What it adds to ``results.json``; called when the last round is done."""
        return {}

    def client_data(self, client: str, data: Any) -> Any:
        """Called in every process when a client is made, with its data; what it returns is what the client has.

        It may be called again when a client moves to another process, so it must not change ``data`` itself. Sites of
        other owners refuse callbacks that have it.
        """
        return data

    def on_federation_start(self, trainer: Run) -> None:
        """Called by the trainer once, before the first round of this call of ``fit`` (after a resume, too).

        What is shared has been agreed on; what an algorithm exchanges before round 1 has not been exchanged yet.
        """

    def on_round_start(self, trainer: Run) -> None:
        """Called before a round's clients are asked; ``trainer.current_round`` counts from 1."""

    def on_round_end(self, trainer: Run) -> None:
        """Called after a round was aggregated and, if it was its turn, evaluated; ``trainer.record`` is its record.

        Set ``trainer.should_stop = True`` here to make this the last round.
        """

    def on_last_round_end(self, trainer: Run) -> None:
        """Called in the last round when it was evaluated and recorded, before its checkpoint and the results.

        What clients hold after it is what stays; ``trainer.history.final`` may name another evaluation to report.
        """

    def on_federation_end(self, trainer: Run) -> None:
        """Called once after the last round, when results are written."""

    def on_federation_exception(self, trainer: Run, error: BaseException) -> None:
        """Called when ``fit`` ends with an error; the error is raised again afterwards."""


def defaults(cls: type) -> dict[str, Any]:
    """Default values of a constructor's arguments, those that it hands on to its base classes included."""
    found: dict[str, Any] = {}
    for base in cls.__mro__:
        init = vars(base).get("__init__")
        if init is None or base is object:
            continue
        parameters = inspect.signature(init).parameters.values()
        found = {**{p.name: p.default for p in parameters if p.default is not p.empty}, **found}
        if not any(p.kind == p.VAR_KEYWORD for p in parameters):
            break
    return found


_PER_CLIENT_HOOKS = [
    name
    for name in dir(pl.Callback)
    if name.startswith(("on_", "setup", "teardown")) and callable(getattr(pl.Callback, name))
]


_ROUND_HOOKS = [
    name
    for name in dir(FederatedCallback)
    if name.startswith(("on_federation_", "on_round_", "on_last_round_")) or name in ("results", "client_data")
]


def acts_in_rounds(callback: pl.Callback) -> bool:
    """Whether a callback overrides any of the hooks that are called beside the clients' Trainers."""
    return isinstance(callback, FederatedCallback) and overrides(callback, FederatedCallback, _ROUND_HOOKS)


def acts_in_clients(callback: pl.Callback) -> bool:
    """Whether a callback overrides any of Lightning's own hooks, and so belongs into the clients' Trainers."""
    return overrides(callback, pl.Callback, _PER_CLIENT_HOOKS)
