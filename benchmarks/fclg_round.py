"""A round of FCLG against plain loops that do the same; see benchmarks/README.md for what each figure means."""

from __future__ import annotations

import argparse
import copy
import logging
import statistics
import tempfile
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from timing import QUIET, Rounds, Times, clocks, since
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.transforms import GDC

from flgraph import callbacks, models
from flgraph.data import FlatGraphs, PartitionedGraphFederation
from flgraph.federation import FederatedTrainer
from flgraph.federation.display import quiet_lightning

TEMPERATURE = 0.5


# ------------------------------------------------------------------------------------------------------- a plain loop
class PlainGIN(nn.Module):
    """Graph isomorphism layers by gather and scatter, the weights of edges included."""

    def __init__(self, net: models.FCLG) -> None:
        super().__init__()
        self.mlps = nn.ModuleList()
        convs: Any = net.encoder.convs
        for conv in convs:
            one, two = nn.Linear(conv.in_channels, conv.hidden_channels), nn.Linear(conv.hidden_channels, 32)
            one.load_state_dict(conv.lin1.state_dict())
            two.load_state_dict(conv.lin2.state_dict())
            self.mlps.append(nn.Sequential(one, nn.ReLU(), two))

    def forward(self, x: Tensor, edge_index: Tensor, weight: Tensor | None, batch: Tensor, graphs: int) -> Tensor:
        """One row per graph."""
        layers = []
        for mlp in self.mlps:
            messages = x[edge_index[0]]
            if weight is not None:
                messages = messages * weight.unsqueeze(1)
            x = mlp(x + torch.zeros_like(x).index_add_(0, edge_index[1], messages)).relu()
            layers.append(x)
        h = torch.cat(layers, dim=1)
        return h.new_zeros(graphs, h.size(1)).index_add_(0, batch, h)


def diffuse(graphs: Sequence[Data]) -> Batch:
    """Every graph's diffusion, by PyG."""
    return Batch.from_data_list([gdc(graph) for graph in graphs])


def gdc(graph: Data) -> Data:
    """PyG's diffusion with its defaults, which fail on graphs of exactly 64 nodes: nothing is left out of these."""
    whole = graph.num_nodes == 64
    done: Data = GDC(sparsification_kwargs={"method": "threshold", "eps": -1.0} if whole else None)(copy.copy(graph))
    return done


class Diffused(torch.utils.data.Dataset[Data]):
    """Graphs with their diffusion beside them, computed once."""

    def __init__(self, graphs: Sequence[Data]) -> None:
        self.graphs = []
        for graph in graphs:
            done = gdc(graph)
            own = Pair(x=graph.x, edge_index=graph.edge_index, y=graph.y)
            own.diffused_edge_index, own.weight = done.edge_index, done.edge_attr
            self.graphs.append(own)

    def __len__(self) -> int:
        return len(self.graphs)

    def __getitem__(self, number: int) -> Data:
        return self.graphs[number]


class Pair(Data):
    """A graph with a second set of edges; PyG shifts whatever has `index` in its name by the nodes before."""


def plain_client(
    net: PlainGIN, graphs: Any, epochs: int, batch_size: int, state: dict[str, Any], thrifty: bool
) -> list[float]:
    """Trains a client; the mean loss of each epoch.

    Args:
        net: the global model; becomes the client's.
        graphs: its graphs.
        epochs: local epochs.
        batch_size: graphs per batch.
        state: the optimizer's from the round before.
        thrifty: whether the diffusion comes with the graphs, and other models' passes are without gradients.
    """
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=1e-2)
    if state:
        optimizer.load_state_dict(state)
    server, previous, losses = copy.deepcopy(net), copy.deepcopy(net), []
    for _ in range(epochs):
        total, count = 0.0, 0
        for batch in DataLoader(graphs, batch_size, shuffle=True):
            size = batch.num_graphs
            if thrifty:
                other, weight = batch.diffused_edge_index, batch.weight
            else:
                done = diffuse(batch.to_data_list())
                other, weight = done.edge_index, done.edge_attr
            optimizer.zero_grad()
            u = net(batch.x, batch.edge_index, None, batch.batch, size)
            v = net(batch.x, other, weight, batch.batch, size)
            with torch.set_grad_enabled(not thrifty):
                us = server(batch.x, batch.edge_index, None, batch.batch, size)
                uc = previous(batch.x, batch.edge_index, None, batch.batch, size)
            loss = plain_loss(u, v, us, uc)
            loss.backward()
            optimizer.step()
            total, count = total + size * loss.item(), count + size
        losses.append(total / count)
        previous = copy.deepcopy(net)
    state.update(optimizer.state_dict())
    return losses


def plain_loss(u: Tensor, v: Tensor, us: Tensor, uc: Tensor) -> Tensor:
    """Eq. 9 with masks, as commonly written."""
    rows = F.normalize(torch.cat([u, v]), dim=1)
    scores = (rows @ rows.t() / TEMPERATURE).exp()
    count = len(u)
    positive = (rows[:count] * rows[count:]).sum(1) / TEMPERATURE
    others = scores.sum(1) - scores.diag()
    intra = (others.log() - torch.cat([positive, positive])).mean()
    near, far = F.cosine_similarity(u, us) / TEMPERATURE, F.cosine_similarity(u, uc) / TEMPERATURE
    inter = ((near.exp() + far.exp()) / near.exp()).log().mean()
    return intra + inter


