"""A federation of many small clients: seconds per round, time to set up, and memory per idle client.

See README.md beside this file for what each figure means.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from timing import QUIET, clocks, since

from flgraph import callbacks, models
from flgraph.data import FlatGraphs, GraphFederation
from flgraph.data.graphs.container import edge_order
from flgraph.federation import Client, FederatedCallback, FederatedTrainer, Sequential
from flgraph.federation.callback import Run
from flgraph.federation.display import quiet_lightning
from flgraph.federation.routes import RoutingTable
from flgraph.federation.template import client_module

KIB = 1024
TRAINER: dict[str, Any] = {"accelerator": "cpu", "devices": 1}
OWN: dict[str, Any] = {**QUIET, **TRAINER, "enable_model_summary": False}


def rss() -> int:
    """Bytes of this process that are in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def settle() -> None:
    """Collects garbage and, where the C library can, gives freed memory back, so that `rss` does not count it."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def molecules(num_graphs: int, seed: int, num_nodes: int = 18, kinds: int = 7) -> FlatGraphs:
    """Random trees with two more edges each that close rings, of about ``num_nodes`` nodes of ``kinds`` kinds."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(num_nodes - 5, num_nodes + 6, (num_graphs,), generator=generator)
    sources, targets, counts = [], [], []
    for n in sizes.tolist():
        parent = (torch.rand(n - 1, generator=generator) * torch.arange(1, n)).long()
        pairs = torch.stack([torch.arange(1, n), parent])
        rings = torch.stack([torch.randint(n // 2, (2,), generator=generator), torch.tensor([n - 1, n - 2])])
        edges = torch.cat([pairs, rings], dim=1)
        edges = torch.cat([edges, edges.flip(0)], dim=1).unique(dim=1)
        sources.append(edges[0])
        targets.append(edges[1])
        counts.append(edges.size(1))
    node_ptr = torch.cat([torch.zeros(1, dtype=torch.long), sizes.cumsum(0)])
    edge_ptr = torch.cat([torch.zeros(1, dtype=torch.long), torch.tensor(counts).cumsum(0)])
    edge_index = torch.stack([torch.cat(sources), torch.cat(targets)])
    edge_index = edge_index[:, edge_order(edge_index, node_ptr, edge_ptr)]
    labels = torch.arange(num_graphs) % 2
    x = torch.nn.functional.one_hot(torch.randint(kinds, (int(sizes.sum()),), generator=generator), kinds)
    return FlatGraphs(x.to(torch.uint8), edge_index.int(), labels, node_ptr, edge_ptr, name="molecules")


def federation_of(clients: int, graphs: int, seed: int) -> GraphFederation:
    """``clients`` clients with ``graphs`` graphs each; embeddings are computed once for all of them."""
    every = molecules(clients * graphs, seed)
    GraphFederation({}).embed(every)
    shards = torch.arange(clients * graphs).view(clients, graphs)
    return GraphFederation({f"c{number:05d}": every.select(shard) for number, shard in enumerate(shards)}, 2)


class MeasuredEngine(Sequential):
    """Notes time and memory around the construction of clients."""

    def __init__(self) -> None:
        super().__init__()
        self.before = self.after = 0
        self.seconds = self.cpu_seconds = 0.0

    def setup(self, build: Callable[[str], Client], names: Sequence[str], release: Any = None) -> None:
        settle()
        self.before, began = rss(), clocks()
        super().setup(build, names, release)
        self.seconds, self.cpu_seconds = since(began)
        gc.collect()
        self.after = rss()


class Watch(FederatedCallback):
    """Wall-clock and processor seconds of every round, from hook to hook, and memory at the start and after two."""

    def __init__(self) -> None:
        self.started = self.after_two = self.settled = 0
        self.evaluated: list[tuple[float, float]] = []
        self.trained: list[tuple[float, float]] = []
        self._began = 0.0, 0.0

    def on_federation_start(self, trainer: Run) -> None:
        gc.collect()
        self.started = rss()

    def on_round_start(self, trainer: Run) -> None:
        self._began = clocks()

    def on_round_end(self, trainer: Run) -> None:
        seconds = since(self._began)
        if trainer.current_round > 1:  # the first allocates optimizer states and whatever is made once
            (self.evaluated if trainer.record.metrics else self.trained).append(seconds)
        if trainer.current_round == 2:
            gc.collect()
            self.after_two = rss()
            settle()
            self.settled = rss()


def run(clients: int, graphs: int, rounds: int, seed: int) -> list[str]:
    """The report of a federation that is evaluated in every second half of its rounds."""
    began = time.perf_counter()
    federation = federation_of(clients, graphs, seed)
    federation.setup()
    data_seconds = time.perf_counter() - began
    engine, watch = MeasuredEngine(), Watch()
    with tempfile.TemporaryDirectory() as folder:
        trainer = FederatedTrainer(
            callbacks.FedStar(),
            rounds=2 * rounds + 1,
            engine=engine,
            evaluate_every=2,
            seed=seed,
            default_root_dir=folder,
            callbacks=[watch],
            **QUIET,
        )
        trainer.fit(models.FedStar(), federation)
    module, data = next(iter(engine.clients.values())).module, federation.client(federation.clients[0])
    parameters = sum(p.numel() * p.element_size() for p in module.parameters())
    used = parameters + 2 * parameters
    built, started, later, settled = (
        (after - before) / clients / KIB
        for after, before in (
            (engine.after, engine.before),
            (watch.started, engine.before),
            (watch.after_two, engine.before),
            (watch.settled, engine.before),
        )
    )
    nothing = [(float("nan"), float("nan"))]
    trained, evaluated = (
        [statistics.median(column) for column in zip(*(rounds or nothing), strict=True)]
        for rounds in (watch.trained, watch.evaluated)
    )
    return [
        f"{clients} clients of {graphs} graphs ({torch.get_num_threads()} threads)",
        f"data made and split             {data_seconds:8.2f} s",
        f"clients constructed             {_times((engine.seconds, engine.cpu_seconds), clients)} each",
        f"round without evaluation        {_times(trained, clients)} a client",
        f"round with evaluation           {_times(evaluated, clients)} a client",
        f"memory per client, constructed  {built:8.1f} KiB",
        f"memory per client, first upload {started:8.1f} KiB",
        f"memory per client, two rounds   {later:8.1f} KiB",
        f"  freed memory given back       {settled:8.1f} KiB",
        f"  parameters and two moments    {used / KIB:8.1f} KiB",
        f"  overhead, freed memory aside  {settled - used / KIB:8.1f} KiB",
        f"  (not in it: data, made before {data.graphs.nbytes / KIB:8.1f} KiB)",
    ]


def _times(seconds: Sequence[float], clients: int) -> str:
    wall, cpu = seconds
    return f"{wall:8.2f} s, processors {cpu:8.2f} s = {1e3 * cpu / clients:.2f} ms"


def parts(count: int, seed: int) -> list[str]:
    """Memory of what a client is made of, each part made ``count`` times on its own."""
    federation = federation_of(1, 20, seed)
    federation.setup()
    data = federation.client(federation.clients[0])
    template = models.FedStar()
    state = client_module(template, data, seed, "c").state_dict()
    aggregator = callbacks.FedStar()

    def client() -> Client:
        return Client("c", client_module(template, data, seed, "c"), data, aggregator, trainer_args=TRAINER)

    makers: dict[str, Callable[[], Any]] = {
        "client, all of it": client,
        "  model": lambda: client_module(template, data, seed, "c"),
        "  Lightning's Trainer": lambda: pl.Trainer(**OWN, max_epochs=0, num_sanity_val_steps=0),
        "  routing table": lambda: RoutingTable(
            aggregator.routes(), state, extra=aggregator.extra_tensors, scalars=aggregator.upload_scalars
        ),
    }
    lines = [f"{'part':24}{'Python KiB':>12}{'objects':>10}{'ms':>8}"]
    for name, make in makers.items():
        make()
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        kept = [make() for _ in range(10)]
        gc.collect()
        python = (tracemalloc.get_traced_memory()[0] - before) / len(kept)
        tracemalloc.stop()
        del kept
        settle()
        objects, began = len(gc.get_objects()), time.perf_counter()
        kept = [make() for _ in range(count)]
        milliseconds = 1e3 * (time.perf_counter() - began) / count
        settle()
        more = (len(gc.get_objects()) - objects) / count
        lines.append(f"{name:24}{python / KIB:12.1f}{more:10.0f}{milliseconds:8.2f}")
        del kept
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--graphs", type=int, default=20, help="graphs of each client")
    parser.add_argument("--rounds", type=int, default=2, help="measured rounds with and without evaluation each")
    parser.add_argument("--threads", type=int, help="of torch; its own choice by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--parts", type=int, metavar="N", help="instead: memory of a client's parts, N of each")
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    with quiet_lightning():
        lines = parts(options.parts, options.seed) if options.parts else []
    print("\n".join(lines or run(options.clients, options.graphs, options.rounds, options.seed)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
