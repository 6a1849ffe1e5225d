"""FedEgo: a local epoch against a plain loop, and a round on a graph of 100,000 nodes and 1,000,000 edges.

See README.md beside this file for what each figure means.
"""

from __future__ import annotations

import argparse
import random
import resource
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence

import pytorch_lightning as pl
import torch
from timing import QUIET, Times, clocks, since
from torch import Tensor, nn
from torch.nn import functional as F

from flgraph import callbacks
from flgraph.data import NodeDataModule, NodeFederation, NodeGraph
from flgraph.data.checks import sorted_edges
from flgraph.federation import FederatedTrainer
from flgraph.federation.display import quiet_lightning
from flgraph.federation.lightning import OptimizerStates, fit_more, persistent_trainer
from flgraph.models import FedEgo

MIB = 1 << 20
HOPS = (6, 6)


# ------------------------------------------------------------------------------------------------------- a plain loop
class PlainNet(nn.Module):
    """The network with dense features, every position reduced on its own."""

    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.reduction = nn.Linear(features, hidden)
        self.self_maps = nn.ModuleList(nn.Linear(hidden, hidden, bias=False) for _ in HOPS)
        self.neighbour_maps = nn.ModuleList(nn.Linear(hidden, hidden) for _ in HOPS)
        self.classifier = nn.Linear(hidden, classes, bias=False)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: list[Tensor]) -> Tensor:
        """``x`` holds the features of the positions of every hop, ``[B * k^h, F]``."""
        hops = [self.dropout(self.reduction(part).relu()) for part in x]
        for own, neighbour in zip(self.self_maps, self.neighbour_maps, strict=True):
            means = [child.view(-1, k, child.size(1)).mean(1) for child, k in zip(hops[1:], HOPS, strict=False)]
            hops = [self.dropout((own(here) + neighbour(mean)).relu()) for here, mean in zip(hops, means, strict=False)]
        logits: Tensor = self.classifier(hops[0])
        return logits


