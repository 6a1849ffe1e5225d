"""A step of FedStar where other processes want the processors, too: what threads do that wait for work.

Every setting runs in a process of its own, several times in turn, alone and beside a process that never rests. See
README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

from flgraph.cli.main import SPINS

SETTINGS: dict[str, dict[str, str]] = {
    "OpenMP's own": {},
    "flgraph's": {"GOMP_SPINCOUNT": SPINS},
    "passive": {"OMP_WAIT_POLICY": "passive"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
BUSY = "while True: pass"


def steps(count: int) -> tuple[float, float]:
    """Wall-clock and processor seconds of a training step on 128 random molecules, the mean of ``count``."""
    import torch
    from torch.nn import functional as F
    from torch_geometric.data import Batch, Data

    from flgraph.data import GraphFederation
    from flgraph.models import FedStar

    torch.manual_seed(0)
    graphs = []
    for number in range(160):
        n = 20
        edges = torch.randint(0, n, (2, 2 * n))
        both = torch.cat([edges, edges.flip(0)], 1)
        x = F.one_hot(torch.randint(0, 7, (n,)), 7).float()
        graphs.append(Data(x=x, edge_index=both.unique(dim=1), y=torch.tensor([number % 2])))
    federation = GraphFederation({"molecules": graphs}, 2)
    federation.setup()
    data = federation.client("molecules")
    model = FedStar(**data.model_args)
    optimizer = model.configure_optimizers()
    batch: Batch = next(iter(data.train_dataloader()))

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(batch), batch.y).backward()
        optimizer.step()

    for _ in range(3):
        step()
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(count):
        step()
    return (time.perf_counter() - wall) / count, (time.process_time() - cpu) / count


def measure(setting: dict[str, str], threads: int, count: int, busy: int) -> tuple[float, float]:
    """What :func:`steps` says in a new process, beside ``busy`` others."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("OMP_", "GOMP_"))}
    others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(busy)]
    try:
        found = subprocess.run(
            [sys.executable, __file__, "--steps", str(count)],
            env={**kept, "OMP_NUM_THREADS": str(threads), **setting},
            capture_output=True,
            text=True,
            check=True,
        )
    finally:
        for other in others:
            other.kill()
            other.wait()
    wall, cpu = json.loads(found.stdout.splitlines()[-1])
    return wall, cpu


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--count", type=int, default=50, help="steps of each measurement")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of torch")
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1], help="processes beside")
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.steps:
        print(json.dumps(steps(options.steps)))
        return 0
    load = os.getloadavg()[0]
    print(
        f"{options.threads} threads, {os.cpu_count()} cores, load {load:.1f} at the start; ms a step, median and least"
    )
    for busy in options.busy:
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in SETTINGS}
        for _ in range(options.repeats):
            for name, setting in SETTINGS.items():
                found[name].append(measure(setting, options.threads, options.count, busy))
        for name, values in found.items():
            wall, cpu = zip(*values, strict=True)
            times = f"{1e3 * statistics.median(wall):8.1f} {1e3 * min(wall):8.1f}"
            print(f"{busy} busy beside, {name:14} {times}; processors {1e3 * statistics.median(cpu):8.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
