"""Generated graphs whose neighbours are as often of one class as wanted."""

from __future__ import annotations

import re

import torch
from torch.nn.functional import normalize
from torch_geometric.data import Data
from torch_geometric.utils import stochastic_blockmodel_graph

from flgraph.data.nodes.container import NodeGraph
from flgraph.errors import expect

_NAME = re.compile(r"homophily-(\d+(?:\.\d+)?)")
_LEAST = 8
"""Nodes of every class in every community."""


def homophily_of(name: str) -> float | None:
    """The share that a name such as ``homophily-0.3`` asks for; ``None`` of any other name."""
    found = _NAME.fullmatch(name.lower())
    return None if found is None else float(found[1])


def generate_nodes(
    homophily: float,
    num_communities: int = 5,
    num_classes: int = 4,
    community_size: int = 240,
    degree: float = 8.0,
    cut: float = 0.1,
    alpha: float = 1.0,
    num_features: int = 32,
    signal: float = 1.5,
    seed: int = 0,
) -> NodeGraph:
    r"""A contextual stochastic block model (Deshpande et al., NeurIPS 2018) of communities with several classes each.

    A community's class shares are drawn from a symmetric Dirichlet distribution. Of the edges within a community a
    share ``homophily`` joins nodes of one class; edges to other communities join any nodes. Features are
    :math:`x_v = s\,u_{y_v} + \epsilon_v` with a random unit vector :math:`u_c` for each class and
    :math:`\epsilon_v \sim N(0, I)`. ``keys["community"]`` says which community a node is of.

    Args:
        homophily: expected share of a community's edges that join nodes of one class, above 0 and below 1.
        num_communities: number of communities.
        num_classes: number of classes.
        community_size: nodes of each community.
        degree: expected edges of a node.
        cut: expected share of the edges that lead to another community.
        alpha: concentration of the class shares; every class has 8 nodes at least in every community.
        num_features: columns of the features.
        signal: :math:`s`.
        seed: of all draws.

    Raises:
        InputError: the homophily is out of range, or a community has too few pairs of nodes for it.

    Example:
        >>> graph = generate_nodes(0.3)
        >>> graph.num_nodes, graph.num_classes, sorted(set(graph.keys["community"].tolist()))
        (1200, 4, ['c1', 'c2', 'c3', 'c4', 'c5'])
    """
    expect(0 < homophily < 1, "data.dataset", "homophily-H with H above 0 and below 1", f"homophily-{homophily:g}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        shares = torch.distributions.Dirichlet(torch.full((num_classes,), alpha)).sample((num_communities,))
        sizes = _LEAST + (shares * (community_size - _LEAST * num_classes)).floor().long()
        sizes[:, 0] += community_size - sizes.sum(1)
        n = num_communities * community_size
        outside = degree * cut / max(1, n - community_size)
        blocks = torch.full((num_communities, num_classes, num_communities, num_classes), outside)
        same = torch.eye(num_classes, dtype=torch.bool)
        edges = degree * (1 - cut) * community_size / 2
        for number, own in enumerate(sizes.double()):
            pairs = torch.outer(own, own).triu(1).sum()
            alike = (own * (own - 1) / 2).sum()
            within, between = homophily * edges / alike, (1 - homophily) * edges / pairs
            expect(max(within, between) <= 1, "data.dataset", "of fewer edges, or of larger communities,", homophily)
            blocks[number, :, number] = torch.where(same, within, between).float()
        sizes, blocks = sizes.flatten(), blocks.flatten(2).flatten(0, 1)
        y = torch.arange(num_classes).repeat(num_communities).repeat_interleave(sizes)
        edge_index = stochastic_blockmodel_graph(sizes, blocks)
        x = signal * normalize(torch.randn(num_classes, num_features))[y] + torch.randn(n, num_features)
    where = torch.arange(num_communities).repeat_interleave(community_size)
    data = Data(x=x, edge_index=edge_index, y=y, community=[f"c{number + 1}" for number in where.tolist()])
    return NodeGraph.from_pyg(data, f"homophily-{homophily:g}", num_classes, key="community")
