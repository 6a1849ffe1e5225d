"""Lightning's own callbacks: which of them have no place in a client's Trainer, and what to use instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytorch_lightning as pl

from flgraph.errors import InputError

_AVERAGES = (
    "none that average weights over steps, since the next download replaces their average (an algorithm can average "
    "in `local_update` or `aggregate`, see docs/custom_algorithm.md),"
)
_TUNERS = "none that search, since every turn would search anew (compare runs with `flgraph report` instead),"
_MONITORS = "none that need a logger, which clients do not have (history.jsonl has seconds and bytes of every round),"
_INSTEAD = {
    "EarlyStopping": "flgraph.callbacks.EarlyStopping, which ends the run for all clients,",
    "Checkpoint": (
        "none that write checkpoints, since the trainer does (`checkpoint_every`, `keep_checkpoints`, and the best by "
        "`monitor`),"
    ),
    "ProgressBar": "none that show progress, since the trainer has a bar over rounds (`enable_progress_bar`),",
    "ModelSummary": "none that summarise, since the table of routes has every tensor (`enable_progress_bar`),",
    "LearningRateMonitor": (
        "none that need a logger, which clients do not have (`self.log('train/lr', ...)` in the model is kept),"
    ),
    "DeviceStatsMonitor": _MONITORS,
    "ThroughputMonitor": _MONITORS,
    "Timer": (
        "none that look at the clock, since results must not depend on it (a run that is stopped, as by "
        "`timeout 1h flgraph fit ...`, goes on by `ckpt_path`),"
    ),
    "StochasticWeightAveraging": _AVERAGES,
    "WeightAveraging": _AVERAGES,
    "LearningRateFinder": _TUNERS,
    "BatchSizeFinder": _TUNERS,
    "SpikeDetection": "none that write files by names of their own, which a job could choose at a site,",
    "BaseFinetuning": (
        "none that freeze layers and thaw them later, since every turn would begin with frozen ones (set "
        "`requires_grad` in the model, or keep layers at home by `trainer.personal`),"
    ),
    "ModelPruning": "none that rename parameters, by whose names routes say what may leave,",
    "BasePredictionWriter": (
        "none that write predictions, since all clients would write to one place (`trainer.predict` returns them, "
        "`flgraph predict` writes a file per client),"
    ),
}
"""Names of Lightning's classes, some of which not all versions have, and the rest of "Expected `trainer.callbacks` to
be"; all others work within every client."""


def check_callbacks(callbacks: Any, field: str = "trainer.callbacks") -> None:
    """Refuses callbacks of Lightning's that would not do what they say.

    A client's Trainer is fitted again in every round, has no logger, and validates apart from training. Callbacks that
    count on a single ``fit`` would be wrong without a word.

    Args:
        callbacks: one, several or none.
        field: the name under which the user knows them.

    Raises:
        InputError: one is no callback, or has no place here; the sentence says what to use instead.
    """
    given = callbacks if isinstance(callbacks, Sequence) else [] if callbacks is None else [callbacks]
    for callback in given:
        what = f"the class {callback.__name__}" if isinstance(callback, type) else type(callback).__name__
        if type(callback).__module__.startswith(pl.__name__):
            what = f"Lightning's {what}"
        if not isinstance(callback, pl.Callback):
            raise InputError(
                field, "callbacks of `pytorch_lightning` or `flgraph`, made by calling their classes,", what
            )
        for kind in type(callback).__mro__:
            if kind.__name__ in _INSTEAD and kind.__module__.startswith(pl.__name__):
                raise InputError(
                    field, _INSTEAD[kind.__name__], f"{what} of Lightning" * (kind is type(callback)) or what
                )
