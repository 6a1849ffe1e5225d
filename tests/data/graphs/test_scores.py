"""What training graphs say of each graph, and who may hear it."""

from __future__ import annotations

import pytest
import torch
from federations import toy_graphs

from flgraph.callbacks import NoisyClients
from flgraph.data import FlatGraphs, GraphDataModule, GraphFederation
from flgraph.data.graphs.scores import wl_scores
from flgraph.errors import InputError

GRAPHS = FlatGraphs.from_pyg(toy_graphs(30), "toy")
SPLITS = torch.arange(20), torch.arange(20, 25), torch.arange(25, 30)


def relabelled(number: int) -> FlatGraphs:
    y = GRAPHS.y.clone()
    y[number] = 1 - y[number]
    return GRAPHS._like(y=y)


def test_own_labels_and_those_of_tests_say_nothing() -> None:
    scores = wl_scores(GRAPHS, SPLITS[0], 2)
    assert scores.shape == (30, 2)
    assert torch.allclose(scores.sum(dim=1), torch.zeros(30), atol=1e-5)
    for number in (22, 27):
        assert torch.equal(wl_scores(relabelled(number), SPLITS[0], 2), scores)
    other = wl_scores(relabelled(3), SPLITS[0], 2)
    assert torch.allclose(other[3], scores[3], atol=1e-5)
    assert (other - scores).abs().max() > 1e-3


def test_every_batch_has_them() -> None:
    data = GraphDataModule(GRAPHS, SPLITS, batch_size=7, wl_scores=True)
    expected = wl_scores(GRAPHS, SPLITS[0], 2)
    for loader in (data.train_dataloader(), data.val_dataloader(), data.test_dataloader(), data.predict_dataloader()):
        for batch in loader:
            assert torch.equal(batch.wl_scores, expected[batch.graph_index])
    assert data.settings["wl_scores"]
    plain = GraphDataModule(GRAPHS, SPLITS)
    assert "wl_scores" not in plain.settings
    assert next(iter(plain.train_dataloader())).get("wl_scores") is None


def test_labels_that_a_client_does_not_have_say_nothing() -> None:
    """Scores are of the labels and edges that clients train on, noise among them, whenever they are first read."""
    federation = GraphFederation({"A": GRAPHS, "B": GRAPHS}, wl_scores=True)
    federation.setup()
    data = federation.client("A")
    clean = next(iter(data.predict_dataloader())).wl_scores
    noisy = NoisyClients(label_flips=0.5).client_data("A", data)
    batch = next(iter(noisy.predict_dataloader()))
    assert torch.equal(batch.wl_scores, wl_scores(noisy.graphs, noisy.train, 2))
    assert not torch.equal(batch.wl_scores, clean)
    assert torch.equal(next(iter(data.predict_dataloader())).wl_scores, clean)


def test_other_splits_have_scores_of_their_own() -> None:
    """Not those of a datamodule with the same graphs, whose training graphs are tests here."""
    first = GraphDataModule(GRAPHS, SPLITS, wl_scores=True)
    assert "wl_scores" in next(iter(first.train_dataloader()))
    others = (SPLITS[0].flip(0)[:10], SPLITS[1], SPLITS[2])
    second = GraphDataModule(first.graphs, others, wl_scores=True)
    assert torch.equal(next(iter(second.predict_dataloader())).wl_scores, wl_scores(GRAPHS, others[0], 2))
    assert "wl_scores" not in next(iter(GraphDataModule(first.graphs, others).train_dataloader()))
    first.train = others[0]
    assert torch.equal(next(iter(first.predict_dataloader())).wl_scores, wl_scores(GRAPHS, others[0], 2))


def test_several_labels_are_refused() -> None:
    y = torch.zeros(30, 2)
    graphs = FlatGraphs(GRAPHS.x, GRAPHS.edge_index, y, GRAPHS.node_ptr, GRAPHS.edge_ptr, task="multilabel")
    with pytest.raises(InputError, match=r"`data\.wl_scores` to be false, or graphs of one class each"):
        GraphDataModule(graphs, SPLITS, wl_scores=True)
