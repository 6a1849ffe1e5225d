"""What is written about a run while it goes: ``history.jsonl``, TensorBoard, other loggers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

import yaml
from pytorch_lightning.loggers import Logger, TensorBoardLogger

from flgraph.federation.display import routes_markdown
from flgraph.runs.compatibility import flatten
from flgraph.runs.files import write_bytes, writing
from flgraph.runs.history import History, RoundRecord, add_evaluation, append_record, samples_of


class RunLog:
    """Writes a run's rounds to ``history.jsonl`` and to loggers.

    Args:
        run_dir: the run folder, ``root/name/version_N``.
        loggers: ``True`` for TensorBoard in the run folder, ``False`` for none, or Lightning loggers.
        after_round: the round after which the run goes on; what TensorBoard holds of later ones is hidden.
        max_clients: in larger federations only means over clients are logged.
    """

    def __init__(
        self, run_dir: Path, loggers: bool | Logger | Sequence[Logger], after_round: int = 0, max_clients: int = 100
    ) -> None:
        self.run_dir, self.after_round, self.max_clients = run_dir, after_round, max_clients
        self._end: Any = None  # what says that a run has come to its end
        if loggers is True:
            root, name, version = run_dir.parent.parent, run_dir.parent.name, run_dir.name
            self.loggers: list[Logger] = [TensorBoardLogger(str(root), name, version, purge_step=after_round + 1)]
        else:
            self.loggers = [] if loggers is False else [loggers] if isinstance(loggers, Logger) else list(loggers)

    def describe(
        self, routes: Sequence[tuple[str, str, str]], config: str, settings: Mapping[str, Any], data: Any = None
    ) -> None:
        """Logs the routing table, the settings and the data's figures, where such things can be logged.

        The partition, where the data has one, is written to ``partition.npz``.

        Args:
            routes: see :func:`~flgraph.federation.routes.describe_routes`.
            config: the configuration file; empty for a run that has none.
            settings: what the run was made with.
            data: with ``figures()`` and ``partition_file()``, or without.
        """
        figures = data.figures() if hasattr(data, "figures") else {}
        if hasattr(data, "partition_file"):
            write_bytes(data.partition_file(), self.run_dir / "partition.npz")
        own = json.loads(json.dumps({name: value for name, value in settings.items() if name != "data"}))
        for logger in self.loggers:
            if isinstance(logger, TensorBoardLogger):
                from torch.utils.tensorboard.summary import hparams  # loads slowly

                logger.experiment.add_text("routes", routes_markdown(routes), self.after_round)
                text = config or yaml.safe_dump(own, sort_keys=False)
                logger.experiment.add_text("settings", f"```yaml\n{text}\n```", self.after_round)
                # Without the summary of an experiment, of which TensorBoard reads one for all runs: so its HPARAMS tab
                # has the settings of every method, those that differ first, and then the newest value of each scalar.
                _, begin, self._end = hparams(_hparams(own), {})  # type: ignore[no-untyped-call]
                logger.experiment.file_writer.add_summary(begin)
                for tag, figure in figures.items():
                    logger.experiment.add_figure(tag, figure, self.after_round)
            elif not self.after_round:  # some refuse other values later
                logger.log_hyperparams(_hparams(own))

    def add(self, record: RoundRecord) -> None:
        """Logs a round: bytes, seconds, and every metric per client and as the mean over clients."""
        with writing(self.run_dir):
            append_record(record, self.run_dir / "history.jsonl")
        values = {
            "round/seconds": record.seconds,
            "round/bytes_up": float(record.bytes_up),
            "round/bytes_down": float(record.bytes_down),
        }
        self._log({**values, **self._metric_values(record), **self._server_values(record)}, record.round)

    def add_evaluation(self, record: RoundRecord) -> None:
        """Logs metrics of a round that was not evaluated when it was done, and the bytes that took."""
        with writing(self.run_dir):
            add_evaluation(record, self.run_dir / "history.jsonl")
        self._log(self._metric_values(record), record.round)

    def _log(self, values: Mapping[str, float], step: int) -> None:
        for logger in self.loggers:
            with self._errors_of(logger):
                if isinstance(logger, TensorBoardLogger) and not logger._prefix:
                    from tensorboard.compat.proto.summary_pb2 import Summary  # loads slowly

                    # One event for all; `log_metrics` makes one for each, which the thread that writes them wakes for.
                    own = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
                    logger.experiment.file_writer.add_summary(Summary(value=own), step)
                else:
                    logger.log_metrics(dict(values), step=step)

    def _metric_values(self, record: RoundRecord) -> dict[str, float]:
        values = _means(record.mean)
        if len(record.metrics) <= self.max_clients:
            for client, metrics in record.metrics.items():
                shown = {name: value for name, value in metrics.items() if name != samples_of(name)}
                values.update({f"per_client_{_tag(name)}/{client}": value for name, value in shown.items()})
        return values

    def _server_values(self, record: RoundRecord) -> dict[str, float]:
        """What the algorithm reports, without groups of one value per client where there are too many of them."""
        groups = Counter(tag.partition("/")[0] for tag in record.server)
        return {
            f"server/{tag}": value
            for tag, value in record.server.items()
            if groups[tag.partition("/")[0]] <= self.max_clients
        }

    def save(self) -> None:
        """Puts what was logged on disk: whoever continues from a checkpoint finds the rounds before it logged."""
        for logger in self.loggers:
            with self._errors_of(logger):
                logger.save()

    def finish(self, status: str, history: History) -> None:
        """Ends all loggers, with what is reported of the run: the last round, or the one that clients went back to.

        Args:
            status: ``"success"`` or ``"failed"``.
            history: of the run.
        """
        if status == "success" and (reported := history.final or history.last):
            self._log(_means(reported["mean"], "reported"), history.rounds)
        for logger in self.loggers:
            if status == "success" and isinstance(logger, TensorBoardLogger) and self._end is not None:
                logger.experiment.file_writer.add_summary(self._end)
            # A logger that failed would fail again, and hide why.
            with suppress(Exception) if status == "failed" else self._errors_of(logger):
                logger.finalize(status)

    def _errors_of(self, logger: Logger) -> AbstractContextManager[None]:
        """TensorBoard writes into the run folder; what other loggers write goes elsewhere."""
        return writing(self.run_dir) if isinstance(logger, TensorBoardLogger) else nullcontext()


def _hparams(settings: Mapping[str, Any]) -> dict[str, float | str]:
    """Settings as TensorBoard shows them, by name: the algorithm comes first. Numbers and short texts."""
    flat = {name.removeprefix("trainer."): value for name, value in flatten(settings).items() if value is not None}
    numbers = {name: value for name, value in flat.items() if type(value) in (int, float)}
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in flat.items()}
    return {name: numbers.get(name, text if len(text) <= 60 else f"{text[:59]}…") for name, text in texts.items()}


def _means(mean: Mapping[str, float], group: str = "mean") -> dict[str, float]:
    return {f"{group}/{_tag(name)}": value for name, value in mean.items()}


def _tag(metric: str) -> str:
    """``val/accuracy`` as ``val_accuracy``: TensorBoard groups by what stands before the first slash."""
    return metric.replace("/", "_")
