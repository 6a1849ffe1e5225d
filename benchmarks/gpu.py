"""Seconds of a round on a GPU and on the processors beside it, float32 and bf16-mixed. See README.md here."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

WORK = {
    "FedStar, CHEM": "-c configs/data/chem.yaml -c configs/method/fedstar.yaml",
    "FedStar, BIO-CHEM-SN": "-c configs/data/biochemsn.yaml -c configs/method/fedstar.yaml",
}
ENGINE = "--trainer.engine ProcessGroup --trainer.engine.processes 4"
CPU, GPU = "--trainer.accelerator cpu", "--trainer.accelerator cuda"
HALF = "--trainer.precision bf16-mixed"
VARIANTS = {
    "CPU, 1 process": f"{CPU} --trainer.engine Sequential",
    "GPU": GPU,
    "GPU, bf16-mixed": f"{GPU} {HALF}",
    "GPU, 4 processes": f"{GPU} {ENGINE}",
    "GPU, 4, bf16-mixed": f"{GPU} {HALF} {ENGINE}",
}


def seconds(work: str, variant: str, rounds: int) -> float:
    """The median of a round with evaluation, without the first; of processes of their own."""
    with tempfile.TemporaryDirectory() as folder:
        options = {"rounds": rounds, "enable_progress_bar": "false", "logger": "false", "default_root_dir": folder}
        given = [f"--trainer.{name}={value}" for name, value in options.items()]
        command = [sys.executable, "-m", "flgraph", "fit", *work.split(), *variant.split(), *given]
        threads = {"OMP_NUM_THREADS": "1"} if "Sequential" in variant else {}
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **threads}, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        history = next(Path(folder).rglob("history.jsonl")).read_text().splitlines()
    return statistics.median(json.loads(line)["seconds"] for line in history[1:])


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    print(f"GPU: {name}; {os.cpu_count()} processors; torch {torch.__version__}")
    print(f"wall seconds of a round with evaluation, without checkpoint; medians of {options.rounds - 1}")
    for work, given in WORK.items():
        for variant, further in VARIANTS.items():
            print(f"{work:21} {variant:19} {seconds(given, further, options.rounds):7.3f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
