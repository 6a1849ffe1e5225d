"""GraphSAGE on whole graphs, and with generated neighbours, against PyG and the paper's loss written as loops."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv

from flgraph.data import NodeGraph, WholeGraph, WholeGraphDataModule
from flgraph.errors import InputError
from flgraph.models import NeighGenSAGE, NodeSAGE

NODES = 20


def graph(sparse: bool = True, num_edges: int = 45) -> NodeGraph:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(NODES, 6, generator=generator) * (torch.rand(NODES, 6, generator=generator) < 0.2)
    edges = torch.randint(0, NODES - 1, (2, num_edges), generator=generator)  # the last node is alone
    made = NodeGraph.from_pyg(Data(x=x, edge_index=edges, y=torch.arange(NODES) % 3))
    return made if sparse else NodeGraph(x, made.edge_index, made.y, 3)


def net(**kwargs: Any) -> NeighGenSAGE:
    torch.manual_seed(1)
    plain = {"hidden_channels": 4, "fgen_channels": (5,), "max_neighbours": 3, "dropout": 0.0}
    return NeighGenSAGE(6, 3, **{**plain, **kwargs})


def by_pyg(model: NodeSAGE, x: Tensor, edge_index: Tensor) -> Tensor:
    """Logits of all nodes by PyG's layers with the same weights."""
    for number, own in enumerate(model.convs):
        conv = SAGEConv(own.in_channels, own.out_channels)
        conv.lin_r.weight.data, conv.lin_l.weight.data = (part.t() for part in own.weight.data.chunk(2, dim=1))
        conv.lin_l.bias.data = own.bias.data
        x = conv(x.relu() if number else x, edge_index)
    return x


@pytest.mark.parametrize("sparse", [True, False])
def test_equals_pyg(sparse: bool) -> None:
    made, index = graph(sparse), torch.tensor([7, 1, 11, 19])
    model = NodeSAGE(6, 3, hidden_channels=5, dropout=0.0)
    dense = made.x.to_dense() if sparse else made.x
    torch.testing.assert_close(model(made.batch(index)), by_pyg(model, dense, made.edge_index)[index])


@pytest.mark.parametrize("sparse", [True, False])
def test_the_joint_loss_equals_the_paper_s(sparse: bool) -> None:
    """Eq. of Section 4.1 as loops over nodes; the same noise, the same weights."""
    made, weights = graph(sparse), {"count_weight": 2.0, "feature_weight": 0.5, "label_weight": 3.0}
    model = net(hide=0.3, **weights)
    model.log = lambda *args, **kwargs: None  # type: ignore[method-assign]
    model.generator.dgen.bias.data.fill_(1.3)  # so that neighbours are generated
    batch = made.batch(torch.tensor([0, 3, 4, 9, 12, 15]))
    torch.manual_seed(5)
    loss = model.training_step(batch)

    x, hidden = made.x.to_dense() if sparse else made.x, sorted(set(range(NODES)) - set(impaired(model, batch)))
    visible = impaired(model, batch)
    assert len(hidden) == 6
    place = {node: number for number, node in enumerate(visible)}
    inside = [(place[a], place[b]) for a, b in made.edge_index.t().tolist() if a in place and b in place]
    z = encoded(model, x[visible], torch.tensor(inside).t())
    missing = model.generator.dgen(z).relu().flatten()
    neighbours = {v: [a for a, b in made.edge_index.t().tolist() if b == v] for v in visible}
    counts = [sum(u in hidden for u in neighbours[v]) for v in visible]
    told = [min(3, round(n)) for n in missing.tolist()]
    wanted = [v for v in range(len(visible)) if counts[v] or told[v]]
    torch.manual_seed(5)
    features = dict(zip(wanted, model.generator.fgen(z[wanted] + torch.randn(len(wanted), 4)), strict=True))

    total, rows, edges = torch.zeros(()), [x[v] for v in visible], list(inside)
    for v, node in enumerate(visible):
        total = total + 2.0 * F.smooth_l1_loss(missing[v], torch.tensor(float(counts[v])))
        for p in range(min(counts[v], 3)):
            near = [(features[v][p] - x[u]).square().sum() for u in neighbours[node] if u in hidden]
            total = total + 0.5 * torch.stack(near).min()
        for p in range(told[v]):
            rows.append(features[v][p])
            edges += [(v, len(rows) - 1), (len(rows) - 1, v)]
    assert len(rows) > len(visible)
    logits = by_pyg(model, torch.stack(rows), torch.tensor(edges).t())
    kept = [node for node in batch.index.tolist() if node in place]
    assert len(kept) < 6
    label_loss = F.cross_entropy(logits[[place[node] for node in kept]], made.y[kept])
    torch.testing.assert_close(loss, total / len(visible) + 3.0 * label_loss)
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def impaired(model: NeighGenSAGE, batch: WholeGraph) -> list[int]:
    return [int(node) for node in model.impaired(batch).visible]


