"""What a run shows while it goes and when it ends."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from rich.cells import cell_len
from rich.console import ConsoleOptions, RenderResult
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from flgraph.console import Console
from flgraph.federation.callback import FederatedCallback, Run
from flgraph.runs.history import EPSILON, Metrics, mean_metrics

_LINES = 20
"""So many lines or about that a whole run prints where there is no terminal."""


class RoundProgress(FederatedCallback):
    """A progress bar over rounds with the time left and the mean of the monitored metric.

    Where clients hold nothing back for validation it is the training metric of that name. In a notebook the bar needs
    ipywidgets. Where there is no bar it prints a line now and then instead.

    Args:
        console: where to write.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._progress: Progress | None = None
        self._began = 0.0
        self._first = 0

    def on_federation_start(self, trainer: Run) -> None:
        self._first = trainer.current_round
        if self.console.is_terminal or (self.console.is_jupyter and find_spec("ipywidgets")):  # rich needs them there
            columns = [TextColumn("rounds"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left")]
            self._progress = Progress(
                *columns, TimeRemainingColumn(), TextColumn("{task.fields[metric]}", markup=False), console=self.console
            )
            self._progress.add_task("rounds", total=trainer.rounds, completed=trainer.current_round, metric="")
            self._progress.start()

    def on_round_start(self, trainer: Run) -> None:
        if trainer.current_round == self._first + 1:
            self._began = time.perf_counter()  # what came before says nothing of the time that rounds take

    def on_round_end(self, trainer: Run) -> None:
        mean, unmonitored = trainer.record.mean, f"train/{trainer.monitor.rpartition('/')[2]}"
        shown = next((name for name in (trainer.monitor, unmonitored) if name in mean), None)
        metric = "" if shown is None else f"{shown} {mean[shown]:.4f}"
        metric += "".join(f"  epsilon {spent:.3g}" for name, spent in trainer.record.server.items() if name == EPSILON)
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], completed=trainer.current_round, metric=metric)
            return
        done, every = trainer.current_round, max(1, trainer.rounds // _LINES)
        if done % every == 0 or done == trainer.rounds:
            elapsed = time.perf_counter() - self._began
            left = elapsed / max(done - self._first, 1) * (trainer.rounds - done)
            self.console.print(f"round {done}/{trainer.rounds}  {metric}  {elapsed:.0f} s, {left:.0f} s left")

    def on_federation_end(self, trainer: Run) -> None:
        self.close()

    def on_federation_exception(self, trainer: Run, error: BaseException) -> None:
        self.close()

    def close(self) -> None:
        """Gives the terminal back."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


class ExchangeLines:
    """Prints which exchange of round 0 a run is at, the first one at once.

    Args:
        console: where to write.
        every: seconds between two lines at least.
    """

    def __init__(self, console: Console, every: float = 5.0) -> None:
        self.console, self.every = console, every
        self._began = self._due = time.perf_counter()

    def __call__(self, exchange: str, number: int, total: int) -> None:
        """Called before each exchange, see :meth:`Server.prepare`."""
        now = time.perf_counter()
        if now >= self._due:
            self._due = now + self.every
            self.console.print(f"before round 1: {exchange} ({number}/{total})  {now - self._began:.0f} s")


class MetricsTable:
    """Clients as rows, metrics as columns, the mean last.

    Where a line is too short for all columns there are several tables, one below the other: no number is cut.

    Args:
        metrics: client to metric to value.
        title: what stands above.
        names: metrics and their heads, a part of a metric's name (between slashes) per line; all metrics by their own
            names when ``None``. A metric that nobody reports is left out.
    """

    def __init__(self, metrics: Metrics, title: str, names: Mapping[str, str] | None = None) -> None:
        mean = mean_metrics(metrics)
        self.title = title
        shown = {name: head for name, head in (names or {name: name for name in mean}).items() if name in mean}
        # Lines of a head are short, so that numbers decide how wide a column is.
        self.heads = [head.replace("/", "\n").replace("_", "_\n") for head in shown.values()]
        self.rows = [[client, *(_number(values.get(name)) for name in shown)] for client, values in metrics.items()]
        self.mean = ["mean", *(_number(mean[name]) for name in shown)]

    def tables(self, width: int) -> Iterator[Table]:
        """The tables that lines of ``width`` characters hold."""
        columns_of_cells = zip(["client", *self.heads], *self.rows, self.mean, strict=True)
        # Blanks to both sides of the longest line, and the rule beside the column.
        widths = [3 + max(cell_len(line) for cell in cells for line in cell.split("\n")) for cells in columns_of_cells]
        title: str | None = self.title
        columns, used = list[int](), 0
        for column in range(1, len(widths)):
            if columns and 1 + widths[0] + used + widths[column] > width:
                yield self._table(columns, title)
                title, columns, used = None, [], 0
            columns.append(column)
            used += widths[column]
        yield self._table(columns, title)

    def _table(self, columns: Sequence[int], title: str | None) -> Table:
        table = Table(title=title)
        table.add_column("client", no_wrap=True)
        for column in columns:
            table.add_column(self.heads[column - 1], justify="right", no_wrap=True)
        for row in self.rows:
            table.add_row(row[0], *(row[column] for column in columns))
        table.add_section()
        table.add_row(self.mean[0], *(self.mean[column] for column in columns))
        return table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self.tables(options.max_width)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def final_table(final: Mapping[str, Any], best: Mapping[str, Any], monitor: str) -> MetricsTable:
    """The table at a run's end.

    Per client the monitored metric on every split and on further test data, such as ``global_test``, the test loss, and
    the metric at the best validation round. Further test data that nobody measured the monitored metric on is shown
    with all its metrics: a model that is monitored by a loss may be tested by something else.

    Args:
        final: the last evaluation, with ``round`` and ``clients``.
        best: the same for the best validation round; may be empty.
        monitor: the metric that decided it, such as ``val/accuracy``.
    """
    metric = monitor.rpartition("/")[2]
    clients: Metrics = {client: dict(values) for client, values in final["clients"].items()}
    measured = list(mean_metrics(clients))
    further = dict.fromkeys(group for name in measured if (group := name.rpartition("/")[0]).endswith("_test"))
    names = {f"{group}/{metric}": group for group in ("train", "val", "test", *further)}
    for group in further:
        if f"{group}/{metric}" not in measured:
            names |= {name: name for name in measured if name.startswith(f"{group}/")}
    names.setdefault("test/loss", "test/loss")
    for group in ("test", *further):
        name, at_best = f"{group}/{metric}", f"best val/{group}"
        names[at_best] = at_best
        for client, values in dict(best.get("clients", {})).items():
            if client in clients and name in values:
                clients[client][at_best] = values[name]
    title = f"{metric} after round {final['round']}" + (f"; best val round {best['round']}" if best else "")
    return MetricsTable(clients, title, names)


def routes_table(rows: Iterable[tuple[str, str, str]]) -> Table:
    """What may leave a client: name, shape and route of each tensor; of scalars and metrics, which have no shape, too.

    Args:
        rows: see :func:`~flgraph.federation.routes.describe_routes`; an empty shape is shown as a dash.
    """
    table = Table("name", "shape", "route", title="What may leave a client")
    for row in rows:
        table.add_row(*(cell or "–" for cell in row))
    return table


def routes_markdown(rows: Iterable[tuple[str, str, str]]) -> str:
    """The same for TensorBoard."""
    lines = [("name", "shape", "route"), ("---",) * 3, *(tuple(cell or "–" for cell in row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def ignore_deprecations() -> None:
    """Leaves out, in this process, that libraries use what other libraries are about to drop: no user can mend that."""
    libraries = "torch|torch_geometric|torchmetrics|pytorch_lightning|lightning_fabric|lightning_utilities|jsonargparse"
    for category in (DeprecationWarning, PendingDeprecationWarning, FutureWarning):
        warnings.filterwarnings("ignore", category=category, module=rf"({libraries}|tensorboard|sklearn)(\.|$)")


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Silences what Lightning says once per Trainer and once per fit, which in a federation is per client and round."""
    names = ("pytorch_lightning", "pytorch_lightning.utilities.rank_zero", "lightning.pytorch.utilities.rank_zero")
    before: Mapping[str, int] = {name: logging.getLogger(name).level for name in names}
    ignored = (
        r".*You defined a `validation_step` but have no `val_dataloader`.*",
        r".*does not have many workers.*",
        r".*is smaller than the logging interval.*",
        r".*Trying to infer the `batch_size`.*",
        r".*module\(s\) in eval mode at the start of training.*",
        r".*`isinstance\(treespec, LeafSpec\)` is deprecated.*",
        r".*Sparse CSR tensor support is in beta state.*",
        r".*Sparse invariant checks are implicitly disabled.*",
        r".*GPU available but not used.*",
    )
    with warnings.catch_warnings():
        for message in ignored:
            warnings.filterwarnings("ignore", message=message)
        for name in names:
            logging.getLogger(name).setLevel(logging.WARNING)
        try:
            yield
        finally:
            for name, level in before.items():
                logging.getLogger(name).setLevel(level)
