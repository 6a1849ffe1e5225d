"""Graphs of one's own, from files or objects, in the one form that they are coded and checked in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import networkx as nx
import numpy as np
import torch
from pytorch_lightning.utilities import rank_zero_warn
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.storage import BaseStorage, EdgeStorage, GlobalStorage, NodeStorage

from flgraph.data.checks import MOST_CLASSES, Doubt, edges_of, expect_finite, expect_joined, features_of_edges, require
from flgraph.data.columns import RESERVED, TARGET, Column, class_names, first_row
from flgraph.data.tables import find_table
from flgraph.errors import InputError, expect
from flgraph.nn.tasks import Task

SPLITS = ("train", "val", "test")
_PYG = [Data, HeteroData, DataEdgeAttr, DataTensorAttr, BaseStorage, EdgeStorage, GlobalStorage, NodeStorage]
"""Classes that a ``.pt`` file may hold beside tensors; nothing else in it is loaded."""
_OF_NETWORKX = ("name", "node_default", "edge_default")
"""What networkx itself notes of a graph."""
_KNOWN = {"x", "edge_index", "y", "num_nodes", "num_classes", "name", *(f"{split}_mask" for split in SPLITS)}


@dataclass(frozen=True)
class Source:
    """One client's graph, or graphs, as they were read: nothing is coded yet, nothing left out.

    Attributes:
        name: for messages.
        num_nodes: N.
        edge_index: ``[2, E]`` int64.
        labels: of each node, or of each graph where there are several; ``None`` where there is none.
        x: features that came as numbers ``[N, F]``; ``None`` where they are columns.
        columns: features that came as columns of values.
        split: for each label ``train``, ``val``, ``test`` or ``None``; ``None`` where the data brings no splits.
        graph_of: which graph each node is in ``[N]``, ascending; ``None`` for one graph.
        unused: what else the data holds, which nothing here makes use of.
        least_classes: so many classes there are, as the data says.
        edges: columns of the edges, beside ``edge_index``; those of a tensor are called ``0``, ``1`` and so on.
        targets: where labels are no classes, their columns by name (``label`` where there is one).
        ids: what a table calls each node, or each graph where there are several; none where there is no table.
    """

    name: str
    num_nodes: int
    edge_index: Tensor
    labels: Sequence[str | None]
    x: Tensor | None = None
    columns: Mapping[str, Column] = field(default_factory=dict)
    split: Sequence[str | None] | None = None
    graph_of: Tensor | None = None
    unused: Sequence[str] = ()
    least_classes: int = 0
    targets: Mapping[str, Column] = field(default_factory=dict)
    ids: Sequence[str | None] = ()
    edges: Mapping[str, Column] = field(default_factory=dict)


def read_source(
    given: Any, name: str, root: str | Path | None = None, many: bool = False, task: Task = "multiclass"
) -> Source:
    """One client's graph, or its graphs, from whatever it brings.

    Args:
        given: a folder with ``nodes.csv`` and ``edges.csv`` (and ``graphs.csv`` for several graphs), the same as
            ``.parquet``; a file ``.npz``, ``.pt`` or ``.graphml``; for several graphs also a folder of ``.graphml``; or
            a PyG or networkx graph, or a list of these.
        name: of the client.
        root: where relative paths begin; the current folder when ``None``.
        many: whether it holds several graphs with a label each, instead of one with labels on nodes.
        task: what labels are, see :data:`~flgraph.nn.tasks.Task`.

    Raises:
        InputError: nothing is there, or it cannot be used.
    """
    if isinstance(given, str | Path):
        path = Path(root or ".").expanduser() / Path(given).expanduser()
        given = _load(path, name, many, task)
        if isinstance(given, Source):
            return given
    if isinstance(given, Mapping) and "edge_index" in given:
        given = Data(**given)
    graphs = list(given) if many and not isinstance(given, Data | nx.Graph) and hasattr(given, "__iter__") else [given]
    require(len(graphs) > 0, f"data.graphs.{name}", "one graph or more", "none")
    kinds = (nx.Graph,) if isinstance(graphs[0], nx.Graph) else (Data,)
    wanted = f"a path, or {'all PyG or all networkx graphs' if many else 'a PyG or networkx graph'},"
    for graph in graphs:
        expect(isinstance(graph, kinds), f"data.graphs.{name}", wanted, type(graph).__name__)
    make = _of_networkx if kinds == (nx.Graph,) else _of_pyg
    parts = [
        make(graph, name if len(graphs) == 1 else f"{name}, graph {number}", many, task)
        for number, graph in enumerate(graphs)
    ]
    return _joined(parts, name) if many else parts[0]


def load_pt(path: Path) -> Any:
    """What a ``.pt`` file holds: tensors, and PyG's graphs. Nothing in it is executed.

    Raises:
        InputError: it cannot be read, or holds anything else.
    """
    try:
        with torch.serialization.safe_globals(_PYG):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # an archive may be damaged in as many ways as there are
        reason = (
            "it holds more than tensors and PyG's graphs" if isinstance(error, UnpicklingError) else "it is damaged"
        )
        raise InputError(str(path), "a file that torch.save wrote", f"one that cannot be read: {reason}") from None
    if isinstance(content, Mapping) and "edge_index" not in content and "_global_store" in content:
        raise InputError(str(path), "a graph, or the dictionary of its tensors", "something else")
    return content


def _load(path: Path, name: str, many: bool, task: Task) -> Any:
    if path.is_dir():
        found = sorted(path.glob("*.graphml")) if many else []
        return [_graphml(file) for file in found] if found else _of_folder(path, many, task)
    kinds = "a folder with nodes.csv and edges.csv, or a file .npz, .pt or .graphml,"
    require(path.is_file(), f"data.graphs.{name}", kinds, f"{path}, which is not there")
    if path.suffix == ".graphml":
        return _graphml(path)
    if path.suffix == ".pt":
        return load_pt(path)
    expect(path.suffix == ".npz", f"data.graphs.{name}", kinds, path)
    tensors = load_npz(path)
    return _of_arrays(tensors, path, task) if many else _of_pyg(Data(**tensors), str(path), many, task)


def load_npz(path: Path) -> dict[str, Any]:
    """The arrays of an ``.npz`` file as tensors, texts as lists. Nothing in it is executed.

    Raises:
        InputError: it cannot be read, or holds anything else.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except Exception:  # as above
        raise InputError(str(path), "a file that numpy.savez wrote", "one that cannot be read") from None
    return {key: _tensor(array, key, f"{key} in {path}") for key, array in arrays.items()}


