from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

from flgraph.data import NodeGraph
from flgraph.errors import InputError
from flgraph.models import NeighbourSums, NodeGCN
from flgraph.nn import gcn_matrix


def graph(sparse: bool) -> NodeGraph:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(12, 6, generator=generator) * (torch.rand(12, 6, generator=generator) < 0.2)
    edges = torch.randint(0, 10, (2, 15), generator=generator)  # two nodes without edges
    made = NodeGraph.from_pyg(Data(x=x, edge_index=edges, y=torch.arange(12) % 3))
    return made if sparse else NodeGraph(x, made.edge_index, made.y, 3)


@pytest.mark.parametrize("sparse", [True, False])
def test_equals_pyg(sparse: bool) -> None:
    """Logits, and the gradients of all weights."""
    torch.manual_seed(0)
    made, index = graph(sparse), torch.tensor([7, 1, 11])
    net = NodeGCN(6, 3, hidden_channels=5, dropout=0.0)
    convs = [GCNConv(6, 5), GCNConv(5, 3)]
    for own, conv in zip(net.convs, convs, strict=True):
        torch.nn.init.normal_(own.bias)
        conv.lin.weight.data.copy_(own.weight.t())
        conv.bias.data.copy_(own.bias)
    hidden = torch.relu(convs[0](made.x.to_dense() if sparse else made.x, made.edge_index))
    expected = convs[1](hidden, made.edge_index)[index]
    logits = net(made.batch(index))
    torch.testing.assert_close(logits, expected)
    logits.sin().sum().backward()
    expected.sin().sum().backward()
    for own, conv in zip(net.convs, convs, strict=True):
        torch.testing.assert_close(own.weight.grad, conv.lin.weight.grad.t())
        torch.testing.assert_close(own.bias.grad, conv.bias.grad)


def test_what_is_known_holds_for_these_nodes_only() -> None:
    made = graph(True)
    net = NodeGCN(6, 3, hidden_channels=5, dropout=0.0).eval()
    part, rest = made.subgraph(torch.arange(8)), made.subgraph(torch.arange(4, 12))
    every = torch.arange(8)
    before = [net(own.batch(every)) for own in (part, rest)]
    whole = gcn_matrix(made.adj).to_dense()
    sums = whole @ made.x.to_dense()
    net.use_sums(NeighbourSums(part.nodes, sums[:8].to_sparse_csr()))
    after = [net(own.batch(every)) for own in (part, rest)]
    assert not torch.equal(after[0], before[0])
    assert torch.equal(after[1], before[1])
    assert set(net.state_dict()) == {f"convs.{n}.{name}" for n in (0, 1) for name in ("weight", "bias")}
    net.use_sums(NeighbourSums(part.nodes, sums, whole[:8].to_sparse_csr()))
    expected = NodeGCN.forward(net, made.batch(every))
    torch.testing.assert_close(net(part.batch(every)), expected)
    net.use_sums(None)
    assert torch.equal(net(part.batch(every)), before[0])


def test_half_precision_and_templates() -> None:
    made = graph(True)
    net = NodeGCN(6, 3, hidden_channels=5, dropout=0.0).bfloat16()
    assert net(made.batch(torch.arange(12))).dtype == torch.bfloat16
    with pytest.raises(InputError, match=r"`model\.in_channels` to be given"):
        NodeGCN()(made.batch(torch.arange(12)))
    with pytest.raises(InputError, match=r"`batch\.x` to be of shape \[nodes, 5\]"):
        NodeGCN(5, 3)(made.batch(torch.arange(12)))
    for name, value in (("hidden_channels", 0), ("dropout", 1.0)):
        with pytest.raises(InputError, match=f"`model.{name}`"):
            NodeGCN(6, 3, **{name: value})


@pytest.mark.parametrize("precision", [torch.float64, torch.bfloat16])
def test_dense_sums_in_other_precisions(precision: torch.dtype) -> None:
    net = NodeGCN(6, 3, hidden_channels=4).eval()
    batch = graph(sparse=False).batch(torch.arange(12))
    net.use_sums(NeighbourSums(torch.arange(12), torch.rand(12, 6)))
    expected = net(batch)
    batch.x = batch.x.to(precision)
    assert torch.allclose(net.to(precision)(batch).float(), expected, atol=0.05)
