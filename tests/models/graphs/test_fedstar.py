from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Batch, Data

from flgraph.data.graphs.container import FlatGraphs
from flgraph.errors import InputError
from flgraph.models import FedStar, FedStarWL


def batch_of_graphs(features: int = 5, structure: int = 3, dtype: torch.dtype = torch.double) -> Batch:
    generator = torch.Generator().manual_seed(2)
    graphs = []
    for number in range(12):
        n = 1 + number % 5  # a single node has no edge
        first, second = torch.randint(n, (2, 3 * n), generator=generator)
        first, second = first[first != second], second[first != second]
        edges = torch.cat([torch.stack([first, second]), torch.stack([second, first])], dim=1).unique(dim=1)
        graphs.append(
            Data(x=torch.rand(n, features, generator=generator), edge_index=edges, y=torch.tensor([number % 3]))
        )
    flat = FlatGraphs.from_pyg(graphs)
    flat.node_tensors["s"] = torch.rand(flat.num_nodes, structure, generator=generator)
    batch = flat.batch()
    batch.x, batch.s = batch.x.to(dtype), batch.s.to(dtype)
    return batch


class PlainFedStar(nn.Module):
    """The network as the paper's Table 9 and the text say it, with PyG's layers and plain concatenations."""

    def __init__(self, model: FedStar) -> None:
        super().__init__()
        hidden = model.hidden_channels
        self.pre = nn.Linear(model.in_channels, hidden)
        self.gins = nn.ModuleList(
            pyg.GINConv(nn.Sequential(nn.Linear(2 * hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden)))
            for _ in range(3)
        )
        self.embedding = nn.Linear(model.structure_channels, hidden)
        self.gcns = nn.ModuleList(pyg.GCNConv(hidden, hidden) for _ in range(3))
        self.mix = nn.Linear(2 * hidden, hidden)
        self.post = nn.Linear(hidden, hidden)
        self.readout = nn.Linear(hidden, model.num_classes)
        with torch.no_grad():
            for ours, theirs in zip(model.parameters(), self.parameters(), strict=True):
                assert ours.shape == theirs.shape
                theirs.copy_(ours)

    def forward(self, batch: Batch, pool: Any) -> Tensor:
        x, s = self.pre(batch.x), self.embedding(batch.s)
        for gin, gcn in zip(self.gins, self.gcns, strict=True):
            x = gin(torch.cat([x, s], dim=1), batch.edge_index).relu()
            s = gcn(s, batch.edge_index).tanh()
        x = self.mix(torch.cat([x, s], dim=1))
        return self.readout(self.post(pool(x, batch.batch, batch.num_graphs)).relu())


@pytest.mark.parametrize("pool", ["sum", "mean", "max"])
def test_equals_the_plain_network(pool: Any) -> None:
    torch.manual_seed(0)
    model = FedStar(5, 3, 3, hidden_channels=8, pool=pool).double().eval()
    for conv in model.structure.convs:
        nn.init.normal_(conv.bias)
    plain = PlainFedStar(model).double().eval()
    batch = batch_of_graphs()
    twin = {"sum": pyg.global_add_pool, "mean": pyg.global_mean_pool, "max": pyg.global_max_pool}[pool]
    out, expected = model(batch), plain(batch, twin)
    torch.testing.assert_close(out, expected)
    nn.functional.cross_entropy(out, batch.y).backward()
    nn.functional.cross_entropy(expected, batch.y).backward()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_equals_the_plain_network_in_single_precision() -> None:
    torch.manual_seed(0)
    model = FedStar(5, 3, 3).eval()
    plain, batch = PlainFedStar(model).eval(), batch_of_graphs(dtype=torch.float32)
    torch.testing.assert_close(model(batch), plain(batch, pyg.global_add_pool), rtol=1e-4, atol=1e-5)


def test_table_9() -> None:
    shapes = {name: tuple(p.shape) for name, p in FedStar(37, 2, 32).named_parameters()}
    expected: dict[str, tuple[int, ...]] = {"feature.pre.weight": (64, 37), "structure.pre.weight": (64, 32)}
    for layer in range(3):
        expected[f"feature.convs.{layer}.lin1.weight"] = (64, 128)
        expected[f"feature.convs.{layer}.lin2.weight"] = (64, 64)
        expected[f"structure.convs.{layer}.lin.weight"] = (64, 64)
    expected |= {"mix.weight": (64, 128), "post.weight": (64, 64), "readout.weight": (2, 64)}
    biases = {name.replace("weight", "bias"): shape[:1] for name, shape in expected.items()}
    biases = {name.replace(".lin.bias", ".bias"): shape for name, shape in biases.items()}  # GCN's bias follows the sum
    assert shapes == expected | biases
    assert set(FedStar(37, 2, 32).state_dict()) == set(shapes)