def _tensor(array: np.ndarray, key: str, where: str) -> Any:
    numeric = key in _KNOWN - {"y", "name"} or key in ("node_ptr", "edge_ptr", "edge_attr")
    wanted = "an array of numbers" if numeric else "an array of numbers or, as NumPy has them in Unicode, texts"
    expect(array.dtype.kind in ("biuf" if numeric else "biufU"), where, wanted, array.dtype)
    if array.dtype.kind == "U":
        return array.tolist()
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:  # PyTorch cannot compare these
        require(not array.size or int(array.max()) < 2**63, where, "numbers below 2^63", "a larger one")
        return torch.from_numpy(array.astype(np.int64))
    try:
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))
    except TypeError:
        raise InputError(where, "an array of numbers of 64 bits or fewer", array.dtype) from None


def _graphml(path: Path) -> nx.Graph:
    try:
        return nx.read_graphml(path)
    except Exception:  # XML may be damaged in as many ways
        raise InputError(str(path), "a file in GraphML", "one that cannot be read") from None


# ------------------------------------------------------------------------------------------------------------- tables
def _of_folder(path: Path, many: bool, task: Task) -> Source:
    nodes, edges = find_table(path, "nodes"), find_table(path, "edges")
    graphs = find_table(path, "graphs") if many else None
    for table in (nodes,) if graphs is None else (nodes, graphs):
        require(len(table) > 0, str(table.file), "a table with rows", "a header only")
    ids, of = nodes.texts("id"), None
    if graphs is not None:
        keys = graphs.keys(graphs.texts("id"))
        of = graphs.positions(keys, nodes, "graph")
        order = np.argsort(of, kind="stable")
        nodes, of = nodes.rows(order), of[order]
        ids = [f"{graph}\0{own}" for graph, own in zip(nodes.texts("graph"), nodes.texts("id"), strict=True)]
        if "graph" not in edges.names:  # then nodes are known by their ids alone
            ids = nodes.texts("id")
    keys = nodes.keys(ids)
    ends = [
        nodes.positions(keys, edges, end, "graph" if of is not None and "graph" in edges.names else None)
        for end in ("source", "target")
    ]
    edge_index = torch.from_numpy(np.stack(ends)).long()
    if of is not None:
        across = of[ends[0]] != of[ends[1]]
        wanted, got = "a node of the graph of its source", f"one of another in row {first_row(across)}"
        require(not across.any(), edges.where("target"), wanted, got)
    told = graphs if graphs is not None else nodes
    split = told.texts("split", empty=True) if "split" in told.names else None
    targets = _target_names(told.names, task)
    unused = []
    if graphs is not None:
        unused += [
            f"{graphs.file.name}: {name}" for name in graphs.names if name not in ("id", "label", "split", *targets)
        ]
        unused += [f"{nodes.file.name}: {name}" for name in nodes.names if name in ("label", "split")]
    return Source(
        str(path),
        len(ids),
        edge_index,
        class_names(told.texts("label", empty=True)) if "label" in told.names and not targets else [None] * len(told),
        columns={name: nodes.column(name) for name in nodes.names if name not in {*RESERVED, *targets}},
        split=None if split is None else checked_split(split, told.where("split")),
        graph_of=None if of is None else torch.from_numpy(of).long(),
        unused=unused,
        targets={own: told.column(name) for name, own in targets.items()},
        ids=told.texts("id"),
        edges={name: edges.column(name) for name in edges.names if name not in ("source", "target", "graph")},
    )


