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
_COMMUNITIES, _CLASSES, _SIZE = 5, 4, 240
"""Communities, classes, and nodes of each community."""
_LEAST = 8
"""Nodes of every class in every community."""
_DEGREE, _CUT = 8.0, 0.1
"""Expected edges of a node, and the expected share of them that lead to another community."""
_FEATURES, _SIGNAL = 32, 1.5
"""Columns of the features, and s."""


def homophily_of(name: str) -> float | None:
    """The share that a name such as ``homophily-0.3`` asks for; ``None`` of any other name."""
    found = _NAME.fullmatch(name.lower())
    return None if found is None else float(found[1])


def generate_nodes(homophily: float) -> NodeGraph:
    r"""A contextual stochastic block model (Deshpande et al., NeurIPS 2018) of communities with several classes each.

    A community's class shares are drawn evenly from all there are (a Dirichlet distribution of concentration 1). Of the
    edges within a community a share ``homophily`` joins nodes of one class; edges to other communities join any nodes.
    Features are :math:`x_v = s\,u_{y_v} + \epsilon_v` with a random unit vector :math:`u_c` for each class and
    :math:`\epsilon_v \sim N(0, I)`. ``keys["community"]`` says which community a node is of.

    Args:
        homophily: expected share of a community's edges that join nodes of one class, above 0 and below 1.

    Raises:
        InputError: the homophily is out of range, or a community has too few pairs of nodes for it.

    Example:
        >>> graph = generate_nodes(0.3)
        >>> graph.num_nodes, graph.num_classes, sorted(set(graph.keys["community"].tolist()))
        (1200, 4, ['c1', 'c2', 'c3', 'c4', 'c5'])
    """
    expect(0 < homophily < 1, "data.dataset", "homophily-H with H above 0 and below 1", f"homophily-{homophily:g}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        shares = torch.distributions.Dirichlet(torch.ones(_CLASSES)).sample((_COMMUNITIES,))
        sizes = _LEAST + (shares * (_SIZE - _LEAST * _CLASSES)).floor().long()
        sizes[:, 0] += _SIZE - sizes.sum(1)
        n = _COMMUNITIES * _SIZE
        outside = _DEGREE * _CUT / max(1, n - _SIZE)
        blocks = torch.full((_COMMUNITIES, _CLASSES, _COMMUNITIES, _CLASSES), outside)
        same = torch.eye(_CLASSES, dtype=torch.bool)
        edges = _DEGREE * (1 - _CUT) * _SIZE / 2
        for number, own in enumerate(sizes.double()):
            pairs = torch.outer(own, own).triu(1).sum()
            alike = (own * (own - 1) / 2).sum()
            within, between = homophily * edges / alike, (1 - homophily) * edges / pairs
            expect(max(within, between) <= 1, "data.dataset", "of fewer edges, or of larger communities,", homophily)
            blocks[number, :, number] = torch.where(same, within, between).float()
        sizes, blocks = sizes.flatten(), blocks.flatten(2).flatten(0, 1)
        y = torch.arange(_CLASSES).repeat(_COMMUNITIES).repeat_interleave(sizes)
        edge_index = stochastic_blockmodel_graph(sizes, blocks)
        x = _SIGNAL * normalize(torch.randn(_CLASSES, _FEATURES))[y] + torch.randn(n, _FEATURES)
    where = torch.arange(_COMMUNITIES).repeat_interleave(_SIZE)
    data = Data(x=x, edge_index=edge_index, y=y, community=[f"c{number + 1}" for number in where.tolist()])
    return NodeGraph.from_pyg(data, f"homophily-{homophily:g}", _CLASSES, key="community")
