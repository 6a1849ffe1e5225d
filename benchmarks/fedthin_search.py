"""How FedThin's settings were found: federated GCNs in a lean loop, scored on validation nodes that no client had.

Runs what its arguments say on the clients of ``own/choice`` (see README.md beside this file) and prints the accuracy on
the withheld nodes, classes weighed as in the clients' nodes, after several rounds.
"""

from __future__ import annotations

import argparse
import statistics

import torch
from torch import Tensor
from torch.nn import functional as F

from flgraph.data import NodeDataModule, NodeGraph
from flgraph.nn import sparse_matmul
from flgraph.nn.sparse.csr import csr
from flgraph.reproduce.own.withheld import WithheldWholeGraphFederation

SHOWN = (10, 30, 60, 100, 150, 200)


class Part:
    """A client's graph, and the draws from it."""

    def __init__(self, graph: NodeGraph) -> None:
        self.x, self.y, self.n = graph.x, graph.y, graph.num_nodes
        edges = torch.cat([graph.edge_index, torch.arange(self.n).expand(2, -1)], dim=1)
        keys = (edges[0] * self.n + edges[1]).sort()
        self.row, self.col = edges[:, keys.indices]
        back = torch.searchsorted(keys.values, self.col * self.n + self.row)
        self.pair = torch.minimum(torch.arange(back.numel()), back)  # an edge and its reverse share a draw
        self.rowptr = torch.cat([torch.zeros(1, dtype=torch.long), torch.bincount(self.row).cumsum(0)])

    def matrix(self, p: float) -> Tensor:
        """The normalised adjacency without a share of its edges."""
        kept = (torch.rand(self.row.numel())[self.pair] >= p) | (self.row == self.col)
        scale = torch.zeros(self.n).index_add_(0, self.row, kept.float()).rsqrt()
        return csr(self.rowptr, self.col, kept * scale[self.row] * scale[self.col], self.n)

    def words(self, p: float) -> Tensor:
        """The features, some of them zero."""
        return csr(self.x.crow_indices(), self.x.col_indices(), F.dropout(self.x.values(), p), self.x.size(1))


class Net(torch.nn.Module):
    """A GCN of two layers, or a perceptron between means of neighbourhoods (``grand``, ``appnp``)."""

    def __init__(self, sizes: tuple[int, int, int], model: str, dropout: float) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(torch.nn.init.xavier_uniform_(torch.empty(sizes[:2])))
        self.second = torch.nn.Parameter(torch.nn.init.xavier_uniform_(torch.empty(sizes[1:])))
        self.bias, self.out = (torch.nn.Parameter(torch.zeros(size)) for size in sizes[1:])
        self.model, self.dropout = model, dropout

    def forward(self, x: Tensor, matrix: Tensor, train: bool = False) -> Tensor:
        hidden = sparse_matmul(x, self.first)
        if self.model == "gcn":
            hidden = sparse_matmul(matrix, hidden)
        elif self.model == "grand":
            once = sparse_matmul(matrix, hidden)
            hidden = (hidden + once + sparse_matmul(matrix, once)) / 3
        logits = F.dropout((hidden + self.bias).relu(), self.dropout, train) @ self.second
        if self.model == "gcn":
            logits = sparse_matmul(matrix, logits)
        elif self.model == "appnp":
            spread = logits
            for _ in range(3):
                spread = 0.8 * sparse_matmul(matrix, spread) + 0.2 * logits
            logits = spread
        return logits + self.out


def run(dataset: str, seed: int, a: argparse.Namespace) -> list[float]:
    """Accuracy after the rounds of ``SHOWN``."""
    sizes = {"num_clients": 5, "local_fraction": 0.5, "num_test": 200, "cross_edges": False}
    data = WithheldWholeGraphFederation(dataset, partition_seed=seed, **sizes)
    data.setup()
    clients = [data.client(name) for name in data.clients]
    parts, held = [Part(client.graph) for client in clients], Part(clients[0].global_graph)
    classes, taught = clients[0].graph.num_classes, torch.empty(0)
    nodes, position = torch.cat([client.graph.nodes for client in clients]).unique(return_inverse=True)
    labels = torch.empty_like(nodes).index_copy_(0, position, torch.cat([part.y for part in parts]))
    shares = [torch.bincount(y, minlength=classes) / y.numel() for y in (labels, held.y)]
    weight = (shares[0] / shares[1].clamp(min=1e-6))[held.y]
    torch.manual_seed(seed)
    common, *nets = (Net((held.x.size(1), a.hidden, classes), a.model, a.dropout) for _ in range(6))
    optimizers = [torch.optim.Adam(net.parameters(), a.lr, weight_decay=a.weight_decay, fused=True) for net in nets]
    share = torch.tensor([float(client.train.numel()) for client in clients]).double()
    found = []
    for round in range(1, a.rounds + 1):
        for client, part, net, optimizer in zip(clients, parts, nets, optimizers, strict=True):
            net.load_state_dict(common.state_dict())
            counts = torch.bincount(part.y[client.train], minlength=classes).clamp(min=1)
            if a.mu:
                with torch.no_grad():
                    taught = (common(part.x, part.matrix(0.0)) / a.temperature).softmax(dim=1)
            for _ in range(5):
                some = client.train[torch.randperm(client.train.numel())[: visited(client)]]
                logits = net(part.words(a.features), part.matrix(a.edges), train=True)
                loss = F.cross_entropy(logits[some] + a.tau * (counts / counts.sum()).log(), part.y[some])
                if a.mu:
                    loss = loss + a.mu * F.cross_entropy(logits, taught)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        with torch.no_grad():
            for own, *others in zip(common.parameters(), *(net.parameters() for net in nets), strict=True):
                own.copy_(sum(w * p.double() for w, p in zip(share / share.sum(), others, strict=True)))
            if round in SHOWN:
                right = common(held.x, held.matrix(0.0)).argmax(dim=1) == held.y
                found.append(100 * float((right * weight).sum() / weight.sum()))
    return found


def visited(client: NodeDataModule) -> int:
    """Training nodes of an epoch."""
    return max(1, round(client.epoch_share * client.train.numel()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1027, 1107, 2333, 9973, 100])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--model", choices=["gcn", "grand", "appnp"], default="gcn")
    parser.add_argument("--hidden", type=int, default=64)
    defaults = {"lr": 5e-4, "weight_decay": 0.0, "dropout": 0.5, "edges": 0.5, "features": 0.7, "mu": 1.0}
    for name, value in {**defaults, "tau": 0.5, "temperature": 1.0}.items():
        parser.add_argument(f"--{name}", type=float, default=value)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for dataset in ("Cora", "CiteSeer"):
        of_seeds = zip(*(run(dataset, seed, args) for seed in args.seeds), strict=True)
        print(dataset, *(f"{statistics.fmean(values):.2f}" for values in of_seeds), flush=True)
