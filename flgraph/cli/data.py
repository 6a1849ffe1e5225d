"""``flgraph data check``: what is in own files, before anything trains."""

from __future__ import annotations

from collections.abc import Sequence

from flgraph.cli.parser import CommandParser
from flgraph.errors import expect


def main(args: Sequence[str]) -> None:
    """Prints what was read, in numbers, and what will be left out.

    Raises:
        InputError: an argument or a file cannot be used, or files do not go together.
    """
    parser = CommandParser(
        prog="flgraph data check",
        description="Says what is in folders or files of graphs, one for each partner: nodes, edges, features, "
        "classes, what is missing and what will be left out. It prints counts and names of columns, never a row.",
    )
    parser.add_argument("paths", nargs="+", type=str, metavar="PATH", help="a folder with tables, or a file")
    parser.add_argument("--task", type=str, help="nodes, graphs or hetero; told from the files if not given")
    given = list(args)
    if not given or given[0] in ("-h", "--help"):
        parser.print_help()
        return
    expect(given[0] == "check", "data", "followed by check", given[0])
    found = parser.parse_args(given[1:])
    tasks = (None, "nodes", "graphs", "hetero")
    expect(found.task in tasks, "--task", "nodes, graphs or hetero", found.task)

    from flgraph.data.check import check_files  # with torch, which loads slowly

    for line in check_files(found.paths, found.task):
        print(line)
