"""Small full-batch models: a plain PyTorch and PyG loop against flgraph, in processor time per round.

Ten Louvain clients of Cora, a GCN of two layers of 64 under FedAvg, three local epochs, every client evaluated on
validation and test nodes after each round. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import copy
import math
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from timing import Times, clocks, since
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.nn import GCNConv

from flgraph import callbacks, models
from flgraph.data import WholeGraphFederation
from flgraph.federation import FederatedCallback, FederatedTrainer
from flgraph.federation.callback import Run
from flgraph.federation.template import client_module
from flgraph.models import NodeGCN
from flgraph.runs.results import versions

Metrics = dict[str, dict[str, float]]
"""Client to metric to value."""

HIDDEN, LEARNING_RATE, WEIGHT_DECAY, EPOCHS = 64, 0.01, 5e-4, 3
SPLITS = ("train", "val", "test")


def cora(clients: int = 10) -> WholeGraphFederation:
    """Communities of Cora; a fifth of a client's nodes for training, two fifths each for validation and test."""
    return WholeGraphFederation(
        "Cora",
        num_clients=clients,
        partition="louvain",
        global_fraction=0.0,
        fractions=(0.2, 0.4, 0.4),
        epoch_fraction=1.0,
        cross_edges=False,
    )


def template(dropout: float) -> NodeGCN:
    """The model of all variants."""
    return models.NodeGCN(hidden_channels=HIDDEN, dropout=dropout, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)


# ------------------------------------------------------------------------------------------------------ the plain loop
class PlainGCN(torch.nn.Module):
    """Two graph convolutions of PyG with ReLU and dropout between them."""

    def __init__(self, features: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList([GCNConv(features, HIDDEN), GCNConv(HIDDEN, classes)])
        self.dropout = dropout

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.dropout(self.convs[0](x, edge_index).relu(), self.dropout, training=self.training)
        logits: Tensor = self.convs[1](x, edge_index)
        return logits


class Plain:
    """The federation as one loop over models: dense features, one pass over a client's graph for both evaluations."""

    def __init__(
        self, federation: WholeGraphFederation, dropout: float, seed: int, dtype: torch.dtype = torch.float32
    ) -> None:
        federation.setup()
        self.data = {name: federation.client(name) for name in federation.clients}
        self.x = {name: data.graph.x.to_dense().to(dtype) for name, data in self.data.items()}
        self.models: dict[str, PlainGCN] = {}
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        first = client_module(template(dropout), self.data[federation.clients[0]], seed, federation.clients[0])
        state = {  # PyG stores a layer's weight as the transpose, in a linear layer
            name.replace(".weight", ".lin.weight"): tensor.t() if name.endswith(".weight") else tensor
            for name, tensor in first.state_dict().items()
        }
        for name, data in self.data.items():
            model = PlainGCN(data.graph.num_features, data.graph.num_classes, dropout).to(dtype)
            model.load_state_dict(copy.deepcopy(state))
            self.models[name] = model
            self.optimizers[name] = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)

    def round(self) -> Metrics:
        """One round."""
        metrics = {name: self._train(name) for name in self.data}
        total = sum(data.num_train_samples for data in self.data.values())
        states = {name: model.state_dict() for name, model in self.models.items()}
        for tensor in next(iter(states.values())):
            parts = [state[tensor] * (self.data[name].num_train_samples / total) for name, state in states.items()]
            mean = torch.stack(parts).sum(0)
            for state in states.values():
                state[tensor].copy_(mean)
        for name in self.data:
            metrics[name] |= self._evaluate(name)
        return metrics

    def _train(self, name: str) -> dict[str, float]:
        model, optimizer, data = self.models[name], self.optimizers[name], self.data[name]
        graph = data.graph
        model.train()
        for _ in range(EPOCHS):
            optimizer.zero_grad()
            logits = model(self.x[name], graph.edge_index)[data.train]
            loss = F.cross_entropy(logits, graph.y[data.train])
            loss.backward()
            optimizer.step()
        return _scores("train", loss.detach(), logits.detach(), graph.y[data.train])

    @torch.no_grad()
    def _evaluate(self, name: str) -> dict[str, float]:
        model, data, graph = self.models[name], self.data[name], self.data[name].graph
        model.eval()
        logits, metrics = model(self.x[name], graph.edge_index), dict[str, float]()
        for split, index in (("val", data.val), ("test", data.test)):
            own, y = logits[index], graph.y[index]
            metrics |= _scores(split, F.cross_entropy(own, y), own, y)
        return metrics


def _scores(split: str, loss: Tensor, logits: Tensor, y: Tensor) -> dict[str, float]:
    return {f"{split}/loss": loss.item(), f"{split}/accuracy": (logits.argmax(1) == y).float().mean().item()}


