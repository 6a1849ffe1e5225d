"""A small federation made on the spot: domains that have nothing in common but what their labels depend on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from flgraph.data.graphs.container import FlatGraphs
from flgraph.data.graphs.datamodule import GraphDataModule
from flgraph.data.graphs.federation import GraphFederation
from flgraph.errors import expect

Edges = list[tuple[int, int]]
"""Pairs of node numbers, each edge once, in any order."""

PRISM: Edges = [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3), (0, 3), (1, 4), (2, 5)]
"""Two triangles joined node by node; what graphs of class 0 contain."""

BIPARTITE: Edges = [(left, right) for left in (0, 1, 2) for right in (3, 4, 5)]
"""K(3,3), every node of one side joined to every node of the other; what graphs of class 1 contain."""

_DISTRACTORS: list[Edges] = [
    [(0, 1), (1, 2), (2, 0)],
    [(0, 1), (1, 2), (2, 3), (3, 0)],
    [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)],
]
"""Triangle, square, and K(4): planted in both classes, so that a triangle or a square alone says little."""

_CONCENTRATION = 0.3
"""How uneven a graph's mix of features is; well below 1, so that a model can learn its training graphs by heart."""


# ------------------------------------------------------------------------------------------- the domains' own structure
def _tree(n: int, rng: np.random.Generator) -> Edges:
    return [(int(rng.integers(node)), node) for node in range(1, n)]


