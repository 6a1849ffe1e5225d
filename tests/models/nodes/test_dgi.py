"""Deep graph infomax against its formula, and clusters of a federation's nodes against scikit-learn."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score
from torch.nn import functional as F
from torch_geometric.data import Data

from flgraph.callbacks import FedAvg
from flgraph.data import NodeGraph, WholeGraphFederation
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer
from flgraph.models import DGI
from flgraph.testing import check_algorithm


def network() -> NodeGraph:
    """Three groups of nodes, joined within; features hint at the group."""
    generator = torch.Generator().manual_seed(0)
    group = torch.arange(3).repeat_interleave(20)
    joined = (group[:, None] == group) & (torch.rand(60, 60, generator=generator) < 0.3)
    x = torch.eye(3)[group] + torch.rand(60, 3, generator=generator)
    return NodeGraph.from_pyg(Data(x=x, edge_index=joined.nonzero().t(), y=group), "groups")


def federation() -> WholeGraphFederation:
    how = {"partition": "dirichlet", "alpha": 100.0, "global_fraction": 0.0, "epoch_fraction": 1.0}
    return WholeGraphFederation(network(), num_clients=2, **how)


def test_the_loss_is_that_of_the_paper() -> None:
    torch.manual_seed(0)
    graph, model = network(), DGI(3, 3, hidden_channels=4)
    torch.manual_seed(1)
    loss, encoded = model.contrast(graph.batch(torch.arange(5)))
    torch.manual_seed(1)
    order = torch.randperm(60)
    adjacency = torch.eye(60).index_put(tuple(graph.edge_index), torch.tensor(1.0))
    root = adjacency.sum(1).rsqrt().diag()
    conv, slope = model.infomax.encoder.conv, model.infomax.encoder.activation.weight

    def encode(x: torch.Tensor) -> torch.Tensor:
        return F.prelu(root @ adjacency @ root @ x @ conv.weight + conv.bias, slope)

    h, corrupt = encode(graph.x), encode(graph.x[order])
    summary = model.infomax.weight @ h.mean(0).sigmoid()
    expected = F.softplus(-(h @ summary)).mean() + F.softplus(corrupt @ summary).mean()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(encoded.graphs, h[:5])
    torch.testing.assert_close(model(graph.batch(torch.tensor([7, 3]))), h[[7, 3]])


def test_clusters_of_a_federation(federate: Callable[..., FederatedTrainer]) -> None:
    data = federation()
    trainer = federate(FedAvg(), rounds=2, local_epochs=5)
    final = trainer.fit(DGI(hidden_channels=8, lr=0.01), data)["final"]["clients"]
    for name, predictions in trainer.predictions():
        client = data.client(name)
        points = torch.cat(predictions.batches)[client.test].double().numpy()
        clusters = KMeans(3, n_init=10, random_state=0).fit_predict(points)
        expected = adjusted_rand_score(client.graph.y[client.test].numpy(), clusters)
        assert final[name]["test/ari"] == pytest.approx(expected)
        assert {"test/accuracy", "test/nmi", "test/silhouette", "val/loss"} <= final[name].keys()


def test_it_goes_on_with_the_same_bits() -> None:
    check_algorithm(lambda: (FedAvg(), DGI(hidden_channels=4), federation()), rounds=2, monitor="val/loss")


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match=r"`model\.readout` to be 0 for nodes but got 2"):
        DGI(readout=2)
    with pytest.raises(InputError, match=r"`data` to be one whose batches are whole graphs"):
        DGI(3, 3)(Data(x=torch.ones(2, 3)))
