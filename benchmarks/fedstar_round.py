"""Seconds per round of FedStar: a plain PyTorch loop, flgraph, flgraph's model alone, and the matrix products alone.

All variants run in one process and take turns, so whatever else the machine does hits all of them alike. See README.md
beside this file for what each figure means.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import torch
from timing import Times, clocks, since
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, GINConv, global_add_pool

from flgraph import callbacks, models
from flgraph.cli.main import keep_memory
from flgraph.configs import tu_settings
from flgraph.data import GraphDataModule, GraphFederation, GraphLoader, TUFederation
from flgraph.federation import FederatedCallback, FederatedTrainer
from flgraph.federation.callback import Run
from flgraph.federation.seeding import derive_seed, seed_all
from flgraph.federation.template import client_module
from flgraph.runs.results import versions

Metrics = dict[str, dict[str, float]]
"""Client to metric to value."""

SPLITS = ("train", "val", "test")
SHARED = "structure."
BATCH_SIZE = 128
LEARNING_RATE, WEIGHT_DECAY = 1e-3, 5e-4
TOLERANCE = 1e-4


@dataclass
class ClientStart:
    """What every variant starts a client from."""

    name: str
    data: GraphDataModule
    module: models.FedStar
    """Never trained itself."""
    weights: dict[str, Tensor]


def start(federation: GraphFederation, seed: int, dropout: float) -> list[ClientStart]:
    """The clients as the federation makes them, the shared tensors those of the first."""
    federation.setup()
    clients: list[ClientStart] = []
    for name in federation.clients:
        module = client_module(template(dropout), federation.client(name), seed, name)
        assert isinstance(module, models.FedStar)
        weights = {key: tensor.clone() for key, tensor in module.state_dict().items()}
        if clients:
            weights.update({key: clients[0].weights[key] for key in weights if key.startswith(SHARED)})
        clients.append(ClientStart(name, federation.client(name), module, weights))
    return clients


# ------------------------------------------------------------------------------------------------------------ (a) plain
class PlainFedStar(torch.nn.Module):
    """FedStar's network as its description reads, in PyG's own layers."""

    def __init__(
        self, features: int, structure: int, classes: int, hidden: int = 64, layers: int = 3, dropout: float = 0.5
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.feature_in = torch.nn.Linear(features, hidden)
        self.structure_in = torch.nn.Linear(structure, hidden)
        self.gins = torch.nn.ModuleList()
        self.gcns = torch.nn.ModuleList()
        for _ in range(layers):
            mlp = torch.nn.Sequential(
                torch.nn.Linear(2 * hidden, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, hidden)
            )
            self.gins.append(GINConv(mlp))
            self.gcns.append(GCNConv(hidden, hidden))
        self.mix = torch.nn.Linear(2 * hidden, hidden)
        self.post = torch.nn.Linear(hidden, hidden)
        self.readout = torch.nn.Linear(hidden, classes)

    def forward(self, data: Data) -> Tensor:
        x, s = self.feature_in(data.x), self.structure_in(data.s)
        for gin, gcn in zip(self.gins, self.gcns, strict=True):
            x = gin(torch.cat([x, s], dim=-1), data.edge_index)
            x = F.dropout(F.relu(x), self.dropout, training=self.training)
            s = torch.tanh(gcn(s, data.edge_index))
        h = global_add_pool(self.mix(torch.cat([x, s], dim=-1)), data.batch)
        h = F.dropout(F.relu(self.post(h)), self.dropout, training=self.training)
        return F.log_softmax(self.readout(h), dim=1)


def plain_name(name: str) -> str:
    """What a tensor of :class:`flgraph.models.FedStar` is called in :class:`PlainFedStar`."""
    channel, _, rest = name.partition(".")
    if channel not in ("feature", "structure"):
        return name
    if rest.startswith("pre."):
        return f"{channel}_in.{rest.removeprefix('pre.')}"
    rest = rest.removeprefix("convs.")
    if channel == "structure":
        return f"gcns.{rest}"
    return f"gins.{rest}".replace(".lin1.", ".nn.0.").replace(".lin2.", ".nn.2.")


class SeededOrder(torch.utils.data.Sampler[int]):
    """The order in which flgraph's clients see their graphs."""

    def __init__(self, count: int, seed: int, client: str) -> None:
        self.count, self.seed, self.client = count, seed, client
        self.passes = 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        seed_all(derive_seed(self.seed, self.client, self.passes, "train"))
        return iter(torch.randperm(self.count).tolist())


