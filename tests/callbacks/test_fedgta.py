from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch_geometric.data import Data

from flgraph.callbacks import FedGTA
from flgraph.data import NodeGraph, SyntheticFederation, WholeGraphFederation
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer, Payload
from flgraph.models import GNN, NodeGCN

Federate = Callable[..., FederatedTrainer]
CLASSES = 3


def clients(whole_graph: NodeGraph) -> WholeGraphFederation:
    return WholeGraphFederation(whole_graph, num_clients=3, partition="dirichlet", alpha=5.0, global_fraction=0.0)


@pytest.fixture
def whole_graph() -> NodeGraph:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(60, 5, generator=generator)
    edges = torch.randint(60, (2, 150), generator=generator)
    return NodeGraph.from_pyg(Data(x=x, edge_index=edges, y=torch.arange(60) % CLASSES))


def sent(model: float, moments: list[float], confidence: float) -> Payload:
    told = torch.tensor(moments).unsqueeze(0)
    return Payload({"w": torch.tensor([model]), "topology": {"moments": told}}, {"confidence": confidence})


def begun(**kwargs: Any) -> FedGTA:
    server = FedGTA(num_moments=1, moments="raw", **kwargs)
    server.owners = dict.fromkeys("ABC", ("w",))
    server.start({"w": torch.zeros(1)}, list("ABC"))
    return server


def models(server: FedGTA) -> list[float]:
    downloads = [server.download(client, 1, "train") for client in "ABC"]
    return [float(download.tensors["w"]) for download in downloads if download is not None]


def test_means_over_those_alike_by_confidence() -> None:
    """A and B point the same way (cosine 0.8), C is at right angles to A and at 0.6 to B."""
    server = begun(threshold=0.7)
    uploads = {"A": sent(1.0, [1.0, 0.0], 3.0), "B": sent(5.0, [0.8, 0.6], 1.0), "C": sent(9.0, [0.0, 1.0], 2.0)}
    server.accept(server.aggregate(uploads, 1, "train"))
    assert models(server) == pytest.approx([(3 * 1 + 5) / 4, (3 * 1 + 5) / 4, 9.0])
    assert server.summary() == {"alike": {"A": ["A", "B"], "B": ["A", "B"], "C": ["C"]}}
    assert server.log_scalars() == {"alike/A": 2.0, "alike/B": 2.0, "alike/C": 1.0}
    assert server.download("A", 1, "train") is server.download("B", 1, "train")

    server = begun(threshold=0.5)
    server.accept(server.aggregate(uploads, 1, "train"))
    assert models(server) == pytest.approx([2.0, (3 * 1 + 5 + 2 * 9) / 6, (5 + 2 * 9) / 3])


def test_who_sat_out_keeps_its_mean() -> None:
    server = begun(threshold=0.7)
    assert models(server) == [0.0, 0.0, 0.0]
    server.accept(server.aggregate({"A": sent(1.0, [1.0, 0.0], 1.0), "B": sent(3.0, [1.0, 0.0], 1.0)}, 1, "train"))
    assert models(server) == [2.0, 2.0, 0.0]
    server.accept(server.aggregate({"A": sent(7.0, [1.0, 0.0], 1.0), "C": sent(9.0, [1.0, 0.0], 3.0)}, 2, "train"))
    assert models(server) == [8.5, 2.0, 8.5]


def test_without_edges_and_with_other_classes() -> None:
    server = begun()
    uploads = {"A": sent(1.0, [1.0, 0.0], 0.0), "B": sent(3.0, [1.0, 0.0], 0.0), "C": sent(9.0, [1.0], 0.0)}
    server.accept(server.aggregate(uploads, 1, "train"))
    assert models(server) == [2.0, 2.0, 9.0]


def test_what_a_client_tells(whole_graph: NodeGraph, federate: Federate) -> None:
    """Against the published code's steps, dense."""
    data = clients(whole_graph)
    trainer: Any = federate(FedGTA(num_moments=3, steps=2), rounds=1, enable_checkpointing=False)
    trainer.fit(NodeGCN(hidden_channels=4), data)
    client = trainer.engine.clients["client-1"]
    moments, sure = client.aggregator.describe(client)

    own = client.data.graph
    dense = torch.zeros(own.num_nodes, own.num_nodes, dtype=torch.float64)
    dense[own.edge_index[0], own.edge_index[1]] = 1
    looped = dense + torch.eye(own.num_nodes)
    scale = looped.sum(1).rsqrt()
    hat = scale.unsqueeze(1) * looped * scale
    client.module.eval()
    with torch.no_grad():
        label = client.module(own.batch(torch.arange(own.num_nodes))).softmax(dim=1).double()
    train = client.data.train
    label[train] = F.one_hot(own.y[train], CLASSES).double()
    out = label
    for _ in range(2):
        out = 0.5 * hat @ out + 0.5 * label
        out[train] += label[train]
    raw, warm = out.softmax(dim=1), (out / 20).softmax(dim=1)
    raw[train] = warm[train] = label[train]
    expected = [raw.pow(p).mean(dim=0) for p in (1, 2, 3)] + [(raw - raw.mean(dim=0)).pow(p).mean(0) for p in (1, 2, 3)]
    assert torch.allclose(moments.double(), torch.stack(expected), atol=1e-6)
    degree = dense.sum(1)
    known = degree.sum() * CLASSES * math.exp(-1) + (degree * (warm * (warm + 1e-8).log()).sum(1)).sum()
    assert sure == pytest.approx(float(known), rel=1e-5)


def test_its_extremes(whole_graph: NodeGraph, federate: Federate) -> None:
    """Where nobody is like anybody every client goes on from its own; where all are alike all get the same."""
    for threshold, count in ((1.0, 1), (-1.0, 3)):
        trainer: Any = federate(FedGTA(threshold), rounds=2, name=f"to-{count}")
        trainer.fit(NodeGCN(hidden_channels=4), clients(whole_graph))
        states = [client.module.state_dict() for client in trainer.engine.clients.values()]
        same = [all(torch.equal(tensor, state[name]) for name, tensor in states[0].items()) for state in states[1:]]
        assert same == [count == 3] * 2
        written = json.loads((trainer.run_dir / "results.json").read_text())["aggregator"]["alike"]
        assert [len(alike) for alike in written.values()] == [count] * 3


@pytest.mark.parametrize(
    "changes",
    [
        {"threshold": 1.5},
        {"num_moments": 0},
        {"moments": "both"},
        {"steps": -1},
        {"alpha": 1.1},
        {"temperature": 0.0},
        {"temperature": float("inf")},
    ],
)
def test_bad_arguments(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"`aggregator.{next(iter(changes))}`"):
        FedGTA(**changes)


def test_other_data_is_refused(federate: Federate) -> None:
    with pytest.raises(InputError, match="of nodes, such as"):
        federate(FedGTA(), rounds=1).fit(GNN(hidden_channels=4, num_layers=1), SyntheticFederation(num_graphs=10))
