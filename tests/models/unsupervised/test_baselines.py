from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GCNConv

from flgraph.data import Diffusion, FlatGraphs, GraphDataModule, ViewDataModule, diffused
from flgraph.errors import InputError
from flgraph.models import MVGRL, GraphEmbedding, InfoGraph


def flat(given: list[Data]) -> FlatGraphs:
    graphs = FlatGraphs.from_pyg(given)
    return graphs.with_views({"diffused": diffused(graphs, Diffusion())})


def literal(local: Tensor, summary: Tensor, graph: Tensor) -> Tensor:
    """Masks and expectations over all pairs of node and graph, as the papers' code writes them."""
    scores = local @ summary.t()
    positive = F.one_hot(graph, summary.size(0)).to(scores)
    own = math.log(2) - F.softplus(-scores)
    other = F.softplus(-scores) + scores - math.log(2)
    nodes, graphs = len(local), len(summary)
    return (other * (1 - positive)).sum() / (nodes * (graphs - 1)) - (own * positive).sum() / nodes


def test_infograph(graph_list: Callable[..., list[Data]]) -> None:
    """On a plain PyG batch; embeddings are sums of all layers' nodes."""
    torch.manual_seed(0)
    batch = Batch.from_data_list(graph_list(5))
    net = InfoGraph(4, 2, hidden_channels=6, num_layers=2)
    loss, encoded = net.contrast(batch)
    assert encoded.nodes.shape == (batch.num_nodes, 12)
    summed = torch.stack([encoded.nodes[batch.batch == number].sum(0) for number in range(5)])
    torch.testing.assert_close(encoded.graphs, summed)

    def projected(block: Any, x: Tensor) -> Tensor:
        return block.block(x) + x @ block.shortcut.weight.t() + block.shortcut.bias

    local, summary = projected(net.local_projection, encoded.nodes), projected(net.global_projection, summed)
    torch.testing.assert_close(loss, literal(local, summary, batch.batch), atol=1e-4, rtol=1e-4)


def test_mvgrl(graph_list: Callable[..., list[Data]]) -> None:
    """PyG's GCN on the edges, dense products on the diffusion."""
    torch.manual_seed(0)
    given = graph_list(5)
    graphs, plain = flat(given), Batch.from_data_list(given)
    dense = graphs.batch().diffused.matrix(torch.float32).to_dense()
    net = MVGRL(4, 2, hidden_channels=6, num_layers=2)
    one, other, x, y = [], [], plain.x, plain.x
    for number in range(2):
        conv, act = net.encoders[0].convs[number], net.encoders[0].activations[number]
        gcn = GCNConv(x.size(1), 6)
        gcn.load_state_dict({"lin.weight": conv.lin.weight, "bias": conv.bias})
        one.append(x := act(gcn(x, plain.edge_index)))
        conv, act = net.encoders[1].convs[number], net.encoders[1].activations[number]
        other.append(y := act(dense @ y @ conv.lin.weight.t() + conv.bias))
    loss, encoded = net.contrast(graphs.batch())
    sums = [torch.stack([torch.cat(v, dim=1)[plain.batch == n].sum(0) for n in range(5)]) for v in (one, other)]
    nodes = [net.local_projection(v[-1]) for v in (one, other)]
    summary = [net.global_projection(v) for v in sums]
    torch.testing.assert_close(encoded.graphs, summary[0] + summary[1], atol=1e-4, rtol=1e-4)
    expected = literal(nodes[0], summary[1], plain.batch) + literal(nodes[1], summary[0], plain.batch)
    torch.testing.assert_close(loss, expected, atol=1e-4, rtol=1e-4)
    with pytest.raises(InputError, match="second view"):
        net(plain)


@pytest.mark.parametrize("kind", [InfoGraph, MVGRL])
def test_learns(kind: type[GraphEmbedding], graph_list: Callable[..., list[Data]]) -> None:
    torch.manual_seed(0)
    graphs = flat(graph_list(16))
    net: Any = kind(4, 2, hidden_channels=8, num_layers=2)  # type: ignore[call-arg]
    optimizer, batch = net.configure_optimizers(), graphs.batch()
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss, _ = net.contrast(batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.05


@pytest.mark.parametrize("kind", [InfoGraph, MVGRL])
def test_a_single_graph_has_no_negatives(kind: Any, graph_list: Callable[..., list[Data]]) -> None:
    net = kind(4, 2, hidden_channels=8)
    loss, _ = net.contrast(flat(graph_list(1)).batch())
    loss.backward()
    assert loss == 0
    assert not any(weight.grad.any() for weight in net.parameters() if weight.grad is not None)


def trained(net: GraphEmbedding, data: GraphDataModule) -> dict[str, float]:
    trainer = pl.Trainer(max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False)
    trainer.fit(net, data)
    return {name: value.item() for name, value in trainer.callback_metrics.items()}


def test_passes_over_batches_of_one_graph(graph_list: Callable[..., list[Data]]) -> None:
    """They would count as the best loss of all, 0, and a node alone cannot be normalized."""
    given = graph_list(6)
    given[4] = Data(x=torch.ones(1, 4), edge_index=torch.empty(2, 0, dtype=torch.long), y=torch.tensor(0))
    given[5] = given[4].clone()
    splits = torch.tensor([0, 1, 2, 3, 4]), torch.tensor([5]), torch.arange(0)
    graphs = flat(given)
    net = InfoGraph(4, 2, hidden_channels=6, num_layers=2)
    assert set(trained(net, GraphDataModule(graphs, splits, batch_size=4))) == {"train/loss"}
    with pytest.raises(
        InputError, match=r"one with two graphs in a training batch, negatives of each other, but got one"
    ):
        trained(net, GraphDataModule(graphs, splits, batch_size=1))
    with pytest.warns(UserWarning, match="Nothing is validated of `.*`: a single validation graph has no negatives"):
        ViewDataModule(graphs, splits, batch_size=4)
