"""Clients of unlike features or structure, clients that the data names, and generated graphs."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.utils import degree, homophily

from flgraph.data import (
    NodeFederation,
    NodeGraph,
    WholeGraphFederation,
    feature_skew,
    generate_nodes,
    natural,
    read_nodes,
    topology_skew,
)
from flgraph.errors import InputError

HOSPITALS = ["south", "north", "south", "north", "south", "north"]
RING: dict[str, Any] = {
    "x": torch.arange(12.0).view(6, 2),
    "edge_index": torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]]),
    "y": torch.tensor([0, 1, 0, 1, 0, 1]),
}


def toy(sparse: bool = False) -> NodeGraph:
    generator = torch.Generator().manual_seed(0)
    x = (torch.rand(60, 40, generator=generator) < (0.1 if sparse else 0.9)).float()
    edges = torch.randint(60, (2, 200), generator=generator)
    return NodeGraph.from_pyg(Data(x=x, edge_index=edges, y=torch.arange(60) % 3), "toy")


@pytest.mark.parametrize("sparse", [True, False])
def test_features_rise_from_client_to_client(sparse: bool) -> None:
    graph = toy(sparse)
    assert graph.is_sparse == sparse
    clients = feature_skew(graph, 4).clients
    means = [graph.x.to_dense()[client.nodes].mean(1) for client in clients]
    assert [len(client.nodes) for client in clients] == [15] * 4
    assert all(one.max() <= other.min() for one, other in pairwise(means))


def test_degrees_rise_from_client_to_client() -> None:
    graph = toy()
    degrees = degree(graph.edge_index[0], 60)
    found = [degrees[client.nodes] for client in topology_skew(graph, 3, seed=1).clients]
    assert all(one.max() <= other.min() for one, other in pairwise(found))
    first, second = (topology_skew(graph, 3, seed=seed).clients[0].nodes for seed in (1, 2))
    assert not torch.equal(first, second)  # nodes of equal degree are drawn


def test_refuses_what_does_not_differ() -> None:
    graph = NodeGraph.from_pyg(Data(**{**RING, "x": torch.ones(6, 2)}), "ring")
    with pytest.raises(InputError, match=r"`data.partition` to be one by what differs but got one by a number"):
        feature_skew(graph, 2)


def test_names_of_the_data_are_clients() -> None:
    graph = NodeGraph.from_pyg(Data(**RING, hospital=HOSPITALS), "ring", key="hospital")
    names, partition = natural(graph, "hospital", fractions=(1, 0, 0))
    assert names == ["north", "south"]
    assert [client.nodes.tolist() for client in partition.clients] == [[1, 3, 5], [0, 2, 4]]
    with pytest.raises(InputError, match=r"`data.partition_key` to be a key of the nodes of ring but got 'ward'"):
        natural(graph, "ward")


@pytest.mark.parametrize("form", ["npz", "pt", "numbers"])
def test_a_key_in_a_file_cuts_it(form: str, tmp_path: Path) -> None:
    file = tmp_path / f"ring.{'npz' if form == 'npz' else 'pt'}"
    key: Any = torch.tensor([7, 3, 7, 3, 7, 3]) if form == "numbers" else HOSPITALS
    if form == "npz":
        np.savez(file, hospital=np.array(key), **{name: np.asarray(value) for name, value in RING.items()})
    else:
        torch.save({**RING, "hospital": key}, file)
    arguments: dict[str, Any] = {"global_fraction": 0, "fractions": (1, 0, 0), "partition_key": "hospital"}
    data = WholeGraphFederation(str(file), **arguments)
    data.setup()
    assert data.clients == (["3", "7"] if form == "numbers" else ["north", "south"])
    assert data.client(data.clients[0]).graph.nodes.tolist() == [1, 3, 5]
    assert data.name == "ring-key-hospital"
    saved = tmp_path / "partition.npz"
    saved.write_bytes(data.partition_file())
    again = NodeFederation(str(file), partition=str(saved))
    again.setup()
    assert again.clients == data.clients


@pytest.mark.parametrize(
    ("values", "got"), [(None, "none"), (["a"] * 5, r"<U1 \[5\]"), (torch.ones(6), r"float32 \[6\]")]
)
def test_refuses_keys(values: Any, got: str) -> None:
    with pytest.raises(InputError, match=rf"`ring.hospital` to be a whole number or a text for each of 6.* got {got}"):
        NodeGraph.from_pyg(Data(**RING, hospital=values), "ring", key="hospital")


def test_a_key_stands_alone() -> None:
    with pytest.raises(InputError, match=r"`data.partition_key` to be null where `partition`"):
        NodeFederation("Cora", partition="louvain", partition_key="hospital")
    data = NodeFederation("homophily-0.3", partition_key="ward")
    assert data.name == "homophily-0.3-key-ward"
    with pytest.raises(InputError, match=r"a key of the nodes of homophily-0.3"):
        data.setup()


@pytest.mark.parametrize("wanted", [0.1, 0.5, 0.9])
def test_generated_neighbours_are_alike_as_often_as_wanted(wanted: float) -> None:
    graph = read_nodes(f"homophily-{wanted}")
    where = torch.from_numpy(np.unique(graph.keys["community"], return_inverse=True)[1])
    source, target = graph.edge_index
    within = where[source] == where[target]
    # 4,300 edges: the standard error is 0.008 at most.
    assert homophily(graph.edge_index[:, within], graph.y) == pytest.approx(wanted, abs=0.025)
    assert float(within.float().mean()) == pytest.approx(0.9, abs=0.02)
    assert graph.content == generate_nodes(wanted).content
    assert torch.bincount(where * 4 + graph.y).min() >= 8


@pytest.mark.parametrize("wanted", ["0", "1", "1.5"])
def test_refuses_other_shares(wanted: str) -> None:
    with pytest.raises(InputError, match=r"`data.dataset` to be homophily-H with H above 0 and below 1"):
        read_nodes(f"homophily-{wanted}")


def test_generating_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    generate_nodes(0.5)
    assert torch.equal(before, torch.get_rng_state())
