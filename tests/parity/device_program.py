"""Runs methods on the CPU and on another device: a GPU, or a stand-in, which is there for the rest of the process."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path

import methods
import torch

ROUNDS = 2
RESUMED = ("fedstar", "fedego", "fedsageplus", "graphfl", "fclg", "scaffold", "apfl", "fedtad", "adafgl")
"""Methods that a stand-in begins and resumes: one of each kind of state. A GPU does with all."""


def work(root: Path, device: str, names: list[str]) -> None:
    """Writes ``used.json``: what each method had of the device, operators that ran on the stand-in or bytes on a GPU.

    Also ``mixed.txt``: what the stand-in says of a mixture.
    """
    gpu, used = device == "cuda", {}
    stand_in = None if gpu else import_module("stand_in")  # before anything has a gradient
    methods.skip_collections()
    for name in names:
        # A GPU draws other numbers for dropout; a bias before a normalisation has no gradient but what rounding leaves.
        plain = {"dropout": "0", "norm": "none"}
        further = ["--trainer.local_epochs", "1"]
        if gpu:  # in float32, kernels that add in another order part ways within two rounds
            further += ["--trainer.precision", "64-true"]
        further += [f"--model.{key}={value}" for key, value in plain.items() if methods.takes(name, key)]
        methods.run(name, root / "cpu", ROUNDS, *further)
        server = ["--trainer.aggregator.server_accelerator", device] if name == "fedego" else []
        elsewhere = ["--trainer.accelerator", device, *server, *further]
        before = stand_in.Counted.operators if stand_in else _allocated()
        with stand_in.stand_in() if stand_in else nullcontext():
            cut = gpu or name in RESUMED
            if cut:
                methods.run(name, root / "device", 1, *elsewhere)
            methods.run(name, root / "device", ROUNDS, *elsewhere, ckpt_path="last" if cut else None)
        used[name] = (stand_in.Counted.operators if stand_in else _allocated()) - before
    (root / "used.json").write_text(json.dumps(used))
    if stand_in:
        with stand_in.stand_in():
            there = torch.ones(2).to(stand_in.DEVICE)
            try:
                there + torch.ones(2)
            except RuntimeError as error:
                (root / "mixed.txt").write_text(str(error))


def _allocated() -> int:
    """Bytes on the GPU, all that were freed included."""
    return int(torch.cuda.memory_stats().get("allocated_bytes.all.allocated", 0))


if __name__ == "__main__":
    folder, device, given = sys.argv[1:]
    del sys.argv[1:]  # Lightning warns of arguments in two places
    work(Path(folder), device, json.loads(given))
