"""The partitions of FedHGN's authors, made again from a whole graph (Fu and King, IJCAI 2023, Appendix A).

Their notebook seeds Python's ``random`` once, with 12345, and then draws everything in turn: for AIFB, MUTAG and BGS
the validation nodes, and for 3, 5 and 10 clients Random Edges and Random Edge Types. What it draws depends on nothing
but the numbers of training nodes, edges and relations; so the same draws give the same partitions, edge by edge, also
of data sets whose partitions are not at hand.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from flgraph.callbacks import SchemaFedAvg
from flgraph.data.checks import edge_keys, require
from flgraph.data.hetero.container import EdgeType, HeteroGraph
from flgraph.data.hetero.datamodule import HeteroFederation
from flgraph.data.hetero.partition import HeteroPartition
from flgraph.data.hetero.readers import HETERO_DATASETS, known_hetero, locate_hetero
from flgraph.data.hetero.schema import REVERSE
from flgraph.errors import InputError, expect, first_line

AUTHORS_CLIENTS = (3, 5, 10)
"""Numbers of clients among which FedHGN's authors divided each data set."""

SPLITS = ("random_edges", "random_edge_types")
"""How they assigned edges."""

_SEED, _VAL_FRACTION = 12345, 0.2
# Training nodes before validation nodes are taken away, edges, and relations, both without the reverse ones.
_COUNTS = {"AIFB": (140, 24405, 52), "MUTAG": (272, 74050, 25)}


def authors_partition(
    name: str, graph: HeteroGraph, split: str, num_clients: int, root: str | Path | None = None
) -> HeteroPartition:
    """The partition of a data set by FedHGN's authors.

    Args:
        name: of the data set, in any case.
        graph: the whole graph without reverse relations, as :func:`~flgraph.data.read_hetero` has it.
        split: ``"random_edges"`` or ``"random_edge_types"``.
        num_clients: one of :data:`AUTHORS_CLIENTS`.
        root: folder of the data, where edges are looked up in the order of the data set's file; ``$FLGRAPH_DATA``
            when ``None``.

    Raises:
        InputError: there is no such partition, the file is missing or damaged, or the graph is not the one that the
            authors had.
    """
    known = known_hetero(name)
    expect(split in SPLITS, "data.partition", f"one of {', '.join(SPLITS)}", split)
    wanted = "one of 3, 5 and 10, which FedHGN's authors chose,"
    expect(num_clients in AUTHORS_CLIENTS, "data.num_clients", wanted, num_clients)
    kinds, ptr, edge_index = _file_order(known, root)
    train = torch.cat([graph.train, graph.val]).sort().values
    here = (train.numel(), edge_index.size(1), len(kinds))
    theirs = "the graph that FedHGN's authors had, with their validation nodes,"
    require(known not in _COUNTS or _COUNTS[known] == here, known, theirs, "another one")
    val, edges, relations = _replay(_COUNTS | {known: here}, known, num_clients)
    require(torch.equal(train[val].sort().values, graph.val), known, theirs, "another one")
    relation = torch.repeat_interleave(ptr.diff())
    if split == "random_edges":
        whose = [torch.tensor(sorted(chosen)) for chosen in edges]
    else:
        whose = [torch.isin(relation, torch.tensor(chosen)).nonzero()[:, 0] for chosen in relations]
    columns = _edge_columns(graph, kinds, relation, edge_index, known)
    clients = [columns[chosen].sort().values for chosen in whose]
    about = {"partition": "authors", "split": split, "num_clients": num_clients}
    return HeteroPartition(clients, graph.content, about)


def _file_order(known: str, root: str | Path | None) -> tuple[list[EdgeType], Tensor, Tensor]:
    """Relations without reverse ones, where each begins, and edges between nodes of types, as the file has them."""
    path = locate_hetero(known, f"{known.lower()}.npz", root)
    try:
        with np.load(path, allow_pickle=False) as file:
            all_kinds, ends = [tuple(kind) for kind in file["edge_types"].tolist()], file["edge_ptr"].tolist()
            stored = torch.from_numpy(file["edge_index"].astype(np.int64))
    except Exception as error:  # an archive may be damaged in as many ways as there are
        raise InputError(str(path), "an archive of a heterogeneous graph", first_line(error)) from error
    kept = [r for r, kind in enumerate(all_kinds) if not kind[1].startswith(REVERSE)]
    parts = [stored[:, ends[r] : ends[r + 1]] for r in kept]
    ptr = torch.tensor([0, *(part.size(1) for part in parts)]).cumsum(0)
    return [all_kinds[r] for r in kept], ptr, torch.cat(parts, dim=1)


