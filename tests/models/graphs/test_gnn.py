from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader

from flgraph.data.graphs.container import FlatGraphs
from flgraph.errors import InputError
from flgraph.models import GNN, FedSSP, FedStar, GraphClassifier


def some_graphs(count: int = 40, features: int = 4) -> list[Data]:
    """Rings (class 0) and stars (class 1) with a hint in the features."""
    generator = torch.Generator().manual_seed(1)
    graphs = []
    for number in range(count):
        n, label = int(torch.randint(3, 8, (1,), generator=generator)), number % 2
        first = torch.arange(n)
        second = torch.zeros_like(first) if label else (first + 1) % n
        first, second = first[first != second], second[first != second]
        x = torch.rand(n, features, generator=generator)
        x[:, 0] += label
        s = torch.rand(n, 3, generator=generator)
        edges = torch.cat([torch.stack([first, second]), torch.stack([second, first])], dim=1)
        graphs.append(Data(x=x, edge_index=edges, y=torch.tensor([label]), s=s))
    return graphs


def flat(graphs: list[Data]) -> FlatGraphs:
    graph_set = FlatGraphs.from_pyg(graphs)
    graph_set.node_tensors["s"] = torch.cat([graph.s for graph in graphs])
    return graph_set


def quiet(folder: Path, epochs: int, **arguments: Any) -> pl.Trainer:
    defaults = {
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
    }
    return pl.Trainer(max_epochs=epochs, default_root_dir=folder, **{**defaults, **arguments})


class Batches:
    """A minimal loader of flat batches."""

    def __init__(self, graphs: FlatGraphs, size: int) -> None:
        self.graphs, self.size = graphs, size

    def __len__(self) -> int:
        return -(-len(self.graphs) // self.size)

    def __iter__(self) -> Iterator[Batch]:
        for index in torch.arange(len(self.graphs)).split(self.size):
            yield self.graphs.batch(index)


class PlainGNN(nn.Module):
    """The same network, written down with PyG's layers."""

    def __init__(self, model: GNN) -> None:
        super().__init__()
        hidden = model.hidden_channels
        self.pre = nn.Linear(model.in_channels + model.structure_channels, hidden)
        self.convs = nn.ModuleList(
            pyg.GINConv(nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden)))
            for _ in range(model.num_layers)
        )
        norm = nn.BatchNorm1d if len(model.norms) else nn.Identity
        self.norms = nn.ModuleList(norm(hidden) for _ in range(model.num_layers))
        self.post = nn.Linear(hidden, hidden)
        self.readout = nn.Linear(hidden, model.num_classes)
        with torch.no_grad():
            for ours, theirs in zip(model.parameters(), self.parameters(), strict=True):
                theirs.copy_(ours)

    def forward(self, batch: Batch) -> Tensor:
        x = batch.x if self.pre.in_features == batch.x.size(1) else torch.cat([batch.x, batch.s], dim=1)
        x = self.pre(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = norm(conv(x, batch.edge_index)).relu()
        h = pyg.global_add_pool(x, batch.batch, batch.num_graphs)
        return self.readout(self.post(h).relu())


@pytest.mark.parametrize(("structure_channels", "norm"), [(0, "none"), (3, "none"), (0, "batch")])
def test_equals_the_plain_network(structure_channels: int, norm: Any) -> None:
    torch.manual_seed(0)
    model = GNN(4, 2, hidden_channels=8, structure_channels=structure_channels, norm=norm, dropout=0.0).double()
    plain = PlainGNN(model).double()
    batch = flat(some_graphs()).batch()
    batch.x, batch.s = batch.x.double(), batch.s.double()
    out, expected = model(batch), plain(batch)
    torch.testing.assert_close(out, expected)
    nn.functional.cross_entropy(out, batch.y).backward()
    nn.functional.cross_entropy(expected, batch.y).backward()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_parameters() -> None:
    shapes = {name: tuple(p.shape) for name, p in GNN(7, 3, num_layers=1).named_parameters()}
    assert shapes == {
        "pre.weight": (64, 7),
        "pre.bias": (64,),
        "convs.0.lin1.weight": (64, 64),
        "convs.0.lin1.bias": (64,),
        "convs.0.lin2.weight": (64, 64),
        "convs.0.lin2.bias": (64,),
        "post.weight": (64, 64),
        "post.bias": (64,),
        "readout.weight": (3, 64),
        "readout.bias": (3,),
    }
    assert set(GNN(7, 3, num_layers=1).state_dict()) == set(shapes)  # nothing else would travel or be saved


@pytest.mark.parametrize("conv", ["gin", "gcn", "sage"])
@pytest.mark.parametrize("pool", ["sum", "mean", "max"])
def test_permuted_nodes_give_the_same_logits(conv: Any, pool: Any) -> None:
    torch.manual_seed(0)
    model = GNN(4, 2, hidden_channels=8, conv=conv, pool=pool).double().eval()
    graph = some_graphs(1)[0]
    order = torch.randperm(graph.num_nodes)
    permuted = Data(x=graph.x[order], edge_index=order.argsort()[graph.edge_index], y=graph.y)
    out = model(Batch.from_data_list([graph]))
    torch.testing.assert_close(model(Batch.from_data_list([permuted])), out)
    torch.testing.assert_close(model(graph), out)  # data that is no batch is one graph


def test_edge_free_graphs() -> None:
    graphs = [
        Data(x=torch.ones(n, 4), edge_index=torch.empty(2, 0, dtype=torch.long), y=torch.tensor([0])) for n in (1, 2)
    ]
    for conv in ("gin", "gcn", "sage"):
        model = GNN(4, 2, hidden_channels=8, conv=conv)
        loss = model.training_step(FlatGraphs.from_pyg(graphs).batch())
        loss.backward()
        assert loss.isfinite()
        assert model(Batch.from_data_list(graphs)).shape == (2, 2)


def test_a_batch_of_one_node() -> None:
    """Of one row there is no variance: running statistics normalise it, and stay."""
    batch, lone = flat(some_graphs(1)).batch(), torch.empty(2, 0, dtype=torch.long)
    one = FlatGraphs.from_pyg([Data(x=torch.ones(1, 4), edge_index=lone, y=torch.tensor([0]))]).batch()
    for model in (
        GNN(4, 2, hidden_channels=8, norm="batch", dropout=0.0),
        FedSSP(4, 2, hidden_channels=8, dropout=0.0),
    ):
        model(batch)
        before = {name: tensor.clone() for name, tensor in model.named_buffers()}
        assert torch.equal(model(one), model.eval()(one))
        model.train().training_step(one).backward()
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.named_buffers())


