from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import renamed
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric.data import HeteroData

from flgraph.data import HeteroGraph, read_hetero
from flgraph.data.hetero.container import EdgeType
from flgraph.data.hetero.partition import with_validation
from flgraph.data.hetero.schema import canonical, reordered, reverses, with_reverse, without_reverse
from flgraph.errors import InputError

COUNTS = {"paper": 6, "author": 5, "venue": 3}


def random_graph(seed: int = 0, edges: tuple[int, ...] = (9, 0, 7, 5), features: bool = True) -> HeteroGraph:
    generator = torch.Generator().manual_seed(seed)
    kinds: list[EdgeType] = [
        ("author", "writes", "paper"),
        ("venue", "hosts", "author"),
        ("paper", "cites", "paper"),
        ("paper", "at", "venue"),
    ]
    given = {}
    for kind, count in zip(kinds, edges, strict=True):
        ends = [torch.randint(0, COUNTS[end], (count,), generator=generator) for end in (kind[0], kind[2])]
        given[kind] = torch.stack(ends)
    x = {"author": torch.randn(5, 4, generator=generator)} if features else None
    y = torch.tensor([0, 1, 2, -1, 1, 0])
    return HeteroGraph.from_edges(
        COUNTS, given, "paper", y, torch.tensor([4, 0]), y == 2, torch.tensor([5]), x=x, name="toy"
    )


def triples(graph: HeteroGraph) -> list[tuple[Any, ...]]:
    """Every edge by names and by the numbers that its nodes had at first, in order."""
    found = []
    ptr = graph.node_ptr.tolist()
    first = {kind: ptr[t] for t, kind in enumerate(graph.node_types)}
    for (source, name, target), edges in graph.edges.items():
        a, b = graph.nodes[edges[0] + first[source]], graph.nodes[edges[1] + first[target]]
        found += [(source, name, target, *pair) for pair in zip(a.tolist(), b.tolist(), strict=True)]
    return sorted(found)


def same(one: HeteroGraph, other: HeteroGraph) -> None:
    assert one.content == other.content
    assert one.node_types == other.node_types
    assert one.edge_types == other.edge_types