def plain_round(
    net: PlainGIN, clients: Sequence[Any], epochs: int, batch_size: int, states: list[dict[str, Any]], thrifty: bool
) -> list[float]:
    """Trains all clients and averages; the last epoch's loss of each."""
    weights, losses = [], []
    for graphs, state in zip(clients, states, strict=True):
        own = copy.deepcopy(net)
        losses.append(plain_client(own, graphs, epochs, batch_size, state, thrifty)[-1])
        weights.append(own.state_dict())
    sizes = torch.tensor([float(len(graphs)) for graphs in clients])
    shares = sizes / sizes.sum()
    mean = {name: sum(s * w[name] for s, w in zip(shares, weights, strict=True)) for name in weights[0]}
    net.load_state_dict(mean)
    return losses


# ------------------------------------------------------------------------------------------------------------ flgraph
class Clock(Rounds):
    """Times of every round without its evaluation, and the clients' training losses."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[list[float]] = []

    def on_round_end(self, trainer: Any) -> None:
        super().on_round_end(trainer)
        clients = trainer.engine.clients.values()
        self.losses.append([client.evaluate(("train",))["train/loss"] for client in clients])


def flgraph_rounds(net: models.FCLG, data: PartitionedGraphFederation, rounds: int, epochs: int) -> Clock:
    """Runs a federation from given weights."""
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder, quiet_lightning():
        trainer = FederatedTrainer(
            callbacks.FCLG(temperature=TEMPERATURE),
            rounds=rounds + 1,  # the last is evaluated, and not counted
            local_epochs=epochs,
            evaluate_every=rounds + 1,
            monitor="train/loss",
            callbacks=[clock],
            default_root_dir=folder,
            **QUIET,
        )
        trainer.fit(lambda own: copy.deepcopy(net), data)
    del clock.seconds[-1], clock.losses[-1]
    return clock


def federation(dataset: str | FlatGraphs, batch_size: int) -> PartitionedGraphFederation:
    """Six clients with the paper's label skew of PROTEINS, or one near it."""
    data = PartitionedGraphFederation(dataset, emd=0.5774, tolerance=0.05, batch_size=batch_size, global_test="none")
    data.setup()
    return data


def plain_graphs(data: PartitionedGraphFederation) -> list[list[Data]]:
    """The graphs of every client, one by one."""
    return [[data.client(name).graphs[n] for n in range(len(data.client(name).graphs))] for name in data.clients]


def check(dataset: str | FlatGraphs, epochs: int) -> None:
    """Whole batches, so that the order of graphs does not matter: both train to the same losses."""
    data = federation(dataset, 10_000)
    net = models.FCLG(**data.client(data.clients[0]).model_args)
    plain, clients = PlainGIN(net), [Diffused(graphs) for graphs in plain_graphs(data)]
    states: list[dict[str, Any]] = [{} for _ in clients]
    expected = [plain_round(plain, clients, epochs, 10_000, states, True) for _ in range(2)]
    found = flgraph_rounds(net, data, 2, epochs).losses
    gap = (torch.tensor(found) / torch.tensor(expected) - 1).abs().max().item()
    print(f"largest relative difference of a client's loss in 2 rounds of {epochs} epochs: {gap:.1e}")
    assert gap < 1e-3, (expected, found)


def compare(dataset: str, rounds: int, epochs: int, batch_size: int) -> None:
    """Prints what a round takes."""
    data = federation(dataset, batch_size)
    net = models.FCLG(**data.client(data.clients[0]).model_args)
    lists = plain_graphs(data)
    pairs = [Diffused(graphs) for graphs in lists]
    seconds: dict[str, list[Times]] = {}
    runs: dict[str, tuple[Sequence[Any], bool]] = {"plain": (lists, False), "plain, thrifty": (pairs, True)}
    for name, (clients, thrifty) in runs.items():
        own, states = PlainGIN(net), [dict[str, Any]() for _ in clients]
        turn: Callable[[], Any] = lambda: plain_round(own, clients, epochs, batch_size, states, thrifty)  # noqa: B023, E731
        seconds[name] = [_timed(turn) for _ in range(1 + (rounds if thrifty else 1))][1:]
    seconds["flgraph"] = flgraph_rounds(net, data, rounds + 1, epochs).seconds[1:]
    batches = sum(-(-len(graphs) // batch_size) for graphs in lists) * epochs
    print(f"{dataset}: a round of {len(lists)} clients, {epochs} local epochs, {batches} batches of {batch_size}")
    middle = {name: [statistics.median(one) for one in zip(*times, strict=True)] for name, times in seconds.items()}
    wall, busy = middle["flgraph"]
    for name, (clock, processors) in middle.items():
        print(f"  {name:15s} {clock:7.3f} s, {clock / wall:4.1f} times; processors {processors:7.3f} s, ", end="")
        print(f"{processors / busy:4.1f} times")


def _timed(call: Callable[[], Any]) -> Times:
    began = clocks()
    call()
    return since(began)


def main(args: Sequence[str] | None = None) -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", default="PROTEINS")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args(args)
    torch.set_num_threads(given.threads)
    warnings.filterwarnings("ignore")
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {given.threads} threads")
    check(given.dataset, 3)
    compare(given.dataset, given.rounds, given.epochs, given.batch_size)


if __name__ == "__main__":
    main()