class PlainClient:
    """A client's model, optimizer and data loaders."""

    def __init__(self, given: ClientStart, order: SeededOrder | None, dtype: torch.dtype) -> None:
        self.name, self.size = given.name, given.data.num_train_samples
        sizes, hparams = given.data.model_args, given.module.hparams
        self.model = PlainFedStar(
            sizes["in_channels"],
            sizes["structure_channels"],
            sizes["num_classes"],
            hparams["hidden_channels"],
            hparams["num_layers"],
            hparams["dropout"],
        )
        weights = {plain_name(name): tensor for name, tensor in given.weights.items()}
        own = self.model.state_dict()
        # PyG's GINConv holds its epsilon as a buffer, which is zero.
        self.model.load_state_dict({**weights, **{name: own[name] for name in own if name.endswith(".eps")}})
        self.model.to(dtype)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
        graphs = given.data.graphs
        parts = [
            [_cast(graphs[number], dtype) for number in index.tolist()]
            for index in (given.data.train, given.data.val, given.data.test)
        ]
        self.train_loader = DataLoader(parts[0], batch_size=BATCH_SIZE, shuffle=order is None, sampler=order)
        self.eval_loaders = {
            split: DataLoader(part, batch_size=BATCH_SIZE) for split, part in zip(SPLITS[1:], parts[1:], strict=True)
        }

    def train(self) -> dict[str, float]:
        self.model.train()
        loss_sum, correct = 0.0, 0
        for batch in self.train_loader:
            self.optimizer.zero_grad()
            output = self.model(batch)
            loss = F.nll_loss(output, batch.y)
            loss.backward()
            self.optimizer.step()
            loss_sum += loss.item() * batch.num_graphs
            correct += int((output.argmax(dim=1) == batch.y).sum())
        return {"train/loss": loss_sum / self.size, "train/accuracy": correct / self.size}

    @torch.no_grad()
    def evaluate(self, split: str) -> dict[str, float]:
        self.model.eval()
        loss_sum, correct, count = 0.0, 0, 0
        for batch in self.eval_loaders[split]:
            output = self.model(batch)
            loss_sum += F.nll_loss(output, batch.y).item() * batch.num_graphs
            correct += int((output.argmax(dim=1) == batch.y).sum())
            count += batch.num_graphs
        return {f"{split}/loss": loss_sum / count, f"{split}/accuracy": correct / count}


def _cast(graph: Data, dtype: torch.dtype) -> Data:
    graph.x, graph.s = graph.x.to(dtype), graph.s.to(dtype)
    return graph


