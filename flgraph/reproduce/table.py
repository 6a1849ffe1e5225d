"""From finished runs to the tables that stand beside a paper's."""

from __future__ import annotations

import csv
import math
import shlex
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from flgraph.federation.records import read_records, write_text
from flgraph.reproduce.runner import command, find_results
from flgraph.reproduce.study import Run, Study

PROTOCOLS = {
    "final": "the last round",
    "best_val": "the round with the best mean validation metric",
    "best_test": "the round with the best mean test metric: optimistic, it looks at the test data",
}


@dataclass(frozen=True)
class Cell:
    """One row of the CSV: a method in a setting under a protocol. Values in percent.

    Args:
        table: the study.
        setting: column of the paper's table.
        method: row of the paper's table.
        metric: what is reported.
        protocol: which round is reported, see :data:`PROTOCOLS`.
        paper_mean: as printed; NaN if the paper has no such cell.
        paper_std: as printed.
        mean: over seeds, of the unweighted mean over clients.
        std: sample standard deviation over seeds; NaN for one seed.
        seeds: number of seeds.
        rounds: communication rounds.
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

    @property
    def verdict(self) -> str:
        """Whether the mean lies within the paper's spread."""
        if math.isnan(self.paper_mean):
            return ""
        gap = self.mean - self.paper_mean
        return "within" if abs(gap) <= self.paper_std else "above" if gap > 0 else "below"


def collect(study: Study, runs: Path) -> list[Cell]:
    """A cell for every method, setting and protocol with at least one finished run."""
    cells = []
    for setting in study.settings:
        for method in study.methods:
            done = [
                results
                for run in study.runs()
                if (run.setting, run.method) == (setting, method)
                and (results := find_results(study, run, runs)) is not None
            ]
            if not done:
                continue
            paper_mean, paper_std = study.paper.get(setting, {}).get(method, [math.nan, math.nan])
            for protocol in PROTOCOLS:
                values = [100 * _value(results, protocol, f"test/{study.metric}") for results in done]
                std = statistics.stdev(values) if len(values) > 1 else math.nan
                cells.append(
                    Cell(
                        study.name, setting, method, study.metric, protocol, paper_mean, paper_std,
                        statistics.fmean(values), std, len(values), study.rounds,
                    )
                )  # fmt: skip
    return cells


def write_tables(study: Study, cells: Sequence[Cell], out: Path, runs: Path) -> list[Path]:
    """Writes ``TABLE.csv`` and ``TABLE.md`` into ``out/PAPER``."""
    paper, _, table = study.name.rpartition("/")
    folder = out / paper if paper else out
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{table}.csv", "w", newline="") as stream:
        writer = csv.DictWriter(stream, [column.name for column in fields(Cell)])
        writer.writeheader()
        for cell in cells:
            row = asdict(cell)
            writer.writerow({key: _rounded(value) for key, value in row.items()})
    write_text(_markdown(study, cells, runs), folder / f"{table}.md")
    return [folder / f"{table}.csv", folder / f"{table}.md"]


def _markdown(study: Study, cells: Sequence[Cell], runs: Path) -> str:
    lines = [
        f"# {study.title}",
        "",
        f"Test {study.metric} in percent: mean over clients, then mean ± standard deviation over",
    ]
    lines += [f"seeds. {study.rounds} rounds. Protocols:", ""]
    lines += [f"- `{name}`: {meaning}" for name, meaning in PROTOCOLS.items()]
    for setting in dict.fromkeys(cell.setting for cell in cells):
        lines += ["", f"## {setting}", "", "| method | paper | final | difference | in the paper's spread | best_val |"]
        lines[-1] += " best_test (optimistic) | gain over Local | seeds |"
        lines.append("|---|---|---|---|---|---|---|---|---|")
        here = {(cell.method, cell.protocol): cell for cell in cells if cell.setting == setting}
        local = here.get(("Local", "final"))
        for method in dict.fromkeys(cell.method for cell in here.values()):
            final = here[method, "final"]
            known = not math.isnan(final.paper_mean)
            printed = f"{final.paper_mean:.2f} ± {final.paper_std:.2f}" if known else "-"
            gap = f"{final.mean - final.paper_mean:+.2f}" if known else "-"
            gain = f"{final.mean - local.mean:+.2f}" if local is not None and final is not local else "-"
            shown = [_spread(here[method, protocol]) for protocol in PROTOCOLS]
            row = [method, printed, shown[0], gap, final.verdict or "-", shown[1], shown[2], gain, str(final.seeds)]
            lines.append(f"| {' | '.join(row)} |")
    return "\n".join([*lines, "", *_provenance(study, runs)]) + "\n"


def _provenance(study: Study, runs: Path) -> list[str]:
    done: list[tuple[Run, dict[str, Any]]] = []
    for run in study.runs():
        results = find_results(study, run, runs)
        if results is not None:
            done.append((run, results))
    versions = sorted({", ".join(f"{k} {v}" for k, v in results["versions"].items()) for _, results in done})
    seconds: dict[tuple[str, str], list[float]] = {}
    for run, results in done:
        seconds.setdefault((run.setting, run.method), []).append(results["seconds_per_round"])
    lines = ["## How it was made", "", "```"]
    lines.append(
        f"flgraph reproduce {study.name} --settings {','.join(study.settings)} --methods {','.join(study.methods)} "
        f"--seeds {','.join(map(str, study.seeds))} --rounds {study.rounds}"
    )
    lines += ["```", "", "which runs, for each cell and seed, for example", "", "```"]
    if done:
        lines.append(shlex.join(["flgraph", *command(study, done[0][0], runs)]))
    lines += ["```", "", "Versions: " + "; ".join(versions) + ".", ""]
    lines.append("Seconds a round (one thread, beside other work): ")
    lines[-1] += ", ".join(f"{s} {m} {statistics.fmean(v):.2f}" for (s, m), v in seconds.items()) + "."
    return lines


def _value(results: dict[str, Any], protocol: str, metric: str) -> float:
    if protocol in ("final", "best_val"):
        return float(results[protocol]["mean"][metric])
    records = read_records(Path(results["folder"]) / "history.jsonl")
    return max(float(record["mean"][metric]) for record in records if metric in record["mean"])


def _spread(cell: Cell) -> str:
    return f"{cell.mean:.2f}" + ("" if math.isnan(cell.std) else f" ± {cell.std:.2f}")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.4f}"
    return value
