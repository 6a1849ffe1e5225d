"""From finished runs to the tables that stand beside a paper's."""

from __future__ import annotations

import csv
import io
import math
import shlex
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from scipy.special import stdtrit

from flgraph.reproduce.cells import Cell, Done, Earlier, table_files
from flgraph.reproduce.index import MANY_CLIENTS
from flgraph.reproduce.protocols import PROTOCOLS, value_of
from flgraph.reproduce.runner import command
from flgraph.reproduce.study import PARTITION, Study, digits_of, in_words, logged_name, unit_of
from flgraph.runs.files import write_text
from flgraph.runs.history import lower_is_better


def write_tables(
    study: Study,
    done: Done,
    cells: Sequence[Cell],
    out: Path,
    runs: Path,
    figures: Sequence[Path] = (),
    earlier: Earlier | None = None,
) -> list[Path]:
    """Writes ``TABLE.csv`` and ``TABLE.md`` into ``out/PAPER``.

    Args:
        study: what was run.
        done: the finished runs.
        cells: of them, and of the table that is there.
        out: where tables go.
        runs: where run folders are.
        figures: that the page shows.
        earlier: the table that is there, for what the page says of runs that are gone.
    """
    earlier, files = earlier or Earlier(), table_files(study, out)
    files[0].parent.mkdir(parents=True, exist_ok=True)
    stream = io.StringIO(newline="")
    writer = csv.DictWriter(stream, [column.name for column in fields(Cell)], lineterminator="\n")
    writer.writeheader()
    for cell in cells:
        writer.writerow({key: _rounded(value) for key, value in asdict(cell).items()})
    write_text(stream.getvalue(), files[0])
    lines = [*_head(study, cells), *_sections(study, done, cells, figures)]
    lines += _provenance(study, done, cells, runs, earlier)
    write_text("\n".join(lines) + "\n", files[1])
    return [*files]


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
        *([f"over {study.base}"] if study.base else []), "parameters", "of them shared",
        "MB up / down, whole run", "seeds",
    ]  # fmt: skip
    rows: dict[str, list[list[str]]] = {}
    for metric, setting in dict.fromkeys((cell.metric, cell.setting) for cell in cells):
        title = setting if study.axis == "setting" else f"{study.axis}: {setting}"
        title += f", {in_words(metric)}" if len(study.metrics) > 1 else ""
        here = {(c.method, c.protocol): c for c in cells if (c.metric, c.setting) == (metric, setting)}
        runs = {method: results for (where, method), results in done.items() if where == setting}
        local = next((name for name in ("Local", "Local Only") if (name, "final") in here), "")
        for method in dict.fromkeys(name for name, _ in here):
            first, final = next(cell for (name, _), cell in here.items() if name == method), here.get((method, "final"))
            digits, base = digits_of(metric, 2), here.get((study.base, "final"))
            row = [
                method,
                _mean_std(first.paper_mean, first.paper_std, digits),
                _spread(final),
                "-" if final is None else _signed(final.mean - final.paper_mean, digits),
                (final.verdict if final else "") or "-",
                *(_spread(here.get((method, name))) for name in ("best_val", "best_test", *further)),
                _signed(_mean(_gains(study, runs, final, here.get((local, "final")))), digits),
                *([_paired(_gains(study, runs, final, base), digits)] if study.base else []),
                _grouped(first.parameters),
                _grouped(first.shared),
                " / ".join(_grouped(sent) for sent in (first.up, first.down) if math.isfinite(sent)) or "-",
                str(first.seeds),
            ]
            rows.setdefault(title, []).append(row)
    several = [row for own in rows.values() for row in own]
    used = [at for at, name in enumerate(columns) if name == "final" or any(row[at] != "-" for row in several)]
    for title, own in rows.items():
        head, *body = [f"| {' | '.join(row[at] for at in used)} |" for row in (columns, *own)]
        lines += ["", f"## {title}", "", head, "|---" * len(used) + "|", *body]
    return [*lines, ""]