def test_the_flat_form() -> None:
    graph = random_graph()
    assert graph.node_ptr.tolist() == [0, 6, 11, 14]
    assert graph.edge_ptr.tolist() == [0, 9, 9, 16, 21]
    assert graph.train.tolist() == [0, 4]
    assert graph.val.tolist() == [2]
    assert (graph.num_classes, graph.num_targets, graph.target_start) == (3, 6, 0)
    assert str(graph) == "HeteroGraph(toy: 14 nodes of 3 types, 21 edges of 4 types, 3 classes)"
    keys = (graph.relation * 14 + graph.edge_index[1]) * 14 + graph.edge_index[0]
    assert bool((keys.diff() >= 0).all())
    assert graph.relations().num_rows == 4
    assert graph.relations() is graph.relations()
    assert graph.to("cpu") is graph


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), edges=st.tuples(*[st.integers(0, 9)] * 4))
def test_round_trips(seed: int, edges: tuple[int, ...]) -> None:
    graph = random_graph(seed, edges)
    same(HeteroGraph.from_pyg(graph.to_pyg(), "paper", num_classes=3), graph)
    both = with_reverse(graph)
    both._validate()
    assert both.num_edges == 2 * graph.num_edges
    assert reverses(both) == [4, 5, 6, 7]
    for kind, forward in graph.edges.items():
        turned = both.edges[kind[2], f"rev_{kind[1]}", kind[0]]
        assert sorted(map(tuple, forward.flip(0).t().tolist())) == sorted(map(tuple, turned.t().tolist()))
    same(without_reverse(both), graph)
    order = torch.randperm(4, generator=torch.Generator().manual_seed(seed)).tolist()
    moved = reordered(graph, [2, 0, 1], order)
    assert triples(moved) == triples(graph)
    assert moved.edge_types == tuple(graph.edge_types[r] for r in order)
    same(reordered(moved, [1, 2, 0], [order.index(r) for r in range(4)]), graph)
    named = renamed(graph, {"paper": "article"}, {"cites": "refers to"})
    assert named.target == "article"
    assert ("article", "refers to", "article") in named.edge_types
    assert torch.equal(named.edge_index, graph.edge_index)
    assert named.content != graph.content


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), share=st.floats(0.1, 1.0))
def test_cutting_by_edges(seed: int, share: float) -> None:
    """What is left are the edges, and the nodes, types and relations that they have, with labels and splits."""
    graph = with_reverse(random_graph(seed))
    mask = torch.rand(graph.num_edges, generator=torch.Generator().manual_seed(seed)) < share
    papers = graph.edge_index[:, mask]
    if not bool((papers < 6).any()):
        with pytest.raises(InputError, match="nodes of the target type 'paper'"):
            graph.cut(mask)
        return
    part = graph.cut(mask, "part")
    part._validate()
    kept = {kind: edges[:, mask[graph.relation == r]] for r, (kind, edges) in enumerate(graph.edges.items())}
    expected = [(*kind, *pair) for kind, edges in kept.items() for pair in edges.t().tolist()]
    assert triples(part) == sorted(expected)
    used = {(kind, node) for s, _, t, a, b in expected for kind, node in ((s, a), (t, b))}
    ptr = part.node_ptr.tolist()
    found = {
        (kind, node) for t, kind in enumerate(part.node_types) for node in part.nodes[ptr[t] : ptr[t + 1]].tolist()
    }
    assert found == used
    assert part.num_nodes == len(used)
    place = part.node_types.index("paper")
    numbers = part.nodes[ptr[place] : ptr[place + 1]]
    assert torch.equal(part.y, graph.y[numbers])
    for field in ("train", "val", "test"):
        assert numbers[getattr(part, field)].tolist() == [
            node for node in getattr(graph, field).tolist() if ("paper", node) in used
        ]
    if "author" in part.node_types:
        place = part.node_types.index("author")
        assert torch.equal(part.x["author"], graph.x["author"][part.nodes[ptr[place] : ptr[place + 1]]])
    again = part.cut(torch.arange(part.num_edges))
    same(again, part)
    assert torch.equal(again.nodes, part.nodes)


def test_validation_nodes() -> None:
    graph = random_graph()
    assert with_validation(graph, 0.5, 1) is graph
    bare = graph.replace(val=graph.val[:0], train=torch.tensor([0, 1, 2, 4]))
    part = with_validation(bare, 0.25, 1)
    assert (part.train.numel(), part.val.numel()) == (3, 1)
    assert sorted([*part.train.tolist(), *part.val.tolist()]) == [0, 1, 2, 4]
    assert part.content == with_validation(bare, 0.25, 1).content
    assert len({with_validation(bare, 0.25, seed).content for seed in range(9)}) > 1
    assert with_validation(bare, 0.0, 1) is bare


