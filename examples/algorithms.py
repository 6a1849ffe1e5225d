"""Algorithms that users of federated learning ask for, each as short as its paper's box.

Run one on a small synthetic federation with::

    python examples/algorithms.py SCAFFOLD|FedOpt|Ditto|TrimmedMean [FOLDER] [--rounds N]

or name it on the command line, from this folder::

    python -m flgraph fit -c configs/quickstart.yaml --trainer.aggregator algorithms.SCAFFOLD

FedBN (Li et al., ICLR 2021) needs no class: ``-c examples/fedbn.yaml`` is one line over any method.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import pytorch_lightning as pl
import torch
from torch import Tensor

from flgraph.callbacks import FedAvg
from flgraph.data import SyntheticFederation
from flgraph.federation import Aggregator, Client, FederatedTrainer, Payload, TrimmedMean
from flgraph.federation.received import expect_group
from flgraph.models import GNN


class SCAFFOLD(FedAvg):
    """Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020 (option II).

    A client corrects every gradient by the difference of the server's control variate c and its own c_i. Goes with
    plain SGD.
    """

    extra_tensors: ClassVar[Mapping[str, Any]] = {"control/*": "update"}
    server_attributes = ("_control", "_number")
    client_attributes = ("_own",)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._control: dict[str, Tensor] = {}  # c, of the server
        self._number = 0  # of clients
        self._own: dict[str, Tensor] = {}  # c_i, of a client
        self._correction: dict[str, Tensor] = {}
        self._steps, self._lr = 0, 0.0

    # Server half.
    def start(self, initial: Mapping[str, Tensor], clients: Sequence[str]) -> None:
        super().start(initial, clients)
        self._control, self._number = {name: torch.zeros_like(t) for name, t in initial.items()}, len(clients)

    def download(self, client: str, round: int, exchange: str | None) -> Payload:
        control = {name: self._control[name] for name in self.owners[client]}
        return Payload({name: self.shared[name] for name in self.owners[client]} | {"control": control})

    def check_upload(self, client: str, upload: Payload, round: int, exchange: str) -> None:
        self.check_shared(client, upload)
        known = {name: self._control[name].shape for name in upload.group("control") if name in self.owners[client]}
        expect_group(upload.group("control"), known, f"upload` of client `{client}")

    def aggregate(self, uploads: Mapping[str, Payload], round: int, exchange: str) -> Mapping[str, Tensor]:
        for client in sorted(uploads):
            for name, change in uploads[client].group("control").items():
                self._control[name] = self._control[name] + change / self._number
        return super().aggregate(uploads, round, exchange)

    # Client half.
    def local_update(self, client: Client, round: int, exchange: str) -> None:
        control = client.last_download.group("control")
        shapes = {name: tensor.shape for name, tensor in client.shared_tensors().items()}
        expect_group(control, shapes, f"download` of client `{client.name}")
        self._own = self._own or {name: torch.zeros_like(c) for name, c in control.items()}
        self._correction, self._steps = {name: c - self._own[name] for name, c in control.items()}, 0
        client.fit()

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        self._steps, self._lr = self._steps + 1, optimizer.param_groups[0]["lr"]
        for name, parameter in pl_module.named_parameters():
            if name in self._correction and parameter.grad is not None:
                parameter.grad.add_(self._correction[name].to(parameter))

    def upload(self, client: Client, round: int, exchange: str) -> Payload:
        start, parameters = client.last_download.group(), dict(client.module.named_parameters())
        change = {
            name: (start[name] - parameters[name].detach().cpu()) / (self._steps * self._lr)
            - self._correction[name]
            - self._own[name]
            for name in start
            if name in parameters
        }
        self._own = {name: own + change.get(name, 0) for name, own in self._own.items()}
        return Payload({**client.shared_tensors(), "control": change}, self.sample_count(client))


class FedOpt(FedAvg):
    """Reddi et al., "Adaptive Federated Optimization", ICLR 2021: the server steps along the clients' mean update.

    Args:
        optimizer: the server's, ``"adam"`` (FedAdam), ``"adagrad"`` or ``"sgd"`` (with momentum, FedAvgM).
        lr: its learning rate.
        kwargs: see FedAvg.
    """

    server_attributes = ("_state",)

    def __init__(self, optimizer: Literal["adam", "adagrad", "sgd"] = "adam", lr: float = 0.01, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.optimizer, self.lr = optimizer, lr
        self._state: dict[str, dict[str, Any]] = {}

    def aggregate(self, uploads: Mapping[str, Payload], round: int, exchange: str) -> Mapping[str, Tensor]:
        means = super().aggregate(uploads, round, exchange)
        weights = {name: self.shared[name].clone() for name, mean in means.items() if mean.is_floating_point()}
        kinds: Any = {
            "adam": (torch.optim.Adam, {"betas": (0.9, 0.99), "eps": 1e-3}),
            "adagrad": (torch.optim.Adagrad, {"eps": 1e-3}),
            "sgd": (torch.optim.SGD, {"momentum": 0.9}),
        }
        kind, settings = kinds[self.optimizer]
        server = kind(weights.values(), lr=self.lr, **settings)
        for name, weight in weights.items():
            server.state[weight].update(self._state.get(name, {}))
            weight.grad = weight - means[name]
        server.step()
        self._state = {name: dict(server.state[weight]) for name, weight in weights.items()}
        return {**means, **weights}


class Ditto(FedAvg):
    """Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021.

    Besides the global model each client trains one of its own, drawn to the global one; this is the one it uses and is
    evaluated with.

    Args:
        pull: lambda, how strongly it is drawn.
        kwargs: see FedAvg.
    """

    client_attributes = ("_own",)

    def __init__(self, pull: float = 0.1, **kwargs: Any) -> None:
        super().__init__(**{"optimizer_state": "reset", **kwargs})  # a state would be of two models
        self.pull = pull
        self._own: dict[str, Tensor] = {}
        self._center: dict[str, Tensor] = {}
        self._global: dict[str, Tensor] = {}

    def install(self, client: Client, download: Payload) -> None:
        if not self._own:  # the first time; then the client goes on with its own model
            super().install(client, download)

    def local_update(self, client: Client, round: int, exchange: str) -> None:
        own = {name: tensor.clone() for name, tensor in client.shared_tensors().items()}
        client.load_shared(client.last_download.group())
        client.fit()
        self._global = {name: tensor.clone() for name, tensor in client.shared_tensors().items()}
        client.load_shared(own)
        self._center = client.last_download.group()
        client.fit()
        self._own, self._center = {name: tensor.clone() for name, tensor in client.shared_tensors().items()}, {}

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        for name, parameter in pl_module.named_parameters():
            if name in self._center and parameter.grad is not None:
                parameter.grad.add_(parameter.detach() - self._center[name].to(parameter), alpha=self.pull)

    def upload(self, client: Client, round: int, exchange: str) -> Payload:
        return Payload(self._global, self.sample_count(client))


ALGORITHMS: dict[str, Callable[[], Aggregator]] = {
    "SCAFFOLD": lambda: SCAFFOLD(optimizer_state="reset"),
    "FedOpt": FedOpt,
    "Ditto": Ditto,
    "TrimmedMean": lambda: FedAvg(combine=TrimmedMean(0.2)),
}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("algorithm", choices=ALGORITHMS)
    parser.add_argument("folder", nargs="?", default="runs")
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()

    datamodule = SyntheticFederation(domains=["trees", "rings", "hubs"], batch_size=32)
    model = GNN(hidden_channels=32, optimizer="sgd", lr=0.05)
    trainer = FederatedTrainer(
        ALGORITHMS[args.algorithm](), rounds=args.rounds, default_root_dir=args.folder, accelerator="cpu"
    )
    results = trainer.fit(model, datamodule)
    print(f"mean test accuracy {results['final']['mean']['test/accuracy']:.3f}")
