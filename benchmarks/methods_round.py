"""Processor seconds of a round of every method for any model, against FedAvg's, on ten Louvain clients of Cora.

See README.md beside this file for what each figure means.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence

import pytorch_lightning as pl
import torch
from timing import QUIET, Rounds

from flgraph import callbacks
from flgraph.data import WholeGraphFederation
from flgraph.federation import Aggregator, FederatedTrainer
from flgraph.models import FGGP, AdaFGL, MaskedGCN, NodeGCN

HEAD = ["convs.1.*"]
METHODS: dict[str, Callable[[], Aggregator]] = {
    "Local": callbacks.Local,
    "FedAvg": callbacks.FedAvg,
    "FedProx": callbacks.FedProx,
    "SCAFFOLD": callbacks.SCAFFOLD,
    "FedOpt": callbacks.FedOpt,
    "FedNova": callbacks.FedNova,
    "FedRep": lambda: callbacks.FedRep(HEAD),
    "Ditto": callbacks.Ditto,
    "APFL": callbacks.APFL,
    "MOON": callbacks.MOON,
    "FedProto": callbacks.FedProto,
    "FedGTA": callbacks.FedGTA,
    "FED-PUB": callbacks.FedPUB,
    "FedTAD": callbacks.FedTAD,
    "FedThin": callbacks.FedThin,
    "FGGP": callbacks.FGGP,
    "AdaFGL": callbacks.AdaFGL,
    "AdaFGL, alone": lambda: callbacks.AdaFGL(federated_rounds=1),
}
MODELS: dict[str, type[pl.LightningModule]] = {
    "FED-PUB": MaskedGCN,
    "FGGP": FGGP,
    "AdaFGL": AdaFGL,
    "AdaFGL, alone": AdaFGL,
}
"""Those that take another one than a GCN of two layers."""


def measure(name: str, data: pl.LightningDataModule, rounds: int) -> tuple[float, float]:
    """Median processor seconds of a round after the first two, and megabytes a round that all clients sent."""
    hook = Rounds()
    with tempfile.TemporaryDirectory(prefix="flgraph-bench-") as folder:
        trainer = FederatedTrainer(
            METHODS[name](),
            rounds=rounds,
            local_epochs=3,
            callbacks=[hook],
            **QUIET,
            default_root_dir=folder,
        )
        model = MODELS.get(name, NodeGCN)(hidden_channels=64, lr=0.01, weight_decay=5e-4)
        results = trainer.fit(model, data)  # type: ignore[arg-type]
    return statistics.median(busy for _, busy in hook.seconds[2:]), results["bytes_per_round"]["up"] / 1e6


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=22, help="of each run; the first two are not counted")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each method, by turns; the least median counts")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    args = parser.parse_args(arguments)
    torch.set_num_threads(args.threads)
    warnings.simplefilter("ignore")
    data = WholeGraphFederation("Cora", num_clients=10, partition="louvain", epoch_fraction=1.0)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in args.methods}
    for _ in range(args.repeats):
        for name, runs in found.items():
            runs.append(measure(name, data, args.rounds))
    best = {name: min(seconds for seconds, _ in runs) for name, runs in found.items()}
    print(f"torch {torch.__version__}, {args.threads} thread(s), {args.rounds - 2} rounds, {args.repeats} runs each")
    print(f"{'method':13} {'s a round':>10} {'of FedAvg':>10} {'MB up':>8}")
    for name, seconds in best.items():
        share = seconds / best["FedAvg"] if "FedAvg" in best else float("nan")
        print(f"{name:13} {seconds:10.3f} {share:10.2f} {found[name][0][1]:8.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])
