"""FedHGN: a round on MUTAG against a loop over relations, and on a graph with 500 edge types and 2,000,000 edges.

See README.md beside this file for what each figure means.
"""

from __future__ import annotations

import argparse
import copy
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, cast

import torch
from timing import QUIET, Rounds, clocks, since
from torch import Tensor
from torch.nn import functional as F

from flgraph.callbacks import FedHGN
from flgraph.data import HeteroDataModule, HeteroFederation, HeteroGraph
from flgraph.federation import FederatedTrainer
from flgraph.federation.lightning import OptimizerStates, fit_more, persistent_trainer
from flgraph.models import RGCN

EPOCHS = 3


# ------------------------------------------------------------------------------------------------ a loop over relations
class LoopNet(torch.nn.Module):
    """The network with a weight and a product per relation, on all nodes.

    Args:
        net: whose weights to take.
        graph: the client's graph.
    """

    def __init__(self, net: RGCN, graph: HeteroGraph) -> None:
        super().__init__()
        self.net, self.graph = copy.deepcopy(net), graph
        self.edges = [graph.edge_index[:, first:last] for first, last in pairwise(graph.edge_ptr.tolist())]

    def forward(self, index: Tensor) -> Tensor:
        """Logits of nodes of the target type."""
        first, second = cast(list[Any], self.net.convs)
        h = self.net.embedding.weight
        total = torch.zeros_like(h)
        for edges in self.edges:
            total = total + mean_neighbours(h, edges[0], edges[1], h.size(0))
        h = torch.relu(total + first.bias)
        total = torch.zeros_like(h)
        for r, edges in enumerate(self.edges):
            total = total + mean_neighbours(h, edges[0], edges[1], h.size(0)) @ weight_of(second, r)
        logits: Tensor = self.net.classifier(torch.relu(total + second.bias)[self.graph.target_start + index])
        return logits


class CarefulLoopNet(LoopNet):
    """The same with every relation on the nodes of its own types, and the second layer on the wanted nodes alone."""

    def __init__(self, net: RGCN, graph: HeteroGraph) -> None:
        super().__init__(net, graph)
        ptr = dict(zip(graph.node_types, graph.node_ptr.tolist(), strict=False))
        counts = dict(zip(graph.node_types, graph.node_ptr.diff().tolist(), strict=True))
        self.ends = [(ptr[target], counts[target]) for _, _, target in graph.edge_types]
        self._into: dict[int, list[tuple[int, Tensor, Tensor]]] = {}

    def forward(self, index: Tensor) -> Tensor:
        """Logits of nodes of the target type."""
        first, second = cast(list[Any], self.net.convs)
        h = self.net.embedding.weight
        total = torch.zeros_like(h)
        for (start, count), (source, target) in zip(self.ends, self.edges, strict=True):
            total[start : start + count] += mean_neighbours(h, source, target - start, count)
        h = torch.relu(total + first.bias)
        total = h.new_zeros(index.numel(), h.size(1))
        for r, source, target in self._edges_into(index):
            total = total + mean_neighbours(h, source, target, index.numel()) @ weight_of(second, r)
        logits: Tensor = self.net.classifier(torch.relu(total + second.bias))
        return logits

    def _edges_into(self, index: Tensor) -> list[tuple[int, Tensor, Tensor]]:
        """Edges into these nodes, numbered by their place in ``index``, of each relation that has any."""
        if id(index) not in self._into:
            place = torch.full((self.graph.num_nodes,), -1)
            place[self.graph.target_start + index] = torch.arange(index.numel())
            found = [(r, source, place[target]) for r, (source, target) in enumerate(self.edges)]
            kept = [(r, source[target >= 0], target[target >= 0]) for r, source, target in found]
            self._into[id(index)] = [one for one in kept if one[1].numel()]
        return self._into[id(index)]


def mean_neighbours(h: Tensor, source: Tensor, target: Tensor, count: int) -> Tensor:
    """The mean over each node's senders by one relation, ``[count, C]``."""
    degree = torch.bincount(target, minlength=count).clamp(min=1).unsqueeze(1)
    return torch.zeros(count, h.size(1)).index_add(0, target, h[source]) / degree


