"""From finished runs to the tables that stand beside a paper's."""

from __future__ import annotations

import csv
import io
import math
import re
import shlex
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any

from scipy.special import stdtrit

from flgraph.reproduce.index import MANY_CLIENTS, RunIndex
from flgraph.reproduce.protocols import PROTOCOLS, value_of
from flgraph.reproduce.runner import command, find_results
from flgraph.reproduce.study import PARTITION, Study, digits_of, in_words, logged_name, unit_of
from flgraph.runs.files import write_text
from flgraph.runs.history import lower_is_better

Done = Mapping[tuple[str, str], Sequence[dict[str, Any]]]
"""Setting and method to the results of the finished runs, one per seed."""


@dataclass(frozen=True)
class Cell:
    """One row of the CSV: a method in a setting under a protocol. Values in percent, errors and statistics as they are.

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


def finished(study: Study, runs: Path, index: RunIndex | None = None) -> Done:
    """The results of all finished runs of a study, in the study's order.

    Args:
        study: whose runs.
        runs: where run folders are.
        index: what is recorded of runs, for those without a folder.
    """
    done: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for setting in study.settings:
        for method in study.methods:
            found = [find_results(study, study.run(setting, method, seed), runs, index) for seed in study.seeds]
            results = [result for result in found if result is not None]
            if results:
                done[setting, method] = results
    return done


def collect(study: Study, done: Done) -> list[Cell]:
    """A cell for every method, setting and protocol with at least one finished run."""
    cells = []
    protocols = [name for name in PROTOCOLS if name != "best_client" or name in study.protocols]
    for metric, ((setting, method), results), protocol in product(study.metrics, done.items(), protocols):
        unit = unit_of(metric)
        found = [(run["seed"], value_of(run, protocol, logged_name(metric), study.mean_key)) for run in results]
        values = [unit * value for _, value in found if value is not None]
        if not values or (protocol == "best_client" and len(values) < len(found)):  # older records lack it
            continue
        known = len(values) > 1 and all(map(math.isfinite, values))
        std = statistics.stdev(values) if known else math.nan
        numbers = (*study.printed(metric, setting, method), statistics.fmean(values), std, len(values))
        which = " ".join(str(seed) for seed, value in found if value is not None)
        cells.append(Cell(study.name, setting, method, metric, protocol, *numbers, study.rounds_of(method), which))
    return cells


def write_tables(
    study: Study, done: Done, cells: Sequence[Cell], out: Path, runs: Path, figures: Sequence[Path] = ()
) -> list[Path]:
    """Writes ``TABLE.csv`` and ``TABLE.md`` into ``out/PAPER``."""
    files = _files(study, out)
    files[0].parent.mkdir(parents=True, exist_ok=True)
    stream = io.StringIO(newline="")
    writer = csv.DictWriter(stream, [column.name for column in fields(Cell)], lineterminator="\n")
    writer.writeheader()
    for cell in cells:
        writer.writerow({key: _rounded(value) for key, value in asdict(cell).items()})
    write_text(stream.getvalue(), files[0])
    lines = [*_head(study, cells), *_sections(study, done, cells, figures), *_provenance(study, done, runs)]
    write_text("\n".join(lines) + "\n", files[1])
    return files


def keep_larger(study: Study, cells: Sequence[Cell], out: Path) -> list[Path]:
    """Puts a table aside, with its pictures, that has cells, seeds or rounds that the new one lacks.

    The runs behind it may be gone. It becomes ``TABLE.larger.csv`` and ``.md``; one that was put aside before makes
    room only for one that has all that it has.

    Args:
        study: whose table.
        cells: of the new one.
        out: where tables go.

    Returns:
        The files that were put aside now.
    """
    before = _files(study, out)
    if not all(file.is_file() for file in before):
        return []
    had, aside = _rows(before[0]), before[0].with_suffix(".larger.csv")
    if _covers(map(asdict, cells), had) or (aside.is_file() and not _covers(had, _rows(aside))):
        return []
    text = before[1].read_text(encoding="utf-8")
    for picture in dict.fromkeys(re.findall(r"!\[[^]]*\]\(([^()/]+)\.png\)", text)):
        if (file := before[0].with_name(f"{picture}.png")).is_file():
            before.append(file)
            text = text.replace(f"]({picture}.png)", f"]({picture}.larger.png)")
    write_text(text, before[1])
    return [file.replace(file.with_name(f"{file.stem}.larger{file.suffix}")) for file in before]


def _covers(one: Iterable[Mapping[str, Any]], other: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a table has all cells, seeds and rounds that another one has; older ones do not name their seeds."""
    mine, theirs = (
        {tuple(row[key] for key in ("setting", "method", "metric", "protocol")): row for row in rows}
        for rows in (one, other)
    )
    for cell, row in theirs.items():
        own = mine.get(cell, {"seeds": 0, "rounds": 0})
        fewer = any(int(own[what]) < int(row[what]) for what in ("seeds", "rounds"))
        named = own.get("which") and not {*(row.get("which") or "").split()} <= {*own["which"].split()}
        if cell[-1] == "final" and (fewer or named):
            return False
    return True


