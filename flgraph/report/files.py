"""A comparison as files for a paper: charts, CSV, and a LaTeX table."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flgraph.report.charts import save_figure
from flgraph.report.compare import Comparison, Method
from flgraph.report.panels import PRINT, Panels, styles_of
from flgraph.report.tables import Cell, client_rows, cost_columns, result_columns
from flgraph.runs.files import write_text

FORMATS = ("svg", "pdf", "png")

Row = dict[str, Any]

_LATEX = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "–": "--",
    "−": "$-$",
    "±": r"$\pm$",
    "…": r"\dots{}",
}


def write_figures(comparisons: Sequence[Comparison], folder: Path) -> list[Path]:
    """Writes every chart as SVG, PDF and PNG, a column or the width of a page large, with a legend.

    Returns:
        The files, named by data and chart.
    """
    files, styles = list[Path](), styles_of(comparisons)
    folder.mkdir(parents=True, exist_ok=True)
    for part in comparisons:
        for panel in Panels(part, styles).all():
            stem = _stem(part.title, panel.name)
            while folder / f"{stem}.svg" in files:
                stem += "-"
            figure = panel.draw(PRINT)
            for kind in FORMATS:
                files.append(folder / f"{stem}.{kind}")
                save_figure(figure, files[-1])
    return files


def write_csv(comparisons: Sequence[Comparison], place: Path) -> list[Path]:
    """Writes ``methods.csv``, ``clients.csv`` and ``rounds.csv`` into a folder, or the first as the file ``*.csv``.

    Methods and clients have means and standard deviations over seeds, as the page shows them; rounds have a line per
    run and round, with every metric as the run logged it.
    """
    if place.suffix == ".csv":
        tables = {place: method_rows(comparisons)}
    else:
        rows = {"methods": method_rows, "clients": _client_rows, "rounds": _round_rows}
        tables = {place / f"{name}.csv": make(comparisons) for name, make in rows.items()}
    for file, table in tables.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(to_csv(list(table)), file)
    return list(tables)


def to_csv(rows: Sequence[Row]) -> str:
    """Rows as text; what a row lacks, or is not a number, stays empty.

    Names that spreadsheets would take for formulas, as sites may have sent them, begin with an apostrophe.
    """
    stream = io.StringIO(newline="")
    names = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(map(_harmless, names))
    for row in rows:
        writer.writerow(_harmless(row.get(name, "")) for name in names)
    return stream.getvalue()


def _harmless(one: Any) -> Any:
    if isinstance(one, float) and math.isnan(one):
        return ""
    formula = isinstance(one, str) and one.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{one}" if formula else one


def method_rows(comparisons: Sequence[Comparison]) -> Iterator[Row]:
    """A row per data and method: the summary, with means and deviations as numbers."""
    for part in comparisons:
        columns = [*result_columns(part), *cost_columns(part)]
        for number, method in enumerate(part.methods):
            row = {**_head(part, method), "finished": method.finished, "runs": len(method.runs)}
            row |= {"seeds": " ".join(str(run.seed) for run in method.runs), "rounds": method.rounds}
            for column in columns:
                row |= dict(zip((column.key, f"{column.key}_std"), column.values[number], strict=True))
            yield row


def _client_rows(comparisons: Sequence[Comparison]) -> Iterator[Row]:
    for part in comparisons:
        for client, values, _ in client_rows(part, part.methods)[:-1]:  # the last is the mean
            for method, (mean, std) in zip(part.methods, values, strict=True):
                yield {**_head(part, method), "client": client, "final": mean, "final_std": std}


def _round_rows(comparisons: Sequence[Comparison]) -> Iterator[Row]:
    for part in comparisons:
        for method in part.methods:
            for run in method.all:
                for one in run.rounds:
                    row: Row = {"data": part.title, "method": method.label, "seed": run.seed, "round": one.number}
                    row |= {"seconds": one.seconds, "bytes_up": one.up, "bytes_down": one.down}
                    yield {**row, "dropped": " ".join(one.dropped), **one.mean, "folder": str(run.folder)}


def _head(part: Comparison, method: Method) -> Row:
    unit = part.metric.unit.strip(" ()")
    return {"data": part.title, "method": method.label, "metric": part.metric.test, "unit": unit}


# -------------------------------------------------------------------------------------------------------------- LaTeX
def to_latex(comparisons: Sequence[Comparison]) -> str:
    """A ``booktabs`` table: of one data set results and costs, of several the last round of each; the best is bold.

    Without methods that still go on, where others are finished. A star marks other seeds or rounds than most have.
    """
    if len(comparisons) == 1:
        (part,) = comparisons
        columns = [*result_columns(part), *cost_columns(part)]
        kept = [column for column in columns if column.key in ("final", "gain", "best_val", "seconds")]
        kept += [column for column in columns if column.key.startswith("bytes")]
        heads = [[column.head for column in kept]]
        whole = enumerate(part.methods)
        rows = {m.label: [column.cells[number] for column in kept] for number, m in whole if m in part.shown}
        said = f"{part.metric.words.capitalize()}{part.metric.unit} on {part.title}"
    else:
        labels = dict.fromkeys(method.label for part in comparisons for method in part.shown)
        heads = [[part.title for part in comparisons], [part.metric.words + part.metric.unit for part in comparisons]]
        cells = [_finals(part) for part in comparisons]
        rows = {label: [own.get(label, Cell("–", "", False)) for own in cells] for label in labels}
        said = "Metrics after the last round"
        if len(set(heads[1])) == 1:
            said = f"{heads.pop()[0].capitalize()} after the last round"
    several = any(cell.small for own in rows.values() for cell in own)
    spreads = ": mean ± standard deviation over seeds" if several else ""
    unlike = {method.label for part in comparisons for method in part.shown if part.unlike(method)}
    spreads += ". *: other seeds or rounds than most" if unlike else ""
    lines = [
        "% needs \\usepackage{booktabs}",
        "\\begin{table}",
        "\\centering",
        f"\\caption{{{latex_text(said + spreads)}.}}",
        f"\\begin{{tabular}}{{l{'r' * len(heads[0])}}}",
        "\\toprule",
        *(_row("" if number else "method", head) for number, head in enumerate(heads)),
        "\\midrule",
        *(
            _row(f"{label}{'*' if label in unlike else ''}", list(map(_latex_cell, own)), escape=False)
            for label, own in rows.items()
        ),
        "\\bottomrule",
        "\\end{tabular}",
        "\\end{table}",
    ]
    return "\n".join(lines) + "\n"


def latex_text(text: str) -> str:
    r"""Text as LaTeX sets it.

    >>> print(latex_text("mu_1 50 % $x$"))
    mu\_1 50 \% \$x\$
    """
    return "".join(_LATEX.get(letter, letter) for letter in text)


def _finals(part: Comparison) -> Mapping[str, Cell]:
    final = result_columns(part)[0]
    return {method.label: cell for method, cell in zip(part.methods, final.cells, strict=True) if method in part.shown}


def _row(head: str, cells: Sequence[str], escape: bool = True) -> str:
    texts = [latex_text(cell) for cell in cells] if escape else cells
    return " & ".join([latex_text(head), *texts]) + r" \\"


def _latex_cell(cell: Cell) -> str:
    text = latex_text(cell.text)
    return (f"\\textbf{{{text}}}" if cell.best else text) + latex_text(cell.small)


def _stem(*names: str) -> str:
    """Names as a file may be called."""
    return "-".join(re.sub(r"[^\w.+]+", "-", name).strip("-.").lower()[:60] for name in names)