class Plain:
    """The federation as one loop over models."""

    def __init__(
        self,
        given: Sequence[ClientStart],
        same_order_as: int | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        orders = [
            None if same_order_as is None else SeededOrder(client.data.num_train_samples, same_order_as, client.name)
            for client in given
        ]
        self.clients = [PlainClient(client, order, dtype) for client, order in zip(given, orders, strict=True)]
        self.shared = [plain_name(name) for name in given[0].weights if name.startswith(SHARED)]

    def round(self) -> Metrics:
        metrics = {client.name: client.train() for client in self.clients}
        states = [client.model.state_dict() for client in self.clients]
        total = sum(client.size for client in self.clients)
        mean = {}
        for name in self.shared:
            weighted = [state[name] * client.size for state, client in zip(states, self.clients, strict=True)]
            mean[name] = torch.stack(weighted).sum(dim=0) / total
        for state in states:
            for name in self.shared:
                state[name].copy_(mean[name])
        for client in self.clients:
            for split in SPLITS[1:]:
                metrics[client.name].update(client.evaluate(split))
        return metrics


# ------------------------------------------------------------------------------------------------------------- (c) bare
class BareClient:
    """flgraph's module, batches, metrics and optimizer, without a Trainer."""

    def __init__(self, given: ClientStart, dtype: torch.dtype) -> None:
        self.name, self.size = given.name, given.data.num_train_samples
        self.module = type(given.module)(**given.module.hparams)
        self.module.load_state_dict(given.weights)
        self.module.to(dtype)
        self.optimizer = self.module.configure_optimizers()
        self.train_loader = given.data.train_dataloader()
        self.eval_loaders = {"val": given.data.val_dataloader(), "test": given.data.test_dataloader()}

    def train(self) -> dict[str, float]:
        self.module.train()

        def step(batch: Batch) -> tuple[Tensor, Tensor]:
            self.optimizer.zero_grad()
            logits = self.module(batch)
            loss = F.cross_entropy(logits, batch.y)
            loss.backward()
            self.optimizer.step()
            return loss.detach(), logits.detach()

        return self._epoch(self.train_loader, step, "train")

    @torch.inference_mode()
    def evaluate(self, split: str) -> dict[str, float]:
        self.module.eval()

        def step(batch: Batch) -> tuple[Tensor, Tensor]:
            logits = self.module(batch)
            return F.cross_entropy(logits, batch.y), logits

        return self._epoch(self.eval_loaders[split], step, split)

    def _epoch(
        self, loader: GraphLoader, step: Callable[[Batch], tuple[Tensor, Tensor]], split: str
    ) -> dict[str, float]:
        metrics = self.module.epoch_metrics(split, [(*step(batch), batch.y) for batch in loader])
        return {f"{split}/{name}": float(value) for name, value in metrics.items()}


class Bare:
    """The federation as one loop over flgraph's modules."""

    def __init__(self, given: Sequence[ClientStart], seed: int, dtype: torch.dtype = torch.float32) -> None:
        self.clients, self.seed, self.rounds = [BareClient(client, dtype) for client in given], seed, 0
        self.shared = [name for name in given[0].weights if name.startswith(SHARED)]

    def round(self) -> Metrics:
        self.rounds += 1
        metrics = {}
        for client in self.clients:
            seed_all(derive_seed(self.seed, client.name, self.rounds, "train"))
            metrics[client.name] = client.train()
        states = [client.module.state_dict() for client in self.clients]
        total = sum(client.size for client in self.clients)
        for name in self.shared:
            mean = torch.zeros_like(states[0][name], dtype=torch.float64)
            # In the order of flgraph's sum, so that the two agree to the last bit.
            for state, client in sorted(zip(states, self.clients, strict=True), key=lambda pair: pair[1].name):
                mean.add_(state[name].double(), alpha=client.size)
            mean.div_(total)
            for state in states:
                state[name].copy_(mean)
        for client in self.clients:
            for split in SPLITS[1:]:
                metrics[client.name].update(client.evaluate(split))
        return metrics


# ------------------------------------------------------------------------------------------------------------ (d) floor
@dataclass(frozen=True)
class Product:
    """One linear layer on one batch."""

    rows: int
    columns_in: int
    columns_out: int
    gradient: bool
    """Whether it has a backward pass."""
    input_gradient: bool
    """Whether that goes on to the layer's input."""

    @property
    def flop(self) -> int:
        """Floating-point operations of all its products."""
        return 2 * self.rows * self.columns_in * self.columns_out * (1 + self.gradient + self.input_gradient)


class Floor:
    """The matrix products of a round and nothing else, in memory that was allocated before."""

    def __init__(self, given: Sequence[ClientStart]) -> None:
        self.products = [product for client in given for product in _products(client)]
        self.gflop = sum(product.flop for product in self.products) / 1e9
        rows = max(product.rows for product in self.products)
        widths = {width for product in self.products for width in (product.columns_in, product.columns_out)}
        self.inputs = {width: torch.randn(rows, width) for width in sorted(widths)}
        self.outputs = {width: torch.empty(rows, width) for width in sorted(widths)}
        shapes = {(product.columns_out, product.columns_in) for product in self.products}
        self.weights = {shape: torch.randn(shape) for shape in sorted(shapes)}
        self.gradients = {shape: torch.empty(shape) for shape in sorted(shapes)}

    def round(self) -> None:
        for product in self.products:
            shape = (product.columns_out, product.columns_in)
            weight, n = self.weights[shape], product.rows
            x, y = self.inputs[product.columns_in][:n], self.outputs[product.columns_out][:n]
            torch.mm(x, weight.t(), out=y)
            if product.gradient:
                gradient = self.inputs[product.columns_out][:n]
                torch.mm(gradient.t(), x, out=self.gradients[shape])
                if product.input_gradient:
                    torch.mm(gradient, weight, out=self.outputs[product.columns_in][:n])


def _products(client: ClientStart) -> Iterator[Product]:
    """All linear layers on all batches of a round; the training batches are those of one shuffle."""
    seed_all(derive_seed(0, client.name, "floor"))
    layers = [(name, m) for name, m in client.module.named_modules() if isinstance(m, torch.nn.Linear)]
    loaders = (client.data.train_dataloader(), client.data.val_dataloader(), client.data.test_dataloader())
    for training, loader in zip((True, False, False), loaders, strict=True):
        for batch in loader:
            for name, layer in layers:
                # flgraph pools before `mix`, so that and what follows it sees graphs, not nodes.
                rows = batch.num_graphs if name in ("mix", "post", "readout") else batch.num_nodes
                first = name in ("feature.pre", "structure.pre")
                yield Product(rows, layer.in_features, layer.out_features, training, training and not first)


# ---------------------------------------------------------------------------------------------------------- (b) flgraph
def federated_trainer(
    folder: str, seed: int, rounds: int, callback: FederatedCallback, precision: str | None = None
) -> FederatedTrainer:
    """A trainer with its defaults, on the CPU, that does not write to the terminal."""
    return FederatedTrainer(
        callbacks.FedStar(),
        rounds=rounds,
        seed=seed,
        default_root_dir=folder,
        callbacks=[callback],
        accelerator="cpu",
        precision=precision,
        enable_progress_bar=False,
    )


def template(dropout: float) -> models.FedStar:
    """The model of the federated trainer."""
    return models.FedStar(dropout=dropout, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)


PLAIN, FLGRAPH, QUIET, BARE, FLOOR = "plain", "flgraph", "flgraph, nothing written", "bare", "floor"
VARIANTS = (PLAIN, FLGRAPH, QUIET, BARE, FLOOR)
MEANINGS = {
    PLAIN: "(a) plain PyTorch and PyG loop",
    FLGRAPH: "(b) `FederatedTrainer`, checkpoint and TensorBoard every round",
    QUIET: "(b') `FederatedTrainer`, without them",
    BARE: "(c) flgraph's model and batches in a bare loop",
    FLOOR: "(d) matrix products alone",
}


class TakeTurns(FederatedCallback):
    """Runs the other variants between the rounds of a federated trainer, and times all of them.

    A round of the trainer is timed from the end of this hook to its next call, so all that the trainer does belongs to
    it, logging and checkpoint too. Every other round writes neither checkpoint nor TensorBoard log.
    """

    def __init__(self, others: Mapping[str, Callable[[], Any]]) -> None:
        self.others = others
        self.seconds: dict[str, list[float]] = {name: [] for name in VARIANTS}
        self.cpu_seconds: dict[str, list[float]] = {name: [] for name in VARIANTS}
        self._running, self._began = "", (0.0, 0.0)
        self._loggers: list[Any] = []

    def on_federation_start(self, trainer: Run) -> None:
        self._loggers = list(trainer.loggers)

    def on_round_start(self, trainer: Run) -> None:
        if self._running:
            self._stop(self._running, self._began)
        writes = trainer.current_round % 2 == 1
        if writes:
            for name, run in self.others.items():
                began = clocks()
                run()
                self._stop(name, began)
        assert isinstance(trainer, FederatedTrainer)
        assert trainer.run_log is not None
        trainer.write_checkpoints = writes
        trainer.run_log.loggers = list(self._loggers) if writes else []
        self._running = FLGRAPH if writes else QUIET
        self._began = clocks()

    def _stop(self, name: str, began: Times) -> None:
        wall, busy = since(began)
        self.seconds[name].append(wall)
        self.cpu_seconds[name].append(busy)


@dataclass
class Report:
    """Seconds of all measured rounds, and what they were measured on."""

    datasets: list[str]
    gflop: float
    seconds: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in VARIANTS})
    cpu_seconds: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in VARIANTS})

    def median(self, variant: str) -> float:
        """Median seconds per round."""
        return statistics.median(self.seconds[variant])

    def text(self) -> str:
        """Two tables in Markdown."""
        lines = ["| variant | median s/round | min s/round | median CPU s/round |", "|---|---:|---:|---:|"]
        for name in VARIANTS:
            cpu = statistics.median(self.cpu_seconds[name])
            lines.append(f"| {MEANINGS[name]} | {self.median(name):.3f} | {min(self.seconds[name]):.3f} | {cpu:.3f} |")
        lines += ["", "| ratio | of medians | of minima | of CPU medians |", "|---|---:|---:|---:|"]
        for over, under, label in (
            (PLAIN, FLGRAPH, "a / b"),
            (PLAIN, QUIET, "a / b'"),
            (FLGRAPH, BARE, "b / c"),
            (QUIET, BARE, "b' / c"),
            (BARE, FLOOR, "c / d"),
        ):
            minima = min(self.seconds[over]) / min(self.seconds[under])
            cpu = statistics.median(self.cpu_seconds[over]) / statistics.median(self.cpu_seconds[under])
            lines.append(f"| {label} | {self.median(over) / self.median(under):.2f} | {minima:.2f} | {cpu:.2f} |")
        rate = self.gflop / min(self.seconds[FLOOR])
        rounds = len(self.seconds[FLOOR])
        lines += [
            "",
            f"- data: {', '.join(self.datasets)}; {rounds} rounds of each variant, taking turns",
            f"- matrix products: {self.gflop:.1f} GFLOP a round, at best {rate:.0f} GFLOP/s",
            *machine(),
        ]
        return "\n".join(lines) + "\n"


