from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

from flgraph.callbacks import FedGCN, Local
from flgraph.data import NodeClients, NodeGraph, WholeGraphDataModule, WholeGraphFederation
from flgraph.data.nodes.whole_graph import edges_between
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer
from flgraph.models import GNN, NodeGCN

Federate = Callable[..., FederatedTrainer]
NODES = 24


def graph(sparse: bool = True, seed: int = 0) -> NodeGraph:
    """A random graph with isolated nodes; every node's features are its own."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(NODES, 9, generator=generator) * (torch.rand(NODES, 9, generator=generator) < 0.2)
    edges = torch.randint(0, NODES - 2, (2, 40), generator=generator)
    made = NodeGraph.from_pyg(Data(x=x, edge_index=edges, y=torch.arange(NODES) % 3))
    assert made.is_sparse
    return made if sparse else NodeGraph(x, made.edge_index, made.y, 3)


def federation(whole: NodeGraph, parts: list[list[int]], cross_edges: bool) -> dict[str, WholeGraphDataModule]:
    """Clients that hold given nodes of a graph, each of which is used for everything."""
    held = torch.tensor(sorted({node for part in parts for node in part}))
    given = {}
    for number, part in enumerate(parts):
        nodes, every = torch.tensor(part), torch.arange(len(part))
        own = whole.subgraph(nodes)
        cross = edges_between(whole, nodes, held) if cross_edges else None
        given[chr(65 + number)] = WholeGraphDataModule(own, every, every, every, cross_edges=cross)
    return given


DISJOINT = [list(range(0, 8)), list(range(8, 15)), list(range(15, 24))]
OVERLAPPING = [[0, 3, 5, 9, 11, 20], list(range(4, 15)), [1, 3, 5, 9, 12, 22, 16, 17, 11]]  # 10 nodes with nobody


def union(whole: NodeGraph, parts: list[list[int]], cross_edges: bool) -> Tensor:
    """A-hat of the union graph, dense; rows of nodes that nobody holds are of no interest."""
    matrix = torch.zeros(NODES, NODES, dtype=torch.float64)
    known = [sorted({node for part in parts for node in part})] if cross_edges else parts
    full = torch.zeros(NODES, NODES, dtype=torch.float64)
    full[whole.edge_index[0], whole.edge_index[1]] = 1
    for part in known:
        index = torch.tensor(part)
        matrix[index.unsqueeze(1), index] = full[index.unsqueeze(1), index]
    matrix += torch.eye(NODES)
    scale = matrix.sum(1).rsqrt()
    return scale.unsqueeze(1) * matrix * scale


def net(**kwargs: Any) -> NodeGCN:
    return NodeGCN(**{"hidden_channels": 5, "dropout": 0.0, "lr": 0.05, **kwargs})


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("cross_edges", [True, False])
@pytest.mark.parametrize("parts", [DISJOINT, OVERLAPPING], ids=["disjoint", "overlapping"])
def test_the_first_layer_sums_over_the_union_graph(
    parts: list[list[int]], cross_edges: bool, sparse: bool, federate: Federate
) -> None:
    """No edge counts twice, however many clients know it; with edges across, the whole graph's sums come out."""
    whole = graph(sparse)
    trainer: Any = federate(FedGCN(), rounds=1, enable_checkpointing=False)
    trainer.fit(net(), federation(whole, parts, cross_edges))
    expected = (union(whole, parts, cross_edges) @ (whole.x.to_dense() if sparse else whole.x).double()).float()
    for client in trainer.engine.clients.values():
        known = client.module.sums
        assert known.second is None
        torch.testing.assert_close(known.first.to_dense(), expected[known.nodes])


@pytest.mark.parametrize("parts", [DISJOINT, OVERLAPPING], ids=["disjoint", "overlapping"])
def test_two_hops_are_the_gcn_of_the_union_graph(parts: list[list[int]], federate: Federate) -> None:
    whole = graph()
    trainer: Any = federate(FedGCN(num_hops=2), rounds=2, enable_checkpointing=False)
    trainer.fit(net(), federation(whole, parts, cross_edges=True))
    copied = trainer.client_model("A")
    assert torch.equal(copied.sums.first.to_dense(), trainer.engine.clients["A"].module.sums.first.to_dense())
    matrix, x = union(whole, parts, True).float(), whole.x.to_dense()
    for client in trainer.engine.clients.values():
        first, second = client.module.convs
        hidden = torch.relu(matrix @ x @ first.weight + first.bias)
        logits = matrix @ hidden @ second.weight + second.bias
        (batch,) = client.data.predict_dataloader()
        torch.testing.assert_close(client.module.eval()(batch), logits[batch.nodes])


def test_of_disjoint_clients_it_is_the_whole_graph(federate: Federate) -> None:
    """With edges across, nothing is lost to the partition."""
    whole = graph()
    trainer: Any = federate(FedGCN(), rounds=1, enable_checkpointing=False)
    data = WholeGraphFederation(whole, num_clients=3, partition="dirichlet", global_fraction=0.0)
    trainer.fit(net(), data)
    expected = union(whole, [list(range(NODES))], True) @ whole.x.to_dense().double()
    seen = []
    for client in trainer.engine.clients.values():
        torch.testing.assert_close(client.module.sums.first.to_dense().double(), expected[client.module.sums.nodes])
        seen += client.module.sums.nodes.tolist()
    assert sorted(seen) == list(range(NODES))


