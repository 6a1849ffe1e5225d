"""From finished runs to the tables that stand beside a paper's."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from flgraph.reproduce.index import Ledger
from flgraph.reproduce.protocols import PROTOCOLS, value_of
from flgraph.reproduce.provenance import provenance
from flgraph.reproduce.runner import find_results
from flgraph.reproduce.study import PARTITION, Study, in_words, logged_name
from flgraph.runs.files import write_text

Done = Mapping[tuple[str, str], Sequence[dict[str, Any]]]
"""Setting and method to the results of the finished runs, one per seed."""


@dataclass(frozen=True)
class Cell:
    """One row of the CSV: a method in a setting under a protocol. Values in percent, statistics as they are.

    Args:
        table: the study.
        setting: column of the paper's table.
        method: row of the paper's table.
        metric: what is reported.
        protocol: which round is reported, see :data:`PROTOCOLS`.
        paper_mean: as printed; NaN if the paper has no such cell.
        paper_std: as printed; NaN if it is not.
        mean: over seeds, of the mean over clients.
        std: sample standard deviation over seeds; NaN for one seed, or where one has no value.
        seeds: number of seeds.
        rounds: communication rounds, or the most of them.
        which: the seeds, with blanks between them.
    """

    table: str
    setting: str
    method: str
    metric: str
    protocol: str
    paper_mean: float
    paper_std: float
    mean: float
    std: float
    seeds: int
    rounds: int
    which: str = ""

    @property
    def verdict(self) -> str:
        """Whether the mean lies ``within`` the paper's spread, ``above`` or ``below``; empty where one is not known."""
        if math.isnan(self.paper_std) or math.isnan(self.mean):
            return ""
        gap = self.mean - self.paper_mean
        return "within" if abs(gap) <= self.paper_std else "above" if gap > 0 else "below"


def finished(study: Study, runs: Path, ledger: Ledger | None = None) -> Done:
    """The results of all finished runs of a study, in the study's order.

    Args:
        study: whose runs.
        runs: where run folders are.
        ledger: what is recorded of runs, for those without a folder.
    """
    done: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for setting in study.settings:
        for method in study.methods:
            found = [find_results(study, study.run(setting, method, seed), runs, ledger) for seed in study.seeds]
            results = [result for result in found if result is not None]
            if results:
                done[setting, method] = results
    return done


def collect(study: Study, done: Done) -> list[Cell]:
    """A cell for every method, setting and protocol with at least one finished run."""
    cells = []
    for metric in study.metrics:
        for (setting, method), results in done.items():
            paper_mean, paper_std = study.printed(metric, setting, method)
            for protocol in (name for name in PROTOCOLS if name != "best_client" or name in study.protocols):
                found = [value_of(run, protocol, logged_name(metric), study.mean_key) for run in results]
                unit = 1 if metric.startswith(PARTITION) else 100
                values = [unit * value for value in found if value is not None]
                if values and (len(values) == len(found) or protocol != "best_client"):  # older records lack it
                    known = len(values) > 1 and all(map(math.isfinite, values))
                    std = statistics.stdev(values) if known else math.nan
                    mean, seeds = statistics.fmean(values), len(values)
                    numbers = (paper_mean, paper_std, mean, std, seeds, study.rounds_of(method))
                    known_of = (run for run, value in zip(results, found, strict=True) if value is not None)
                    which = " ".join(str(run["seed"]) for run in known_of)
                    cells.append(Cell(study.name, setting, method, metric, protocol, *numbers, which))
    return cells


def write_tables(
    study: Study, done: Done, cells: Sequence[Cell], out: Path, runs: Path, figures: Sequence[Path] = ()
) -> list[Path]:
    """Writes ``TABLE.csv`` and ``TABLE.md`` into ``out/PAPER``."""
    folder, table = out / study.paper_name, study.name.rpartition("/")[2]
    folder.mkdir(parents=True, exist_ok=True)
    stream = io.StringIO(newline="")
    writer = csv.DictWriter(stream, [column.name for column in fields(Cell)], lineterminator="\n")
    writer.writeheader()
    for cell in cells:
        writer.writerow({key: _rounded(value) for key, value in asdict(cell).items()})
    write_text(stream.getvalue(), folder / f"{table}.csv")
    lines = [*_head(study, cells), *_sections(study, done, cells, figures), *provenance(study, done, runs)]
    write_text("\n".join(lines) + "\n", folder / f"{table}.md")
    return [folder / f"{table}.csv", folder / f"{table}.md"]


def _head(study: Study, cells: Sequence[Cell]) -> list[str]:
    if all(metric.startswith(PARTITION) for metric in study.metrics):
        lines = [f"# {study.title}", "", "Mean over clients, then over seeds; in brackets the paper's."]
        return [*lines, "", *study.notes] if study.notes else lines
    used = {cell.protocol for cell in cells}
    mean = "unweighted mean" if study.average == "clients" else "mean weighted by samples"
    further = "".join(f", {method} {rounds}" for method, rounds in study.method_rounds.items())
    lines = [
        f"# {study.title}",
        "",
        f"{' and '.join(map(in_words, study.metrics)).capitalize()} in percent: {mean} over clients, then",
        f"mean ± standard deviation over seeds; {study.rounds} rounds{further}. Protocols:",
        "",
        *(f"- `{name}`: {meaning}" for name, meaning in PROTOCOLS.items() if name in used),
    ]
    if {"Local", "Local Only"} & study.methods.keys():
        lines += ["", "The gain over Local is that of the last round, a mean over the seeds that both have."]
    return [*lines, "", *study.notes] if study.notes else lines


