"""The partitions of FedHGN's authors, made again from a whole graph (Fu and King, IJCAI 2023, Appendix A).

Their notebook seeds Python's ``random`` once, with 12345, and then draws everything in turn: for AIFB, MUTAG and BGS
the validation nodes, and for 3, 5 and 10 clients Random Edges and Random Edge Types. What it draws depends on nothing
but the numbers of training nodes, edges and relations; so the same draws give the same partitions, edge by edge, also
of data sets whose partitions are not at hand.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from flgraph.data.hetero.container import REVERSE, EdgeType, HeteroGraph
from flgraph.data.hetero.partition import HeteroPartition, edge_columns
from flgraph.data.hetero.readers import HETERO_DATASETS, SPLITS, known_hetero, locate_hetero
from flgraph.errors import InputError, expect, first_line

AUTHORS_CLIENTS = (3, 5, 10)
"""Numbers of clients that FedHGN's authors dealt each data set to."""

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
            authors dealt.
    """
    known = known_hetero(name)
    expect(split in SPLITS, "data.split", f"one of {', '.join(SPLITS)}", split)
    wanted = "one of 3, 5 and 10, which FedHGN's authors chose,"
    expect(num_clients in AUTHORS_CLIENTS, "data.num_clients", wanted, num_clients)
    kinds, ptr, edge_index = _file_order(known, root)
    train = torch.cat([graph.train, graph.val]).sort().values
    here = (train.numel(), edge_index.size(1), len(kinds))
    theirs = "the graph that FedHGN's authors dealt, with their validation nodes,"
    expect(known not in _COUNTS or _COUNTS[known] == here, known, theirs, "another one")
    val, edges, relations = _replay(_COUNTS | {known: here}, known, num_clients)
    expect(torch.equal(train[val].sort().values, graph.val), known, theirs, "another one")
    relation = torch.repeat_interleave(ptr.diff())
    if split == "random_edges":
        whose = [torch.tensor(sorted(chosen)) for chosen in edges]
    else:
        whose = [torch.isin(relation, torch.tensor(chosen)).nonzero()[:, 0] for chosen in relations]
    columns = edge_columns(graph, kinds, relation, edge_index, known)
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
        raise InputError(
            f"Expected {path} to be an archive of a heterogeneous graph but got: {first_line(error)}"
        ) from error
    kept = [r for r, kind in enumerate(all_kinds) if not kind[1].startswith(REVERSE)]
    parts = [stored[:, ends[r] : ends[r + 1]] for r in kept]
    ptr = torch.tensor([0, *(part.size(1) for part in parts)]).cumsum(0)
    return [all_kinds[r] for r in kept], ptr, torch.cat(parts, dim=1)


def _replay(
    counts: dict[str, tuple[int, int, int]], wanted: str, num_clients: int
) -> tuple[list[int], list[list[int]], list[list[int]]]:
    """Places among the training nodes of the validation nodes, and places of edges and of relations of each client."""
    generator = random.Random(_SEED)
    for name in HETERO_DATASETS:
        if name not in counts:
            raise InputError(f"Expected the sizes of {name}, drawn before {wanted}, to be known but got none.")
        train, edges, relations = counts[name]
        val = _shuffled(generator, train)[: round(train * _VAL_FRACTION)]
        for clients in AUTHORS_CLIENTS:
            dealt = _deal(generator, edges, clients), _deal(generator, relations, clients)
            if (name, clients) == (wanted, num_clients):
                return val, *dealt
    raise AssertionError(f"{wanted} with {num_clients} clients is none of the drawn partitions")


def _deal(generator: random.Random, count: int, clients: int) -> list[list[int]]:
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
