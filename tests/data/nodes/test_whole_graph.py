from __future__ import annotations

import torch
from torch_geometric.data import Data

from flgraph.data import NodeGraph, WholeGraph, WholeGraphFederation, WholeGraphLoader
from flgraph.data.nodes.whole_graph import edges_between


def graph(nodes: int = 40) -> NodeGraph:
    generator = torch.Generator().manual_seed(0)
    x = (torch.rand(nodes, 8, generator=generator) < 0.2).float()
    edges = torch.randint(0, nodes, (2, 3 * nodes), generator=generator)
    return NodeGraph.from_pyg(Data(x=x, edge_index=edges, y=torch.arange(nodes) % 3))


def test_a_pass_is_one_batch() -> None:
    whole, index = graph(), torch.tensor([5, 1, 30, 7])
    (batch,) = WholeGraphLoader(whole, index)
    assert batch.x is whole.x
    assert batch.adj is whole.adj
    assert torch.equal(batch.index, index)
    assert torch.equal(batch.y, whole.y[index])
    assert len(WholeGraphLoader(whole, index[:0])) == 0
    assert list(WholeGraphLoader(whole, index[:0])) == []
    moved = batch.to("cpu")
    assert torch.equal(moved.index, index)


def test_a_fraction_is_drawn_anew() -> None:
    loader = WholeGraphLoader(graph(), torch.arange(40), fraction=0.25)
    torch.manual_seed(0)
    first, other = next(iter(loader)), next(iter(loader))
    assert first.y.numel() == other.y.numel() == 10
    assert not torch.equal(first.index, other.index)
    torch.manual_seed(0)
    assert torch.equal(next(iter(loader)).index, first.index)


def test_a_federation_and_its_edges_across() -> None:
    """Every edge between held nodes is inside of a client, or across from each end."""
    whole = graph(120)
    data = WholeGraphFederation(whole, num_clients=3, num_test=5, global_fraction=0.3, epoch_fraction=1.0)
    data.setup("fit")
    assert data.client("client-2") is data.client("client-2")
    held = torch.cat([data.client(name).graph.nodes for name in data.clients]).unique().tolist()
    between = {(i, j) for i, j in whole.edge_index.t().tolist() if i in held and j in held}
    for name in data.clients:
        client = data.client(name)
        nodes = client.graph.nodes
        inside = {tuple(edge) for edge in nodes[client.graph.edge_index].t().tolist()}
        assert client.cross_edges is not None
        source, target = client.cross_edges
        across = set(zip(nodes[source].tolist(), target.tolist(), strict=True))
        own = set(nodes.tolist())
        assert inside | across == {(i, j) for i, j in between if i in own}
        assert not inside & across
        (train,), (val,) = client.train_dataloader(), client.val_dataloader()
        assert torch.equal(train.index, client.train)
        assert torch.equal(val.index, client.val)
        local, everywhere = (next(iter(loader)) for loader in client.test_dataloader())
        assert torch.equal(local.index, client.test)
        assert everywhere.y.numel() == 36
        assert client.settings["cross_edges"] is True
    alone = WholeGraphFederation(whole, num_clients=3, num_test=5, cross_edges=False)
    alone.setup("fit")
    assert alone.client("client-1").cross_edges is None
    assert edges_between(whole, torch.arange(120), torch.arange(120)).shape == (2, 0)


def test_edges_across_of_a_part_of_a_graph() -> None:
    """Its nodes keep the numbers that they have in the whole, by which clients know each other's."""
    whole = graph(150)
    part = whole.subgraph(torch.randperm(150, generator=torch.Generator().manual_seed(1))[:120])
    data = WholeGraphFederation(part, num_clients=3, num_test=5, global_fraction=0.3)
    data.setup("fit")
    edges = {tuple(edge) for edge in whole.edge_index.t().tolist()}
    held = {name: set(data.client(name).graph.nodes.tolist()) for name in data.clients}
    for name, own in held.items():
        client = data.client(name)
        assert client.cross_edges is not None
        source, target = client.cross_edges
        across = set(zip(client.graph.nodes[source].tolist(), target.tolist(), strict=True))
        assert across == {(i, j) for i, j in edges if i in own and j in set().union(*held.values()) - own}


def test_support_and_query_are_disjoint_training_nodes() -> None:
    data = WholeGraphFederation(graph(), num_clients=1, partition="dirichlet", global_fraction=0.0)
    data.setup("fit")
    client = data.client("client-1")
    for wanted, size in ((3, 3), (100, client.train.numel() // 2)):
        support, query = client.support_query(wanted)
        assert isinstance(support, WholeGraph)
        assert support.y.numel() == query.y.numel() == size
        chosen = torch.cat([support.index, query.index])
        assert chosen.unique().numel() == 2 * size
        assert torch.isin(chosen, client.train).all()