def machine() -> list[str]:
    """Lines about the machine and the versions."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found = versions()
    packages = ", ".join(f"{name} {found[name]}" for name in ("torch", "torch_geometric", "pytorch-lightning", "git"))
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
    return [
        f"- machine: {model}, {cores} cores, {torch.get_num_threads()} threads, load average {load} at the end",
        f"- versions: python {found['python']}, {packages}; {date.today().isoformat()}",
    ]


def measure(federation: GraphFederation, rounds: int, repeats: int, seed: int, folder: str | None = None) -> Report:
    """Times ``rounds`` rounds of every variant, ``repeats`` times from the start; first rounds are not counted."""
    report: Report | None = None
    for repeat in range(repeats):
        given = start(federation, seed + repeat, 0.5)
        floor = Floor(given)
        report = report or Report(federation.clients, floor.gflop)
        others = {PLAIN: Plain(given).round, BARE: Bare(given, seed + repeat).round, FLOOR: floor.round}
        turns = TakeTurns(others)
        # One turn of each to warm up; a last round ends the clock of the one before.
        with tempfile.TemporaryDirectory(dir=folder) as runs:
            federated_trainer(runs, seed + repeat, 2 * (rounds + 1) + 1, turns).fit(template(0.5), federation)
        for name in VARIANTS:
            report.seconds[name] += turns.seconds[name][1 : rounds + 1]
            report.cpu_seconds[name] += turns.cpu_seconds[name][1 : rounds + 1]
    assert report is not None
    return report


# ---------------------------------------------------------------------------------------------------------------- check
class KeepMetrics(FederatedCallback):
    """Remembers what a trainer measured in each round."""

    def __init__(self) -> None:
        self.rounds: list[Metrics] = []

    def on_round_end(self, trainer: Run) -> None:
        self.rounds.append(trainer.record.metrics)


@dataclass(frozen=True)
class Difference:
    """The largest relative difference between losses of flgraph and of another variant."""

    value: float = 0.0
    where: str = "nowhere"


def check(
    federation: GraphFederation, rounds: int = 3, seed: int = 0, dtype: torch.dtype = torch.float64
) -> dict[str, Difference]:
    """Trains plain, flgraph and bare alike, without dropout, and compares the losses of every client and round.

    In double precision a difference in what is computed stays visible, and rounding does not grow to the size of one.

    Returns:
        Variant to its largest difference from flgraph.
    """
    given = start(federation, seed, 0.0)
    keep = KeepMetrics()
    precision = "64-true" if dtype == torch.float64 else "32-true"
    with tempfile.TemporaryDirectory() as runs:
        federated_trainer(runs, seed, rounds, keep, precision).fit(template(0.0), federation)
    assert len(keep.rounds) == rounds
    others = {PLAIN: Plain(given, seed, dtype).round, BARE: Bare(given, seed, dtype).round}
    worst = {}
    for variant, run in others.items():
        worst[variant] = Difference()
        for number, expected in enumerate(keep.rounds, start=1):
            found = run()
            for client, metrics in expected.items():
                for name in (f"{split}/loss" for split in SPLITS):
                    one, other = metrics[name], found[client][name]
                    value = abs(one - other) / max(abs(one), abs(other), 1e-6)
                    if math.isnan(value) or value > worst[variant].value:
                        where = f"{name} of {client} in round {number}: {one:.8g} and {other:.8g}"
                        worst[variant] = Difference(math.inf if math.isnan(value) else value, where)
    return worst


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 if a check fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=tu_settings()["chem"], help="TU data sets, one client each")
    parser.add_argument("--rounds", type=int, default=20, help="rounds of each variant (of the check: at least 3)")
    parser.add_argument("--repeats", type=int, default=1, help="how often to start over, with another seed")
    parser.add_argument("--threads", type=int, help="of torch; its own choice by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run-dir", help="where flgraph's run folder lies for a while; the system's choice by default")
    parser.add_argument("--out", type=Path, help="also write the tables to this file")
    parser.add_argument("--check", action="store_true", help="compare losses instead of times")
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    keep_memory()  # all variants alike
    federation = TUFederation(options.datasets)
    if options.check:
        rounds = max(3, options.rounds)
        agree = True
        for dtype, judged in ((torch.float64, True), (torch.float32, False)):
            for variant, worst in check(federation, rounds, options.seed, dtype).items():
                print(f"{variant}, {dtype}: largest relative difference from flgraph {worst.value:.1e} ({worst.where})")
                agree = agree and (worst.value <= TOLERANCE or not judged)
        verdict = f"equal to {TOLERANCE:g}" if agree else f"not equal: above {TOLERANCE:g}"
        print(
            f"{verdict} in float64 over {rounds} rounds; in float32 training makes rounding grow, which is not judged"
        )
        return 0 if agree else 1
    report = measure(federation, options.rounds, options.repeats, options.seed, options.run_dir)
    print(report.text(), end="")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(f"# One round of FedStar\n\n{report.text()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