@pytest.mark.parametrize("num_hops", [1, 2])
def test_one_client_is_the_plain_gcn(num_hops: int, federate: Federate) -> None:
    states = []
    for aggregator in (Local(), FedGCN(num_hops=num_hops)):
        trainer: Any = federate(aggregator, rounds=3, local_epochs=2, enable_checkpointing=False)
        trainer.fit(net(), federation(graph(), [list(range(NODES))], cross_edges=True))
        states.append(trainer.engine.clients["A"].module.state_dict())
    torch.testing.assert_close(*states, rtol=1e-4, atol=1e-5)


def test_what_crosses(federate: Federate, recorder: Any) -> None:
    """Sparse rows and node numbers before the first round; weights after that. All bytes are counted."""
    whole = graph()
    trainer: Any = federate(FedGCN(), rounds=2, engine=recorder)
    results = trainer.fit(net(), federation(whole, OVERLAPPING, cross_edges=True))
    weights = set(trainer.engine.clients["A"].module.state_dict())
    for _, upload in recorder.uploads():
        assert set(upload.tensors) == weights
    (first,) = [upload for name, upload in recorder.uploads("nodes") if name == "A"]
    assert first.tensors["setup/nodes"].tolist() == OVERLAPPING[0]
    rows = dict(recorder.uploads("neighbours"))["B"].tensors
    assert rows["setup/value"].numel() == rows["setup/col"].numel() == rows["setup/rowptr"][-1]
    assert rows["setup/value"].all(), "only what is not zero"
    downloads = [(turn, payload) for name, turn, payload in recorder.downloads() if name == "C"]
    assert [(turn.round, turn.name) for turn, _ in downloads] == [
        (0, "degrees"),
        (0, "neighbours"),
        (0, "evaluate"),
        (1, "evaluate"),
        (2, "evaluate"),
    ]
    earlier = downloads[0][1].tensors["setup/earlier"]
    assert earlier.tolist() == [[node in part for part in OVERLAPPING[:2]] for node in OVERLAPPING[2]]
    assert set(downloads[3][1].tensors) == weights
    up = sum(len(answer) for _, turn, answer in recorder.crossed if turn.round == 0 and turn.name != "evaluate")
    assert results["setup_bytes"]["up"] == up


@pytest.mark.parametrize("num_hops", [1, 2])
def test_a_client_s_model_needs_no_federation(federate: Federate, num_hops: int) -> None:
    """What it knows of its surroundings is in its checkpoint."""
    data = federation(graph(), OVERLAPPING, cross_edges=True)
    trainer: Any = federate(FedGCN(num_hops=num_hops), rounds=2)
    trainer.fit(net(), data)
    for name, client in trainer.engine.clients.items():
        file = trainer.run_dir / "checkpoints" / "last" / "clients" / f"{name}.ckpt"
        alone = NodeGCN.load_from_checkpoint(file, map_location="cpu").eval()
        (batch,) = data[name].val_dataloader()
        with torch.no_grad():
            assert torch.equal(alone(batch), client.module.eval()(batch))
            alone.use_sums(None)
            assert not torch.equal(alone(batch), client.module(batch))


def test_the_server_s_state_is_that_of_fedavg() -> None:
    one = FedGCN()
    assert one.server_state() == {}
    one.owners = {"A": ["w"]}
    one.accept({"w": torch.ones(2)})
    download = one.download("A", 4, "train")
    assert download is not None
    assert list(download.tensors) == ["w"]


def test_refusals(federate: Federate, graph_federation: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match=r"`aggregator\.num_hops` to be 1 or 2 but got 3"):
        FedGCN(num_hops=3)
    with pytest.raises(InputError, match=r"to be 1 where clients do not know their edges .* but got 2"):
        federate(FedGCN(num_hops=2), rounds=1).fit(net(), federation(graph(), DISJOINT, cross_edges=False))
    mixed = federation(graph(), DISJOINT, cross_edges=True)
    mixed["B"].cross_edges = None
    with pytest.raises(InputError, match=r"`cross_edges` of client `B` to be True, as of most clients, but got False"):
        federate(FedGCN(), rounds=1).fit(net(), mixed)
    with pytest.raises(InputError, match=r"`model` to be flgraph\.models\.NodeGCN for FedGCN but got 'GNN'"):
        federate(FedGCN(), rounds=1).fit(GNN(hidden_channels=4, num_layers=1), graph_federation())


def test_graphs_of_their_own_have_no_nodes_in_common(federate: Federate) -> None:
    """Their numbers are the same, and their nodes are not: clients would get each other's sums."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(NODES) % 2
    ring = torch.stack([torch.arange(NODES), torch.arange(NODES).roll(1)])
    given = {name: Data(x=torch.rand(NODES, 3, generator=generator), edge_index=ring, y=y) for name in "ab"}
    with pytest.raises(InputError, match=r"`data` to be graphs cut from a common one for FedGCN, which is FedAvg"):
        federate(FedGCN(), rounds=1).fit(NodeGCN(hidden_channels=4), NodeClients(given))
