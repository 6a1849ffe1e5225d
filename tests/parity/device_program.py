"""Runs methods on the CPU and on a stand-in for a GPU, which is there for the rest of the process."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import methods
import stand_in
import torch

ROUNDS = 2


def work(root: Path, names: list[str]) -> None:
    """Writes ``operators.json``: how many ran on the device for each method; ``mixed``: what a mixture was told."""
    operators = {}
    methods.skip_collections()
    for name in names:
        # A GPU draws other numbers for dropout; a bias before a normalisation has no gradient but what rounding leaves.
        plain = {"dropout": "0", "norm": "none"}
        further = ["--trainer.local_epochs", "1"]
        further += [f"--model.{key}={value}" for key, value in plain.items() if methods.takes(name, key)]
        methods.run(name, root / "cpu", ROUNDS, *further)
        server = ["--trainer.aggregator.server_accelerator", stand_in.NAME] if name == "fedego" else []
        elsewhere = ["--trainer.accelerator", stand_in.NAME, *server, *further]
        before = stand_in.Counted.operators
        with stand_in.stand_in():
            methods.run(name, root / "device", 1, *elsewhere)
            methods.run(name, root / "device", ROUNDS, *elsewhere, ckpt_path="last")
        operators[name] = stand_in.Counted.operators - before
    (root / "operators.json").write_text(json.dumps(operators))
    with stand_in.stand_in():
        there = torch.ones(2).to(stand_in.DEVICE)
        try:
            there + torch.ones(2)
        except RuntimeError as error:
            (root / "mixed.txt").write_text(str(error))


if __name__ == "__main__":
    folder, given = sys.argv[1:]
    del sys.argv[1:]  # Lightning warns of arguments in two places
    work(Path(folder), json.loads(given))