# ------------------------------------------------------------------------------------------------------------- flgraph
class Watch(FederatedCallback):
    """Calls something at every beginning of a round, and keeps what the rounds measured."""

    def __init__(self, between: Callable[[Run], None] = lambda trainer: None) -> None:
        self.between, self.metrics = between, list[Metrics]()

    def on_round_start(self, trainer: Run) -> None:
        self.between(trainer)

    def on_round_end(self, trainer: Run) -> None:
        self.metrics.append(trainer.record.metrics)


def flgraph_trainer(folder: str, rounds: int, seed: int, watch: Watch, **options: Any) -> FederatedTrainer:
    """A trainer with its defaults, on the CPU, that does not write to the terminal."""
    return FederatedTrainer(
        callbacks.FedAvg(),
        rounds=rounds,
        local_epochs=EPOCHS,
        seed=seed,
        default_root_dir=folder,
        callbacks=[watch],
        accelerator="cpu",
        enable_progress_bar=False,
        **options,
    )


PLAIN, FLGRAPH, QUIET = "plain loop, nothing written", "flgraph, log and checkpoint", "flgraph, nothing written"
VARIANTS = (PLAIN, FLGRAPH, QUIET)
BLOCK = 5
"""Rounds of a variant before it is another one's turn: a checkpoint is flushed to disk during the next round."""


def measure(federation: WholeGraphFederation, rounds: int, seed: int) -> dict[str, list[Times]]:
    """Wall-clock and processor seconds of a round, mean of a block's, for ``rounds`` rounds of each variant.

    The variants take turns; the first block is not counted. One that writes ends when all is on disk.
    """
    plain = Plain(federation, 0.5, seed)
    seconds: dict[str, list[Times]] = {name: [] for name in VARIANTS}
    loggers: list[Any] = []
    running, began = "", clocks()

    def between(trainer: Run) -> None:
        nonlocal running, began
        assert isinstance(trainer, FederatedTrainer)
        assert trainer.run_log is not None
        turn, within = divmod(trainer.current_round - 1, BLOCK)
        if within:
            return
        if running:
            trainer._store.wait()
            seconds[running].append(per_round(since(began)))
        writes = turn % 2 == 0
        if not loggers:
            loggers.extend(trainer.run_log.loggers)
        if writes:
            began = clocks()
            for _ in range(BLOCK):
                plain.round()
            seconds[PLAIN].append(per_round(since(began)))
        trainer.write_checkpoints, trainer.run_log.loggers = writes, list(loggers) if writes else []
        running, began = FLGRAPH if writes else QUIET, clocks()

    with tempfile.TemporaryDirectory() as folder:
        blocks = -(-rounds // BLOCK)
        # A last round ends the clock of the one before.
        flgraph_trainer(folder, 2 * (blocks + 1) * BLOCK + 1, seed, Watch(between)).fit(template(0.5), federation)
    return {name: values[1 : blocks + 1] for name, values in seconds.items()}


def per_round(times: Times) -> Times:
    """Of a block."""
    wall, busy = times
    return wall / BLOCK, busy / BLOCK


def check(federation: WholeGraphFederation, rounds: int, seed: int) -> float:
    """The largest relative difference of a client's loss between the two, in float64 and without dropout."""
    plain, watch = Plain(federation, 0.0, seed, torch.float64), Watch()
    with tempfile.TemporaryDirectory() as folder:
        flgraph_trainer(folder, rounds, seed, watch, precision="64-true").fit(template(0.0), federation)
    worst = 0.0
    for expected in watch.metrics:
        found = plain.round()
        for name, own in expected.items():
            for key in (f"{split}/loss" for split in SPLITS):
                worst = max(worst, abs(own[key] - found[name][key]) / abs(found[name][key]))
    return math.nan if len(watch.metrics) != rounds else worst


def report(seconds: Mapping[str, Sequence[Times]]) -> str:
    """A line for each variant."""
    base = statistics.median(cpu for _, cpu in seconds[PLAIN])
    lines = []
    for name, values in seconds.items():
        wall, cpu = (statistics.median(column) for column in zip(*values, strict=True))
        lines.append(f"{name:30} {1e3 * wall:7.1f} ms a round; processors {1e3 * cpu:7.1f} ms, {cpu / base:.2f} times")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="also write the lines to this file")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    federation = cora()
    worst = check(federation, 3, options.seed)
    seconds = measure(federation, options.rounds, options.seed)
    text = "\n".join(
        [
            f"$ python benchmarks/small_models.py --rounds {options.rounds} --threads {options.threads}",
            f"torch {versions()['torch']}, pytorch-lightning {versions()['pytorch-lightning']}, "
            f"{options.threads} threads; medians over {options.rounds} rounds, the variants taking turns of {BLOCK}",
            f"largest relative difference of a client's loss in 3 rounds, float64, no dropout: {worst:.1e}",
            report(seconds),
        ]
    )
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
