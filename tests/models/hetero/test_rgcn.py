from __future__ import annotations

import pytest
import pytorch_lightning as pl
import torch
from federations import renamed
from torch import Tensor
from torch.nn import functional as F

from flgraph.data import HeteroBatch, HeteroDataModule, HeteroGraph, reordered, with_reverse
from flgraph.errors import InputError
from flgraph.models import RGCN, SpreadRGCN
from flgraph.models.hetero.spread import SMOOTHING
from flgraph.nn.propagation import leave_one_out_spreading


def graph(features: bool = False) -> HeteroGraph:
    generator = torch.Generator().manual_seed(0)
    counts = {"paper": 12, "author": 9, "venue": 4}

    def edges(source: str, target: str, count: int) -> Tensor:
        rows = [torch.randint(0, counts[kind], (count,), generator=generator) for kind in (source, target)]
        return torch.stack(rows).unique(dim=1)

    kinds = {("author", "writes", "paper"): 25, ("paper", "at", "venue"): 12, ("paper", "cites", "paper"): 20}
    given = {kind: edges(kind[0], kind[2], count) for kind, count in kinds.items()}
    given["venue", "empty", "paper"] = torch.empty(2, 0, dtype=torch.long)
    x = {"author": torch.randn(9, 5, generator=generator)} if features else None
    y = torch.arange(12) % 3
    y[11] = -1
    splits = torch.arange(0, 6), torch.arange(6, 8), torch.arange(8, 11)
    return with_reverse(HeteroGraph.from_edges(counts, given, "paper", y, *splits, x=x))


def batch_of(made: HeteroGraph) -> HeteroBatch:
    (batch,) = HeteroDataModule(made).train_dataloader()
    return batch


def dense(net: RGCN, made: HeteroGraph) -> Tensor:
    """The same network with one matrix per relation and dense products, for all nodes of the target type."""
    pieces, used = [], 0
    for t, (kind, count) in enumerate(zip(made.node_types, made.node_ptr.diff().tolist(), strict=True)):
        if kind in made.x:
            pieces.append(net.inputs[str(t)](made.x[kind]))
        else:
            pieces.append(net.embedding.weight[used : used + count])
            used += count
    h, n = torch.cat(pieces), made.num_nodes
    means = []
    for r in range(len(made.edge_types)):
        matrix = torch.zeros(n, n, dtype=h.dtype)
        source, target = made.edge_index[:, made.relation == r]
        matrix.index_put_((target, source), torch.ones(source.numel(), dtype=h.dtype), accumulate=True)
        means.append(matrix / matrix.sum(1, keepdim=True).clamp(min=1))
    stacked = torch.stack(means)
    h = torch.relu((stacked @ h).sum(0) + net.convs[0].bias)
    for number, conv in enumerate(net.convs[1:], start=1):
        weight = conv.weight if hasattr(conv, "weight") else torch.einsum("rb,bio->rio", conv.coefficients, conv.bases)
        h = torch.einsum("rij,jc,rcd->id", stacked, h, weight) + conv.bias
        if number < len(net.convs) - 1:
            h = torch.relu(h)
    logits: Tensor = net.classifier(torch.relu(h))
    return logits[made.target_start :][: made.num_targets]


@pytest.mark.parametrize("features", [False, True])
@pytest.mark.parametrize(("bases", "layers"), [(3, 2), (0, 2), (2, 3), (0, 3)])
def test_equals_a_dense_network(features: bool, bases: int, layers: int) -> None:
    """Logits, and the gradient of every parameter, in float64."""
    torch.manual_seed(0)
    made = graph(features)
    made.x = {kind: x.double() for kind, x in made.x.items()}
    net = RGCN(**HeteroDataModule(made).model_args, hidden_channels=6, num_layers=layers, num_bases=bases).double()
    for conv in net.convs:
        torch.nn.init.normal_(conv.bias)
    logits, expected = net(batch_of(made)), dense(net, made)[made.train]
    torch.testing.assert_close(logits, expected)
    wanted = torch.autograd.grad(F.cross_entropy(expected, made.y[made.train]), list(net.parameters()))
    got = torch.autograd.grad(F.cross_entropy(logits, made.y[made.train]), list(net.parameters()))
    torch.testing.assert_close(got, wanted)


