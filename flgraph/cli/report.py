"""``flgraph report``: a page that compares runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flgraph.cli.parser import CommandParser
from flgraph.errors import InputError, expect
from flgraph.report.compare import compare
from flgraph.report.page import render
from flgraph.runs.files import write_text
from flgraph.runs.reader import find_runs


def main(args: Sequence[str]) -> None:
    """Writes the page.

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
    parser.add_argument("--out", type=str, default="report.html", help="the file to write")
    parser.add_argument("--metric", type=str, help="what to compare, for example f1 or loss; accuracy if there is any")
    given = parser.parse_args(list(args))
    out = Path(given.out)
    expect(not out.is_dir(), "--out", "a file", f"the folder {given.out}")
    runs, waiting = find_runs(given.runs)
    metric, comparisons = compare(runs, given.metric and given.metric.removeprefix("test/"))
    page = render(comparisons, metric, waiting)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text(page, out)
    except OSError as error:
        raise InputError("--out", "a file that can be written", error) from error
    methods = len({method.label for part in comparisons for method in part.methods})
    print(f"wrote {out}: {len(runs)} run{'s' * (len(runs) > 1)}, {methods} method{'s' * (methods > 1)}")
