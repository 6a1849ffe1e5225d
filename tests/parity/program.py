"""What each process of a launch does: many runs, one after another, so that torch is imported once."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import methods


def work(root: Path, jobs: list[list[str | int]]) -> None:
    """Jobs are method, folder, number of rounds, and further arguments."""
    for method, folder, rounds, *further in jobs:
        methods.run(
            str(method), root / str(folder), int(rounds), "--trainer.engine", "ProcessGroup", *map(str, further)
        )


if __name__ == "__main__":
    work(Path(sys.argv[1]), json.loads(sys.argv[2]))
