"""Processor seconds of a round of every method, against FedAvg's on the same data.

See README.md beside this file for what each figure means.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from timing import QUIET, Rounds

from flgraph import callbacks, data, models
from flgraph.federation import Aggregator, FederatedTrainer

Make = Callable[[], Any]


@dataclass(frozen=True)
class Group:
    """Methods that can be compared with FedAvg on one set of data.

    Args:
        about: what the data is.
        data: makes it.
        model: makes the network of those that name none.
        local_epochs: of each round.
        methods: name to what makes the algorithm, and the network where it needs another one.
    """

    about: str
    data: Make
    model: Make
    local_epochs: int
    methods: dict[str, Callable[[], Aggregator] | tuple[Callable[[], Aggregator], Make]]


_GIVEN: dict[str, Any] = {"hidden_channels": 64, "lr": 0.01, "weight_decay": 5e-4}

GROUPS = {
    "nodes": Group(
        "Cora, ten clients by Louvain, whole graphs; a GCN of 64 columns, 3 local epochs",
        lambda: data.WholeGraphFederation("Cora", num_clients=10, partition="louvain", epoch_fraction=1.0),
        partial(models.NodeGCN, **_GIVEN),
        3,
        {
            "Local": callbacks.Local,
            "FedAvg": callbacks.FedAvg,
            "FedProx": callbacks.FedProx,
            "SCAFFOLD": callbacks.SCAFFOLD,
            "FedOpt": callbacks.FedOpt,
            "FedNova": callbacks.FedNova,
            "FedRep": lambda: callbacks.FedRep(["convs.1.*"]),
            "Ditto": callbacks.Ditto,
            "APFL": callbacks.APFL,
            "MOON": callbacks.MOON,
            "FedProto": callbacks.FedProto,
            "FedGCN": callbacks.FedGCN,
            "FedGTA": callbacks.FedGTA,
            "FED-PUB": (callbacks.FedPUB, partial(models.MaskedGCN, **_GIVEN)),
            "FedTAD": callbacks.FedTAD,
            "FedThin": callbacks.FedThin,
            "FGGP": (callbacks.FGGP, partial(models.FGGP, **_GIVEN)),
            "AdaFGL": (callbacks.AdaFGL, partial(models.AdaFGL, **_GIVEN)),
            "AdaFGL, alone": (lambda: callbacks.AdaFGL(federated_rounds=1), partial(models.AdaFGL, **_GIVEN)),
            "FedAvg (SAGE)": (callbacks.FedAvg, partial(models.NodeSAGE, **_GIVEN)),
            "FedSage+": (lambda: callbacks.FedSagePlus(1, 1), partial(models.NeighGenSAGE, **_GIVEN)),
        },
    ),
    "egos": Group(
        "Cora, five clients by label skew, ego-graphs; FedEgo's network, 1 local epoch",
        lambda: data.NodeFederation("Cora", num_clients=5, num_test=300),
        partial(models.FedEgo, lr=0.01),
        1,
        {
            "FedAvg": callbacks.FedAvg,
            "FedProxAdaptive": callbacks.FedProxAdaptive,
            "D-FedGNN": callbacks.DFedGNN,
            "GraphFL": lambda: callbacks.GraphFL(num_nodes=100),
            "FedEgo": lambda: callbacks.FedEgo(server_accelerator="cpu"),
        },
    ),
    "graphs": Group(
        "MUTAG, BZR, COX2 and DHFR, a client each; a GIN of 3 layers of 64 columns, 1 local epoch",
        lambda: data.TUFederation(["MUTAG", "BZR", "COX2", "DHFR"]),
        models.GNN,
        1,
        {
            "FedAvg": callbacks.FedAvg,
            "FedAvg (norm)": (callbacks.FedAvg, partial(models.GNN, norm="batch")),
            "FedBN": (callbacks.FedAvg, partial(models.GNN, norm="batch")),
            "FedPer": callbacks.FedPer,
            "FedSage": (callbacks.FedSage, partial(models.GNN, conv="sage")),
            "GCFL": callbacks.GCFL,
            "GCFL+": callbacks.GCFLPlus,
            "FedStar": (callbacks.FedStar, models.FedStar),
            "FedSSP": (callbacks.FedSSP, models.FedSSP),
        },
    ),
    "types": Group(
        "AIFB, three clients by random edges; a relational GCN, 3 local epochs",
        lambda: data.HeteroFederation("AIFB", num_clients=3, partition="random_edges"),
        partial(models.RGCN, num_bases=0, lr=0.1),
        3,
        {
            "FedAvg": callbacks.SchemaFedAvg,
            "FedHGN": (callbacks.FedHGN, partial(models.RGCN, num_bases=20, lr=0.1)),
        },
    ),
    "clusters": Group(
        "PROTEINS without labels, six clients; FCLG's network, 1 local epoch",
        lambda: data.PartitionedGraphFederation("PROTEINS", num_clients=6, emd=0.5774, features="all"),
        models.FCLG,
        1,
        {
            "FedAvg": callbacks.FedAvg,
            "FCLG": callbacks.FCLG,
            "InfoGraph": (callbacks.FedAvg, models.InfoGraph),
            "MVGRL": (callbacks.FedAvg, models.MVGRL),
        },
    ),
}
"""By a word each."""

PERSONAL = {"FedBN": ["*norms*"]}
"""What stays at the clients, over the algorithm's routes."""


def measure(group: Group, name: str, federation: Any, rounds: int) -> tuple[float, float]:
    """Median processor seconds of a round after the first two, and megabytes a round that all clients sent."""
    hook, given = Rounds(), group.methods[name]
    aggregator, model = given if isinstance(given, tuple) else (given, group.model)
    with tempfile.TemporaryDirectory(prefix="flgraph-bench-") as folder:
        trainer = FederatedTrainer(
            aggregator(),
            rounds=rounds,
            local_epochs=group.local_epochs,
            personal=PERSONAL.get(name, []),
            callbacks=[hook],
            **QUIET,
            default_root_dir=folder,
        )
        results = trainer.fit(model(), federation)
    return statistics.median(busy for _, busy in hook.seconds[2:]), results["bytes_per_round"]["up"] / 1e6


def main(arguments: Sequence[str]) -> None:
    """Prints a table for every group."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12, help="of each run; the first two are not counted")
    parser.add_argument("--repeats", type=int, default=2, help="runs of each method, by turns; the least median counts")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--groups", nargs="*", default=list(GROUPS), choices=list(GROUPS))
    parser.add_argument("--methods", nargs="*", help="all if not given")
    args = parser.parse_args(arguments)
    torch.set_num_threads(args.threads)
    warnings.simplefilter("ignore")
    for group in (GROUPS[name] for name in args.groups):
        federation = group.data()
        found: dict[str, list[tuple[float, float]]] = {
            name: [] for name in group.methods if args.methods is None or name in args.methods
        }
        for _ in range(args.repeats):
            for name, runs in found.items():
                runs.append(measure(group, name, federation, args.rounds))
        best = {name: min(seconds for seconds, _ in runs) for name, runs in found.items()}
        print(f"{group.about}.\n")
        print(f"{'method':16} {'s a round':>10} {'of FedAvg':>10} {'MB up':>8}")
        for name, seconds in best.items():
            share = seconds / best["FedAvg"] if "FedAvg" in best else float("nan")
            print(f"{name:16} {seconds:10.3f} {share:10.2f} {found[name][0][1]:8.2f}")
        what = f"{args.threads} thread(s), {args.rounds - 2} rounds, {args.repeats} runs each"
        print(f"\ntorch {torch.__version__}, {what}\n", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
