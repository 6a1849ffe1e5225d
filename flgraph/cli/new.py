"""``flgraph new``: a small project that runs, with tables to be replaced by one's own."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from flgraph.cli.parser import CommandParser
from flgraph.projects import TASKS, create


def main(args: Sequence[str]) -> None:
    """Writes the project.

    Raises:
        InputError: an argument cannot be used.
    """
    parser = CommandParser(
        prog="flgraph new",
        description="Writes a project of three partners: tables, a configuration, a script and a README.",
    )
    parser.add_argument("folder", type=str, metavar="FOLDER", help="where to; must not exist or be empty")
    parser.add_argument("--task", type=str, default="nodes", help=f"one of {', '.join(TASKS)}")
    given = parser.parse_args(list(args))
    folder = Path(given.folder)
    create(folder, given.task)
    begin = f"cd {shlex.quote(given.folder)} && flgraph fit -c federation.yaml"
    print(f"wrote {folder}; read {folder / 'README.md'}, or begin with\n  {begin}")
