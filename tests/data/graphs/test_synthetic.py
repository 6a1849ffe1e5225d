"""The synthetic federation: the same graphs every time, and labels that only the structure tells."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from flgraph.data import FlatGraphs, GraphFederation, SyntheticFederation, TUFederation
from flgraph.data.graphs.synthetic import BIPARTITE, DOMAINS, PRISM, synthetic_graphs
from flgraph.errors import InputError

QUICKSTART = Path(__file__).resolve().parents[3] / "configs" / "quickstart.yaml"


@pytest.fixture(scope="module")
def graphs() -> dict[str, FlatGraphs]:
    """All domains, with enough graphs for a probe to find what there is to find."""
    return {name: synthetic_graphs(name, num_graphs=400) for name in DOMAINS}


def same(a: FlatGraphs, b: FlatGraphs) -> bool:
    fields = ("x", "edge_index", "y", "node_ptr", "edge_ptr")
    return all(torch.equal(getattr(a, field), getattr(b, field)) for field in fields)


def node_sums(graphs: FlatGraphs, rows: torch.Tensor) -> np.ndarray:
    graph = torch.repeat_interleave(torch.arange(len(graphs)), graphs.node_ptr.diff())
    return torch.zeros(len(graphs), rows.size(1)).index_add_(0, graph, rows.float()).numpy()


def probe(inputs: np.ndarray, graphs: FlatGraphs) -> float:
    """Accuracy of a linear classifier on graphs that it was not fitted to."""
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    return float(cross_val_score(model, inputs, graphs.y.numpy(), cv=5).mean())


def test_same_seed_same_graphs() -> None:
    for name in DOMAINS:
        assert same(synthetic_graphs(name, 30, seed=3), synthetic_graphs(name, 30, seed=3))
        assert not same(synthetic_graphs(name, 30, seed=3), synthetic_graphs(name, 30, seed=4))


def test_a_domain_does_not_depend_on_the_others() -> None:
    some, alone = SyntheticFederation(["rings", "hubs"], num_graphs=30), SyntheticFederation(["hubs"], num_graphs=30)
    some.setup()
    alone.setup()
    assert (some.clients, alone.clients) == (["rings", "hubs"], ["hubs"])
    assert same(some.client("hubs").graphs, alone.client("hubs").graphs)


def test_sizes_and_classes() -> None:
    began = time.process_time()
    data = SyntheticFederation()
    data.setup()
    assert time.process_time() - began < 5
    assert data.clients == list(DOMAINS)
    for name, domain in DOMAINS.items():
        client = data.client(name)
        assert len(client.graphs) == domain.num_graphs
        assert client.model_args == {
            "in_channels": domain.num_features,
            "num_classes": 2,
            "structure_channels": 32,
        }
        assert client.graphs.y.bincount().tolist() == [domain.num_graphs // 2] * 2
        for split in (client.train, client.val, client.test):
            assert client.graphs.y[split].float().mean() == pytest.approx(0.5, abs=0.05)
    assert len({domain.num_features for domain in DOMAINS.values()}) == len(DOMAINS)


def test_graphs_are_well_formed(graphs: dict[str, FlatGraphs]) -> None:
    for name, flat in graphs.items():
        assert flat._is_undirected()
        assert bool((flat.x.sum(dim=1) == 1).all())  # one-hot
        assert bool((flat.degrees() > 0).all())
        graph = flat[0]
        pairs = list(zip(*graph.edge_index.tolist(), strict=True))
        assert pairs == sorted(set(pairs)), name  # sorted, no edge twice
        assert all(a != b for a, b in pairs)


def test_planted_graphs_differ_in_neither_size_nor_degrees() -> None:
    for motif in (PRISM, BIPARTITE):
        assert len(motif) == 9
        assert np.bincount(np.array(motif).ravel()).tolist() == [3] * 6


def test_features_do_not_tell_the_class(graphs: dict[str, FlatGraphs]) -> None:
    scores = []
    for flat in graphs.values():
        counts = node_sums(flat, flat.x)
        scores.append(probe(counts / counts.sum(axis=1, keepdims=True), flat))
    assert np.mean(scores) == pytest.approx(0.5, abs=0.05)
    assert max(scores) < 0.6


def test_sizes_and_degrees_do_not_tell_the_class(graphs: dict[str, FlatGraphs]) -> None:
    scores = []
    for flat in graphs.values():
        degrees = torch.nn.functional.one_hot(flat.degrees().clamp(max=9), 10)
        sizes = np.stack([flat.node_ptr.diff().numpy(), flat.edge_ptr.diff().numpy()], axis=1)
        scores.append(probe(np.concatenate([node_sums(flat, degrees), sizes], axis=1), flat))
    assert np.mean(scores) == pytest.approx(0.5, abs=0.05)
    assert max(scores) < 0.6


def test_returning_walks_tell_the_class() -> None:
    """With hundreds of graphs, even a linear probe reads the class off the structure embedding, in every domain."""
    data = SyntheticFederation(num_graphs=400)
    data.setup()
    for name in data.clients:
        flat = data.client(name).graphs
        assert probe(node_sums(flat, flat.node_tensors["s"]), flat) > 0.65, name


def test_needs_no_network(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError("no network")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    data = SyntheticFederation(num_graphs=20)
    data.prepare_data()
    data.setup()
    assert len(data.clients) == len(DOMAINS)


def test_settings_name_what_graphs_are_made_from() -> None:
    data = SyntheticFederation(["trees"], num_graphs=20, seed=7, distractors=1)
    data.setup()
    settings = data.client("trees").settings
    assert (settings["seed"], settings["distractors"], settings["num_graphs"]) == (7, 1, 20)


def test_defaults_are_those_of_other_federations() -> None:
    import inspect

    own = inspect.signature(SyntheticFederation).parameters
    for other in (GraphFederation, TUFederation):
        for name, parameter in inspect.signature(other).parameters.items():
            if name in own and name != "name":
                assert own[name].default == parameter.default, name


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"domains": ["trees", "moons"]}, "`data.domains` to be some of trees, .* but got"),
        ({"domains": []}, "`data.domains`"),
        ({"domains": ["trees", "trees"]}, "`data.domains` to be different domains"),
        ({"num_graphs": 1}, "`data.num_graphs` to be 2 or more but got 1"),
        ({"distractors": -1}, "`data.distractors` to be 0 or more but got -1"),
        ({"seed": -1}, "`data.seed` to be 0 or more but got -1"),
    ],
)
def test_refuses(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        SyntheticFederation(**settings)


def test_quickstart_names_this_data() -> None:
    config = yaml.safe_load(QUICKSTART.read_text())
    assert config["data"]["class_path"] == "flgraph.data.SyntheticFederation"
    data = SyntheticFederation(**config["data"]["init_args"])
    data.setup()
    assert sum(data.client(name).test.numel() for name in data.clients) > 500
    assert min(data.client(name).train.numel() for name in data.clients) < 50
