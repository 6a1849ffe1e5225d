"""The TU collection of graph-classification data sets (Morris et al., 2020), read straight from its text files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flgraph.data.cache import cached, content_key
from flgraph.data.graphs.container import FlatGraphs
from flgraph.data.graphs.tu_files import TUFiles, locate
from flgraph.errors import InputError, expect

Features = Literal["auto", "labels", "attributes", "all", "degree", "mvgrl"]

_READER_VERSION = 1
"""Part of the cache's key; raise it when the parsed tensors change."""

_MOST_LABELS = 65536
"""One-hot columns beyond this are a sign of identifiers that were taken for labels."""


def read_tu(
    name: str,
    root: str | Path | None = None,
    features: Features = "auto",
) -> FlatGraphs:
    r"""Reads a TU data set, with the graphs, edges, labels and features of PyG's ``TUDataset(use_node_attr=True)``.

    Looks under ``root`` for ``NAME.zip``, ``tu/NAME.zip``, ``NAME/raw/NAME_A.txt``, ``NAME/NAME_A.txt`` and the latter
    two under ``tu/``, then for the same in the cache folder; a data set found in neither is downloaded. Zips are read
    without unpacking them. Edge labels and edge attributes are not read.

    Args:
        name: as on https://chrsmrrs.github.io/datasets, for example ``MUTAG``.
        root: folder of the data; ``$FLGRAPH_DATA`` when ``None``.
        features: ``"labels"``: one-hot node labels; ``"attributes"``: node attributes; ``"all"``: attributes, then
            labels; ``"degree"``: one-hot degrees, with as many columns as the largest degree + 1; ``"auto"``: the first
            that there is of labels, attributes, degree; ``"mvgrl"``: attributes where there are any, otherwise labels,
            then degrees, as MVGRL's published code takes them.

    Returns:
        The graphs; one-hots are held as uint8, attributes (and ``"all"`` with attributes) as float32, edges as int32.

    Raises:
        InputError: the data set is neither found nor obtainable, lacks the features asked for, or a file is malformed.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> temporary = TemporaryDirectory()
        >>> root = Path(temporary.name)
        >>> folder = root / "TWO"
        >>> folder.mkdir()
        >>> _ = (folder / "TWO_A.txt").write_text("1, 2\n2, 1\n3, 4\n4, 3\n")
        >>> _ = (folder / "TWO_graph_indicator.txt").write_text("1\n1\n2\n2\n")
        >>> _ = (folder / "TWO_graph_labels.txt").write_text("-1\n1\n")
        >>> graphs = read_tu("TWO", root)
        >>> len(graphs), graphs.num_classes
        (2, 2)
        >>> temporary.cleanup()
    """
    expect(features in get_args(Features), "features", f"one of {', '.join(get_args(Features))}", features)
    expect(re.fullmatch(r"\w[\w.+-]*", name) is not None, "name", "the name of a TU data set, for example MUTAG", name)
    files = TUFiles(name, locate(name, root))
    parsed = cached(content_key("tu", _READER_VERSION, files.digest()), lambda: _parse(files))
    x = _features(name, features, parsed)
    return FlatGraphs(
        x,
        parsed["edge_index"],
        parsed["y"],
        parsed["node_ptr"],
        parsed["edge_ptr"],
        name=name,
        undirected=bool(parsed["undirected"]),
        validate=False,  # the parser has checked all of it, and the cache its checksum
    )