def _target_names(names: Iterable[str], task: Task) -> dict[str, str]:
    """Columns that are labels or numbers to be learned, with what these are called; none where there are classes."""
    if task == "multiclass":
        return {}
    return {name: name.removeprefix(TARGET) for name in names if name == "label" or name.startswith(TARGET)}


def checked_split(split: Sequence[str | None], where: str) -> Sequence[str | None]:
    """The same column, if all values are ``train``, ``val``, ``test`` or empty.

    Raises:
        InputError: one is none of them.
    """
    strange = [row for row, value in enumerate(split, start=1) if value not in (None, *SPLITS)]
    require(not strange, where, "train, val, test or empty", f"something else in row {strange[0] if strange else 0}")
    return split


# ----------------------------------------------------------------------------------------------------- PyG and arrays
def _of_pyg(data: Data, name: str, many: bool, task: Task) -> Source:
    expect("_store" in vars(data), name, "a PyG graph", "one without content")  # as a file may hold it
    edge_index = data.get("edge_index")
    expect(isinstance(edge_index, Tensor), f"edge_index of {name}", "a tensor", type(edge_index).__name__)
    x, y = data.get("x"), data.get("y")
    expect(x is None or isinstance(x, Tensor), f"x of {name}", "a tensor", type(x).__name__)
    count = data.num_nodes if x is None else x.size(0)
    require(count is not None, f"x of {name}", "features of the nodes (or `num_nodes`)", "none")
    edge_index = edges_of(edge_index, f"edge_index of {name}")
    expect_joined(edge_index, int(count), f"edge_index of {name}")
    rows = 1 if many else int(count)
    labels = labels_of_tensor(y if task == "multiclass" else None, rows, f"y of {name}")
    split = None if many else _masks(data, int(count), name)
    ignored = {f"{split}_mask" for split in SPLITS} if many else set()
    attr = data.get("edge_attr")
    featured = isinstance(attr, Tensor)
    known = (_KNOWN - ignored) | ({"edge_attr"} if featured else set())
    unused = [f"{key} of {name}" for key in data.to_dict() if key not in known]
    return Source(
        name,
        int(count),
        edge_index,
        labels,
        _features(x, name),
        split=split,
        unused=unused,
        least_classes=least_classes(data.get("num_classes"), f"num_classes of {name}") or 0,
        targets=targets_of_tensor(y, rows, f"y of {name}") if task != "multiclass" else {},
        edges=_edge_columns(attr, edge_index.size(1), f"edge_attr of {name}") if featured else {},
    )


