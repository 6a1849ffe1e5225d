"""Rounds of FedStar on CHEM where another process wants the processors, too: what threads do that wait for work.

Every setting is a `flgraph fit` of its own, alone and beside a process that never rests. See README.md beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

SETTINGS: dict[str, dict[str, str]] = {
    "flgraph's": {},
    "100 spins": {"GOMP_SPINCOUNT": "100"},
    "10,000 spins": {"GOMP_SPINCOUNT": "10000"},
    "passive": {"OMP_WAIT_POLICY": "passive"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
RUN = (
    "fit",
    "-c",
    "configs/data/chem.yaml",
    "-c",
    "configs/method/fedstar.yaml",
    "--trainer.enable_progress_bar=false",
)
BUSY = "while True: pass"


def rounds(setting: dict[str, str], count: int, busy: int, limit: float) -> list[float]:
    """Wall-clock seconds of each round but the first, of a new process that is ended after ``limit`` seconds."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("OMP_", "GOMP_"))}
    others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(busy)]
    try:
        with tempfile.TemporaryDirectory() as folder:
            further = [f"--trainer.rounds={count + 1}", f"--trainer.default_root_dir={folder}"]
            call, quiet = [sys.executable, "-m", "flgraph", *RUN, *further], subprocess.DEVNULL
            with suppress(subprocess.TimeoutExpired):
                subprocess.run(call, env={**kept, **setting}, stdout=quiet, stderr=quiet, check=True, timeout=limit)
            history = next(Path(folder).rglob("history.jsonl")).read_text()
    finally:
        for other in others:
            other.kill()
            other.wait()
    return [json.loads(line)["seconds"] for line in history.splitlines()[1:] if line.endswith("}")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--count", type=int, default=8, help="rounds of each measurement")
    parser.add_argument("--limit", type=float, default=30, help="seconds that one may take")
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1], help="processes beside")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    options = parser.parse_args(arguments)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at {time.strftime('%H:%M')}; seconds of a round")
    for busy in options.busy:
        found: dict[str, list[float]] = {name: [] for name in options.settings}
        for _ in range(options.repeats):
            for name, values in found.items():
                values += rounds(SETTINGS[name], options.count, busy, options.limit)
        for name, values in found.items():
            least, middle = min(values), statistics.median(values)
            print(f"{busy} busy beside, {name:14} median {middle:6.2f} least {least:6.2f} of {len(values)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