def edge(*pairs: tuple[int, int]) -> Tensor:
    return torch.tensor(pairs, dtype=torch.long).view(-1, 2).t()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": "person"}, r"Expected `target` to be one of a, b but got 'person'\."),
        ({"num_nodes": {"a": 3, 1: 2}}, r"`toy\.node_types` to be strings but got 1\."),
        ({"edges": {("a", "r", 3): edge((0, 0))}}, "three strings, but got"),
        ({"edges": {("a", "b"): edge((0, 0))}}, "three strings, but got"),
        ({"edges": {("a", "r", "c"): edge((0, 0))}}, "between node types a, b but got 'c'"),
        (
            {"edges": {("a", "r", "b"): edge((0, 2))}},
            r"edges\[r\]` to be edges between .* 0 to 1 of 'b' but got \[2\]",
        ),
        ({"edges": {("a", "r", "b"): torch.zeros(3, 2)}}, r"of shape \[2, E\] but got \[3, 2\]"),
        ({"edges": {("a", "r", "b"): torch.zeros(2, 3)}}, "of an integer type"),
        ({"y": torch.tensor([0, 1, -2])}, r"`toy\.y` to be between -1 and 1 but got -2"),
        ({"y": torch.tensor([0, 1, 2])}, r"`toy\.y` to be between -1 and 1 but got 2"),
        ({"y": torch.tensor([0, 1])}, r"`toy\.y` to be of shape \[3\] and int64 but got \[2\], int64"),
        ({"train": torch.tensor([3])}, r"`train` to be nodes 0 to 2 of `toy` but got \[3\]"),
        ({"train": torch.tensor([2])}, r"`toy\.train` to be labelled nodes"),
        ({"test": torch.tensor([0])}, "`toy.train, val and test` to be without common nodes"),
        ({"train": torch.tensor([0, 1, 0])}, r"`train` to be different nodes of `toy` but got \[0\]"),
        ({"val": torch.tensor([True])}, r"`toy\.val` to be a mask of shape \[3\]"),
        ({"x": {"c": torch.zeros(3, 1)}}, r"`toy\.x` to be features of node types a, b but got 'c'"),
        ({"x": {"a": torch.zeros(2, 1)}}, r"`toy\.x\[a\]` to be of shape \[3, F\] and float32"),
        ({"x": {"a": torch.full((3, 1), torch.nan)}}, r"`toy\.x\[a\]` to be finite"),
    ],
)
def test_errors(change: dict[str, Any], message: str) -> None:
    plain = {
        "num_nodes": {"a": 3, "b": 2},
        "edges": {("a", "r", "b"): edge((0, 0), (2, 1))},
        "target": "a",
        "num_classes": 2,
        "y": torch.tensor([0, 1, -1]),
        "train": torch.tensor([0]),
        "name": "toy",
    }
    HeteroGraph.from_edges(**plain)
    with pytest.raises(InputError, match=message):
        HeteroGraph.from_edges(**plain | change)


def test_errors_of_other_forms() -> None:
    graph = random_graph()
    with pytest.raises(InputError, match="to be without reverse relations but got 'rev_writes, rev_hosts, rev_cites'"):
        with_reverse(with_reverse(graph))
    with pytest.raises(InputError, match="`edge_order` to be all of 0 to 3"):
        reordered(graph, [0, 1, 2], [0, 0, 1, 2])
    with pytest.raises(InputError, match="sorted by relation, target and source"):
        graph.replace(validate=True, edge_index=graph.edge_index[:, [*range(8, -1, -1), *range(9, 21)]])
    with pytest.raises(InputError, match="between nodes of the relation's types"):
        graph.replace(validate=True, edge_index=torch.zeros_like(graph.edge_index))
    data = graph.to_pyg()
    del data["paper"].y
    with pytest.raises(InputError, match=r"`graph\[paper\]\.y` to be a tensor but got None"):
        HeteroGraph.from_pyg(data, "paper")
    with pytest.raises(InputError, match="`target` to be one of paper, author, venue but got 'person'"):
        HeteroGraph.from_pyg(data, "person")


def test_from_pyg_without_masks() -> None:
    """As PyG's ``Entities`` has it: numbers and labels of the training and test nodes only."""
    data = HeteroData()
    data["a"].num_nodes = 4
    data["b"].x = torch.ones(2, 3)
    data["a", "r", "b"].edge_index = edge((0, 1), (3, 0))
    data["a"].train_idx, data["a"].train_y = torch.tensor([3, 1]), torch.tensor([1, 0])
    data["a"].test_idx, data["a"].test_y = torch.tensor([0]), torch.tensor([1])
    graph = HeteroGraph.from_pyg(data, "a")
    assert graph.y.tolist() == [1, 0, -1, 1]
    assert graph.train.tolist() == [1, 3]
    assert graph.test.tolist() == [0]
    assert graph.x["b"].shape == (2, 3)
    del data["a"].test_idx
    with pytest.raises(InputError, match="a store with `test_idx` and `test_y`, as `y` is missing"):
        HeteroGraph.from_pyg(data, "a")
    data["a"].y = torch.tensor([0.4, 1.6, 0.0, 1.0])
    with pytest.raises(InputError, match=r"`graph\.y` to be whole numbers, one class each, but got others"):
        HeteroGraph.from_pyg(data, "a")