def _sections(study: Study, done: Done, cells: Sequence[Cell], figures: Sequence[Path]) -> list[str]:
    lines = [line for figure in figures for line in ("", f"![{figure.stem}]({figure.name})")]
    if all(metric.startswith(PARTITION) for metric in study.metrics):
        return [*lines, "", *_statistics(cells), ""]
    further = [name for name in ("best_client", "best_cluster") if any(cell.protocol == name for cell in cells)]
    columns = [
        "method", "paper", "final", "difference", "in the paper's spread", "best_val", "best_test (optimistic)",
        *(f"{name} (optimistic)" for name in further), "gain over Local", "parameters", "of them shared",
        "MB up / down", "seeds",
    ]  # fmt: skip
    for metric, setting in dict.fromkeys((cell.metric, cell.setting) for cell in cells):
        title = setting if study.axis == "setting" else f"{study.axis}: {setting}"
        title += f", {in_words(metric)}" if len(study.metrics) > 1 else ""
        lines += ["", f"## {title}", "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
        here = {(c.method, c.protocol): c for c in cells if (c.metric, c.setting) == (metric, setting)}
        local = next((name for name in ("Local", "Local Only") if (setting, name) in done), None)
        for method in dict.fromkeys(cell.method for cell in here.values()):
            results = done[setting, method]
            final, any_of = here.get((method, "final")), next(c for (name, _), c in here.items() if name == method)
            gap = "-" if final is None else _signed(final.mean - final.paper_mean)
            over = () if local in (None, method) else done[setting, str(local)]
            protocols = [_spread(here.get((method, name))) for name in ("best_val", "best_test", *further)]
            verdict = (final.verdict if final else "") or "-"
            row = [
                method,
                _printed(any_of),
                _spread(final),
                gap,
                verdict,
                *protocols,
                _gain(study, metric, results, over),
            ]
            row += [*_parameters(results), _megabytes(results), str(any_of.seeds)]
            lines.append(f"| {' | '.join(row)} |")
    return [*lines, ""]


def _gain(study: Study, metric: str, mine: Sequence[dict[str, Any]], local: Sequence[dict[str, Any]]) -> str:
    """By how much the last round is better than training alone, over the seeds that both have."""
    ours, theirs = (
        {run["seed"]: value_of(run, "final", logged_name(metric), study.mean_key) for run in runs}
        for runs in (mine, local)
    )
    pairs = [(ours[seed], theirs[seed]) for seed in ours if seed in theirs]
    gains = [100 * (one - other) for one, other in pairs if one is not None and other is not None]
    known = [gain for gain in gains if math.isfinite(gain)]
    return _signed(statistics.fmean(known)) if known else "-"


def _statistics(cells: Sequence[Cell]) -> list[str]:
    """A row per setting, a column per statistic."""
    names = list(dict.fromkeys(cell.metric for cell in cells))
    titles = [name.removeprefix(PARTITION).replace("_", " ") for name in names]
    lines = [f"| setting | {' | '.join(titles)} |", "|---" * (len(names) + 1) + "|"]
    for setting in dict.fromkeys(cell.setting for cell in cells):
        here = {cell.metric: cell for cell in cells if cell.setting == setting}
        row = [
            f"{c.mean:,.1f}" + ("" if math.isnan(c.paper_mean) else f" [{c.paper_mean:,.1f}]") for c in here.values()
        ]
        lines.append(f"| {setting} | {' | '.join(row)} |")
    return lines


def _parameters(results: Sequence[dict[str, Any]]) -> tuple[str, str]:
    """Of a client's model, as the mean over clients: all, and those that are shared."""
    counts = results[0].get("parameters") or {}
    if not counts:
        return "-", "-"
    return tuple(f"{statistics.fmean(c[kind] for c in counts.values()):,.0f}" for kind in ("total", "shared"))  # type: ignore[return-value]


def _megabytes(results: Sequence[dict[str, Any]]) -> str:
    """Wire bytes of all payloads in a whole run, up and down, in units of 10^6; metrics are not counted."""
    shown = []
    for way in ("up", "down"):
        totals = [
            run["bytes_per_round"][way] * run["rounds"] + run.get("setup_bytes", {}).get(way, 0)
            for run in results
            if "bytes_per_round" in run
        ]
        shown += [f"{statistics.fmean(totals) / 1e6:,.0f}"] if totals else []
    return " / ".join(shown) or "-"


def _signed(difference: float) -> str:
    return "-" if math.isnan(difference) else f"{difference:+z.2f}"


def _printed(cell: Cell) -> str:
    return _mean_std(cell.paper_mean, cell.paper_std)


def _spread(cell: Cell | None) -> str:
    return "-" if cell is None else _mean_std(cell.mean, cell.std)


def _mean_std(mean: float, std: float) -> str:
    return "-" if math.isnan(mean) else f"{mean:.2f}" + ("" if math.isnan(std) else f" ± {std:.2f}")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.4f}"
    return value