# ------------------------------------------------------------------------------------------------ as LightningModules
@pytest.mark.parametrize("kind", [GNN, FedStar])
def test_learns(kind: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    graphs = flat(some_graphs())
    sizes = {"structure_channels": 3} if kind is FedStar else {}
    model = kind(4, 2, hidden_channels=16, lr=5e-3, dropout=0.0, pool="mean", **sizes)
    loader, trainer = Batches(graphs, 10), quiet(tmp_path, 1)
    losses, accuracies = [], []
    for epochs in (1, 5, 20):  # one trainer, asked again and again
        trainer.fit_loop.max_epochs = epochs
        trainer.fit(model, loader)
        losses.append(trainer.callback_metrics["train/loss"].item())
        accuracies.append(trainer.validate(model, loader, verbose=False)[0]["val/accuracy"])
    assert losses[-1] < 0.5 * losses[0]
    assert accuracies[-1] >= 0.9


def test_metrics_count_each_graph_once(tmp_path: Path) -> None:
    torch.manual_seed(0)
    graphs = flat(some_graphs(25))
    model, trainer = GNN(4, 2, hidden_channels=8), quiet(tmp_path, 1)
    loader = Batches(graphs, 10)  # 10 + 10 + 5 graphs: the last counts half
    for epoch in range(2):
        trainer.fit_loop.max_epochs = epoch + 1
        trainer.fit(model, loader, loader)
        (validated,) = trainer.validate(model, loader, verbose=False)
        (tested,) = trainer.test(model, loader, verbose=False)
        batch = graphs.batch()
        model.eval()
        with torch.no_grad():
            logits = model(batch)
        predicted = logits.argmax(dim=1)
        scores = []
        for label in (0, 1):
            hits = ((predicted == label) & (batch.y == label)).sum().item()
            scores.append(2 * hits / ((predicted == label).sum().item() + (batch.y == label).sum().item()))
        expected = {
            "loss": nn.functional.cross_entropy(logits, batch.y).item(),
            "accuracy": (predicted == batch.y).double().mean().item(),
            "f1": sum(scores) / 2,
            "samples": 25,
        }
        assert validated == pytest.approx({f"val/{name}": value for name, value in expected.items()}, rel=1e-5)
        assert tested == pytest.approx({f"test/{name}": value for name, value in expected.items()}, rel=1e-5)
    predictions = torch.cat(trainer.predict(model, loader))
    torch.testing.assert_close(predictions, logits.softmax(dim=1))


def test_metrics_forget_an_interrupted_epoch(tmp_path: Path) -> None:
    graphs = flat(some_graphs(20))
    model, loader = GNN(4, 2, hidden_channels=8, dropout=0.0, lr=0.0, weight_decay=0.0), Batches(graphs, 10)

    class Stop(pl.Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        quiet(tmp_path, 1, callbacks=[Stop()]).fit(model, loader)
    trainer = quiet(tmp_path, 1)
    trainer.fit(model, loader)
    expected = nn.functional.cross_entropy(model(graphs.batch()), graphs.y).item()
    assert trainer.callback_metrics["train/loss"].item() == pytest.approx(expected, rel=1e-5)


def test_metrics_without_and_with_inference_mode(tmp_path: Path) -> None:
    model, loader = GNN(4, 2, hidden_channels=8), Batches(flat(some_graphs(20)), 10)
    results = [
        quiet(tmp_path, 1, inference_mode=mode).validate(model, loader, verbose=False) for mode in (True, False, True)
    ]
    assert results[0] == results[1] == results[2]


def test_ordinary_loader_gives_the_same(tmp_path: Path) -> None:
    graphs = some_graphs()
    ends = []
    for loader in (Batches(flat(graphs), 10), DataLoader(graphs, batch_size=10)):
        torch.manual_seed(0)
        # No dropout, since PyG's loader draws from the same generator.
        model = GNN(4, 2, hidden_channels=8, conv="gcn", structure_channels=3, dropout=0.0)
        trainer = quiet(tmp_path, 2)
        trainer.fit(model, loader)
        ends.append((model.state_dict(), trainer.validate(model, loader, verbose=False)[0]))
    for name, value in ends[0][0].items():
        torch.testing.assert_close(ends[1][0][name], value)
    assert ends[1][1] == pytest.approx(ends[0][1], rel=1e-4)


@pytest.mark.parametrize("kind", [GNN, FedStar])
def test_checkpoint(kind: Any, tmp_path: Path) -> None:
    sizes = {"structure_channels": 3} if kind is FedStar else {"conv": "sage"}
    model = kind(4, 2, hidden_channels=8, num_layers=2, lr=0.01, **sizes)
    trainer = quiet(tmp_path, 1)
    graphs = flat(some_graphs())
    trainer.fit(model, Batches(graphs, 10))
    trainer.save_checkpoint(tmp_path / "model.ckpt")
    again = kind.load_from_checkpoint(tmp_path / "model.ckpt", weights_only=True)
    assert dict(again.hparams) == dict(model.hparams)
    assert torch.equal(again.eval()(graphs.batch()), model.eval()(graphs.batch()))


@pytest.mark.parametrize("precision", ["bf16-mixed", "64-true", "bf16-true"])
def test_precision(precision: Any, tmp_path: Path) -> None:
    graphs = flat(some_graphs())
    model = FedStar(4, 2, 3, hidden_channels=8)
    trainer = quiet(tmp_path, 2, precision=precision, gradient_clip_val=1.0)
    trainer.fit(model, Batches(graphs, 10))
    assert trainer.callback_metrics["train/loss"].isfinite()
    trainer.validate(model, Batches(graphs, 10), verbose=False)
    assert torch.cat(trainer.predict(model, Batches(graphs, 10))).dtype in (torch.float32, torch.float64)


def test_copies(tmp_path: Path) -> None:
    model = GNN(4, 2, hidden_channels=8)
    loader = Batches(flat(some_graphs()), 10)
    copied, pickled = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    before = copy.deepcopy(model.state_dict())
    quiet(tmp_path, 1).fit(copied, loader)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert quiet(tmp_path, 1).validate(model, loader, verbose=False) == quiet(tmp_path, 1).validate(
        pickled, loader, verbose=False
    )


def test_optimizers() -> None:
    for name, kind in (("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW), ("sgd", torch.optim.SGD)):
        optimizer = GNN(4, 2, lr=0.1, weight_decay=0.2, optimizer=name).configure_optimizers()  # type: ignore[arg-type]
        assert type(optimizer) is kind
        assert optimizer.defaults["lr"] == 0.1
        assert optimizer.defaults["weight_decay"] == 0.2
        assert optimizer.defaults["fused"] is True


def test_reset_parameters() -> None:
    model = GNN(4, 2, hidden_channels=8)
    before = copy.deepcopy(model.state_dict())
    model.reset_parameters()
    changed = {name for name, value in model.state_dict().items() if not torch.equal(before[name], value)}
    assert changed == set(before)


# ---------------------------------------------------------------------------------------------- what users get wrong
@pytest.mark.parametrize("kind", [GNN, FedStar])
def test_template(kind: Any) -> None:
    template = kind(hidden_channels=8, lr=0.5)
    assert template.is_template
    assert not list(template.parameters())
    assert not template.state_dict()
    with pytest.raises(InputError, match=r"Expected `model.in_channels` to be given .* -1"):
        template(flat(some_graphs(2)).batch())
    sizes = {"in_channels": 4, "num_classes": 2, "structure_channels": 3}
    model = kind(**{**template.hparams, **sizes})
    assert not model.is_template
    assert model.lr == 0.5
    assert model.hparams["hidden_channels"] == 8
    assert model(flat(some_graphs(2)).batch()).shape == (2, 2)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("in_channels", 0),
        ("num_classes", -2),
        ("hidden_channels", 0),
        ("hidden_channels", -1),
        ("num_layers", 0),
        ("dropout", 1.0),
        ("dropout", -0.1),
        ("lr", -1e-3),
        ("lr", math.nan),
        ("weight_decay", -1.0),
        ("weight_decay", math.inf),
        ("pool", "median"),
        ("optimizer", "lion"),
        ("conv", "gcnii"),
        ("norm", "layer"),
        ("structure_channels", -2),
    ],
)
def test_bad_hyper_parameters(field: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"Expected `model.{field}` to be .* but got "):
        GNN(**{"in_channels": 4, "num_classes": 2, field: value})


def test_bad_batches() -> None:
    model, graphs = GNN(4, 2, hidden_channels=8, structure_channels=3), flat(some_graphs(4))

    def changed(**values: Any) -> Batch:
        batch = graphs.batch()
        for name, value in values.items():
            batch[name] = value
        return batch

    cases = [
        (changed(x=None), r"`batch.x` to be of shape \[nodes, 4\] but got none"),
        (changed(s=None), r"`batch.s` to be of shape \[nodes, 3\] but got none"),
        (changed(x=torch.ones(graphs.num_nodes, 5)), rf"`batch.x` .*4\] but got \[{graphs.num_nodes}, 5\]"),
        (changed(y=None), r"`batch.y` to be one class per graph or node but got none"),
        (
            changed(y=torch.tensor([0, 1])),
            r"`batch.y` to be 4 classes, one per graph or node, but|`batch.y` to be 4 classes",
        ),
        (changed(y=torch.rand(4)), r"`batch.y` to be of an integer type but got torch.float32"),
        (changed(y=torch.tensor([0, 1, 2, 1])), r"`batch.y` to be classes from 0 to 1 but got 2"),
        (changed(y=torch.tensor([0, 1, -1, 1])), r"`batch.y` to be classes from 0 to 1 but got -1"),
    ]
    for batch, message in cases:
        with pytest.raises(InputError, match=message):
            model.training_step(batch)


def test_base_class_has_no_encoder() -> None:
    with pytest.raises(TypeError, match="abstract"):
        GraphClassifier(4, 2)  # type: ignore[abstract]


def test_graphs_in_other_forms() -> None:
    """A batch vector of one's own is as good as PyG's; without edges there is one sentence."""
    net = GNN(in_channels=4, num_classes=2, hidden_channels=4, num_layers=1).eval()
    graphs = [Data(x=torch.rand(n, 4), edge_index=torch.tensor([[0], [1]]), y=torch.tensor([0])) for n in (2, 3)]
    batch = Batch.from_data_list(graphs)
    own = Data(x=batch.x, edge_index=batch.edge_index, y=batch.y, batch=batch.batch)
    assert torch.equal(net(own), net(batch))
    with pytest.raises(InputError, match=r"`batch\.edge_index` to be of shape \[2, edges\] but got none"):
        net(Data(x=torch.rand(3, 4), y=torch.tensor([0])))
