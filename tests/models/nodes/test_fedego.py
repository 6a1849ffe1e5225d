from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv

from flgraph.data.nodes.batching import EgoBatch, EgoLoader
from flgraph.data.nodes.container import NodeGraph
from flgraph.data.nodes.datamodule import NodeDataModule
from flgraph.errors import InputError
from flgraph.models import EgoHead, FedEgo, MashedEgoGraphs
from flgraph.nn import EgoSAGEConv
from flgraph.reproduce.fedego.published import PublishedEgoLoader, mash_all_labels

FANOUTS = (2, 2)


def ego_batch(count: int = 6, nodes: int = 9, features: int = 5, classes: int = 3, sparse: bool = True) -> EgoBatch:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(nodes, features, generator=generator)
    x[torch.rand(nodes, features, generator=generator) < 0.5] = 0
    y = torch.arange(nodes) % classes
    egos = torch.randint(0, nodes, (count, 7), generator=generator)
    batch = EgoBatch.gather(x.to_sparse_csr() if sparse else x, y, egos, FANOUTS)
    return batch


def make(**kwargs: Any) -> FedEgo:
    torch.manual_seed(0)
    return FedEgo(**{"in_channels": 5, "num_classes": 3, "hidden_channels": 4, "dropout": 0.0, **kwargs})


def by_hand(model: FedEgo, batch: EgoBatch) -> Tensor:
    """Eq. 7 and 9 for one ego-graph after the other."""
    x = batch.x.to_dense() if batch.x.layout != torch.strided else batch.x
    activation = (lambda t: t) if model.linear else torch.relu
    logits = []
    for row in batch.index:
        p = [x[node] for node in row]
        for layer in model.reduction.layers:
            p = [torch.relu(v @ layer.weight + layer.bias) for v in p]
        for conv, parents in zip(model.personalization.layers, (3, 1), strict=True):
            p = [
                activation(
                    conv.lin_self.weight @ p[j]
                    + conv.lin_neighbour.weight @ ((p[1 + 2 * j] + p[2 + 2 * j]) / 2)
                    + conv.lin_neighbour.bias
                )
                for j in range(parents)
            ]
        logits.append(model.personalization.classifier.weight @ p[0])
    return torch.stack(logits)


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("depth", [1, 2])
def test_equals_the_equations_node_by_node(linear: bool, sparse: bool, depth: int) -> None:
    model = make(linear=linear, num_reduction_layers=depth)
    batch = ego_batch(sparse=sparse)
    torch.testing.assert_close(model(batch), by_hand(model, batch))


def test_features_dense_or_sparse_train_alike() -> None:
    gradients = []
    for sparse in (False, True):
        model = make()
        model.training_step(ego_batch(sparse=sparse)).backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(gradients[0], gradients[1])


def alignments(egos: Tensor, generator: torch.Generator) -> Tensor:
    """The same ego-graphs with children, and with them their subtrees, in another order in each."""
    result = egos.clone()
    for number, row in enumerate(egos):
        first = torch.randperm(2, generator=generator)
        result[number, 1:3] = row[1:3][first]
        second = row[3:].view(2, 2)[first]
        for place in range(2):
            result[number, 3 + 2 * place : 5 + 2 * place] = second[place][torch.randperm(2, generator=generator)]
    return result


