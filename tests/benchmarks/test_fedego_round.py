from __future__ import annotations

from itertools import pairwise
from types import ModuleType

import pytest
import torch

from flgraph.data.nodes.batching import EgoBatch, sample_ego_graphs
from flgraph.models import FedEgo


def test_the_plain_networks_compute_what_the_model_does(benchmark: ModuleType) -> None:
    torch.manual_seed(0)
    graph = benchmark.synthetic(60, 300, features=40, words=5, classes=4)
    model = FedEgo(40, 4, hidden_channels=8).eval()
    plain, whole = benchmark.PlainNet(40, 8, 4).eval(), benchmark.WholeNet(40, 8, 4).eval()
    with torch.no_grad():
        (first,) = model.reduction.layers
        first.bias.uniform_()
        plain.reduction.weight.copy_(first.weight.t())
        plain.reduction.bias.copy_(first.bias)
        for number, layer in enumerate(model.personalization.layers):
            layer.lin_neighbour.bias.uniform_()
            plain.self_maps[number].load_state_dict(layer.lin_self.state_dict())
            plain.neighbour_maps[number].load_state_dict(layer.lin_neighbour.state_dict())
        plain.classifier.load_state_dict(model.personalization.classifier.state_dict())
    whole.load_state_dict(plain.state_dict())
    centers = torch.arange(60)[graph.rowptr.diff() > 0][:7]
    egos = sample_ego_graphs(graph.rowptr, graph.col, centers, benchmark.HOPS)
    wanted = model(EgoBatch.gather(graph.x, graph.y, egos, benchmark.HOPS))
    hops = [graph.x.to_dense()[hop.flatten()] for hop in egos.split([1, 6, 36], dim=1)]
    torch.testing.assert_close(plain(hops), wanted)
    torch.testing.assert_close(whole(hops), wanted)


def test_a_plain_batch_is_of_ego_graphs(benchmark: ModuleType) -> None:
    graph = benchmark.synthetic(60, 300, features=40, words=5, classes=4)
    rows = torch.arange(60.0).unsqueeze(1)  # in place of features, a node's number
    edges = set(map(tuple, graph.edge_index.t().tolist()))
    sizes = []
    for hops, y in benchmark.plain_batches(graph, rows, range(10), 4):
        sizes.append(len(y))
        numbers = [hop.flatten().long() for hop in hops]
        assert torch.equal(graph.y[numbers[0]], y)
        for above, below in pairwise(numbers):
            for parent, child in zip(above.repeat_interleave(6).tolist(), below.tolist(), strict=True):
                assert (child, parent) in edges or (parent, child) in edges or child == parent
    assert sizes == [4, 4, 2]


def test_the_large_graph_in_small(benchmark: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    benchmark.large(2000, 12000, 1, 8)
    told = capsys.readouterr().out
    assert "2,000 nodes, 12,000 edges, 10 clients" in told
    assert "MiB up" in told
