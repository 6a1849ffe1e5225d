"""Early stopping: a run ends when its clients no longer get better, and they go back to their best round."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

from pytorch_lightning.utilities import rank_zero_warn

from flgraph.errors import expect
from flgraph.federation.callback import FederatedCallback, Run
from flgraph.runs.history import (
    Metrics,
    evaluation,
    mean_metrics,
    mode_of,
    of_both,
    samples_of,
    weighted_mean_metrics,
)

_ALL = "all clients"


class EarlyStopping(FederatedCallback):
    """Ends a run when a metric has not improved for some rounds, and takes every client back to the best round.

    Clients keep a copy of their models after each round that is better than all before by more than ``min_delta``. In
    the last round, stopped early or not, each exchanges its model with that copy; ``final`` in ``results.json`` is then
    the best round's evaluation, and checkpoints, tests and predictions after the run are of the best round's models. A
    run that was not stopped and goes on with more rounds goes on from the last round's models, with the same bits as
    if it had never ended. Only rounds with an evaluation count (``trainer.evaluate_every``), which the last always has,
    and for all clients together only those in which none was silent.

    Args:
        monitor: the metric; the trainer's when ``None``.
        mode: whether more of it is better; when ``None``, as its name says, or the trainer's with its metric.
        patience: evaluations without an improvement after which it ends.
        min_delta: what an improvement must exceed.
        average: ``"samples"`` weighs clients by the numbers of samples that they measured the metric on, ``"clients"``
            alike.
        scope: ``"federation"`` looks at the mean over clients; with ``"clients"`` each client stops by its own metric
            and goes back to its own best round, for algorithms in which nothing is shared. Only evaluations after it
            took part count. The run ends with the last.

    Raises:
        InputError: a setting cannot be used, no client reports the metric, or clients that stop each for itself share
            something.
    """

    def __init__(
        self,
        monitor: str | None = None,
        mode: Literal["max", "min"] | None = None,
        patience: int = 10,
        min_delta: float = 1e-5,
        average: Literal["samples", "clients"] = "samples",
        scope: Literal["federation", "clients"] = "federation",
    ) -> None:
        expect(mode in ("max", "min", None), "EarlyStopping.mode", "max, min or null", mode)
        expect(patience >= 1, "EarlyStopping.patience", "1 or more", patience)
        expect(0 <= min_delta < math.inf, "EarlyStopping.min_delta", "a finite number, 0 or more", min_delta)
        expect(average in ("samples", "clients"), "EarlyStopping.average", "samples or clients", average)
        expect(scope in ("federation", "clients"), "EarlyStopping.scope", "federation or clients", scope)
        self.monitor, self.mode, self.patience, self.min_delta = monitor, mode, patience, min_delta
        self.average, self.scope = average, scope
        self._begin()

    def _begin(self) -> None:
        # Of all clients together, or of each: score, round and metrics of the best, and evaluations since then.
        self._best: dict[str, dict[str, Any]] = {}
        self._waited: dict[str, int] = {}
        self._seen = 0  # the newest round looked at
        self._trained: set[str] = set()  # clients that took part since then
        self._restored = False

    def on_federation_start(self, trainer: Run) -> None:
        """Begins anew with a run, and undoes the return to the best round where one goes on, unless it was over."""
        if trainer.current_round == 0:  # the trainer may have done other runs before
            self._begin()
        together = "federation, for an algorithm in which clients share something,"
        expect(self.scope == "federation" or not trainer.shares, "EarlyStopping.scope", together, self.scope)
        if self._is_over():
            trainer.should_stop = True
            rank_zero_warn(f"The run had stopped early, with patience {self.patience}: nothing is left to do.")
        elif self._restored and trainer.rounds > trainer.current_round:
            self._restore(trainer)
        if self.scope == "clients":
            trainer.retire({unit for unit in self._waited if self._has_stopped(unit)})

    def on_round_end(self, trainer: Run) -> None:
        """Looks whether the round is a better one, and whether it was the last chance."""
        self._trained.update(trainer.record.clients)
        self._look_at(trainer)
        if self._is_over():
            trainer.should_stop = True
            last = f"not better for {self.patience} evaluations"
            trainer.console.print(f"stops after round {trainer.current_round}: {self._metric(trainer)} was {last}")

    def on_last_round_end(self, trainer: Run) -> None:
        """Takes the clients back to the best round."""
        self._look_at(trainer)  # where another callback ended the run in a round that was not to be evaluated
        if not self._best:
            return
        self._restore(trainer)
        clients = {name: dict(metrics) for name, metrics in trainer.record.metrics.items()}
        for best in self._best.values():
            clients.update(best["clients"])
        rounds = [best["round"] for best in self._best.values()]
        trainer.history.final = evaluation(max(rounds), clients)
        which = f"round {rounds[0]}" if self.scope == "federation" else f"rounds {min(rounds)} to {max(rounds)}"
        trainer.console.print(f"back to {which}, the best by {self._metric(trainer)}")

    def state_dict(self) -> dict[str, Any]:
        """All that is known of the rounds so far."""
        names = ("best", "waited", "seen", "restored")
        return {"trained": sorted(self._trained), **{name: getattr(self, f"_{name}") for name in names}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Puts back what :meth:`state_dict` returned."""
        self._best, self._waited = dict(state_dict["best"]), dict(state_dict["waited"])
        self._seen, self._restored = state_dict["seen"], state_dict["restored"]
        self._trained = set(state_dict.get("trained", ()))  # checkpoints of earlier versions have none

    def _look_at(self, trainer: Run) -> None:
        record = trainer.record
        silent = bool(record.silent) and self.scope == "federation"  # a mean over fewer clients says nothing
        if not record.metrics or record.round == self._seen or silent:
            return
        self._seen = record.round
        left = set(self._waited) - {_ALL, *record.metrics, *record.silent}  # excluded: the others stop without them
        self._waited = {unit: waited for unit, waited in self._waited.items() if unit not in left}
        trained, self._trained = self._trained, set()
        for unit, score in self._scores(trainer):
            if unit not in (_ALL, *trained):  # its model is what it was: that is no round without an improvement
                self._waited.setdefault(unit, 0)
                continue
            if self._has_stopped(unit):
                continue
            if not self._improves(unit, score, trainer):
                self._waited[unit] = self._waited.get(unit, 0) + 1
                if self.scope == "clients" and self._has_stopped(unit):
                    trainer.retire([unit])
                continue
            clients = record.metrics if unit == _ALL else {unit: record.metrics[unit]}
            self._waited[unit] = 0
            self._best[unit] = {"score": score, "round": record.round, "clients": dict(clients)}
            trainer.snapshot(list(clients))

    def _means(self, metrics: Metrics) -> dict[str, float]:
        return weighted_mean_metrics(metrics) if self.average == "samples" else mean_metrics(metrics)

    def _scores(self, trainer: Run) -> Iterator[tuple[str, float]]:
        record, monitor = trainer.record, self._metric(trainer)
        means = self._means(record.metrics)
        expect(monitor in record.mean, "EarlyStopping.monitor", f"one of {', '.join(record.mean)}", monitor)
        alike = f"clients, since not all clients report `{samples_of(monitor)}`,"
        expect(monitor in means, "EarlyStopping.average", alike, self.average)
        if self.scope == "federation":
            yield _ALL, means[monitor]
            return
        for name, metrics in record.metrics.items():
            if monitor in metrics:
                yield name, metrics[monitor]

    def _metric(self, trainer: Run) -> str:
        return self.monitor or trainer.monitor

    def _mode_of(self, trainer: Run) -> str:
        return self.mode or (mode_of(self.monitor) if self.monitor else str(trainer.monitor_mode))

    def _improves(self, unit: str, score: float, trainer: Run) -> bool:
        if math.isnan(score):
            return False
        if unit not in self._best:
            return True
        best = float(self._best[unit]["score"])
        if unit == _ALL:  # of those that are not left out since then
            both = of_both(trainer.record.metrics, self._best[unit]["clients"])
            score, best = (self._means(part).get(self._metric(trainer), math.nan) for part in both)
        gain = score - best
        return (gain if self._mode_of(trainer) == "max" else -gain) > self.min_delta

    def _has_stopped(self, unit: str) -> bool:
        return self._waited.get(unit, 0) >= self.patience

    def _is_over(self) -> bool:
        return bool(self._waited) and all(map(self._has_stopped, self._waited))

    def _restore(self, trainer: Run) -> None:
        trainer.restore([name for best in self._best.values() for name in best["clients"]])
        self._restored = not self._restored
