"""What each process of a launch does: many runs, one after another, so that torch is imported once."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import ddp
import methods

from flgraph.federation.engines.distributed import engine


def moved(costs: Mapping[str, float], owners: Mapping[str, int], processes: int) -> dict[str, int]:
    """Every client goes to the next process, whatever was measured."""
    return {name: (owner + 1) % processes for name, owner in owners.items()}


def work(root: Path, jobs: list[tuple[str, str, str | None]], where: str) -> None:
    """Jobs are method, folder, and the checkpoint to go on from; then clients span the processes of a launch."""
    engine.reassign = moved
    methods.skip_collections()
    for method, folder, ckpt_path in jobs:
        further = ("--trainer.engine", where, *methods.KEEP)
        methods.run(method, root / folder, methods.ROUNDS, *further, ckpt_path=ckpt_path)
    if "WORLD_SIZE" in os.environ:
        ddp.fit(str(root / "ddp-two"), int(os.environ["WORLD_SIZE"]))


if __name__ == "__main__":
    folder, given, where = sys.argv[1:]
    del sys.argv[1:]  # Lightning warns of arguments in two places
    work(Path(folder), json.loads(given), where)
