"""What FedEgo's published code does and its paper does not say: the authors' clients, and labels of all nodes."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import torch
from torch.nn import functional as F

from flgraph.data.nodes.container import NodeGraph
from flgraph.data.nodes.partition import NodePartition, check_skew, divide_nodes
from flgraph.errors import expect
from flgraph.models.nodes.fedego import FedEgo, MashedEgoGraphs
from flgraph.nn.batches import EgoBatch


def authors_label_skew(
    graph: NodeGraph,
    num_clients: int,
    local_fraction: float = 0.3,
    global_fraction: float = 0.3,
    major_labels: int = 3,
    major_rate: float = 0.8,
    num_test: int = 300,
    val_fraction: float = 0.2,
    num_train: int | None = None,
    num_query: int = 0,
    seed: int = 123,
) -> NodePartition:
    """:func:`~flgraph.data.label_skew` by the very draws of FedEgo's published code.

    A seed gives the clients that the authors had: their numbers of training nodes on Cora and CiteSeer reproduce the
    megabytes of the paper's Table 7. It differs from :func:`~flgraph.data.label_skew` in details, too: nodes without an
    edge in the whole graph are left out first (48 in CiteSeer), shares are rounded down, frequent labels are drawn
    among all labels, a client's test nodes leave the pool, but may be training nodes of earlier clients. Draws are
    those of NumPy's legacy generator and of Python's, both seeded with ``seed``; the order in which CPython iterates
    over a set of integers counts, too.

    Args:
        graph: the whole graph, its edges sorted by source.
        num_clients: number of clients.
        local_fraction: nodes that a client asks for, as a share of all.
        global_fraction: share of all nodes that is the global test graph.
        major_labels: frequent labels per client.
        major_rate: share of a client's nodes that have them.
        num_test: test nodes per client.
        val_fraction: validation nodes, as a share of all nodes of the client.
        num_train: see :func:`~flgraph.data.label_skew`.
        num_query: see there.
        seed: of all draws; the paper's are 1027, 1107, 2333 and 9973.

    Raises:
        InputError: a number is out of range, or a client would have no edge or too few nodes.
    """
    check_skew(graph, num_clients, local_fraction, global_fraction, major_rate, num_test, val_fraction, num_train, seed)
    expect(num_query >= 0, "data.num_query", "0 or more", num_query)
    edges = graph.edge_index.t().contiguous()
    # Nodes are numbered as they come up in the list of edges, source and target in turn.
    flat = edges.flatten().numpy()
    numbers, first = np.unique(flat, return_index=True)
    original = numbers[np.argsort(first)]
    place = np.full(graph.num_nodes, -1)
    place[original] = np.arange(original.size)
    y, count = graph.y.numpy()[original], original.size
    expect(count > 0, "data.dataset", "a graph with edges", graph.name)
    labels = np.unique(y)
    sound = 1 <= major_labels <= labels.size
    expect(sound, "data.major_labels", f"between 1 and the {labels.size} labels of {graph.name}", major_labels)
    neighbours: list[list[int]] = [[] for _ in range(count)]
    for source, target in place[edges.numpy()].tolist():
        neighbours[source].append(target)
        neighbours[target].append(source)

    numpy, python = np.random.RandomState(seed), random.Random(seed)
    held = numpy.permutation(count)[: int(count * global_fraction)]
    expect(held.size < count, "data.global_fraction", f"small enough to leave nodes of {graph.name}", global_fraction)
    size, gone = int(count * local_fraction), set(held.tolist())
    clients = []
    for number in range(1, num_clients + 1):
        left = np.array([node for node in range(count) if node not in gone], dtype=np.int64)
        chosen = labels[numpy.permutation(labels.size)[:major_labels]]
        of_labels = np.concatenate([left[y[left] == label] for label in chosen])
        major = numpy.permutation(of_labels)[: int(size * major_rate)]
        others = numpy.permutation(left[~np.isin(left, major)])[: size - major.size]
        drawn = np.concatenate([major, others]).tolist()
        nodes = _connected(drawn, neighbours)
        what = f"large enough for client `client-{number}` to have an edge"
        expect(len(nodes) > 0, "data.local_fraction", what, local_fraction)
        python.shuffle(nodes)
        rest, test = nodes[: max(0, len(nodes) - num_test)], nodes[max(0, len(nodes) - num_test) :]
        gone |= set(test)
        num_val = int(val_fraction * len(nodes))
        train, val = rest[: max(0, len(rest) - num_val)], rest[max(0, len(rest) - num_val) :]
        own = torch.from_numpy(original[np.array(val + train + test)])
        clients.append(divide_nodes(own, num_test, num_val, num_train, num_query, f"client-{number}"))
    return NodePartition(clients, torch.from_numpy(np.sort(original[held])))


def _connected(drawn: list[int], neighbours: list[list[int]]) -> list[int]:
    """Those with an edge to another, in the order of a set that they enter pair by pair, in the order of ``drawn``."""
    at = {node: position for position, node in enumerate(drawn)}
    found: set[int] = set()
    for node in drawn:
        beside = {other for other in neighbours[node] if other in at}
        for other in sorted(beside, key=at.__getitem__):
            found.add(node)
            found.add(other)
    return list(found)


def mash_all_labels(model: FedEgo, batch: EgoBatch, mixup: bool = True) -> MashedEgoGraphs:
    """:meth:`~flgraph.models.FedEgo.mash` with the classes of validation and test nodes, too.

    A position that no ego-graph has a node at keeps the classes that stand there.

    Args:
        model: the client's.
        batch: see there, as for ``mixup``.
        mixup: see there.
    """
    mashed = model.mash(replace(batch, trained=None), mixup)
    label = F.one_hot(batch.labels[:, : mashed.label.size(1)], mashed.label.size(2)).to(mashed.label.dtype)
    label = label.mean(0, keepdim=True) if mixup else label[:1]
    return replace(mashed, label=torch.where(mashed.label.sum(2, keepdim=True) > 0, mashed.label, label))