def test_names_of_parameters() -> None:
    args = HeteroDataModule(graph(True)).model_args
    assert args == {"num_nodes": [12, 9, 4], "num_features": [0, 5, 0], "num_relations": 8, "num_classes": 3}
    shapes = {name: list(part.shape) for name, part in RGCN(**args, num_bases=5).state_dict().items()}
    assert shapes == {
        "embedding.weight": [16, 64],
        "inputs.1.weight": [64, 5],
        "inputs.1.bias": [64],
        "convs.0.bias": [64],
        "convs.1.bases": [5, 64, 64],
        "convs.1.coefficients": [8, 5],
        "convs.1.bias": [64],
        "classifier.weight": [3, 64],
        "classifier.bias": [3],
    }
    full = RGCN(**args, num_bases=0).state_dict()
    assert list(full["convs.1.weight"].shape) == [8, 64, 64]
    assert not any("bases" in name or "coefficients" in name for name in full)


def test_the_order_of_types_and_their_names_do_not_matter() -> None:
    torch.manual_seed(0)
    made = graph()
    node_order, edge_order = [2, 0, 1], [5, 0, 3, 7, 1, 2, 6, 4]
    net = RGCN(**HeteroDataModule(made).model_args, hidden_channels=6, num_bases=2)
    other = renamed(reordered(made, node_order, edge_order), {"paper": "article"}, {"cites": "refers to"})
    moved = RGCN(**HeteroDataModule(other).model_args, hidden_channels=6, num_bases=2)
    moved.load_state_dict({**net.state_dict(), "embedding.weight": moved.embedding.weight})
    rows = net.embedding.weight.detach().split([12, 9, 4])
    moved.embedding.weight.data.copy_(torch.cat([rows[t] for t in node_order]))
    moved.convs[1].coefficients.data.copy_(net.convs[1].coefficients[edge_order])
    torch.testing.assert_close(moved(batch_of(other)), net(batch_of(made)))


def test_trains_under_lightning() -> None:
    pl.seed_everything(0, verbose=False)
    data = HeteroDataModule(graph())
    net = RGCN(**data.model_args, hidden_channels=16, num_bases=4)
    trainer = pl.Trainer(
        max_epochs=60, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        accelerator="cpu", log_every_n_steps=1,
    )  # fmt: skip
    trainer.fit(net, data)
    assert trainer.callback_metrics["train/accuracy"] == 1
    (metrics,) = trainer.test(net, data, verbose=False)
    assert set(metrics) == {"test/loss", "test/accuracy", "test/f1", "test/samples"}
    assert metrics["test/samples"] == data.graph.test.numel()
    (chances,) = trainer.predict(net, data)
    assert list(chances.shape) == [12, 3]
    assert isinstance(net.configure_optimizers(), torch.optim.SGD)
    assert net.lr == 0.1


def test_templates_and_errors() -> None:
    made = graph(True)
    template = RGCN()
    assert template.is_template
    assert not list(template.parameters())
    args = HeteroDataModule(made).model_args
    net = type(template)(**{**template.hparams, **args})
    assert net(batch_of(made)).shape == (6, 3)
    with pytest.raises(InputError, match=r"`model\.num_nodes` to be given"):
        template(batch_of(made))
    with pytest.raises(InputError, match=r"`batch\.x\[1\]` to be of shape \[n, 5\] but got None"):
        net(batch_of(graph()))
    with pytest.raises(InputError, match=r"`batch\.relations` to be between 25 nodes, of 4 weights"):
        RGCN(**{**args, "num_relations": 4})(batch_of(made))
    bad = {"num_layers": 1, "num_bases": -1, "num_nodes": 7, "num_features": [1], "num_relations": 0}
    for name, value in (*bad.items(), ("hidden_channels", 0)):
        with pytest.raises(InputError, match=f"`model.{name}`"):
            RGCN(**{**args, name: value})