class WholeNet(PlainNet):
    """The same network as a library for any graph computes it: every layer at every node of the ego-graphs."""

    def forward(self, x: list[Tensor]) -> Tensor:
        """Nodes of the last hop have no neighbours in an ego-graph; their mean is zero."""
        count = x[0].size(0)
        h = self.dropout(self.reduction(torch.cat(x)).relu())
        ends = torch.tensor([0, *(part.size(0) for part in x)]).cumsum(0)
        parent = torch.cat(
            [torch.arange(part.size(0) // k).repeat_interleave(k) for part, k in zip(x[1:], HOPS, strict=True)]
        )
        shift = ends[:-2].repeat_interleave(ends[2:] - ends[1:-1])
        degree = torch.zeros(h.size(0), 1).index_add_(0, parent + shift, torch.ones(parent.numel(), 1)).clamp(min=1)
        for own, neighbour in zip(self.self_maps, self.neighbour_maps, strict=True):
            total = torch.zeros_like(h).index_add_(0, parent + shift, h[count:])
            h = self.dropout((own(h) + neighbour(total / degree)).relu())
        logits: Tensor = self.classifier(h[:count])
        return logits


def plain_batches(
    graph: NodeGraph, x: Tensor, nodes: Sequence[int], batch_size: int
) -> Iterator[tuple[list[Tensor], Tensor]]:
    """Batches whose neighbours are sampled node by node."""
    rowptr, col = graph.rowptr.tolist(), graph.col.tolist()
    order = random.sample(list(nodes), len(nodes))
    for start in range(0, len(order), batch_size):
        hops = [order[start : start + batch_size]]
        for k in HOPS:
            children = []
            for node in hops[-1]:
                neighbours = col[rowptr[node] : rowptr[node + 1]] or [node]
                children += random.choices(neighbours, k=k)
            hops.append(children)
        yield [x[torch.tensor(hop)] for hop in hops], graph.y[torch.tensor(hops[0])]


def plain_epoch(data: NodeDataModule, hidden: int, make: type[PlainNet]) -> Callable[[], None]:
    """A function that trains one local epoch."""
    graph = data.graph
    x, nodes = graph.x.to_dense(), data.train.tolist()
    net = make(graph.num_features, hidden, graph.num_classes)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)

    def epoch() -> None:
        net.train()
        for features, y in plain_batches(graph, x, nodes, data.batch_size):
            optimizer.zero_grad()
            F.cross_entropy(net(features), y).backward()
            optimizer.step()

    return epoch


# ------------------------------------------------------------------------------------------------------------ flgraph
def flgraph_epoch(data: NodeDataModule, hidden: int) -> Callable[[], None]:
    """A function that trains one local epoch as a client does, Lightning included."""
    model = FedEgo(**data.model_args, hidden_channels=hidden)
    trainer = persistent_trainer([OptimizerStates()], {"accelerator": "cpu", "devices": 1})
    loader = data.train_dataloader()

    def epoch() -> None:
        with quiet_lightning():
            fit_more(trainer, model, loader, 1)

    return epoch


def compare(data: NodeDataModule, hidden: int, repeats: int) -> None:
    """Prints what a local epoch takes, the two taking turns."""
    epochs = {
        "plain": plain_epoch(data, hidden, PlainNet),
        "plain, all nodes": plain_epoch(data, hidden, WholeNet),
        "flgraph": flgraph_epoch(data, hidden),
    }
    found: dict[str, list[Times]] = {name: [] for name in epochs}
    for turn in range(repeats + 1):
        for name, epoch in epochs.items():
            began = clocks()
            epoch()
            if turn:  # the first is not counted
                found[name].append(since(began))
    batches = -(-data.train.numel() // data.batch_size)
    print(f"a local epoch over {data.train.numel()} nodes, {batches} batches of {data.batch_size}, hidden {hidden}")
    middle = {name: [statistics.median(one) for one in zip(*times, strict=True)] for name, times in found.items()}
    for name, (seconds, cpu) in middle.items():
        each = 1e3 * seconds / batches
        print(f"  {name:16s} {1e3 * seconds:8.1f} ms, {each:6.2f} ms a batch; processors {1e3 * cpu:8.1f} ms", end="")
        print(f"; {seconds / middle['flgraph'][0]:4.1f} times (processors {cpu / middle['flgraph'][1]:.1f})")


# -------------------------------------------------------------------------------------------------------- large graph
def synthetic(num_nodes: int, num_edges: int, features: int = 1000, words: int = 20, classes: int = 10) -> NodeGraph:
    """Random edges, three of four within a class, and bags of words that tell the class in part."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(classes, (num_nodes,), generator=generator)
    by_class = y.argsort()
    starts = torch.bincount(y, minlength=classes).cumsum(0) - torch.bincount(y, minlength=classes)
    source = torch.randint(num_nodes, (num_edges,), generator=generator)
    within = by_class[starts[y[source]] + torch.randint(num_nodes // classes // 2, (num_edges,), generator=generator)]
    anywhere = torch.randint(num_nodes, (num_edges,), generator=generator)
    target = torch.where(torch.rand(num_edges, generator=generator) < 0.75, within, anywhere)
    edges = sorted_edges(torch.stack([source, target]), num_nodes, True)
    column = torch.randint(features // 2, (num_nodes, words), generator=generator)
    column[:, : words // 4] += (features // 2 // classes) * y.unsqueeze(1)
    column = column.sort(dim=1).values
    rowptr = torch.arange(0, num_nodes * words + 1, words)
    x = torch.sparse_csr_tensor(rowptr, column.view(-1), torch.ones(num_nodes * words), (num_nodes, features))
    return NodeGraph(x, edges, y, classes, "synthetic")


def large(num_nodes: int, num_edges: int, rounds: int, hidden: int) -> None:
    """Prints seconds per round of a whole federation on one large graph, and the memory of the process."""
    began = time.perf_counter()
    data = NodeFederation(
        synthetic(num_nodes, num_edges),
        num_clients=10,
        partition="dirichlet",
        alpha=1.0,
        global_fraction=0.1,
        epoch_fraction=0.2,
    )
    data.setup()
    print(f"{num_nodes:,} nodes, {num_edges:,} edges, 10 clients: set up in {time.perf_counter() - began:.1f} s")

    with tempfile.TemporaryDirectory() as folder:
        trainer = FederatedTrainer(callbacks.FedEgo(), rounds, 1, default_root_dir=folder, **QUIET)
        results = trainer.fit(FedEgo(hidden_channels=hidden), data)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"  a round, evaluation included: {results['seconds_per_round']:.2f} s; largest memory {peak:,.0f} MiB")
    up, down = (results["bytes_per_round"][way] / MIB for way in ("up", "down"))
    print(f"  bytes a round: {up:.1f} MiB up, {down:.1f} MiB down")


def main(args: Sequence[str] | None = None) -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=10, help="local epochs of each variant")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--nodes", type=int, default=100_000, help="of the large graph; 0 leaves it out")
    parser.add_argument("--edges", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3, help="on the large graph")
    given = parser.parse_args(args)
    torch.set_num_threads(given.threads)
    warnings.filterwarnings("ignore", message=".*Sparse CSR.*|.*Sparse invariant.*")
    pl.seed_everything(0, verbose=False)
    print(f"torch {torch.__version__}, {given.threads} threads")
    cora = NodeFederation("Cora", local_fraction=0.5, num_test=200, epoch_fraction=1.0)
    cora.setup()
    compare(cora.client(cora.clients[0]), given.hidden, given.repeats)
    if given.nodes:
        large(given.nodes, given.edges, given.rounds, given.hidden)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
