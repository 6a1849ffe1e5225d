"""An algorithm and a model of your own: FedAvg with server momentum, and a plain LightningModule.

The algorithm is "FedAvgM" of Hsu et al., "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification", 2019. Run it with::

    python examples/own_algorithm.py [FOLDER] [--rounds N]

On the command line, classes of yours go by their import path, from this folder as
``python -m flgraph fit --trainer.aggregator own_algorithm.ServerMomentum ...`` (``flgraph`` finds what is installed).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Batch
from torch_geometric.nn import GraphConv, global_add_pool

from flgraph.data import SyntheticFederation
from flgraph.federation import Aggregator, FederatedTrainer, Payload, Route, personal, shared
from flgraph.federation.aggregation import weighted_mean


class ServerMomentum(Aggregator):
    """v <- momentum v + (mean - w), w <- w + v; every client then starts from w.

    Args:
        momentum: 0 is FedAvg.
    """

    def __init__(self, momentum: float = 0.5) -> None:
        super().__init__()
        self.momentum = momentum

    def routes(self) -> list[Route]:
        # What no route names is refused, so nothing leaves a client by accident. The first match counts.
        return [*personal("embed.*"), *shared("*")]

    # Server half. The client half (install, train, upload what is shared) is inherited.
    def start(self, initial: Mapping[str, Tensor], clients: Sequence[str]) -> None:
        self._weights = dict(initial)
        self._velocity = {name: torch.zeros_like(weight) for name, weight in initial.items()}

    def download(self, client: str, round: int, exchange: str) -> Payload:
        return Payload(self._weights)

    def aggregate(self, uploads: Mapping[str, Payload], round: int, exchange: str) -> None:
        samples = {client: float(upload.scalars["num_samples"]) for client, upload in uploads.items()}
        for name, mean in weighted_mean(uploads, samples).items():
            self._velocity[name] = self.momentum * self._velocity[name] + mean - self._weights[name]
            self._weights[name] = self._weights[name] + self._velocity[name]

    # What a stopped run needs to go on.
    def server_state(self) -> Payload:
        velocity = {f"velocity/{name}": tensor for name, tensor in self._velocity.items()}
        return Payload({**self._weights, **velocity})

    def load_server_state(self, state: Payload) -> None:
        self._weights = {name: tensor for name, tensor in state.tensors.items() if not name.startswith("velocity/")}
        self._velocity = {name: state.tensors[f"velocity/{name}"] for name in self._weights}


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