def _ring(n: int, rng: np.random.Generator) -> Edges:
    ring = [(node, (node + 1) % n) for node in range(n)]
    return ring + _chords(n, max(1, n // 8), rng)


def _ladder(n: int, rng: np.random.Generator) -> Edges:
    half = n // 2
    rails = [(side + node, side + node + 1) for side in (0, half) for node in range(half - 1)]
    rungs = [(node, half + node) for node in range(half) if node == 0 or rng.random() < 0.8]
    return rails + rungs + ([(n - 2, n - 1)] if n % 2 else [])


def _sparse(n: int, rng: np.random.Generator) -> Edges:
    return _tree(n, rng) + _chords(n, n // 3, rng)


def _hub(n: int, rng: np.random.Generator) -> Edges:
    """Preferential attachment, two edges per node."""
    edges = [(0, 1), (1, 2), (2, 0)]
    for node in range(3, n):
        ends = [end for edge in edges for end in edge]
        edges += [(ends[int(rng.integers(len(ends)))], node) for _ in range(2)]
    return edges


def _block(n: int, rng: np.random.Generator) -> Edges:
    """Cliques of three or four nodes, each tied to an earlier node."""
    edges: Edges = []
    start = 0
    while start < n:
        end = min(start + int(rng.integers(3, 5)), n)
        edges += [(a, b) for a in range(start, end) for b in range(a + 1, end)]
        if start:
            edges.append((int(rng.integers(start)), start))
        start = end
    return edges


def _chords(n: int, count: int, rng: np.random.Generator) -> Edges:
    return [(int(a), int(b)) for a, b in (rng.choice(n, 2, replace=False) for _ in range(count))]


@dataclass(frozen=True)
class Domain:
    """A family of graphs.

    Args:
        grow: makes a graph's own edges, before anything is planted.
        num_graphs: how many graphs there are by default.
        nodes: fewest and most nodes of its own that a graph has.
        num_features: columns of its one-hot features.
    """

    grow: Callable[[int, np.random.Generator], Edges]
    num_graphs: int
    nodes: tuple[int, int]
    num_features: int


DOMAINS: dict[str, Domain] = {
    "trees": Domain(_tree, 140, (6, 14), 7),
    "rings": Domain(_ring, 140, (6, 16), 12),
    "ladders": Domain(_ladder, 160, (6, 16), 5),
    "sparse": Domain(_sparse, 200, (6, 16), 20),
    "hubs": Domain(_hub, 200, (8, 18), 40),
    "blocks": Domain(_block, 480, (6, 16), 25),
}
"""What :class:`SyntheticFederation` can make."""


class SyntheticFederation(GraphFederation):
    """Domains with different features, sizes and shapes of graphs, and one structural question common to all.

    Every graph is grown in its domain's way (trees, rings, ladders, ...). Then distractors are hung on it
    (triangles, squares, complete graphs of four nodes), and last a prism (class 0) or a complete bipartite graph
    K(3,3) (class 1). These two have six nodes, nine edges and three neighbours per node, so neither counts nor
    degrees tell the classes apart; walks that return to where they began do. Features are one-hots drawn from a mix
    of the graph's own: they tell graphs apart, which helps to learn training graphs by heart, but say nothing about
    the class.

    A domain with few graphs can hardly learn the question alone. Together the domains can, though they have no
    feature in common, by sharing what looks at structure only. Made in memory from ``seed``, in less than a second.

    Args:
        domains: names of some of :data:`DOMAINS`, a client each; all of them when ``None``.
        num_graphs: graphs of each domain; each domain's own number, 140 to 480, when ``None``.
        distractors: how many are hung on each graph; more of them make the question harder.
        seed: of the graphs; not the run's seed, so that runs differ in weights and batches only.
        name: how runs on this data are called.
        **kwargs: see :class:`GraphFederation`.

    Raises:
        InputError: a domain is not known, or a setting cannot be used.
    """

    def __init__(
        self,
        domains: list[str] | None = None,
        num_graphs: int | None = None,
        distractors: int = 2,
        seed: int = 0,
        name: str = "synthetic",
        **kwargs: Any,
    ) -> None:
        super().__init__({}, 2, name, **kwargs)
        self.domains = list(DOMAINS) if domains is None else list(domains)
        known = len(self.domains) > 0 and set(self.domains) <= DOMAINS.keys()
        expect(known, "data.domains", f"some of {', '.join(DOMAINS)}", domains)
        expect(len(set(self.domains)) == len(self.domains), "data.domains", "different domains", domains)
        expect(num_graphs is None or num_graphs >= 2, "data.num_graphs", "2 or more", num_graphs)
        expect(distractors >= 0, "data.distractors", "0 or more", distractors)
        expect(seed >= 0, "data.seed", "0 or more", seed)
        self.num_graphs, self.distractors, self.seed = num_graphs, distractors, seed

    def load(self) -> Iterable[tuple[str, FlatGraphs, int]]:
        """Makes one domain after another."""
        for name in self.domains:
            yield name, self.embed(synthetic_graphs(name, self.num_graphs, self.distractors, self.seed)), 2

    def _make(self, name: str, graphs: FlatGraphs, num_classes: int) -> GraphDataModule:
        client = super()._make(name, graphs, num_classes)
        client.settings.update(seed=self.seed, distractors=self.distractors)
        return client


def synthetic_graphs(domain: str, num_graphs: int | None = None, distractors: int = 2, seed: int = 0) -> FlatGraphs:
    """The graphs of one domain; both classes are equally frequent.

    Args:
        domain: one of :data:`DOMAINS`; its graphs do not depend on which others are made.
        num_graphs: how many; the domain's own number when ``None``.
        distractors: how many are hung on each graph.
        seed: of all draws.
    """
    recipe = DOMAINS[domain]
    count = recipe.num_graphs if num_graphs is None else num_graphs
    rng = np.random.default_rng([seed, *domain.encode()])
    y = rng.permutation(np.arange(count) % 2)
    columns, edges, node_counts, edge_counts = [], [], [], []
    for label in y:
        n, found = _graph(recipe, PRISM if label == 0 else BIPARTITE, distractors, rng)
        both = np.concatenate([found, found[::-1]], axis=1)
        edges.append(both[:, np.lexsort((both[1], both[0]))])
        mix = rng.dirichlet(np.full(recipe.num_features, _CONCENTRATION))
        columns.append(rng.choice(recipe.num_features, n, p=mix))
        node_counts.append(n)
        edge_counts.append(both.shape[1])
    column = torch.from_numpy(np.concatenate(columns))
    return FlatGraphs(
        torch.nn.functional.one_hot(column, recipe.num_features).to(torch.int8),
        torch.from_numpy(np.concatenate(edges, axis=1)).to(torch.int32),
        torch.from_numpy(y),
        torch.from_numpy(np.cumsum([0, *node_counts])),
        torch.from_numpy(np.cumsum([0, *edge_counts])),
        name=domain,
        undirected=True,
    )


def _graph(recipe: Domain, motif: Edges, distractors: int, rng: np.random.Generator) -> tuple[int, np.ndarray]:
    """Number of nodes, and every edge once ``[2, E]``; nodes in random order."""
    own = n = int(rng.integers(recipe.nodes[0], recipe.nodes[1] + 1))
    edges = recipe.grow(own, rng)
    hung = [(_DISTRACTORS[int(rng.integers(len(_DISTRACTORS)))], 1) for _ in range(distractors)]
    for part, ties in [*hung, (motif, 2)]:
        size = max(max(edge) for edge in part) + 1
        edges += [(n + a, n + b) for a, b in part]
        edges += [(int(rng.integers(own)), n + int(rng.integers(size))) for _ in range(ties)]
        n += size
    once = np.unique(np.sort(np.array(edges), axis=1), axis=0)
    return n, rng.permutation(n)[once.T]