# ------------------------------------------------------------------------------------------------------- parsing text
def _parse(files: TUFiles) -> dict[str, Tensor]:
    """Everything that a data set's features can be made of.

    Returns:
        ``edge_index [2, E]`` int32, ``edge_ptr``, ``node_ptr``, ``y``, ``codes [N, L]`` int32 (node labels from 0),
        ``widths [L]`` (largest code + 1), ``attributes [N, F]`` float32, ``undirected`` (one bool).
    """
    graph_of = _numbers(files, "graph_indicator", np.int64, columns=1)[:, 0]
    labels = _numbers(files, "graph_labels", np.int64, columns=1)[:, 0]
    files.require(graph_of.size > 0, "graph_indicator", "the graph of each node", "no line")
    files.require(labels.size > 0, "graph_labels", "the class of each graph", "no line")
    rising = graph_of[0] >= 1 and not (np.diff(graph_of) < 0).any()
    files.require(rising, "graph_indicator", "rising from 1", "numbers that fall or start lower")
    one_each = f"one line for each of {graph_of[-1]} graphs"
    files.require(graph_of[-1] == labels.size, "graph_labels", one_each, str(labels.size))
    graph_of -= 1
    node_ptr = np.concatenate([[0], np.bincount(graph_of, minlength=labels.size).cumsum()])
    codes = np.zeros((graph_of.size, 0), dtype=np.int32)
    if "node_labels" in files.members:
        codes = _node_labels(files, graph_of.size)
    attributes = np.zeros((graph_of.size, 0), dtype=np.float32)
    if "node_attributes" in files.members:
        with np.errstate(over="ignore"):  # what overflows is infinite, and refused below
            attributes = _node_rows(files, "node_attributes", np.float64, graph_of.size).astype(np.float32)
        infinite = np.flatnonzero(~np.isfinite(attributes).all(axis=1))
        line = infinite[0] + 1 if infinite.size else None
        files.require(line is None, "node_attributes", "finite", f"NaN or infinity on line {line}")
    edge_index, edge_ptr, undirected = _edges(files, graph_of, node_ptr)
    return {
        "edge_index": torch.from_numpy(edge_index),
        "edge_ptr": torch.from_numpy(edge_ptr),
        "node_ptr": torch.from_numpy(node_ptr),
        "y": torch.from_numpy(np.unique(labels, return_inverse=True)[1]),
        "codes": torch.from_numpy(codes),
        "widths": torch.from_numpy(codes.max(axis=0).astype(np.int64) + 1),
        "attributes": torch.from_numpy(attributes),
        "undirected": torch.tensor(undirected),
    }


def _edges(
    files: TUFiles, graph_of: NDArray[np.int64], node_ptr: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.int64], bool]:
    """Edges without self-loops and repeats, sorted, numbered within graphs; their offsets; whether all go both ways."""
    n = graph_of.size
    parts = [np.zeros(0, dtype=np.int64)]
    for block in _blocks(files, "A", np.int64, columns=2):
        if block.min() < 1 or block.max() > n:
            wrong = block[((block < 1) | (block > n)).any(axis=1)][0].tolist()
            files.require(False, "A", f"edges between nodes 1 to {n}", wrong)
        source, target = block[:, 0] - 1, block[:, 1] - 1
        crossing = np.flatnonzero(graph_of[source] != graph_of[target])
        if crossing.size:
            wrong = block[crossing[0]].tolist()
            files.require(False, "A", "edges between nodes of one graph", f"{wrong}, of two graphs,")
        parts.append((source * n + target)[source != target])
    # One sortable number per edge: these arrays are what bounds memory (8 bytes times 25 million for COLLAB).
    keys = np.concatenate(parts)
    parts.clear()
    keys.sort()
    keys = keys[np.diff(keys, prepend=-1) > 0]
    edge_ptr = np.searchsorted(keys, node_ptr * n)
    source, target = np.divmod(keys, n)
    mirrored = target * n + source
    mirrored.sort()
    undirected = np.array_equal(keys, mirrored)
    del keys, mirrored
    start = np.repeat(node_ptr[:-1], np.diff(edge_ptr))
    edge_index = np.empty((2, start.size), dtype=np.int32)
    np.subtract(source, start, out=edge_index[0], casting="unsafe")
    np.subtract(target, start, out=edge_index[1], casting="unsafe")
    return edge_index, edge_ptr, undirected


def _node_rows(files: TUFiles, key: str, dtype: type[np.generic], num_nodes: int) -> NDArray[Any]:
    rows = _numbers(files, key, dtype)
    files.require(rows.shape[0] == num_nodes, key, f"one line for each of {num_nodes} nodes", str(rows.shape[0]))
    return rows


def _node_labels(files: TUFiles, num_nodes: int) -> NDArray[np.int32]:
    """Node labels ``[N, L]``, every column counted from 0."""
    raw = _node_rows(files, "node_labels", np.int64, num_nodes)
    low, high = raw.min(axis=0), raw.max(axis=0)
    wide = np.flatnonzero(high.astype(np.float64) - low >= _MOST_LABELS)  # in floats, which cannot overflow
    if wide.size:
        files.require(False, "node_labels", f"of fewer than {_MOST_LABELS} classes", "more")
    return cast("NDArray[np.int32]", (raw - low).astype(np.int32))