def _gains(
    study: Study, runs: Mapping[str, Sequence[dict[str, Any]]], mine: Cell | None, other: Cell | None
) -> list[float]:
    """By how much the last round is better than another method's (errors: less), for every seed that both have.

    Where a cell is not of the runs alone, it is the difference of the means, if they are of the same seeds.
    """
    if mine is None or other is None or mine.method == other.method:
        return []
    ours, theirs = runs.get(mine.method, ()), runs.get(other.method, ())
    sign = -1 if lower_is_better(mine.metric) else 1
    if (len(ours), len(theirs)) != (mine.seeds, other.seeds):
        return [sign * (mine.mean - other.mean)] if {*mine.which.split()} == {*other.which.split()} else []
    values = [
        {run["seed"]: value_of(run, "final", logged_name(mine.metric), study.mean_key) for run in several}
        for several in (ours, theirs)
    ]
    pairs = [(one, values[1].get(seed)) for seed, one in values[0].items()]
    gains = [sign * unit_of(mine.metric) * (one - two) for one, two in pairs if one is not None and two is not None]
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
            f"{here[name].mean:,.1f}"
            + ("" if math.isnan(here[name].paper_mean) else f" [{here[name].paper_mean:,.1f}]")
            if name in here
            else "-"
            for name in names
        ]
        lines.append(f"| {setting} | {' | '.join(row)} |")
    return lines


def _grouped(number: float) -> str:
    return "-" if math.isnan(number) else f"{number:,.0f}"


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


def _provenance(study: Study, done: Done, cells: Sequence[Cell], runs: Path, earlier: Earlier) -> Iterator[str]:
    """How a table was made: commands, versions, checksums of the data, seconds."""
    yield from ("## How it was made", "", "```", shlex.join(_study_command(study, cells)), "```", "")
    first = study.run(cells[0].setting, cells[0].method, int(cells[0].which.split()[0]))
    example = shlex.join(["flgraph", *command(study, first, runs)])
    yield from ("which runs, for each cell and seed, with one thread, for example", "", "```", example, "```", "")
    all_here = all(len(done.get((cell.setting, cell.method), ())) >= cell.seeds for cell in cells)
    versions = [result["versions"] for several in done.values() for result in several]
    found = {name: {str(version.get(name, "-")) for version in versions} for version in versions for name in version}
    yield from _listed("Versions:", found, {} if all_here else earlier.lists)
    yield from _data(done, {} if all_here else earlier.lists)
    yield ""
    seconds = {f"{cell.setting} {cell.method}": cell.seconds for cell in cells if math.isfinite(cell.seconds)}
    shown = ", ".join(f"{place} {value:.2f}" for place, value in seconds.items())
    yield f"Seconds a round (median of the runs, one thread each; others may have shared the machine): {shown}."


def _listed(heading: str, found: Mapping[str, set[str]], earlier: Mapping[tuple[str, str], str]) -> Iterator[str]:
    """A list of names and what was found of each, here and in the table that is there."""
    before = {name: {*text.split(", ")} for (where, name), text in earlier.items() if where == heading}
    names = {**before, **found}
    yield from (heading, "") if names else ()
    yield from (f"- {name}: {', '.join(sorted({*found.get(name, ()), *before.get(name, ())}))}" for name in names)


def _study_command(study: Study, cells: Sequence[Cell]) -> list[str]:
    seeds = sorted({int(seed) for cell in cells for seed in cell.which.split()})
    parts = ["flgraph", "reproduce", study.source or study.name]
    parts += ["--settings", ",".join(dict.fromkeys(cell.setting for cell in cells))]
    parts += ["--methods", ",".join(name for name in study.methods if any(cell.method == name for cell in cells))]
    parts += ["--seeds", ",".join(map(str, seeds))]
    # Only where they are not the study's own: the option is for all methods, and keeps checkpoints.
    return [*parts, "--rounds", str(study.rounds)] if study.cut_short else parts


def _data(done: Done, earlier: Mapping[tuple[str, str], str]) -> Iterator[str]:
    """Checksums of features, edges, labels and splits, as the clients held them."""
    known: dict[str, set[str]] = {}
    for results in done.values():
        for name, settings in (item for result in results for item in result.get("data", {}).items()):
            if "content" in settings:
                known.setdefault(name, set()).add(settings["content"])
    if len(known) > MANY_CLIENTS:
        yield from ("", f"Data: {len(known)} clients; checksums are in each run's `results.json`.")
        return
    lines = [*_listed("Data (SHA-256 of features, edges, labels and splits, first 16 digits):", known, earlier)]
    yield from ("", *lines) if lines else ()
