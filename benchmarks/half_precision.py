"""Processor seconds of a round in float32 and in bf16-mixed, the two taking turns. See README.md beside this file."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence

WORK = {
    "FedStar, CHEM": "-c configs/data/chem.yaml -c configs/method/fedstar.yaml",
    "FedEgo, Cora": "-c configs/data/cora.yaml -c configs/method/fedego.yaml",
    "FCLG, PROTEINS": "-c configs/data/proteins.yaml -c configs/method/fclg.yaml",
}
PRECISIONS = ("32-true", "bf16-mixed")

RUN = """
import sys, time
from flgraph.cli.fit import FederatedCLI
from flgraph.cli.main import keep_memory
from flgraph.federation import FederatedCallback
import torch

class Watch(FederatedCallback):
    def on_round_start(self, trainer): self.began = time.process_time()
    def on_round_end(self, trainer): print("seconds", trainer.current_round, time.process_time() - self.began)

torch.set_num_threads(1)
keep_memory()
arguments, sys.argv = sys.argv[1:], sys.argv[:1]
cli = FederatedCLI(arguments, run=False)
cli.trainer.round_callbacks.append(Watch())
cli.trainer.fit(cli.model, cli.datamodule)
"""


def seconds(work: str, precision: str, rounds: int) -> list[float]:
    """Processor seconds of every round but the first, of a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        options = {
            "rounds": rounds,
            "precision": precision,
            "accelerator": "cpu",
            "enable_progress_bar": "false",
            "enable_checkpointing": "false",
            "logger": "false",
            "default_root_dir": folder,
        }
        given = [f"--trainer.{name}={value}" for name, value in options.items()]
        command = [sys.executable, "-c", RUN, *work.split(), *given]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("seconds")]
    return [float(value) for _, number, value in lines if int(number) > 1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args(arguments)
    print(f"processor seconds of a round with evaluation, one thread; medians of {options.repeats} processes", end="")
    print(f" of {options.rounds} rounds each, the first left out")
    for name, work in WORK.items():
        found: dict[str, list[float]] = {precision: [] for precision in PRECISIONS}
        for _ in range(options.repeats):
            for precision in PRECISIONS:
                found[precision] += seconds(work, precision, options.rounds)
        single, half = (statistics.median(values) for values in found.values())
        print(f"{name:16} 32-true {single:6.2f}   bf16-mixed {half:6.2f}   {half / single:.2f} times", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