def test_adds_the_votes_to_an_rgcn() -> None:
    """An RGCN with label spreading beside it, by the formula; and ``trust`` is trained."""
    torch.manual_seed(0)
    made = graph()
    module = HeteroDataModule(made)
    net = SpreadRGCN(trust=1.5, alpha=0.7, **module.model_args, hidden_channels=6)
    plain = RGCN(**module.model_args, hidden_channels=6)
    plain.load_state_dict({name: own for name, own in net.state_dict().items() if name != "trust"})
    known = torch.full((made.num_nodes,), -1)
    known[made.target_start :][made.train] = made.y[made.train]
    votes = leave_one_out_spreading(made.edge_index, known, 3, alpha=0.7)
    share = torch.bincount(made.y[made.train]) / len(made.train)
    for loader in (module.train_dataloader(), module.test_dataloader()):
        (batch,) = loader
        assert torch.equal(batch.known, known)
        v = votes[batch.index]
        expected = ((v + SMOOTHING * share) / ((v.sum(1, keepdim=True) + SMOOTHING) * share)).log()
        torch.testing.assert_close(net(batch), plain(batch) + 1.5 * expected)
    net.training_step(batch_of(made), 0).backward()
    assert net.trust.grad is not None
    assert bool(net.trust.grad.any())


def test_nothing_is_added_where_nothing_is_known() -> None:
    torch.manual_seed(0)
    made = graph()
    empty = made.replace(train=made.train[:0])
    one_class = made.replace(train=made.train[made.y[made.train] == 1])
    net = SpreadRGCN(**HeteroDataModule(made).model_args, hidden_channels=6)
    plain = RGCN(**HeteroDataModule(made).model_args, hidden_channels=6)
    plain.load_state_dict({name: own for name, own in net.state_dict().items() if name != "trust"})
    for other in (empty, one_class):
        batch = other.batch(made.test)
        torch.testing.assert_close(net(batch), plain(batch))


def test_other_labels_are_spread_anew() -> None:
    """Also where a batch has the relations of another one, on which its votes were kept."""
    torch.manual_seed(0)
    made = graph()
    fewer = made.replace(train=made.train[:3])
    net = SpreadRGCN(**HeteroDataModule(made).model_args, hidden_channels=6)
    expected = net(fewer.batch(made.test))
    batch = made.batch(made.test)
    assert not torch.equal(net(batch), expected)
    batch.known = fewer.batch(made.test).known
    torch.testing.assert_close(net(batch), expected)


@pytest.mark.parametrize(("setting", "named"), [({"trust": -1.0}, "model.trust"), ({"alpha": 1.0}, "model.alpha")])
def test_settings_of_label_spreading(setting: dict[str, float], named: str) -> None:
    with pytest.raises(InputError, match=named):
        SpreadRGCN(**setting)  # type: ignore[arg-type]


def test_types_in_another_order_are_refused() -> None:
    """Also by a model that was loaded; in the order of training they are what they were."""
    made, told = graph(features=True), {}
    net = RGCN(**HeteroDataModule(made).model_args, hidden_channels=4).eval()
    expected = net(batch_of(made))
    net.on_save_checkpoint(told)
    again = RGCN(**net.hparams).eval()
    again.load_state_dict(net.state_dict())
    again.on_load_checkpoint(told)
    other = reordered(made, [0, 1, 2], [1, 0, *range(2, 8)])  # of the same sizes
    with pytest.raises(
        InputError, match=r"`batch.schema` to be of the node types and relations of training, in that order"
    ):
        again(batch_of(other))
    back = reordered(other, [0, 1, 2], [other.edge_types.index(kind) for kind in made.edge_types])
    assert torch.equal(again(batch_of(back)), expected)