# --------------------------------------------------------------------------------------------------------- real files
@pytest.mark.parametrize(
    ("name", "counts", "labels"),
    [
        ("aifb", (7, 104, 7262, 48810, 112, 28, 36), [61, 73, 60, 28, 15]),
        ("MUTAG", (5, 50, 27163, 148100, 218, 54, 68), [9189, 129, 211]),
    ],
)
def test_rdf_graphs(data_root: Path, name: str, counts: tuple[int, ...], labels: list[int]) -> None:
    if not (data_root / "entities" / f"{name.lower()}.npz").is_file():
        pytest.skip(f"needs entities/{name.lower()}.npz")
    graph = read_hetero(name)
    sizes = (len(graph.node_types), len(graph.edge_types), graph.num_nodes, graph.num_edges)
    assert (*sizes, graph.train.numel(), graph.val.numel(), graph.test.numel()) == counts
    assert [int((graph.y == label).sum()) for label in range(-1, graph.num_classes)] == labels
    forward = without_reverse(graph)
    assert 2 * forward.num_edges == graph.num_edges
    assert triples(with_reverse(forward)) == triples(graph)
    assert len(reverses(graph)) == len(graph.edge_types) // 2


@pytest.mark.parametrize(
    ("kind", "field", "value", "said"),
    [
        ("b", "x", torch.ones(4, 2, dtype=torch.cfloat), r"\[b\]\.x` to be of real numbers"),
        ("b", "x", [[1.0]] * 4, r"\[b\]\.x` to be a tensor but got 'list'"),
        (
            "a",
            "train_idx",
            torch.tensor([3, 9]),
            r"train_idx` to be numbers of nodes below 5, as many as `train_y` has",
        ),
        ("a", "train_idx", torch.tensor([3.0, 1.0]), "train_idx` to be numbers of nodes"),
        ("a", "train_y", torch.tensor([1, 0, 0]), "train_idx` to be numbers of nodes"),
        ("a", "test_y", torch.tensor([0.5, 1.0]), "test_y` to be whole numbers"),
    ],
)
def test_refused_fields_of_pyg(kind: str, field: str, value: Any, said: str) -> None:
    data = HeteroData()
    data["a"].num_nodes, data["b"].x = 5, torch.eye(4).to_sparse()
    data["a", "r", "b"].edge_index = torch.tensor([[0, 4], [3, 0]])
    for part, index in (("train", [3, 1]), ("test", [0, 4])):
        data["a"][f"{part}_idx"], data["a"][f"{part}_y"] = torch.tensor(index), torch.tensor([1, 0])
    assert torch.equal(HeteroGraph.from_pyg(data, "a").x["b"], torch.eye(4))
    data[kind][field] = value
    with pytest.raises(InputError, match=said):
        HeteroGraph.from_pyg(data, "a")


def test_missing_and_damaged_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="one of AIFB, MUTAG, BGS, ogbn-mag but got 'AM'"):
        read_hetero("AM")
    with pytest.raises(InputError, match=r"folder with bgs\.npz for BGS"):
        read_hetero("BGS", tmp_path)
    (tmp_path / "bgs.npz").write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"bgs\.npz` to be a file that numpy.savez wrote"):
        read_hetero("BGS", tmp_path)
    np.savez(tmp_path / "bgs.npz", name="bgs", num_classes=2)
    with pytest.raises(InputError, match="node_types"):
        read_hetero("BGS", tmp_path)
    monkeypatch.delenv("FLGRAPH_DATA", raising=False)
    with pytest.raises(InputError, match="FLGRAPH_DATA"):
        read_hetero("BGS")