def test_all_alignments_are_equivalent_for_linear_layers() -> None:
    """Theorem 4.1: the center of a mashed ego-graph is the same after linear layers, and not so with ReLU."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    embedding = torch.randn(8, 7, 4, dtype=torch.float64)
    numbers = torch.arange(8 * 7).view(8, 7)
    for linear in (True, False):
        head = make(linear=linear).personalization.double()
        centers = []
        for _ in range(5):
            order = alignments(numbers, generator)
            mashed = embedding.view(-1, 4)[order].mean(0, keepdim=True)
            centers.append(head(mashed, FANOUTS))
        spread = torch.stack(centers).detach().std(0).max()
        assert (float(spread) < 1e-12) == linear


def test_mixup_is_the_mean_of_every_position() -> None:
    model, batch = make().eval(), ego_batch()
    mashed = model.mash(batch)
    embedding = model.embed(batch)
    assert mashed.fanouts == FANOUTS
    assert mashed.embedding.shape == (1, 7, 4)
    for position in range(7):
        torch.testing.assert_close(mashed.embedding[0, position], embedding[:, position].mean(0))
        shares = [float((batch.labels[:, position] == c).float().mean()) for c in range(3)]
        torch.testing.assert_close(mashed.label[0, position], torch.tensor(shares))
    first = model.mash(batch, mixup=False)
    torch.testing.assert_close(first.embedding[0], embedding[0])
    assert torch.equal(first.label[0].argmax(-1), batch.labels[0])


def test_below_a_childless_node_there_is_nothing_to_average() -> None:
    """Theorem 4.1 again: the server's linear layers make of the mashed ego-graph the mean of the clients' centers."""
    batch = ego_batch()
    batch.childless = torch.zeros(6, 3, dtype=torch.bool)
    batch.childless[0] = True  # no edges at all
    batch.childless[1:, 2] = True  # the second child of every other center
    model = make(linear=True).eval()
    mashed = model.mash(batch)
    told = model.personalization(mashed.embedding, FANOUTS)
    torch.testing.assert_close(told[0], model(batch).mean(0))
    there = torch.ones(6, 7, dtype=torch.bool)
    there[0, 1:] = there[:, 5:] = False
    embedding = model.embed(batch)
    for position in range(7):
        kept = embedding[there[:, position], position]
        torch.testing.assert_close(mashed.embedding[0, position], kept.sum(0) / 6)
        labels = batch.labels[there[:, position], position] if position < 5 else batch.labels[:, position]
        shares = F.one_hot(labels, 3).float().mean(0)
        torch.testing.assert_close(mash_all_labels(model, batch).label[0, position], shares)
        torch.testing.assert_close(mashed.label[0, position], shares * (position < 5))
    first = model.mash(batch, mixup=False)
    assert not first.embedding[0, 1:].any()
    torch.testing.assert_close(first.embedding[0, 0], embedding[0, 0])


def test_classes_that_a_client_does_not_learn_from_are_not_counted() -> None:
    """Where they are validation and test nodes'; where no ego-graph has a training node nothing is told."""
    model, batch = make().eval(), ego_batch()
    everything = mash_all_labels(model, batch).label
    batch.trained = torch.zeros(6, 7, dtype=torch.bool)
    batch.trained[:, 0] = batch.trained[2:4, 1] = True
    told = model.mash(batch).label[0]
    torch.testing.assert_close(told[0], everything[0, 0])
    torch.testing.assert_close(told[1], F.one_hot(batch.labels[2:4, 1], 3).float().mean(0))
    assert not told[2:].any()
    assert torch.equal(mash_all_labels(model, batch).label, everything)
    first = model.mash(batch, mixup=False).label[0]
    assert torch.equal(first[0], F.one_hot(batch.labels[0, 0], 3).float())
    assert not first[1:].any()
    assert mash_all_labels(model, batch, mixup=False).label.sum() == 7


def test_without_ego_graphs_only_centers_are_shared() -> None:
    model, batch = make(ego=False).eval(), ego_batch()
    mashed = model.mash(batch)
    assert mashed.embedding.shape == (1, 1, 4)
    assert mashed.label.shape == (1, 1, 3)
    assert mashed.fanouts == ()
    assert {name.partition(".")[0] for name, _ in model.named_parameters()} == {"reduction", "personalization"}
    p = torch.relu(model.reduction.layers[0](batch.x))[batch.index]
    for conv, fanouts in zip(model.reduction.convs, (FANOUTS, FANOUTS[:1]), strict=True):
        p = torch.relu(conv(p, fanouts))
    for layer in model.personalization.layers:
        p = torch.relu(layer(p))
    torch.testing.assert_close(model(batch), model.personalization.classifier(p[:, 0]))


@pytest.mark.parametrize("ego", [True, False])
def test_the_head_is_the_models_personalization(ego: bool) -> None:
    model, batch = make(ego=ego).eval(), ego_batch()
    head = EgoHead(4, 3, ego=ego, dropout=0.0)
    head.personalization.load_state_dict(model.personalization.state_dict())
    label = F.one_hot(batch.labels, 3).float()
    egos = MashedEgoGraphs(model.embed(batch).detach(), label, FANOUTS if ego else ())
    torch.testing.assert_close(head(egos), model(batch))
    head.log = lambda *args, **kwargs: None  # type: ignore[method-assign,assignment]
    soft = MashedEgoGraphs(egos.embedding, torch.full_like(label, 1 / 3), egos.fanouts)
    expected = -head(soft).log_softmax(-1).mean()  # cross-entropy with equal shares
    torch.testing.assert_close(head.training_step(soft), expected)


def test_ego_graphs_without_edges_are_their_centers() -> None:
    """The means of their neighbours are zero; the others stay as they are."""
    torch.manual_seed(0)
    head = EgoHead(4, 3, dropout=0.0).eval()
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    whole = MashedEgoGraphs(torch.randn(3, 7, 4), torch.rand(3, 7, 3), FANOUTS)
    bare = torch.tensor([False, True, True])
    egos = MashedEgoGraphs(whole.embedding, whole.label, FANOUTS, bare.unsqueeze(1).expand(-1, 3)).to("cpu")
    p = egos.embedding[1:, 0]
    for layer in head.personalization.layers:
        assert isinstance(layer, EgoSAGEConv)
        p = torch.relu(p @ layer.lin_self.weight.t() + layer.lin_neighbour.bias)
    torch.testing.assert_close(head(egos)[1:], head.personalization.classifier(p))
    torch.testing.assert_close(head(egos)[:1], head(whole)[:1])
    torch.testing.assert_close(head(egos.part(torch.tensor([2, 0]))), head(egos)[[2, 0]])