def weight_of(conv: Any, r: int) -> Tensor:
    """The weight of a relation ``[C, D]``."""
    return torch.einsum("b,bcd->cd", conv.coefficients[r], conv.bases)


def loop_round(data: HeteroDataModule, net: RGCN, kind: type[LoopNet]) -> Callable[[], None]:
    """A function that does one client's part of a round: local epochs, and evaluation on two splits."""
    graph, model = data.graph, kind(net, data.graph)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def work() -> None:
        for _ in range(EPOCHS):
            optimizer.zero_grad()
            F.cross_entropy(model(graph.train), graph.y[graph.train]).backward()
            optimizer.step()
        with torch.no_grad():
            for index in (graph.val, graph.test):
                (model(index).argmax(dim=1) == graph.y[index]).float().mean()

    return work


def flgraph_round(data: HeteroDataModule, net: RGCN) -> Callable[[], None]:
    """The same by the client's own Trainer, Lightning included."""
    model = copy.deepcopy(net)
    trainer = persistent_trainer([OptimizerStates()], {"accelerator": "cpu", "devices": 1})
    loaders = data.train_dataloader(), data.val_dataloader(), data.test_dataloader()

    def work() -> None:
        fit_more(trainer, model, loaders[0], EPOCHS)
        trainer.validate(model, loaders[1], verbose=False)
        trainer.test(model, loaders[2], verbose=False)

    return work


VARIANTS: dict[str, Callable[[HeteroDataModule, RGCN], Callable[[], None]]] = {
    "loop": lambda data, net: loop_round(data, net, LoopNet),
    "careful loop": lambda data, net: loop_round(data, net, CarefulLoopNet),
    "flgraph": flgraph_round,
}


def clients(dataset: str, seed: int = 0) -> list[tuple[HeteroDataModule, RGCN]]:
    """Three clients' data and models with 20 bases."""
    federation = HeteroFederation(dataset, num_clients=3)
    federation.setup("fit")
    torch.manual_seed(seed)
    made = []
    for name in federation.clients:
        data = federation.client(name)
        assert isinstance(data, HeteroDataModule)
        made.append((data, RGCN(**data.model_args, num_bases=20)))
    return made