def _features(x: Tensor | None, name: str) -> Tensor | None:
    if x is None:
        return None
    expect(not x.is_complex(), f"x of {name}", "of real numbers", x.dtype)
    values = x if x.layout == torch.strided else x.values() if x.layout != torch.sparse_coo else x.coalesce().values()
    whole = "finite (`data.missing` is for tables)"
    require(bool(torch.isfinite(values).all()), f"x of {name}", whole, "NaN or infinity")
    return x.unsqueeze(1) if x.dim() == 1 else x


def least_classes(given: Any, where: str) -> int | None:
    """How many classes there are at least, as the data says; ``None`` if it does not.

    Raises:
        InputError: it is no whole number, or one above :data:`~flgraph.data.checks.MOST_CLASSES`.
    """
    if given is None:
        return None
    value = np.asarray(given)
    fits = value.size == 1 and value.dtype.kind in "iuf" and 0 <= value.item() <= MOST_CLASSES
    require(fits and value.item() % 1 == 0, where, f"a whole number from 0 to {MOST_CLASSES}", "something else")
    return int(value.item())


def labels_of_tensor(y: Any, count: int, where: str) -> list[str | None]:
    """Labels as text; -1 and NaN are no label.

    Raises:
        InputError: there are other than ``count``, several for one, or numbers below -1 or with fractions.
    """
    if y is None:
        return [None] * count
    if isinstance(y, list | str | int | float):
        y = y if isinstance(y, list) else [y]
        require(len(y) == count, where, f"{count} labels", str(len(y)))
        if count == 1 and isinstance(y[0], str):  # a graph's: whether `NA` is a class, others tell
            return [y[0].strip() or None]
        return Column.of(y, where).texts()
    expect(isinstance(y, Tensor), where, "a tensor", type(y).__name__)
    y = y[:, 0] if y.dim() == 2 and y.size(1) == 1 else y
    several = f"of shape {list(y.shape)}: several labels for one need `data.task` multilabel or regression"
    require(
        y.dim() < 2 and y.numel() == count,
        where,
        f"{count} classes, one for each",
        several if y.dim() > 1 else str(y.numel()),
    )
    values = y.reshape(-1)
    there = values[~values.isnan()]
    if values.is_floating_point():
        expect_finite(there, where)
        whole = bool((there == there.round()).all())
        require(whole, where, "classes", "numbers with fractions, which need `data.task` regression")
        values = torch.where(values.isnan(), -1.0, values)
    least = int(values.min()) if count else 0
    require(least >= -1, where, "classes of 0 or more, and -1 where there is none,", str(least))
    if there.unique().tolist() == [-1, 1]:
        rank_zero_warn(f"{where}: -1 is no label, and so all have class 1. Two classes are 0 and 1.", category=Doubt)
    return [None if value < 0 else str(int(value)) for value in values.tolist()]


def targets_of_tensor(y: Any, count: int, where: str) -> dict[str, Column]:
    """The columns of labels or numbers, called ``label`` or ``0``, ``1`` and so on.

    Raises:
        InputError: there are others than ``count`` rows of finite numbers.
    """
    expect(isinstance(y, Tensor), where, "a tensor of numbers", type(y).__name__)
    fits = count > 0 and y.numel() > 0 and y.numel() % count == 0 and (count == 1 or y.size(0) == count)
    expect(fits and not y.is_complex(), where, f"numbers of shape [{count}, T]", list(y.shape))
    rows = y.reshape(count, -1).double().numpy()
    names = ["label"] if rows.shape[1] == 1 else map(str, range(rows.shape[1]))
    return {name: Column.of_numbers(rows[:, number], where) for number, name in enumerate(names)}


