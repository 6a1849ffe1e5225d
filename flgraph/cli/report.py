"""``flgraph report``: a page that compares runs, and the same as files for a paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from flgraph.cli.parser import CommandParser
from flgraph.errors import InputError, expect
from flgraph.report.compare import compare
from flgraph.report.files import FORMATS, to_latex, write_csv, write_figures
from flgraph.report.page import render
from flgraph.runs.files import write_text
from flgraph.runs.reader import find_runs


def main(args: Sequence[str]) -> None:
    """Writes the page, and whatever else is asked for.

    Raises:
        InputError: an argument cannot be used, or a run cannot be read.
    """
    parser = CommandParser(
        prog="flgraph report",
        description="Compares runs on one HTML page that needs no other file. Runs that differ only in their seed "
        "are one method; runs on different data have a section each.",
    )
    parser.add_argument(
        "runs", nargs="+", type=str, metavar="RUN", help="a run folder, or a folder with run folders somewhere below it"
    )
    option = parser.add_argument
    option("--out", type=str, default="report.html", help="the page to write")
    option("--figures", type=str, help="a folder for every chart as SVG, PDF and PNG")
    option("--csv", type=str, help="a folder for CSV of methods, clients and rounds, or a file *.csv of methods")
    option("--latex", type=str, help="a file for a table with booktabs")
    option("--metric", type=str, help="what to compare, for example f1 or loss; accuracy if there is any")
    given = parser.parse_args(list(args))
    for name in ("out", "latex"):
        place = getattr(given, name)
        expect(place is None or not Path(place).is_dir(), f"--{name}", "a file", f"the folder {place}")
    page = Path(given.out).suffix.lower() in (".html", ".htm")
    expect(page, "--out", "a page, *.html (for others see --csv, --latex and --figures),", given.out)
    runs, waiting = find_runs(given.runs)
    comparisons = compare(runs, given.metric and given.metric.removeprefix("test/"))
    wanted: list[tuple[str, str, Callable[[Path], list[Path]]]] = [
        ("out", "file", lambda file: _written(file, render(comparisons, waiting))),
        ("figures", "folder", lambda folder: write_figures(comparisons, folder)),
        ("csv", "folder or a file", lambda place: write_csv(comparisons, place)),
        ("latex", "file", lambda file: _written(file, to_latex(comparisons))),
    ]
    lines: list[str] = []
    for name, expected, write in wanted:
        if (place := getattr(given, name)) is None:
            continue
        try:
            files = write(Path(place))
        except OSError as error:
            got = f"{place} ({error.strerror or error})"
            raise InputError(f"--{name}", f"a {expected} that can be written", got) from error
        if name == "figures":
            lines.append(f"wrote {len(files) // len(FORMATS)} charts to {place}, as {', '.join(FORMATS)}")
        else:
            lines += [f"wrote {file}" for file in files]
    methods = len({method.label for part in comparisons for method in part.methods})
    lines[0] += f": {len(runs)} run{'s' * (len(runs) > 1)}, {methods} method{'s' * (methods > 1)}"
    print("\n".join(lines))


def _written(file: Path, text: str) -> list[Path]:
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(text, file)
    return [file]