def _replay(
    counts: dict[str, tuple[int, int, int]], wanted: str, num_clients: int
) -> tuple[list[int], list[list[int]], list[list[int]]]:
    """Positions among the training nodes of the validation nodes; those of edges and of relations of each client."""
    generator = random.Random(_SEED)
    for name in HETERO_DATASETS:
        expect(name in counts, name, f"of known sizes, as it is drawn before {wanted},", None)
        train, edges, relations = counts[name]
        val = _shuffled(generator, train)[: round(train * _VAL_FRACTION)]
        for clients in AUTHORS_CLIENTS:
            assigned = _assign(generator, edges, clients), _assign(generator, relations, clients)
            if (name, clients) == (wanted, num_clients):
                return val, *assigned
    raise AssertionError(f"{wanted} with {num_clients} clients is none of the drawn partitions")


def _assign(generator: random.Random, count: int, clients: int) -> list[list[int]]:
    """One segment each, the segment after these to k clients, what is left to all."""
    order, size = _shuffled(generator, count), count // (clients + 2)
    everyone = order[(clients + 1) * size :]
    whose = [[*order[client * size : (client + 1) * size], *everyone] for client in range(clients)]
    for item in order[clients * size : (clients + 1) * size]:
        for client in generator.sample(range(clients), generator.randint(2, clients - 1)):
            whose[client].append(item)
    return whose


def _shuffled(generator: random.Random, count: int) -> list[int]:
    order = list(range(count))
    generator.shuffle(order)
    return order


def _edge_columns(
    graph: HeteroGraph, kinds: Sequence[EdgeType], relation: Tensor, edge_index: Tensor, name: str
) -> Tensor:
    """Which columns of a graph's ``edge_index`` some edges are.

    Args:
        graph: the graph, without repeated edges.
        kinds: relations that the edges have.
        relation: relation of each edge, its position in ``kinds``, ``[E]``.
        edge_index: sources and targets, numbered within their node types, ``[2, E]``.
        name: what error messages call the edges' owner.

    Raises:
        InputError: the graph lacks a relation or an edge.
    """
    n, number = graph.num_nodes, {kind: r for r, kind in enumerate(graph.edge_types)}
    first = dict(zip(graph.node_types, graph.node_ptr.tolist(), strict=False))
    unknown = [kind[1] for kind in kinds if kind not in number]
    expect(not unknown, f"{name}.edge_types", f"relations of `{graph.name}`", ", ".join(unknown[:3]))
    shift = torch.tensor([[first[kind[0]], first[kind[2]]] for kind in kinds], dtype=torch.long).view(-1, 2).t()
    source, target = edge_index + shift[:, relation]
    keys = edge_keys(graph.edge_index.flip(0), n, graph.relation)
    numbers = torch.tensor([number[kind] for kind in kinds], dtype=torch.long)
    wanted = edge_keys(torch.stack([target, source]), n, numbers[relation])
    found = torch.searchsorted(keys, wanted).clamp(max=max(0, keys.numel() - 1))
    missing = int((keys[found] != wanted).sum())
    require(missing == 0, f"{name}.edges", f"edges of `{graph.name}`", f"{missing} others")
    return found


class PublishedHeteroFederation(HeteroFederation):
    """The partitions of FedHGN's authors of the data sets in :data:`~flgraph.data.hetero.readers.HETERO_DATASETS`.

    Arguments are those of :class:`~flgraph.data.HeteroFederation`; ``partition`` and ``num_clients`` name one of the
    authors' partitions, see :func:`authors_partition`.
    """

    def make_partition(self, graph: HeteroGraph) -> HeteroPartition:
        """Which edges the authors gave to whom."""
        wanted = "the name of a data set, whose partition FedHGN's authors published,"
        expect(isinstance(self.dataset, str), "data.dataset", wanted, type(self.dataset).__name__)
        return authors_partition(str(self.dataset), graph, self.partition, self.num_clients, self.root)


class PublishedSchemaFedAvg(SchemaFedAvg):
    """Clients that lack a relation count with the mean of the round before.

    Every client of the published code has weights for all relations, and sends back untouched those that its graph
    lacks. The fewer have a relation, the slower its mean then moves.
    """

    def relation_means(
        self, relations: Mapping[str, Mapping[str, Tensor]], weights: Mapping[str, float]
    ) -> dict[str, Tensor]:
        means = super().relation_means(relations, weights)
        for name, mean in means.items():
            having = sum(weights[client] for client, own in relations.items() if name in own)
            means[name] = torch.lerp(self._relations[name], mean, having / sum(weights.values()))
        return means
