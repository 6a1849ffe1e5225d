"""A federation of your own PyG data sets, without the command line.

Any mapping of client name to graphs will do: PyG data sets, or lists of ``Data`` with ``x``, ``edge_index`` and ``y``.
Run it with::

    python examples/python_api.py [FOLDER] [--rounds N]

FOLDER (``runs``) is where the run goes.
"""

from __future__ import annotations

import argparse
import random

import torch
from torch_geometric.datasets import FakeDataset

from flgraph.callbacks import FedStar
from flgraph.data import GraphFederation
from flgraph.federation import FederatedTrainer
from flgraph.models import FedStar as FedStarModel


def datasets() -> dict[str, FakeDataset]:
    """Three clients whose graphs have different features and numbers of classes."""
    random.seed(0)
    torch.manual_seed(0)
    return {
        "north": FakeDataset(num_graphs=60, avg_num_nodes=20, avg_degree=3, num_channels=8, num_classes=2),
        "south": FakeDataset(num_graphs=90, avg_num_nodes=30, avg_degree=4, num_channels=16, num_classes=3),
        "west": FakeDataset(num_graphs=120, avg_num_nodes=25, avg_degree=5, num_channels=4, num_classes=2),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", default="runs")
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()

    datamodule = GraphFederation(datasets(), name="fake", batch_size=32)
    trainer = FederatedTrainer(FedStar(), rounds=args.rounds, default_root_dir=args.folder, accelerator="cpu")

    # The sizes that each client's data decides (features, classes) are left open; every client gets a model that fits.
    results = trainer.fit(FedStarModel(hidden_channels=32), datamodule)

    print(f"mean test accuracy {results['final']['mean']['test/accuracy']:.3f}")
    print(f"bytes per round: {results['bytes_per_round']['up']:.0f} up, {results['bytes_per_round']['down']:.0f} down")
    for client, batches in trainer.predict().items():
        print(f"{client}: {sum(len(batch) for batch in batches)} predictions")
