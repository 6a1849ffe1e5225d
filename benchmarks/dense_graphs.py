"""Neighbour sums and steps on dense graphs: compressed rows, dense blocks, and classes of twins.

See README.md beside this file for what each figure means.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch

from flgraph import models
from flgraph.data import FlatGraphs, GraphDataModule, TUFederation
from flgraph.data.graphs.twins import Twins
from flgraph.nn import Adjacency, make_conv

MIB = 1 << 20
Times = dict[str, list[float]]


def variant(graphs: FlatGraphs, twins: bool, one_hots: bool) -> FlatGraphs:
    """The same graphs, with twins and one-hots used or not, whether that pays or not."""
    same = graphs.with_tensors({})
    same.twins = Twins.find(graphs.edge_index, graphs.node_ptr, graphs.edge_ptr) if twins else None
    same.one_hot = graphs.one_hot if one_hots else None
    return same


@dataclass
class Blocks:
    """Dense ``A + I`` of groups of graphs of similar size, padded to the largest of each group."""

    groups: list[
        tuple[Tensor, Tensor]
    ]  # of each: positions of its nodes [B, n], N where there is none; blocks [B, n, n]
    num_nodes: int

    @classmethod
    def of(cls, adj: Adjacency, ptr: Tensor, group_size: int = 8) -> Blocks:
        """From a batch's adjacency and the offsets of its graphs."""
        sizes, num_nodes = ptr.diff(), adj.num_nodes
        graph = torch.arange(sizes.numel()).repeat_interleave(sizes)
        source = torch.arange(num_nodes).repeat_interleave(adj.rowptr.diff())
        # Blocks of all groups lie one after another in one tensor, so that edges are scattered at once.
        order = sizes.argsort()
        width = torch.empty_like(sizes)
        chunks = order.split(group_size)
        for chunk in chunks:
            width[chunk] = int(sizes[chunk].max())
        begin = torch.zeros_like(sizes)
        begin[order] = (width * width)[order].cumsum(0) - (width * width)[order]
        local = torch.arange(num_nodes) - ptr[:-1].index_select(0, graph)
        row_start = begin.index_select(0, graph) + local * width.index_select(0, graph)
        dense = torch.zeros(int((width * width).sum()))
        dense[row_start.index_select(0, source) + local.index_select(0, adj.col.long())] = 1.0
        dense[row_start + local] = 1.0
        groups = []
        for chunk in chunks:
            n, first = int(width[chunk[0]]), int(begin[chunk[0]])
            inside = torch.arange(n) < sizes[chunk].unsqueeze(1)
            nodes = torch.where(inside, ptr[chunk].unsqueeze(1) + torch.arange(n), num_nodes)
            groups.append((nodes, dense[first : first + chunk.numel() * n * n].view(-1, n, n)))
        return cls(groups, num_nodes)

    def sum(self, x: Tensor) -> Tensor:
        """``(A + I) x``."""
        padded = torch.cat([x, x.new_zeros(1, x.size(1))])
        out = torch.zeros_like(padded)
        for nodes, block in self.groups:
            rows = padded.index_select(0, nodes.view(-1)).view(*nodes.shape, -1)
            out.index_copy_(0, nodes.view(-1), torch.bmm(block, rows).view(-1, x.size(1)))
        return out[:-1]


class BlockSum(torch.autograd.Function):
    """The same with its gradient, which is the same again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, blocks: Blocks) -> Tensor:
        ctx.blocks = blocks
        return blocks.sum(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.blocks.sum(grad), None


def class_ptr(batch: Batch) -> Tensor:
    """Offsets of a batch's graphs in its classes."""
    owner = batch.batch[batch.adj.members[batch.adj.member_ptr[:-1]]]
    return torch.searchsorted(owner, torch.arange(batch.num_graphs + 1))


def closed_sum(x: Tensor, adj: Adjacency) -> Tensor:
    """``(A + I) x``."""
    merged = adj.merge(x)
    return adj.spread(adj.quotient.sum(merged) + merged)


def take_turns(makers: dict[str, Callable[[], Any]], repeats: int) -> Times:
    """Milliseconds of processor time of each, run in turns; the first turn is not counted."""
    times: Times = {name: [] for name in makers}
    for turn in range(repeats + 1):
        for name, make in makers.items():
            began = time.process_time()
            make()
            if turn:
                times[name].append(1e3 * (time.process_time() - began))
    return times


def row(name: str, *cells: Sequence[float] | str) -> str:
    """A line of a table, with median and minimum of times."""
    texts = [cell if isinstance(cell, str) else f"{statistics.median(cell):.2f} ({min(cell):.2f})" for cell in cells]
    return f"{name:26}" + "".join(f"{text:>22}" for text in texts)


def find(name: str, federation: TUFederation) -> list[str]:
    """What classes of twins leave of a data set."""
    graphs = federation.client(name).graphs
    began = time.process_time()
    twins = Twins.find(graphs.edge_index, graphs.node_ptr, graphs.edge_ptr)
    seconds = time.process_time() - began
    if twins is None:
        return [f"{name}: has loops or repeated edges"]
    nodes, edges = graphs.num_nodes, graphs.edge_index.size(1)
    density = edges / max(float(graphs.node_ptr.diff().double().square().sum()), 1.0)
    classes, left = twins.sizes.numel(), twins.neighbour.numel()
    return [
        f"{name}: {len(graphs)} graphs, {nodes} nodes, {edges} edges ({density:.1%} of all pairs); {classes} classes "
        f"({classes / max(nodes, 1):.1%}), {left} edges between them ({left / max(edges, 1):.1%}), found in "
        f"{seconds:.2f} s; {'used' if twins.pay else 'not used'}"
    ]


