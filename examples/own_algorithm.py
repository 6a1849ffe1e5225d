"""An algorithm and a model of your own: FedAvg with server momentum, and a plain LightningModule.

The algorithm is "FedAvgM" of Hsu et al., "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification", 2019. Run it with::

    python examples/own_algorithm.py [FOLDER] [--rounds N]

On the command line, classes of yours go by their import path, from this folder as
``flgraph fit --trainer.aggregator own_algorithm.ServerMomentum ...``.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Batch
from torch_geometric.nn import GraphConv, global_add_pool

from flgraph.callbacks import FedAvg
from flgraph.data import SyntheticFederation
from flgraph.federation import FederatedTrainer, Route, personal, shared


class ServerMomentum(FedAvg):
    """v <- momentum v + (mean - w), w <- w + v; every client then starts from w.

    Args:
        momentum: 0 is FedAvg.
        kwargs: see FedAvg.
    """

    server_attributes = ("velocity",)  # what a stopped run needs to go on, beside the shared tensors

    def __init__(self, momentum: float = 0.5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.momentum = momentum
        self.velocity: dict[str, Tensor] = {}

    def routes(self) -> list[Route]:
        # What no route names is refused, so nothing leaves a client by accident. The first match counts.
        return [*personal("embed.*"), *shared("*")]

    # Server half. The client half (install, train, upload what is shared) is inherited.
    def take_mean(self, mean: Mapping[str, Tensor], round: int, exchange: str) -> Mapping[str, Tensor]:
        for name, value in mean.items():
            self.velocity[name] = self.momentum * self.velocity.get(name, 0) + value - self.shared[name]
        return {name: self.shared[name] + self.velocity[name] for name in mean}


class Classifier(pl.LightningModule):
    """Two graph convolutions; knows nothing of federations.

    Args:
        in_channels: number of features, given by each client's data.
        num_classes: number of classes, likewise.
    """

    def __init__(self, in_channels: int | None = None, num_classes: int | None = None) -> None:
        super().__init__()
        self.save_hyperparameters()
        if in_channels is None or num_classes is None:
            return  # a template: every client makes its own model, with the sizes of its data
        self.embed = torch.nn.Linear(in_channels, 32)
        self.convs = torch.nn.ModuleList([GraphConv(32, 32), GraphConv(32, 32)])
        self.readout = torch.nn.Linear(32, num_classes)

    def forward(self, batch: Batch) -> Tensor:
        h = self.embed(batch.x)
        for conv in self.convs:
            h = conv(h, batch.edge_index).relu()
        return self.readout(global_add_pool(h, batch.batch))

    def training_step(self, batch: Batch) -> Tensor:
        return F.cross_entropy(self(batch), batch.y)

    def validation_step(self, batch: Batch) -> None:
        self.log("val/accuracy", (self(batch).argmax(dim=1) == batch.y).float().mean(), batch_size=batch.num_graphs)

    def test_step(self, batch: Batch) -> None:
        self.log("test/accuracy", (self(batch).argmax(dim=1) == batch.y).float().mean(), batch_size=batch.num_graphs)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", default="runs")
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()

    datamodule = SyntheticFederation(domains=["trees", "rings", "hubs"], batch_size=32)
    trainer = FederatedTrainer(
        ServerMomentum(momentum=0.5), rounds=args.rounds, default_root_dir=args.folder, accelerator="cpu"
    )
    trainer.fit(Classifier(), datamodule)
