"""What is predicted in the studies of tasks, from data sets that hold it as features."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from flgraph.data.graphs.readers import read_tu
from flgraph.data.nodes.readers import read_nodes
from flgraph.reproduce.tasks.data import Elements, MoleculeSizes, StructureLengths, Words


def test_the_size_of_a_molecule_is_that_of_its_pairs_of_atoms(data_root: Path) -> None:
    """The mean squared distance of all pairs is twice the squared radius of gyration."""
    data = MoleculeSizes(shards=1, root=str(data_root))
    data.setup()
    assert data.clients == ["BZR-1", "COX2-1", "DHFR-1"]
    graphs, given = data.client("COX2-1").graphs, read_tu("COX2", data_root, "all")
    assert (graphs.task, graphs.x.size(1), graphs.y.shape) == ("regression", 53, (467, 1))
    for number in (0, 100):
        places = given.x[given.node_ptr[number] : given.node_ptr[number + 1], :3].double()
        squared = torch.cdist(places, places).square().mean() / 2
        assert float(graphs.y[number]) == pytest.approx(float(squared.sqrt()), rel=1e-5)


def test_elements_are_those_of_the_molecules_atoms(data_root: Path) -> None:
    data = Elements(shards=2, root=str(data_root))
    data.setup()
    graphs = [data.client(name).graphs for name in data.clients]
    assert [len(part) for part in graphs] == [1000, 1000]
    assert all(part.task == "multilabel" and part.y.size(1) == 8 for part in graphs)
    atoms = read_tu("AIDS", data_root, "labels")
    oxygen = sum(bool(atoms.x[a:b, 1].any()) for a, b in zip(atoms.node_ptr[:-1], atoms.node_ptr[1:], strict=True))
    assert sum(float(part.y[:, 0].sum()) for part in graphs) == oxygen


def test_parts_of_proteins_are_the_clients_own(data_root: Path) -> None:
    data = StructureLengths(root=str(data_root))
    data.setup()
    assert data.clients == [f"class-{number}" for number in range(1, 7)]
    client = data.client("class-6")
    given = read_tu("ENZYMES", data_root, "all")  # whose first graphs are of class 6
    assert client.graph.num_nodes == int(given.node_ptr.diff()[given.y == 5].sum())
    torch.testing.assert_close(client.graph.y[:5, 0], given.x[:5, 1] / 10)
    assert client.graph.edge_index.size(1) == int(given.edge_ptr.diff()[given.y == 5].sum())  # none is cut


def test_words_are_hidden_from_the_features(data_root: Path) -> None:
    data = Words(root=str(data_root), partition="louvain", num_clients=2)
    graph, given = data.read(), read_nodes("Cora", data_root)
    assert (graph.task, graph.y.shape, graph.x.shape) == ("multilabel", (2708, 10), (2708, 1423))
    assert float(graph.y.sum() + graph.x.to_dense().sum()) == float((given.x.to_dense() > 0).sum())
    assert float(graph.y.sum(0).min()) >= float(graph.x.to_dense().sum(0).max())