def one_variant(name: str, dataset: str, repeats: int) -> dict[str, Any]:
    """Seconds of a round of all clients, and the largest memory of this process."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rounds = [VARIANTS[name](data, net) for data, net in clients(dataset)]
    seconds = []
    for turn in range(repeats + 1):
        began = clocks()
        for work in rounds:
            work()
        if turn:  # the first is not counted
            seconds.append(since(began))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall, busy = (statistics.median(column) for column in zip(*seconds, strict=True))
    return {"wall": wall, "busy": busy, "peak": peak, "added": peak - before}


def compare(dataset: str, repeats: int, threads: int) -> None:
    """Prints what a round of three clients takes, each variant in a process of its own."""
    found = {}
    for name in VARIANTS:
        call = [sys.executable, __file__, "--only", name, "--dataset", dataset]
        call += ["--repeats", str(repeats), "--threads", str(threads)]
        done = subprocess.run(call, check=True, capture_output=True, text=True)
        found[name] = json.loads(done.stdout.splitlines()[-1])
    print(f"{dataset}, 3 clients (Random Edges), 20 bases, hidden 64: {EPOCHS} local epochs, validation and test")
    own = found["flgraph"]
    for name, got in found.items():
        times, cpu = got["wall"] / own["wall"], got["busy"] / own["busy"]
        print(f"  {name:13s} {got['wall']:6.2f} s a round, processors {got['busy']:5.2f} s", end="; ")
        print(f"{times:4.1f} times (processors {cpu:4.1f}); largest memory {got['peak'] / 1024:,.0f} MiB", end=", ")
        print(f"{got['added'] / 1024:,.0f} of it for clients and work")


def check(dataset: str) -> None:
    """Prints how far logits and gradients of the variants are apart.

    Raises:
        SystemExit: by more than rounding.
    """
    worst = 0.0
    for data, net in clients(dataset):
        (batch,) = data.train_dataloader()
        loss = F.cross_entropy(net(batch), batch.y)
        expected = torch.autograd.grad(loss, list(net.parameters()))
        for kind in (LoopNet, CarefulLoopNet):
            loop = kind(net, data.graph)
            logits = loop(data.graph.train)
            got = torch.autograd.grad(F.cross_entropy(logits, batch.y), list(loop.net.parameters()))
            for one, other in zip(got, expected, strict=True):
                worst = max(worst, float((one - other).norm() / other.norm()))
    print(f"gradients of the variants differ by at most {worst:.1e} of their norm")
    if worst > 1e-4:
        raise SystemExit(1)


# -------------------------------------------------------------------------------------------------------- large graph
def synthetic(edge_types: int, num_edges: int, num_nodes: int, node_types: int = 10) -> HeteroGraph:
    """Random edges between random types."""
    generator = torch.Generator().manual_seed(0)
    count = num_nodes // node_types
    ends = torch.randint(node_types, (edge_types, 2), generator=generator).tolist()
    edges = {
        (f"n{a}", f"r{number}", f"n{b}"): torch.randint(count, (2, num_edges // edge_types), generator=generator)
        for number, (a, b) in enumerate(ends)
    }
    target = next(iter(edges))[2]
    y = torch.randint(4, (count,), generator=generator)
    third = count // 3
    splits = torch.arange(third), torch.arange(third, 2 * third), torch.arange(2 * third, count)
    counts = {f"n{number}": count for number in range(node_types)}
    return HeteroGraph.from_edges(counts, edges, target, y, *splits, name="synthetic")


def large(edge_types: int, num_edges: int, num_nodes: int, rounds: int) -> None:
    """Prints seconds per round of FedHGN on one large graph, and the memory of the process."""
    began, times = time.perf_counter(), Rounds()
    data = HeteroFederation(synthetic(edge_types, num_edges, num_nodes), num_clients=3)
    data.setup("fit")
    sizes = [data.client(name).graph for name in data.clients]
    setup = time.perf_counter() - began
    print(f"{edge_types} edge types, {num_edges:,} edges, {num_nodes:,} nodes: set up in {setup:.1f} s")
    shown = ", ".join(f"{graph.num_edges:,} edges of {len(graph.edge_types)} types" for graph in sizes)
    print(f"  3 clients (Random Edges), reverse edges included: {shown}")
    with tempfile.TemporaryDirectory() as folder:
        trainer = FederatedTrainer(FedHGN(), rounds, EPOCHS, default_root_dir=folder, callbacks=[times], **QUIET)
        trainer.fit(RGCN(num_bases=20), data)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
    print(f"  rounds, evaluation included: {', '.join(f'{wall:.1f}' for wall, _ in times.seconds)} s", end="")
    print(f"; largest memory {peak:.2f} GiB")


def main(args: Sequence[str] | None = None) -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", default="MUTAG")
    parser.add_argument("--repeats", type=int, default=5, help="rounds of each variant")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--only", choices=list(VARIANTS), help="one variant alone; prints JSON")
    parser.add_argument("--check", action="store_true", help="compare gradients, and measure nothing")
    parser.add_argument("--edges", type=int, default=2_000_000, help="of the large graph; 0 leaves it out")
    parser.add_argument("--edge-types", type=int, default=500)
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=2, help="on the large graph")
    given = parser.parse_args(args)
    torch.set_num_threads(given.threads)
    warnings.filterwarnings("ignore")
    if given.only:
        print(json.dumps(one_variant(given.only, given.dataset, given.repeats)))
        return
    print(f"torch {torch.__version__}, {given.threads} threads")
    if given.check:
        check(given.dataset)
        return
    compare(given.dataset, given.repeats, given.threads)
    if given.edges:
        large(given.edge_types, given.edges, given.nodes, given.rounds)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