def _numbers(files: TUFiles, key: str, dtype: type[np.generic], columns: int | None = None) -> NDArray[Any]:
    blocks = list(_blocks(files, key, dtype, columns))
    return np.concatenate(blocks) if blocks else np.zeros((0, columns or 0), dtype=dtype)


def _blocks(files: TUFiles, key: str, dtype: type[np.generic], columns: int | None = None) -> Iterator[NDArray[Any]]:
    """Numbers ``[rows, columns]`` of a file, some lines at a time; by default as many columns as the first line has."""
    lines_before = 0
    for text in files.lines(key):
        columns = columns or text[: text.index(b"\n")].count(b",") + 1
        characters = np.frombuffer(text, dtype=np.uint8)
        ends = characters[(characters == ord(",")) | (characters == ord("\n"))]
        rows = text.count(b"\n")
        try:
            values = np.fromstring(text.replace(b",", b" "), dtype=dtype, sep=" ")
        except (ValueError, DeprecationWarning):  # older releases of numpy warn and return what precedes the fault
            values = np.zeros(0, dtype=dtype)
        # Ends of fields in the right order, and one number each; otherwise look for the line at fault.
        regular = ends.size == rows * columns and bool((ends[columns - 1 :: columns] == ord("\n")).all())
        if not regular or values.size != ends.size:
            files.require(False, key, *_fault(dtype, columns, text, lines_before))
        lines_before += rows
        yield values.reshape(rows, columns)


def _fault(dtype: type[np.generic], columns: int, text: bytes, lines_before: int) -> tuple[str, str]:
    """What was expected, and the first line of ``text`` that is not ``columns`` numbers."""
    whole = issubclass(dtype, np.integer)
    wanted = f"{columns} {'whole ' if whole else ''}number{'s' if columns > 1 else ''} per line, separated by commas,"
    for number, line in enumerate(text.split(b"\n"), start=lines_before + 1):
        try:
            wrong = len([(int if whole else float)(field) for field in line.split(b",")]) != columns
        except ValueError:
            wrong = True
        if wrong:
            return wanted, f"something else on line {number}"
    return wanted, f"something else after line {lines_before}"


# ----------------------------------------------------------------------------------------------------------- features
def _features(name: str, features: Features, parsed: dict[str, Tensor]) -> Tensor:
    codes, attributes = parsed["codes"], parsed["attributes"]
    there = [kind for kind, tensor in (("labels", codes), ("attributes", attributes)) if tensor.size(1)]
    if features == "auto":
        features = cast("Features", [*there, "degree"][0])
    if features == "mvgrl":
        if "attributes" in there:
            return attributes
        return torch.cat([_one_hot(codes, parsed["widths"]), _degrees(parsed)], dim=1)
    if features == "degree":
        return _degrees(parsed)
    if features not in there and not (features == "all" and there):
        usable = ", ".join([*there, "degree", "mvgrl"])
        raise InputError("features", f"one of auto, {usable} for {name}", f"{features!r}, which it lacks")
    if features == "attributes" or there == ["attributes"]:
        return attributes
    labels = _one_hot(codes, parsed["widths"])
    return labels if features == "labels" or len(there) == 1 else torch.cat([attributes, labels.float()], dim=1)


def _degrees(parsed: dict[str, Tensor]) -> Tensor:
    """One-hots of the degrees, with as many columns as the largest + 1."""
    shift = torch.repeat_interleave(parsed["node_ptr"][:-1], parsed["edge_ptr"].diff())
    degree = torch.bincount(parsed["edge_index"][0] + shift, minlength=parsed["codes"].size(0))
    return _one_hot(degree.unsqueeze(1), degree.max().view(1) + 1)


def _one_hot(codes: Tensor, widths: Tensor) -> Tensor:
    """One-hots of every column of ``codes [N, L]`` side by side: ``[N, sum(widths)]`` uint8."""
    columns = codes.long() + widths.cumsum(0) - widths
    return torch.zeros(codes.size(0), int(widths.sum()), dtype=torch.uint8).scatter_(1, columns, 1)
