"""What is written about a run while it goes: ``history.jsonl``, TensorBoard, other loggers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import Logger, TensorBoardLogger

from flgraph.federation.display import routes_markdown
from flgraph.runs.files import write_bytes, writing
from flgraph.runs.history import RoundRecord, add_evaluation, append_record, samples_of


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
        if loggers is True:
            root, name, version = run_dir.parent.parent, run_dir.parent.name, run_dir.name
            self.loggers: list[Logger] = [TensorBoardLogger(str(root), name, version, purge_step=after_round + 1)]
        else:
            self.loggers = [] if loggers is False else [loggers] if isinstance(loggers, Logger) else list(loggers)

    def describe(self, routes: Sequence[tuple[str, str, str]], config: str, data: Any = None) -> None:
        """Logs the routing table, the configuration and the data's figures, where such things can be logged.

        The partition, where the data has one, is written to ``partition.npz``.
        """
        figures = data.figures() if hasattr(data, "figures") else {}
        if hasattr(data, "partition_file"):
            write_bytes(data.partition_file(), self.run_dir / "partition.npz")
        for logger in self.loggers:
            if isinstance(logger, TensorBoardLogger):
                logger.experiment.add_text("routes", routes_markdown(routes), self.after_round)
                logger.experiment.add_text("config", f"```yaml\n{config}\n```", self.after_round)
                for tag, figure in figures.items():
                    logger.experiment.add_figure(tag, figure, self.after_round)

    def add(self, record: RoundRecord) -> None:
        """Logs a round: bytes, seconds, and every metric per client and as the mean over clients."""
        with writing(self.run_dir):
            append_record(record, self.run_dir / "history.jsonl")
        values = {
            "federation/seconds_per_round": record.seconds,
            "federation/bytes_up": float(record.bytes_up),
            "federation/bytes_down": float(record.bytes_down),
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
                logger.log_metrics(dict(values), step=step)

    def _metric_values(self, record: RoundRecord) -> dict[str, float]:
        values = {f"mean/{_tag(name)}": value for name, value in record.mean.items()}
        if len(record.metrics) <= self.max_clients:
            for client, metrics in record.metrics.items():
                shown = {name: value for name, value in metrics.items() if name != samples_of(name)}
                values.update({f"{_tag(name)}/{client}": value for name, value in shown.items()})
        return values

    def _server_values(self, record: RoundRecord) -> dict[str, float]:
        """What the algorithm reports, without groups of one value per client where there are too many of them."""
        groups = Counter(tag.partition("/")[0] for tag in record.server)
        return {
            tag if "/" in tag else f"server/{tag}": value
            for tag, value in record.server.items()
            if groups[tag.partition("/")[0]] <= self.max_clients
        }

    def save(self) -> None:
        """Puts what was logged on disk: whoever continues from a checkpoint finds the rounds before it logged."""
        for logger in self.loggers:
            with self._errors_of(logger):
                logger.save()

    def finish(self, status: str) -> None:
        """Ends all loggers.

        Args:
            status: ``"success"`` or ``"failed"``.
        """
        for logger in self.loggers:
            # A logger that failed would fail again, and hide why.
            with suppress(Exception) if status == "failed" else self._errors_of(logger):
                logger.finalize(status)

    def _errors_of(self, logger: Logger) -> AbstractContextManager[None]:
        """TensorBoard writes into the run folder; what other loggers write goes elsewhere."""
        return writing(self.run_dir) if isinstance(logger, TensorBoardLogger) else nullcontext()


def _tag(metric: str) -> str:
    """``val/accuracy`` as ``val_accuracy``: TensorBoard groups by what stands before the first slash."""
    return metric.replace("/", "_")
