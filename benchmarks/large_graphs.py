"""A graph of ogbn-arxiv's sizes among ten clients: seconds a round and memory, full-batch and sampled.

See README.md beside this file.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from timing import QUIET, Rounds
from torch_geometric.data import Data

from flgraph import models
from flgraph.callbacks import FedAvg
from flgraph.data import NodeGraph, WholeGraphFederation
from flgraph.federation import FederatedTrainer

NODES, EDGES, FEATURES, CLASSES, CLIENTS = 169_343, 1_166_243, 128, 40, 10
MODELS = ("NodeGCN", "NodeSAGE", "NodeGNN")


def generated() -> NodeGraph:
    """Random edges, nine of ten within one of ten parts, some nodes with many; features and classes at random."""
    rng = np.random.default_rng(0)
    part = np.arange(NODES) * CLIENTS // NODES
    first, size = np.searchsorted(part, np.arange(CLIENTS)), np.bincount(part)
    source = rng.integers(NODES, size=EDGES)
    within = first[part[source]] + (rng.random(EDGES) ** 3 * size[part[source]]).astype(np.int64)
    target = np.where(rng.random(EDGES) < 0.9, within, rng.integers(NODES, size=EDGES))
    x = torch.from_numpy(rng.standard_normal((NODES, FEATURES), dtype=np.float32))
    y = torch.from_numpy(rng.integers(CLASSES, size=NODES))
    edge_index = torch.from_numpy(np.stack([source, target]))
    data = Data(x=x, edge_index=edge_index, y=y, part=torch.from_numpy(part))
    return NodeGraph.from_pyg(data, "arxiv-sized", CLASSES, key="part")


def measure(model: str, sampled: bool, hidden: int, rounds: int) -> None:
    """Prints a row: medians of a round without the first, and the process's peak memory."""
    graph = generated()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    data = WholeGraphFederation(
        graph,
        partition_key="part",
        global_fraction=0.0,
        cross_edges=False,
        epoch_fraction=1.0,
        sampled=sampled,
        batch_size=1024,
        fanouts=(10, 10),
    )
    times = Rounds()
    with tempfile.TemporaryDirectory() as folder:
        trainer = FederatedTrainer(
            FedAvg(),
            rounds=rounds + 1,
            callbacks=[times],
            default_root_dir=folder,
            **QUIET,
        )
        trainer.fit(getattr(models, model)(hidden_channels=hidden, lr=0.01), data)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall, cpu = (statistics.median(column) for column in zip(*times.seconds[1:], strict=True))
    how = "sampled" if sampled else "full-batch"
    print(f"{model:<10}{how:<12}{cpu:>10.2f}{wall:>10.2f}{peak / 2**20:>10.2f}{before / 2**20:>10.2f}", flush=True)


def main() -> None:
    """Every variant in a process of its own, so that peaks of memory are its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs=2, metavar=("MODEL", "HOW"), help="one variant, in this process")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.only:
        measure(given.only[0], given.only[1] == "sampled", given.hidden, given.rounds)
        return
    what = f"{NODES:,} nodes, {EDGES:,} edges, {FEATURES} features, {CLASSES} classes, {CLIENTS} clients"
    lines = [
        f"{what}; FedAvg, one local epoch on",
        f"60 % of the nodes, evaluation on these and the others; two layers, {given.hidden} hidden columns; sampled:",
        f"batches of 1,024 nodes, 10 neighbours in each of two hops. Medians of {given.rounds} rounds after the first.",
        "",
        f"{'model':<10}{'training':<12}{'CPU s':>10}{'wall s':>10}{'peak GiB':>10}{'of data':>10}",
    ]
    versions = f"torch {torch.__version__}, {torch.get_num_threads()} thread(s)"
    size = ["--hidden", str(given.hidden), "--rounds", str(given.rounds)]
    for model in MODELS:
        for how in ("full-batch", "sampled"):
            call = [sys.executable, __file__, "--only", model, how, *size]
            row = subprocess.run(call, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
            print(row, flush=True)
            lines.append(row)
            if given.out:  # what is there is worth keeping where a later variant fails
                given.out.write_text("\n".join([*lines, "", versions]) + "\n")


if __name__ == "__main__":
    main()
