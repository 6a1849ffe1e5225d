"""Runs methods on the CPU and on another device: a GPU, or a stand-in, which is there for the rest of the process."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import methods
import torch

ROUNDS = 2


def work(root: Path, device: str, names: list[str], resumed: list[str]) -> None:
    """Writes ``used.json``: what each method had of the device, operators that ran on the stand-in or bytes on a GPU.

    Also ``mixed.txt``: what the stand-in says of a mixture.
    """
    gpu = device == "cuda"
    there: Any = _Gpu if gpu else import_module("stand_in")  # the stand-in: before anything has a gradient
    taken = {}
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
        before = there.used()
        with there.stand_in():
            if name in resumed:
                methods.run(name, root / "device", 1, *elsewhere)
            methods.run(name, root / "device", ROUNDS, *elsewhere, ckpt_path="last" if name in resumed else None)
        taken[name] = there.used() - before
    (root / "used.json").write_text(json.dumps(taken))
    if not gpu:
        with there.stand_in():
            on_device = torch.ones(2).to(there.DEVICE)
            try:
                on_device + torch.ones(2)
            except RuntimeError as error:
                (root / "mixed.txt").write_text(str(error))


class _Gpu:
    """Needs no preparation."""

    stand_in = nullcontext

    @staticmethod
    def used() -> int:
        return int(torch.cuda.memory_stats().get("allocated_bytes.all.allocated", 0))


if __name__ == "__main__":
    folder, device, given, resumed = sys.argv[1:]
    del sys.argv[1:]  # Lightning warns of arguments in two places
    work(Path(folder), device, json.loads(given), json.loads(resumed))