def twins() -> HeteroGraph:
    """Two node types and two relations that only a third relation tells apart."""
    edges = torch.tensor([[0, 1, 2], [1, 2, 0]])
    given = {("a", "p", "c"): edges, ("b", "p", "c"): edges, ("b", "q", "a"): edges, ("c", "r", "c"): edges}
    return HeteroGraph.from_edges({"a": 3, "b": 3, "c": 3}, given, "c", torch.tensor([0, 1, 0]), torch.tensor([0]))


@pytest.mark.parametrize("graph", [random_graph(), with_reverse(random_graph()), random_graph(features=False), twins()])
def test_the_order_of_contents(graph: HeteroGraph) -> None:
    """Whatever types are called and in whatever order they come, the same tensors are made of them."""
    reference = canonical(graph)
    assert triples(reference) == triples(graph)
    assert canonical(reference) is reference
    nodes, relations = len(graph.node_types), len(graph.edge_types)
    names = {kind: kind[::-1] + "x" for kind in graph.node_types}, {kind[1]: kind[1][::-1] for kind in graph.edge_types}
    for turn in range(1, relations):
        order = [(t + turn) % nodes for t in range(nodes)], [(r + turn) % relations for r in range(relations)]
        for other in (reordered(graph, *order), renamed(graph, *names), reordered(renamed(graph, *names), *order)):
            found = canonical(other)
            for field in ("node_ptr", "edge_ptr", "edge_index", "y", "train", "val", "test", "nodes"):
                assert torch.equal(getattr(found, field), getattr(reference, field)), field
            back = canonical(renamed(graph, *names)) if other.target != graph.target else reference
            assert found.node_types == back.node_types
            assert found.edge_types == back.edge_types


def test_reads_mag_as_pyg_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLGRAPH_CACHE", str(tmp_path / "cache"))
    raw = tmp_path / "mag" / "raw"
    tables = {
        "node-feat/paper/node-feat": "0.5,1.0\n2.0,3.0\n0.0,1.0\n",
        "node-feat/paper/node_year": "2010\n2011\n2012\n",
        "node-label/paper/node-label": "1\n0\n1\n",
        "num-node-dict": "author,field_of_study,institution,paper\n2,1,1,3\n",
        "relations/author___affiliated_with___institution/edge": "0,0\n1,0\n",
        "relations/author___writes___paper/edge": "0,0\n1,2\n",
        "relations/paper___cites___paper/edge": "0,1\n",
        "relations/paper___has_topic___field_of_study/edge": "2,0\n",
        **{f"split/time/paper/{split}": f"{node}\n" for node, split in enumerate(("train", "valid", "test"))},
    }
    for name, text in tables.items():
        (raw / name).parent.mkdir(parents=True, exist_ok=True)
        (raw / f"{name}.csv.gz").write_bytes(gzip.compress(text.encode()))
    for _ in range(2):  # from the tables, then from PyG's own file
        graph = read_hetero("ogbn-mag", tmp_path)
        assert (graph.num_nodes, graph.num_edges, graph.num_classes) == (7, 12, 2)
        assert graph.x["paper"].tolist() == [[0.5, 1.0], [2.0, 3.0], [0.0, 1.0]]
        assert [part.tolist() for part in (graph.train, graph.val, graph.test)] == [[0], [1], [2]]
        assert ("paper", "rev_writes", "author") in graph.edge_types
    (raw / "relations" / "paper___cites___paper" / "edge.csv.gz").write_bytes(b"torn")
    (raw / "new").mkdir()  # changes the folder's time
    with pytest.raises(InputError, match=r"to be a folder with mag/raw for ogbn-mag but got .*mag/raw"):
        read_hetero("ogbn-mag", tmp_path)