def _rows(file: Path) -> list[dict[str, str]]:
    with open(file, newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def _files(study: Study, out: Path) -> list[Path]:
    table = study.name.rpartition("/")[2]
    return [out / study.paper_name / f"{table}{suffix}" for suffix in (".csv", ".md")]


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
        f"{_units(study.metrics)}: {mean} over clients, then",
        f"mean ± standard deviation over seeds; {study.rounds} rounds{further}. Protocols:",
        "",
        *(f"- `{name}`: {meaning}" for name, meaning in PROTOCOLS.items() if name in used),
    ]
    if {"Local", "Local Only"} & study.methods.keys():
        lines += ["", "The gain over Local is that of the last round, a mean over the seeds that both have."]
    if study.base:
        lines += ["", f"`over {study.base}`: the last round's difference, paired by seed; its 95 % confidence interval"]
        lines += ["(Student's t) in square brackets, the number of seeds that both have in round ones."]
    return [*lines, "", *study.notes] if study.notes else lines


def _units(metrics: Sequence[str]) -> str:
    """``Test accuracy and test f1 in percent``; ``Test rmse, less being better``."""
    named = {unit: [name for name in metrics if unit_of(name) == unit] for unit in (100, 1)}
    parts = [" and ".join(map(in_words, names)) for names in named.values()]
    tails = (" in percent", ", less being better")
    return " and ".join(part + tail for part, tail in zip(parts, tails, strict=True) if part).capitalize()


def _sections(study: Study, done: Done, cells: Sequence[Cell], figures: Sequence[Path]) -> list[str]:
    lines = [line for figure in figures for line in ("", f"![{figure.stem}]({figure.name})")]
    if all(metric.startswith(PARTITION) for metric in study.metrics):
        return [*lines, "", *_statistics(cells), ""]
    further = [name for name in ("best_client", "best_cluster") if any(cell.protocol == name for cell in cells)]
    columns = [
        "method", "paper", "final", "difference", "in the paper's spread", "best_val", "best_test (optimistic)",
        *(f"{name} (optimistic)" for name in further), "gain over Local",
        *([f"over {study.base}"] if study.base else []), "parameters", "of them shared", "MB up / down", "seeds",
    ]  # fmt: skip
    for metric, setting in dict.fromkeys((cell.metric, cell.setting) for cell in cells):
        title = setting if study.axis == "setting" else f"{study.axis}: {setting}"
        title += f", {in_words(metric)}" if len(study.metrics) > 1 else ""
        lines += ["", f"## {title}", "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
        here = {(c.method, c.protocol): c for c in cells if (c.metric, c.setting) == (metric, setting)}
        local = next((name for name in ("Local", "Local Only") if (setting, name) in done), None)
        for method in dict.fromkeys(cell.method for cell in here.values()):
            base = done.get((setting, study.base), ()) if method != study.base else ()
            results, final = done[setting, method], here.get((method, "final"))
            printed = next(cell for (name, _), cell in here.items() if name == method)
            over = () if local in (None, method) else done[setting, str(local)]
            digits = digits_of(metric, 2)
            row = [
                method,
                _mean_std(printed.paper_mean, printed.paper_std, digits),
                _spread(final),
                "-" if final is None else _signed(final.mean - final.paper_mean, digits),
                (final.verdict if final else "") or "-",
                *(_spread(here.get((method, name))) for name in ("best_val", "best_test", *further)),
                _signed(_mean(_gains(study, metric, results, over)), digits),
                *([_paired(_gains(study, metric, results, base), digits)] if study.base else []),
                *_parameters(results),
                _megabytes(results),
                str(printed.seeds),
            ]
            lines.append(f"| {' | '.join(row)} |")
    return [*lines, ""]


def _gains(study: Study, metric: str, mine: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]]) -> list[float]:
    """By how much the last round is better than another method's (errors: less), for every seed that both have."""
    ours, theirs = (
        {run["seed"]: value_of(run, "final", logged_name(metric), study.mean_key) for run in runs}
        for runs in (mine, other)
    )
    pairs = [(ours[seed], theirs[seed]) for seed in ours if seed in theirs]
    unit = -unit_of(metric) if lower_is_better(metric) else unit_of(metric)
    gains = [unit * (one - two) for one, two in pairs if one is not None and two is not None]
    return [gain for gain in gains if math.isfinite(gain)]