def encoded(model: NeighGenSAGE, x: Tensor, edge_index: Tensor) -> Tensor:
    found = NodeSAGE(6, 4, hidden_channels=4)
    found.convs = model.generator.encoder
    return by_pyg(found, x, edge_index)


def test_graphs_are_mended() -> None:
    """Logits are those of the graph with what the generator adds; settled, they are computed once."""
    made = graph()
    model, batch = net().eval(), made.batch(torch.arange(NODES))
    model.generator.dgen.bias.data.fill_(1.3)
    z = encoded(model, made.x.to_dense(), made.edge_index)
    told = model.generator.round(model.generator.dgen(z).relu().flatten())
    assert told.sum() > 0
    noise = torch.randn(z.shape, generator=torch.Generator().manual_seed(0))
    features = model.generator.fgen(z + noise)
    rows, edges = list(made.x.to_dense()), made.edge_index.t().tolist()
    for v, count in enumerate(told.tolist()):
        for p in range(count):
            rows.append(features[v, p])
            edges += [[v, len(rows) - 1], [len(rows) - 1, v]]
    expected = by_pyg(model, torch.stack(rows), torch.tensor(edges).t())[:NODES]
    torch.testing.assert_close(model(batch), expected)
    model.freeze_generator()
    torch.testing.assert_close(model(batch), expected)
    model.generator.fgen.layers[0].weight.data.add_(1.0)
    torch.testing.assert_close(model(batch), expected)  # not computed again
    other = NodeGraph(made.x, made.edge_index[:, :0], made.y, 3)  # as many nodes, of the same numbers
    fresh = net().eval()
    fresh.load_state_dict(model.state_dict())
    torch.testing.assert_close(model(other.batch(batch.index)), fresh(other.batch(batch.index)))
    torch.testing.assert_close(model(batch), fresh(batch))
    fresh.generator.fgen.layers[0].weight.data.sub_(2.0)
    model.load_state_dict(fresh.state_dict())
    torch.testing.assert_close(model(batch), fresh(batch))
    assert not torch.equal(model(batch), expected)
    before = model(batch)
    for one in (model, fresh):
        one.draw_from(7)
    torch.testing.assert_close(model(batch), fresh(batch))
    assert not torch.equal(model(batch), before)


def test_a_checkpoint_is_the_whole_model() -> None:
    model, told = net(), {}
    model.draw_from(3)
    model.freeze_generator()
    model.on_save_checkpoint(told)
    again = net()
    again.on_load_checkpoint(told)
    assert (again.draw_seed, again.generator_frozen) == (3, True)
    assert not any(parameter.requires_grad for parameter in again.generator.parameters())
    first, second = again.configure_optimizers().param_groups
    assert (first["lr"], second["lr"], len(first["params"])) == (0.01, 0.001, 4)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_copy_gives_the_same(frozen: bool) -> None:
    """Also when it has seen a graph."""
    model, batch = net(), graph().batch(torch.arange(4))
    model.freeze_generator(frozen)
    model.log = lambda *args, **kwargs: None  # type: ignore[method-assign]
    model.training_step(batch)
    expected = model.eval()(batch)
    assert torch.equal(copy.deepcopy(model)(batch), expected)


