"""Sampled neighbourhoods, against loops and whole graphs; and that federations train on them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, SAGEConv
from torch_geometric.utils import k_hop_subgraph

from flgraph.callbacks import AdaFGL, FedAvg, FedGCN
from flgraph.data import NodeGraph, SampledLoader, WholeGraphFederation, generate_nodes, sample_neighbours
from flgraph.errors import InputError
from flgraph.models import AdaFGL as AdaFGLModel
from flgraph.models import NodeGCN, NodeGNN, NodeSAGE
from flgraph.nn.batches import SampledGraph

ALL = 10_000
"""More neighbours than any node has."""


@pytest.fixture(scope="module")
def graph() -> NodeGraph:
    return generate_nodes(0.6)


@pytest.mark.parametrize("fanouts", [(ALL,), (ALL, ALL)])
def test_all_neighbours_are_pygs_subgraph(graph: NodeGraph, fanouts: tuple[int, ...]) -> None:
    seeds = torch.tensor([7, 900, 3])
    nodes, edges = sample_neighbours(graph.rowptr, graph.col, seeds, fanouts)
    expected = k_hop_subgraph(seeds, len(fanouts), graph.edge_index)[0]
    assert nodes[:3].tolist() == seeds.tolist()
    assert nodes.sort().values.tolist() == expected.tolist()
    found = {tuple(pair) for pair in nodes[edges].t().tolist()}
    inner = set(k_hop_subgraph(seeds, len(fanouts) - 1, graph.edge_index)[0].tolist())
    assert found == {(s, t) for s, t in graph.edge_index.t().tolist() if t in inner}
    assert len(found) == edges.size(1)


def test_few_neighbours_are_some_of_all(graph: NodeGraph) -> None:
    torch.manual_seed(0)
    seeds, degree = torch.arange(200), graph.degree
    nodes, edges = sample_neighbours(graph.rowptr, graph.col, seeds, (3, 2))
    known = {tuple(pair) for pair in graph.edge_index.t().tolist()}
    pairs = nodes[edges].t().tolist()
    assert {tuple(pair) for pair in pairs} <= known
    assert len({tuple(pair) for pair in pairs}) == len(pairs)
    got = torch.bincount(nodes[edges[1]], minlength=graph.num_nodes)
    assert int(got[:200].max()) == 3
    assert torch.equal(got[:200][degree[:200] <= 3], degree[:200][degree[:200] <= 3])
    later = nodes[200:]
    assert int(got[later].max()) <= 2


def test_draws_are_even(graph: NodeGraph) -> None:
    """A node of many neighbours hears from each as often, up to five standard errors."""
    hub = int(graph.degree.argmax())
    own = graph.col[graph.rowptr[hub] : graph.rowptr[hub + 1]].tolist()
    torch.manual_seed(0)
    counts = dict.fromkeys(own, 0)
    for _ in range(2000):
        nodes, _ = sample_neighbours(graph.rowptr, graph.col, torch.tensor([hub]), (1,))
        counts[int(nodes[1])] += 1
    mean = 2000 / len(own)
    assert all(abs(count - mean) < 5 * mean**0.5 for count in counts.values())


@pytest.mark.parametrize("undirected", [True, False])
@pytest.mark.parametrize("conv", ["gat", "gine", "pna"])
def test_edges_have_their_features(graph: NodeGraph, conv: Any, undirected: bool) -> None:
    ends = graph.edge_index if undirected else graph.edge_index[:, ::3]
    features = torch.stack([ends.sum(0), (ends[0] - ends[1]).abs()], dim=1) / graph.num_nodes
    data = Data(x=graph.x, edge_index=ends, edge_attr=features, y=graph.y)
    whole = NodeGraph.from_pyg(data, undirected=undirected)
    model = NodeGNN(whole.num_features, whole.num_classes, hidden_channels=8, conv=conv, edge_channels=2).eval()
    for batch in SampledLoader(whole, torch.arange(0, 1200, 40), 16, (ALL, ALL)):
        expected = model(whole.batch(batch.nodes[batch.index]))
        torch.testing.assert_close(model(batch), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [NodeSAGE, partial(NodeGNN, edge_channels=0)])
def test_with_all_neighbours_logits_are_those_of_the_whole_graph(graph: NodeGraph, kind: Any) -> None:
    model = kind(graph.num_features, graph.num_classes, hidden_channels=16).eval()
    for batch in SampledLoader(graph, torch.arange(0, 1200, 7), 64, (ALL, ALL)):
        assert isinstance(batch, SampledGraph)
        seeds = batch.nodes[batch.index]
        torch.testing.assert_close(model(batch), model(graph.batch(seeds)), rtol=1e-4, atol=1e-5)
        assert torch.equal(batch.y, graph.y[seeds])


@pytest.mark.parametrize(("kind", "layer"), [(NodeGCN, GCNConv), (NodeSAGE, SAGEConv)])
def test_layers_on_a_sampled_graph_are_pygs(graph: NodeGraph, kind: Any, layer: Any) -> None:
    torch.manual_seed(0)
    batch = next(iter(SampledLoader(graph, torch.arange(300), 32, (4, 3))))
    model = kind(graph.num_features, graph.num_classes, hidden_channels=16).eval()
    edges = torch.stack([batch.adj.col, torch.arange(batch.adj.num_nodes).repeat_interleave(batch.adj.rowptr.diff())])
    x = batch.x
    for number, own in enumerate(model.convs):
        theirs = layer(own.in_channels, own.out_channels)
        with torch.no_grad():
            if kind is NodeGCN:
                theirs.lin.weight.copy_(own.weight.t())
                theirs.bias.copy_(own.bias)
            else:
                root, neighbours = own.weight.t().split(own.out_channels)
                theirs.lin_r.weight.copy_(root)
                theirs.lin_l.weight.copy_(neighbours)
                theirs.lin_l.bias.copy_(own.bias)
        x = theirs(x, edges)
        x = x.relu() if number == 0 else x
    torch.testing.assert_close(model(batch), x[: len(batch.y)], rtol=1e-4, atol=1e-5)


def test_a_pass_visits_each_once_in_a_new_order(graph: NodeGraph) -> None:
    loader = SampledLoader(graph, torch.arange(100, 200), 30, (2, 2))
    first, second = ([batch.nodes[batch.index] for batch in loader] for _ in range(2))
    assert [len(part) for part in first] == [30, 30, 30, 10] == [len(part) for part in second]
    assert torch.cat(first).sort().values.tolist() == list(range(100, 200))
    assert not torch.equal(torch.cat(first), torch.cat(second))
    assert len(SampledLoader(graph, torch.arange(100), 30, (2,), fraction=0.25)) == 1


def federation(**kwargs: Any) -> WholeGraphFederation:
    how: dict[str, Any] = {"partition_key": "community", "cross_edges": False, "sampled": True, "epoch_fraction": 1.0}
    return WholeGraphFederation("homophily-0.6", global_fraction=0, fanouts=(5, 5), **{**how, **kwargs})


def test_federations_train_on_samples(federate: Callable[..., Any]) -> None:
    results = federate(FedAvg(), rounds=3).fit(NodeSAGE(hidden_channels=32, lr=0.01), federation())
    assert results["final"]["mean"]["test/accuracy"] > 0.6
    assert results["data"]["c1"]["sampled"]


def test_refusals(federate: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match=r"`data.cross_edges` to be false where training is sampled but got True"):
        federation(cross_edges=True)
    with pytest.raises(InputError, match=r"`data.sampled` to be false for AdaFGL, which needs whole graphs, but got"):
        federate(AdaFGL(federated_rounds=1), rounds=2).fit(AdaFGLModel(hidden_channels=8), federation())
    with pytest.raises(InputError, match=r"`data.sampled` to be false for FedGCN, whose sums are of whole graphs, but"):
        federate(FedGCN(num_hops=1), rounds=1).fit(NodeGCN(hidden_channels=8), federation())