def _mean(gains: Sequence[float]) -> float:
    return statistics.fmean(gains) if gains else math.nan


def _paired(gains: Sequence[float], digits: int) -> str:
    """Mean difference, and of two seeds or more the 95 % confidence interval of Student's t and their number."""
    if len(gains) < 2:
        return _signed(_mean(gains), digits)
    mean, half = _mean(gains), float(stdtrit(len(gains) - 1, 0.975)) * statistics.stdev(gains) / math.sqrt(len(gains))
    return f"{_signed(mean, digits)} [{_signed(mean - half, digits)}, {_signed(mean + half, digits)}] ({len(gains)})"


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


def _signed(difference: float, digits: int) -> str:
    return "-" if math.isnan(difference) else f"{difference:+z.{digits}f}"


def _spread(cell: Cell | None) -> str:
    return "-" if cell is None else _mean_std(cell.mean, cell.std, digits_of(cell.metric, 2))


def _mean_std(mean: float, std: float, digits: int) -> str:
    return "-" if math.isnan(mean) else f"{mean:.{digits}f}" + ("" if math.isnan(std) else f" ± {std:.{digits}f}")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.4f}"
    return value


def _provenance(study: Study, done: Done, runs: Path) -> Iterator[str]:
    """How a table was made: commands, versions, checksums of the data, seconds."""
    yield from ("## How it was made", "", "```", shlex.join(_study_command(study)), "```", "")
    (setting, method), results = next(iter(done.items()))
    example = shlex.join(["flgraph", *command(study, study.run(setting, method, results[0]["seed"]), runs)])
    yield from ("which runs, for each cell and seed, with one thread, for example", "", "```", example, "```", "")
    versions = [result["versions"] for several in done.values() for result in several]
    yield from ("Versions:", "")
    for package in dict.fromkeys(name for version in versions for name in version):
        yield f"- {package}: {', '.join(sorted({str(version.get(package, '-')) for version in versions}))}"
    yield from _data(done)
    yield ""
    seconds = {cell: statistics.fmean(r["seconds_per_round"] for r in results) for cell, results in done.items()}
    shown = ", ".join(f"{setting} {method} {value:.2f}" for (setting, method), value in seconds.items())
    yield f"Seconds a round (one thread a run; other runs may have shared the machine): {shown}."


def _study_command(study: Study) -> list[str]:
    seeds = ",".join(map(str, study.seeds))
    parts = ["flgraph", "reproduce", study.source or study.name, "--settings", ",".join(study.settings)]
    parts += ["--methods", ",".join(study.methods), "--seeds", seeds]
    # Only where they are not the study's own: the option is for all methods, and keeps checkpoints.
    return [*parts, "--rounds", str(study.rounds)] if study.cut_short else parts


def _data(done: Done) -> Iterator[str]:
    """Checksums of features, edges, labels and splits, as the clients held them."""
    known: dict[str, set[str]] = {}
    for results in done.values():
        for name, settings in (item for result in results for item in result.get("data", {}).items()):
            if "content" in settings:
                known.setdefault(name, set()).add(settings["content"])
    if not known:
        return
    if len(known) > MANY_CLIENTS:
        yield from ("", f"Data: {len(known)} clients; checksums are in each run's `results.json`.")
        return
    yield from ("", "Data (SHA-256 of features, edges, labels and splits, first 16 digits):", "")
    yield from (f"- {name}: {', '.join(sorted(digests))}" for name, digests in known.items())