def test_with_any_trainer() -> None:
    """LocSage+ by a plain Trainer; what no neighbours were cut from is not mended."""
    made, every = graph(), torch.arange(NODES)
    data = WholeGraphDataModule(made, every[:12], every[12:16], every[16:], made.subgraph(every[:10]))
    model = net(lr=0.05)
    trainer = pl.Trainer(
        max_epochs=60, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False
    )
    trainer.fit(model, data.train_dataloader())
    first = trainer.callback_metrics
    assert {"train/loss", "train/accuracy", "train/count_loss", "train/feature_loss", "train/feature_spread"} <= set(
        first
    )
    assert float(first["train/accuracy"]) > 0.8
    found: dict[str, float] = {}
    for result in trainer.test(model, data.test_dataloader(), verbose=False):
        found |= result
    whole = data.global_graph
    assert whole is not None
    logits = by_pyg(model.cpu(), whole.x.to_dense(), whole.edge_index)
    assert found["global_test/loss"] == pytest.approx(float(F.cross_entropy(logits, whole.y)), rel=1e-5)
    model.freeze_generator()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    trainer.fit_loop.max_epochs = 65
    trainer.fit(model, data.train_dataloader())
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {"convs.0.weight", "convs.0.bias", "convs.1.weight", "convs.1.bias"}


@pytest.mark.parametrize(("num_edges", "hide", "index"), [(0, 0.5, [0, 1]), (45, 0.99, [0, 1]), (45, 0.01, [2])])
def test_odd_graphs(num_edges: int, hide: float, index: list[int]) -> None:
    """Without edges, with all nodes but one hidden, with no node hidden: finite losses and gradients."""
    model = net(hide=hide)
    model.log = lambda *args, **kwargs: None  # type: ignore[method-assign]
    batch = graph(num_edges=num_edges).batch(torch.tensor(index))
    loss = model.training_step(batch)
    loss.backward()
    assert torch.isfinite(loss)
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    assert model(batch).shape == (len(index), 3)


def test_half_precision_and_refusals() -> None:
    made = graph()
    model = net().bfloat16()
    model.generator.dgen.bias.data.fill_(1.3)
    assert model(made.batch(torch.arange(NODES))).dtype == torch.bfloat16
    for kind in (NodeSAGE, NeighGenSAGE):
        with pytest.raises(InputError, match=r"`model\.in_channels` to be given"):
            kind()(made.batch(torch.arange(NODES)))
        with pytest.raises(InputError, match=r"`batch\.x` to be of shape \[nodes, 5\]"):
            kind(5, 3)(made.batch(torch.arange(NODES)))
        with pytest.raises(InputError, match=r"`data` to be one whose batches are whole graphs, .*type Data'"):
            kind(6, 3)(Data(x=torch.rand(3, 6), edge_index=torch.zeros(2, 0, dtype=torch.long)))
    wrong = {
        "hidden_channels": 0,
        "dropout": 1.0,
        "fgen_channels": [0],
        "max_neighbours": 0,
        "hide": 1.0,
        "generator_lr": -1.0,
    }
    for name, value in {**wrong, "count_weight": -1.0, "feature_weight": -1.0, "label_weight": float("inf")}.items():
        with pytest.raises(InputError, match=f"`model.{name}`"):
            NeighGenSAGE(6, 3, **{name: value})
    sizes = {"in_channels": 6, "num_classes": 3}
    again = NeighGenSAGE(**{**NeighGenSAGE(hide=0.4, lr=0.3).hparams, **sizes})
    assert (again.hide, again.lr, again.generator.fgen.max_neighbours) == (0.4, 0.3, 5)
