"""Processor seconds of a round of FedThin beside FedEgo's, on the clients of ``own/nodes``; see README.md."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import warnings

import torch
from timing import QUIET, Rounds

from flgraph import callbacks, models
from flgraph.data import NodeFederation
from flgraph.federation import FederatedTrainer
from flgraph.reproduce.fedego import published

CLIENTS = {"num_clients": 5, "local_fraction": 0.5, "num_test": 200, "partition_seed": 1027}


def measure(name: str, dataset: str, rounds: int) -> float:
    """Median processor seconds of a round after the first two."""
    hook = Rounds()
    data: NodeFederation
    if name == "FedEgo":
        data = published.PublishedNodeFederation(dataset, **CLIENTS)
        method, model = published.PublishedFedEgo(), models.FedEgo(lr=3e-4)
    else:
        data = published.PublishedWholeGraphFederation(dataset, cross_edges=False, **CLIENTS)
        method = callbacks.FedThin() if name == "FedThin" else callbacks.FedAvg()
        model = models.NodeGCN(hidden_channels=64, lr=5e-4)
    with tempfile.TemporaryDirectory(prefix="flgraph-bench-") as folder:
        where = {"callbacks": [hook], **QUIET, "default_root_dir": folder}
        FederatedTrainer(method, rounds=rounds, local_epochs=5, **where).fit(model, data)
    return statistics.median(busy for _, busy in hook.seconds[2:])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8, help="the first two are not counted")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for dataset in ("Cora", "CiteSeer"):
        seconds = {name: measure(name, dataset, args.rounds) for name in ("FedEgo", "FedThin", "FedAvg")}
        print(dataset, *(f"{name} {busy:.3f}" for name, busy in seconds.items()), flush=True)