def sums(graphs: FlatGraphs, index: Tensor, columns: int, repeats: int) -> list[str]:
    """Neighbour sums of one batch in all variants, and what it takes to make what they need."""
    plain, twins = variant(graphs, False, True), variant(graphs, True, True)
    rows, classes = plain.batch(index), twins.batch(index)
    ptr = class_ptr(classes)
    blocks, small = Blocks.of(rows.adj, rows.ptr), Blocks.of(classes.adj.quotient, ptr)
    x = torch.randn(rows.num_nodes, columns, requires_grad=True)
    weight = torch.randn(rows.num_nodes, columns)

    def both_ways(run: Callable[[Tensor], Tensor]) -> Callable[[], Any]:
        return lambda: torch.autograd.grad((run(x) * weight).sum(), x)

    runs: dict[str, Callable[[Tensor], Tensor]] = {
        "compressed rows": lambda x: rows.adj.sum(x) + x,
        "dense blocks": lambda x: BlockSum.apply(x, blocks),
        "classes of twins": lambda x: closed_sum(x, classes.adj),
        "dense blocks of classes": lambda x: classes.adj.spread(BlockSum.apply(classes.adj.merge(x), small)),
    }
    made: dict[str, Callable[[], Any]] = {
        "compressed rows": lambda: plain.batch(index).adj.matrix(torch.float32),
        "dense blocks": lambda: Blocks.of(plain.batch(index).adj, rows.ptr),
        "classes of twins": lambda: twins.batch(index).adj.quotient.matrix(torch.float32),
        "dense blocks of classes": lambda: Blocks.of(twins.batch(index).adj.quotient, ptr),
    }
    held = {
        "compressed rows": plain.nbytes,
        "dense blocks": plain.nbytes,
        "classes of twins": twins.nbytes,
        "dense blocks of classes": twins.nbytes,
    }
    expected = runs["compressed rows"](x)
    for name, run in runs.items():
        torch.testing.assert_close(run(x), expected, rtol=1e-4, atol=1e-4, msg=f"{name} gives something else")
    sum_times = take_turns({name: both_ways(run) for name, run in runs.items()}, repeats)
    made_times = take_turns(made, repeats)
    lines = [row("(A + I) z, ms", "batch made", "forward, backward", "data set, MiB")]
    lines += [row(name, made_times[name], sum_times[name], f"{held[name] / MIB:.1f}") for name in runs]
    lines += ["", row("layer, ms", "compressed rows", "classes of twins")]
    for kind in ("gin", "gcn", "sage"):
        conv = make_conv(kind, columns, columns)

        def layer(adj: Adjacency, conv: torch.nn.Module = conv) -> None:
            (conv(x, adj) * weight).sum().backward()

        times = take_turns({"rows": lambda: layer(rows.adj), "twins": lambda: layer(classes.adj)}, repeats)
        lines.append(row(kind, times["rows"], times["twins"]))
    return lines


def steps(data: GraphDataModule, index: Tensor, repeats: int, epochs: int) -> list[str]:
    """Training steps and epochs of whole models."""
    kinds = {
        "before": variant(data.graphs, False, False),
        "twins": variant(data.graphs, True, False),
        "twins and one-hots": variant(data.graphs, True, True),
    }
    order = data.train[torch.randperm(data.train.numel())].split(data.batch_size)
    lines = [row("model", *kinds)]
    for model in (models.GNN, models.FedStar):
        sizes = dict(data.model_args)
        if model is models.GNN:
            sizes.pop("structure_channels", None)
        module = model(**sizes)
        optimizer = module.configure_optimizers()

        def step(graphs: FlatGraphs, chosen: Tensor, module: Any = module, optimizer: Any = optimizer) -> None:
            optimizer.zero_grad()
            module.training_step(graphs.batch(chosen)).backward()
            module._collected["train"].clear()
            optimizer.step()

        def epoch(graphs: FlatGraphs) -> None:
            for chosen in order:
                step(graphs, chosen)

        def evaluate(graphs: FlatGraphs, module: Any = module) -> None:
            with torch.inference_mode():
                module(graphs.batch(data.test))

        for name, run, count in (
            ("step, ms", lambda graphs: step(graphs, index), repeats),
            ("test data, ms", evaluate, repeats),
            ("epoch, ms", epoch, epochs),
        ):
            times = take_turns({kind: partial(run, graphs) for kind, graphs in kinds.items()}, count)
            lines.append(row(f"{model.__name__}, {name}", *times.values()))
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=["COLLAB", "IMDB-BINARY", "IMDB-MULTI"])
    parser.add_argument("--columns", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--threads", type=int, help="of torch; its own choice by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--find-only", action="store_true", help="only look for twins")
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
    for name in options.datasets:
        torch.manual_seed(options.seed)
        federation = TUFederation([name], batch_size=options.batch_size)
        federation.setup()
        data = federation.client(name)
        print("\n".join(find(name, federation)), flush=True)
        if options.find_only:
            continue
        index = data.train[torch.randperm(data.train.numel())[: options.batch_size]]
        print("\n".join(["", *sums(data.graphs, index, options.columns, options.repeats)]), flush=True)
        print("\n".join(["", *steps(data, index, options.repeats, options.epochs), ""]), flush=True)
        gc.collect()
    return 0


if __name__ == "__main__":
    sys.exit(main())