def _edge_columns(edge_attr: Tensor, count: int, where: str) -> dict[str, Column]:
    rows = features_of_edges(edge_attr, count, where).double().numpy()
    return {str(number): Column.of_numbers(rows[:, number], where) for number in range(rows.shape[1])}


def _masks(data: Data | Mapping[str, Any], count: int, name: str) -> list[str | None] | None:
    found = ((split, data.get(f"{split}_mask")) for split in SPLITS)
    masks: dict[str, Any] = {split: mask for split, mask in found if mask is not None}
    if not masks:
        return None
    split: list[str | None] = [None] * count
    for part, mask in masks.items():
        fits = isinstance(mask, Tensor) and mask.dtype == torch.bool and list(mask.shape) == [count]
        got = f"{list(mask.shape)}, {mask.dtype}" if isinstance(mask, Tensor) else type(mask).__name__
        require(fits, f"{part}_mask of {name}", f"a mask of shape [{count}], torch.bool", got)
        for row in mask.nonzero()[:, 0].tolist():
            require(split[row] is None, f"masks of {name}", "without common rows", f"row {row} in two")
            split[row] = part
    return split


def _of_arrays(tensors: Mapping[str, Any], path: Path, task: Task) -> Source:
    """Several graphs as flat arrays, as :class:`~flgraph.data.FlatGraphs` has them."""
    for key in ("x", "edge_index", "y", "node_ptr", "edge_ptr"):
        require(key in tensors, str(path), "arrays x, edge_index, y, node_ptr and edge_ptr", f"none of the name {key}")
    x, edges, y = (tensors[key] for key in ("x", "edge_index", "y"))
    node_ptr, edge_ptr = (tensors[key].long() for key in ("node_ptr", "edge_ptr"))
    for key, ptr, total in (("node_ptr", node_ptr, x.size(0)), ("edge_ptr", edge_ptr, edges.size(-1))):
        fits = (
            ptr.dim() == 1
            and ptr.numel() > 1
            and int(ptr[0]) == 0
            and int(ptr[-1]) == total
            and bool((ptr.diff() >= 0).all())
        )
        require(fits, f"{key} in {path}", f"rising from 0 to {total}", "something else")
    edges = edges_of(edges, f"edge_index in {path}")
    count = node_ptr.numel() - 1
    require(
        edge_ptr.numel() == count + 1,
        f"edge_ptr in {path}",
        f"{count + 1} numbers, as node_ptr,",
        str(edge_ptr.numel()),
    )
    owner = torch.repeat_interleave(torch.arange(count), edge_ptr.diff())
    expect_joined(edges, node_ptr.diff()[owner], f"edge_index in {path}")
    unused = [f"{key} in {path}" for key in tensors if key not in (*_KNOWN, "node_ptr", "edge_ptr", "edge_attr")]
    attr = tensors.get("edge_attr")
    return Source(
        str(path),
        x.size(0),
        edges + node_ptr[owner],
        labels_of_tensor(y if task == "multiclass" else None, count, f"y in {path}"),
        _features(x, str(path)),
        split=_masks(tensors, count, str(path)),
        graph_of=torch.repeat_interleave(torch.arange(count), node_ptr.diff()),
        unused=unused,
        least_classes=least_classes(tensors.get("num_classes"), f"num_classes in {path}") or 0,
        targets=targets_of_tensor(y, count, f"y in {path}") if task != "multiclass" else {},
        edges={} if attr is None else _edge_columns(attr, edges.size(1), f"edge_attr in {path}"),
    )


