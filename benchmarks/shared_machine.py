"""Rounds where another process wants the processors, too: threads that wait for work, one thread, several processes.

Every setting is a `flgraph fit` of its own, alone and beside a process that never rests. See README.md beside it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

ENGINE = "--trainer.engine"
GROUP = (ENGINE, "ProcessGroup", f"{ENGINE}.processes", "2")
SETTINGS: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "flgraph's": ({}, ()),
    "two threads": ({"OMP_NUM_THREADS": "2"}, ()),
    "100 spins": ({"OMP_NUM_THREADS": "2", "GOMP_SPINCOUNT": "100"}, ()),
    "10,000 spins": ({"OMP_NUM_THREADS": "2", "GOMP_SPINCOUNT": "10000"}, ()),
    "passive": ({"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"}, ()),
    "one thread": ({"OMP_NUM_THREADS": "1"}, ()),
    "two processes": ({"OMP_NUM_THREADS": "1"}, GROUP),
}
"""Variables and options of each."""

CHEM = ("configs/data/chem.yaml", "-c", "configs/method/fedstar.yaml")
LOUVAIN = ("WholeGraphFederation", "--data.num_clients", "10", "--data.partition", "louvain")
RUNS = {
    "chem": CHEM,
    "chem-28": (*CHEM, "--data.shards=4"),
    "cora": ("configs/data/cora.yaml", "-c", "configs/method/gcn_fedavg.yaml", "--data", *LOUVAIN),
    "quickstart": ("configs/quickstart.yaml",),
}
BUSY = "while True: pass"


def rounds(setting: str, run: str, count: int, busy: int, limit: float) -> tuple[list[float], float]:
    """Seconds of each round but the first two, and of what is around rounds, of a new process.

    It is ended after ``limit`` seconds; the second number is then none.
    """
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("OMP_", "GOMP_"))}
    variables, options = SETTINGS[setting]
    others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(busy)]
    began = time.perf_counter()
    around = math.nan
    try:
        with tempfile.TemporaryDirectory() as folder:
            own = [f"--trainer.rounds={count + 2}", f"--trainer.default_root_dir={folder}", *options]
            call = [
                sys.executable,
                "-m",
                "flgraph",
                "fit",
                "-c",
                *RUNS[run],
                "--trainer.enable_progress_bar=false",
                *own,
            ]
            quiet = subprocess.DEVNULL
            with suppress(subprocess.TimeoutExpired):
                subprocess.run(call, env={**kept, **variables}, stdout=quiet, stderr=quiet, check=True, timeout=limit)
                around = time.perf_counter() - began
            history = next(Path(folder).rglob("history.jsonl")).read_text()
    finally:
        for other in others:
            other.kill()
            other.wait()
    found = [json.loads(line)["seconds"] for line in history.splitlines() if line.endswith("}")]
    return found[2:], around - sum(found)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--count", type=int, default=8, help="rounds of each measurement")
    parser.add_argument("--limit", type=float, default=30, help="seconds that one may take")
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1], help="processes beside")
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=["chem"])
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    options = parser.parse_args(arguments)
    load = f"load {os.getloadavg()[0]:.1f} at {time.strftime('%H:%M')}"
    print(f"{os.cpu_count()} cores, {load}; seconds of a round, and around rounds")
    for run, busy in itertools.product(options.runs, options.busy):
        found: dict[str, list[float]] = {name: [] for name in options.settings}
        least: dict[str, float] = dict.fromkeys(found, math.inf)
        for _ in range(options.repeats):
            for name, values in found.items():
                own, around = rounds(name, run, options.count, busy, options.limit)
                values += own
                least[name] = min(least[name], around)
        for name, values in found.items():
            middle = f"median {statistics.median(values):6.3f} least {min(values):6.3f} of {len(values)}"
            print(f"{run:10} {busy} busy beside, {name:14} {middle}; around {least[name]:5.1f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