def test_bad_input() -> None:
    with pytest.raises(InputError, match=r"`model.num_layers` to be a positive integer but got 0"):
        make(num_layers=0)
    with pytest.raises(InputError, match=r"`model.dropout` to be at least 0 and less than 1"):
        make(dropout=1.0)
    with pytest.raises(InputError, match=r"`batch.x` to be of shape \[nodes, 4\] but got"):
        make(in_channels=4)(ego_batch())
    with pytest.raises(InputError, match=r"`data.fanouts` to be 3 hops or more, as `model.num_layers` says, but got"):
        make(num_layers=3)(ego_batch())
    for ego in (True, False):
        with pytest.raises(
            InputError, match=r"`data` to be one whose batches are ego-graphs, such as .* but got 'batch"
        ):
            make(ego=ego)(Data(x=torch.rand(4, 5), edge_index=torch.zeros(2, 0).long()))
    template = FedEgo()
    assert template.is_template
    with pytest.raises(InputError, match="given before the module is called"):
        template(ego_batch())


@pytest.mark.parametrize("ego", [True, False])
def test_nothing_may_stand_for_missing_neighbours(ego: bool) -> None:
    """A node without edges: PyG's layer, whose mean over none is zero; its other nodes as ever."""
    whole = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])  # 3 is alone
    graph = NodeGraph(torch.rand(4, 5), whole, torch.tensor([0, 1, 2, 0]), 3)
    model = make(ego=ego).eval()
    every = torch.arange(4)
    (with_self,) = EgoLoader(graph, every, 4, FANOUTS, fixed=True)
    (without,) = PublishedEgoLoader(graph, every, 4, FANOUTS, fixed=True, isolated="none")
    closed = NodeGraph(graph.x[:3], whole, graph.y[:3], 3)
    (none_alone,) = PublishedEgoLoader(closed, every[:3], 4, FANOUTS, fixed=True, isolated="none")
    assert with_self.childless is None
    assert none_alone.childless is None
    assert without.childless.tolist() == [[False] * 3] * 3 + [[True] * 3]
    assert torch.equal(model(with_self)[:3], model(without)[:3])
    p = torch.relu(graph.x @ model.reduction.layers[0].weight + model.reduction.layers[0].bias)[3:]
    for own in model.personalization.layers if ego else model.reduction.convs:
        conv = SAGEConv(4, 4)
        conv.lin_l.weight.data, conv.lin_l.bias.data = own.lin_neighbour.weight.data, own.lin_neighbour.bias.data
        conv.lin_r.weight.data = own.lin_self.weight.data
        p = conv(p, torch.zeros(2, 0, dtype=torch.long)).relu()
    if not ego:
        for linear in model.personalization.layers:
            p = linear(p).relu()
    torch.testing.assert_close(model(without)[3:], model.personalization.classifier(p))
    assert not torch.allclose(model(without)[3], model(with_self)[3])
    assert torch.equal(without.to("cpu").childless, without.childless)


def test_trains_alone(tmp_path: Path) -> None:
    """With a Trainer of Lightning's and no federation in sight; a checkpoint gives the same logits."""
    torch.manual_seed(0)
    edges = torch.randint(0, 60, (2, 240))
    graph = NodeGraph.from_pyg(Data(x=torch.eye(3).repeat(20, 1), edge_index=edges, y=torch.arange(60) % 3))
    train, val, test = torch.arange(60).split([40, 10, 10])
    data = NodeDataModule(graph, train, val, test, graph, fanouts=FANOUTS, epoch_fraction=1.0)
    model = FedEgo(hidden_channels=8, lr=0.05, dropout=0.0, **data.model_args)
    trainer = pl.Trainer(
        max_epochs=15, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(model, data)
    (metrics, everywhere) = trainer.test(model, data, verbose=False)
    assert metrics["test/accuracy"] > 0.6
    assert everywhere["global_test/accuracy"] > 0.6
    trainer.save_checkpoint(tmp_path / "model.ckpt")
    again = FedEgo.load_from_checkpoint(tmp_path / "model.ckpt", weights_only=True).eval()
    batch = next(iter(data.test_dataloader()[0]))
    assert torch.equal(again(batch), model.eval()(batch))