# ----------------------------------------------------------------------------------------------------------- networkx
def _of_networkx(graph: nx.Graph, name: str, many: bool, task: Task) -> Source:
    graph = graph if graph.is_directed() else graph.to_directed(as_view=True)  # each edge both ways
    number = {node: position for position, node in enumerate(graph)}
    names = list(dict.fromkeys(key for _, own in graph.nodes(data=True) for key in own))
    values: dict[str, list[Any]] = {key: [own.get(key) for _, own in graph.nodes(data=True)] for key in names}
    holder = {key: [value] for key, value in graph.graph.items()} if many else values
    targets = _target_names(holder, task)
    told = ("label", "split", *targets) if not many else ()
    ends = [(number[source], number[target]) for source, target in graph.edges()]
    of_edges = dict.fromkeys(key for *_, own in graph.edges(data=True) for key in own if key != "id")
    joined = [own for *_, own in graph.edges(data=True)]
    labels = [graph.graph.get("label")]  # of many, see _joined
    if not many:
        labels = Column.of(values.get("label", [None] * len(number)), f"label of {name}").texts()
    split = None
    if "split" in holder:
        split = checked_split(Column.of(holder["split"], f"split of {name}").texts(), f"split of {name}")
    used = ("label", "split", *targets) if many else ()
    return Source(
        name,
        len(number),
        torch.tensor(ends, dtype=torch.long).reshape(-1, 2).t().contiguous(),
        labels,
        columns={key: Column.of(values[key], f"{key} of {name}") for key in names if key not in (*told, "id", "graph")},
        split=split,
        edges={str(k): Column.of([own.get(k) for own in joined], f"{k} of edges of {name}") for k in of_edges},
        targets={own: Column.of(holder[key], f"{key} of {name}") for key, own in targets.items()},
        unused=[f"{key} of {name}" for key in graph.graph if key not in (*used, *_OF_NETWORKX)],
    )


def _joined(parts: Sequence[Source], name: str) -> Source:
    """Several graphs as one source."""
    counts = [part.num_nodes for part in parts]
    first = np.cumsum([0, *counts[:-1]])
    edges = [part.edge_index + int(start) for part, start in zip(parts, first, strict=True)]
    filled = [part for part in parts if part.num_nodes] or parts  # a graph without nodes shows no fields
    same = all(part.columns.keys() == filled[0].columns.keys() for part in filled)
    require(same, f"data.graphs.{name}", "graphs whose nodes have the same fields", "others")
    xs = [part.x for part in parts]
    widths = sorted({x.size(1) for x in xs if x is not None})
    fits = len(widths) <= 1 and (all(x is None for x in xs) or all(x is not None for x in xs))
    expect(fits, f"x of {name}", "of equally many features in all graphs", widths)
    columns = {
        key: Column.joined([part.columns[key] for part in filled], f"{key} of {name}") for key in filled[0].columns
    }
    unused = dict.fromkeys(entry.split(" of ")[0] for part in parts for entry in part.unused)
    same = all(part.targets.keys() == parts[0].targets.keys() for part in parts)
    require(same, f"label of {name}", "of the same names in all graphs", "others")
    targets = {
        key: Column.joined([part.targets[key] for part in parts], f"{key} of {name}") for key in parts[0].targets
    }
    split = [own for part in parts for own in part.split or [None]]
    return Source(
        name,
        sum(counts),
        torch.cat(edges, dim=1),
        Column.of([label for part in parts for label in part.labels], f"label of {name}").texts(),
        torch.cat([x for x in xs if x is not None]) if widths else None,
        columns,
        split=split if any(part.split is not None for part in parts) else None,
        graph_of=torch.repeat_interleave(torch.arange(len(parts)), torch.tensor(counts)),
        unused=[f"{entry} of {name}" for entry in unused],
        least_classes=max(part.least_classes for part in parts),
        targets=targets,
        edges=_joined_edges(parts, name),
    )


def _joined_edges(parts: Sequence[Source], name: str) -> dict[str, Column]:
    """Columns of the edges of all graphs; graphs that lack one have none there."""
    keys = dict.fromkeys(key for part in parts for key in part.edges)
    found = {}
    for key in keys:
        where = f"{key} of edges of {name}"
        gaps = (Column.of_numbers(np.full(part.edge_index.size(1), np.nan), where) for part in parts)
        found[key] = Column.joined([part.edges.get(key, gap) for part, gap in zip(parts, gaps, strict=True)], where)
    return found