def test_structure_channel_never_sees_features() -> None:
    """What is shared depends on structure embeddings and edges only, so it fits clients of any features."""
    own = {name: p.shape for name, p in FedStar(5, 3, 4).named_parameters() if name.startswith("structure.")}
    other = {name: p.shape for name, p in FedStar(99, 2, 4).named_parameters() if name.startswith("structure.")}
    assert own == other
    assert len(own) == 2 + 3 * 2
    assert {name.split(".")[0] for name in FedStar(5, 3, 4).state_dict()} == {
        "feature",
        "structure",
        "mix",
        "post",
        "readout",
    }


def test_dropout_acts_on_features_and_post_only() -> None:
    torch.manual_seed(0)
    model, batch = FedStar(5, 3, 3, hidden_channels=8, dropout=0.3), batch_of_graphs(dtype=torch.float32)
    seen: list[tuple[int, ...]] = []
    model.dropout.register_forward_hook(lambda _, inputs, __: seen.append(tuple(inputs[0].shape)))
    assert not torch.equal(model(batch), model(batch))
    assert seen[:4] == [(batch.num_nodes, 8)] * 3 + [(12, 8)]
    assert len(seen) == 8
    model.eval()
    assert torch.equal(model(batch), model(batch))


@pytest.mark.parametrize("feature_conv", ["gin", "gcn", "sage"])
@pytest.mark.parametrize("structure_conv", ["gin", "gcn", "sage"])
def test_table_10(feature_conv: Any, structure_conv: Any) -> None:
    batch = batch_of_graphs(dtype=torch.float32)
    model = FedStar(5, 3, 3, hidden_channels=8, feature_conv=feature_conv, structure_conv=structure_conv)
    loss = model.training_step(batch)
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_permuted_nodes_give_the_same_logits() -> None:
    torch.manual_seed(0)
    model, batch = FedStar(5, 3, 3, hidden_channels=8).double().eval(), batch_of_graphs()
    order = torch.randperm(batch.num_nodes)
    permuted = Batch(
        x=batch.x[order], s=batch.s[order], edge_index=order.argsort()[batch.edge_index], batch=batch.batch[order]
    )
    permuted._num_graphs = batch.num_graphs
    torch.testing.assert_close(model(permuted), model(batch))


def test_one_class() -> None:
    """A shard of one client may hold a single class."""
    batch = batch_of_graphs(dtype=torch.float32)
    batch.y = torch.zeros_like(batch.y)
    assert FedStar(5, 1, 3).training_step(batch).item() == 0


@pytest.mark.parametrize(
    ("field", "value"), [("structure_channels", 0), ("structure_conv", "gat"), ("feature_conv", "cheb"), ("dropout", 2)]
)
def test_bad_hyper_parameters(field: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"Expected `model.{field}` to be .* but got "):
        FedStar(**{"in_channels": 5, "num_classes": 3, "structure_channels": 3, field: value})


def test_template_until_structure_is_known() -> None:
    template = FedStar(5, 3)
    assert template.is_template
    assert not template.state_dict()
    with pytest.raises(InputError, match=r"Expected `model.structure_channels` to be given"):
        template(batch_of_graphs())


def test_scores_are_added_to_the_logits_once_it_is_trained() -> None:
    batch = batch_of_graphs()
    sizes = {"in_channels": 5, "num_classes": 3, "structure_channels": 3, "hidden_channels": 8, "dropout": 0.0}
    model, plain = FedStarWL(trust=2.0, **sizes).double(), FedStar(**sizes).double()
    plain.load_state_dict(model.state_dict())
    batch.wl_scores = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(model(batch), plain(batch))
    assert torch.allclose(model.eval()(batch), plain(batch) + 2.0 * batch.wl_scores)


def test_scores_that_do_not_come_are_named() -> None:
    batch, model = batch_of_graphs(), FedStarWL(in_channels=5, num_classes=3, structure_channels=3).double()
    with pytest.raises(
        InputError, match=r"`batch\.wl_scores` to be of shape \[12, 3\], as data with `wl_scores: true`"
    ):
        model(batch)
    batch.wl_scores = torch.zeros(12, 2)
    with pytest.raises(InputError, match=r"but got \[12, 2\]"):
        model(batch)
    with pytest.raises(InputError, match=r"`model\.trust` to be a finite number, 0 or more but got -1"):
        FedStarWL(trust=-1)
