"""What is in own files, in numbers: never a row, a name or a value of one."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from torch_geometric.data import HeteroData

from flgraph.data.cache import content_key
from flgraph.data.checks import Doubt, require, unused_fields
from flgraph.data.columns import NUMBER, TARGET, Coding, Column, expect_classes, is_absent
from flgraph.data.graphs.clients import GraphClients
from flgraph.data.hetero.clients import HeteroClients
from flgraph.data.hetero.container import HeteroGraph
from flgraph.data.hetero.sources import HeteroTables, read_hetero_source
from flgraph.data.nodes.clients import NodeClients
from flgraph.data.own import Declared, edge_counts, left_out
from flgraph.data.sources import SPLITS, Source, load_pt, read_source
from flgraph.data.tables import tables_in
from flgraph.errors import InputError, expect
from flgraph.nn.tasks import Task as LabelTask

Task = Literal["nodes", "graphs", "hetero"]

T = TypeVar("T")

OwnClients = NodeClients | GraphClients | HeteroClients
"""Data that partners bring."""


def check_files(paths: Sequence[str], task: Task | None = None) -> Iterator[str]:
    """Lines about what was read, what is missing, and what will be left out.

    Args:
        paths: folders or files, one for each client.
        task: what they are for; told from the files when ``None``.

    Raises:
        InputError: a file cannot be used, or files do not go together.
    """
    twice = next((path for path in paths if list(paths).count(path) > 1), None)
    expect(twice is None, "PATH", "folders and files, each given once,", twice)
    names = [Path(path).name or path for path in paths]
    names = names if len(set(names)) == len(names) else list(paths)
    kinds = {task or task_of(Path(path)) for path in paths}
    expect(len(kinds) == 1, "PATH", "data for one task", ", ".join(sorted(kinds)))
    kind = kinds.pop()
    given = dict(zip(names, paths, strict=True))
    if kind == "hetero":
        for name, path in given.items():
            yield from _of_hetero(name, path)
        return

    def read(learned: LabelTask) -> tuple[dict[str, Source], list[str]]:
        many = kind == "graphs"
        return _silently(lambda: {name: read_source(path, name, None, many, learned) for name, path in given.items()})

    learned: LabelTask = "multiclass"
    sources, unsure = read(learned)
    if any(_measured(source) for source in sources.values()):  # which of the two nobody has said
        learned = "regression"
        sources, unsure = read(learned)
    for name, one in sources.items():
        yield from _of_source(name, one, True, one.columns)
    coding, doubts = _silently(lambda: Declared(None, None, "zero", learned).agreed(sources))
    yield from ("together", *_coded(coding, sources), *unsure, *doubts)


def check_config(kind: type[OwnClients], settings: Mapping[str, Any], file: str, apart: bool = False) -> Iterator[str]:
    """The same of the clients of a configuration, with all that a run would refuse before it trains.

    Args:
        kind: of its data.
        settings: arguments of the data.
        file: the configuration, for messages.
        apart: whether it is one partner's alone, which must say what all have agreed on.

    Raises:
        InputError: there are problems, each of which had a line.
    """
    found, shown = 0, set[str]()
    for name, given in dict(settings["graphs"]).items():
        data = kind(**{**settings, "graphs": {name: given}})
        data.declared.apart = apart
        try:
            for line in _of_client(data, name, given):
                shown.add(line)
                yield line
            _silently(data.setup)
        except InputError as error:
            found += 1
            yield _line("PROBLEM", f"{name}: {error}")
    if not found:  # or else the same again
        data, unsure = _silently(lambda: kind(**settings))
        data.declared.apart = apart
        try:
            _, doubts = _silently(data.setup)
            yield from ("together", *_of_models(data), *(line for line in (*unsure, *doubts) if line not in shown))
        except InputError as error:
            found += 1
            yield _line("PROBLEM", error)
    got = "one problem, see above" if found == 1 else f"{found} problems, see above"
    require(not found, file, "a configuration whose data can be used", got)


def _of_client(data: OwnClients, name: str, given: Any) -> Iterator[str]:
    if isinstance(data, HeteroClients):
        yield from _of_hetero(name, given, data)
        return
    declared = data.declared
    many = isinstance(data, GraphClients)
    source, doubts = _silently(lambda: read_source(given, name, data.root, many, declared.task))
    columns = dict(source.columns if declared.columns is None else declared.columns)
    if isinstance(data, NodeClients) and data.partition_key is not None:
        columns[data.partition_key] = "text"  # whose nodes they are
    yield from _of_source(name, source, data.undirected, columns, declared.edge_columns)
    yield from doubts


def _of_models(data: OwnClients) -> Iterator[str]:
    """What models are told of the data of all clients."""
    outputs = "classes" if data.declared.task == "multiclass" else "outputs"
    names = {"in_channels": "features", "num_classes": outputs, "edge_channels": "of edges"}
    told = data.client(data.clients[0]).model_args
    yield from (_line(word, told[name]) for name, word in names.items() if isinstance(told.get(name), int))
    declared, columns = data.declared, data.columns if isinstance(data, HeteroClients) else data.declared.columns
    if declared.classes is not None:
        key = content_key(declared.classes, sorted((columns or {}).items()), declared.edge_columns, declared.task)
        whose = "classes alone (`data.columns` is not declared)" if columns is None else "classes and columns"
        yield _line("declared", f"{key[:8]}, which partners of the same {whose} see, too")


def _silently(step: Callable[[], T]) -> tuple[T, list[str]]:
    """What a step returns, and lines about its doubts; what it warns of beside has lines of its own."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", Doubt)
        result = step()
    return result, [_line("CAREFUL", warning.message) for warning in told]


def _measured(source: Source) -> bool:
    """Whether the labels are numbers with fractions, or there are several for one."""
    try:
        expect_classes(source.labels, "label")
    except InputError:
        return True
    several = any(name.startswith(TARGET) for name in source.columns)
    return several and all(label is None for label in source.labels)


def task_of(path: Path) -> Task:
    """What data is for, as far as its form tells.

    Raises:
        InputError: there is nothing.
    """
    require(path.exists(), "PATH", "a folder or a file", f"{path}, which is not there")
    if path.is_dir():
        if any(path.glob("*.graphml")):
            return "graphs"
        names = tables_in(path)
        return "graphs" if "graphs" in names else "nodes" if {"nodes", "edges"} & names.keys() else "hetero"
    if path.suffix == ".npz":
        try:
            with np.load(path, allow_pickle=False) as file:
                names = dict.fromkeys(file.files, path)
        except Exception:  # an archive may be damaged in as many ways as there are
            return "nodes"  # the reader will say so
        return "graphs" if "node_ptr" in names else "hetero" if "node_types" in names else "nodes"
    content = load_pt(path) if path.suffix == ".pt" else None
    if isinstance(content, HeteroData):
        return "hetero"
    return "graphs" if isinstance(content, list) else "nodes"


def _of_source(
    name: str,
    source: Source,
    undirected: bool,
    columns: Mapping[str, Any],
    edges: Mapping[str, Any] | None = None,
) -> Iterator[str]:
    counts = edge_counts(source, undirected)
    ends = source.edge_index[:, source.edge_index[0] != source.edge_index[1]]
    alone = source.num_nodes - ends.unique().numel()
    what = "nodes" if source.graph_of is None else "graphs"
    yield name
    if source.graph_of is not None:
        yield _line("graphs", len(source.labels))
    yield _line("nodes", f"{source.num_nodes}, of which {alone} have no edge to another")
    yield _line("edges", counts["edges"])
    yield from _features(source)
    yield from (_line("of edges", f"{column[:40]}: {_kind(values)}") for column, values in source.edges.items())
    yield from (_line("label", f"{label}: {_kind(values)}") for label, values in source.targets.items())
    if not source.targets:
        yield _labels(source.labels, what)
    yield _splits(source.split, what)
    missing = sum(int(column.missing.sum()) for column in source.columns.values())
    yield _line("missing", f"{missing} values")
    unused = left_out(source, undirected, columns, edges)
    yield _line("left out", ", ".join(unused) if unused else "nothing")


def _features(source: Source) -> Iterator[str]:
    if source.x is not None:
        yield _line("features", f"{source.x.size(1)} numbers for each node")
        return
    if not source.columns:
        yield _line("features", "none; a single one that is 1 everywhere takes their place")
    for column, values in source.columns.items():
        yield _line("feature", f"{column[:40]}: {_kind(values)}")


def _kind(column: Column) -> str:
    gone = int(column.missing.sum())
    if column.kind == "text":
        kinds = len({text for text in column.texts() if text is not None})
        kind = f"text of {kinds} kinds"
        numbers = sum(Column.of([text], "").kind == NUMBER for text in column.texts() if text and not is_absent(text))
        kind += f", {numbers} values of which are numbers" if numbers else ""
    else:
        kind = "numbers" if column.kind == "number" else "points in time (refused, unless declared as `years`)"
    return kind + (f", {gone} missing" if gone else "")


def _labels(labels: Sequence[str | None], what: str) -> str:
    sizes = sorted(Counter(label for label in labels if label is not None).values(), reverse=True)
    shown = ", ".join(map(str, sizes[:20])) + (" ..." if len(sizes) > 20 else "")
    bare = sum(label is None for label in labels)
    return _line("classes", f"{len(sizes)}, of {shown or 0} {what}" + (f"; {bare} without a label" if bare else ""))


def _splits(split: Sequence[str | None] | None, what: str) -> str:
    if split is None:
        return _line("splits", "none; they will be drawn")
    return _line("splits", ", ".join(f"{part} {sum(own == part for own in split)}" for part in SPLITS) + f" {what}")


def _coded(coding: Coding, sources: Mapping[str, Source]) -> Iterator[str]:
    widths = {coding.width or 1 if source.x is None else source.x.size(1) for source in sources.values()}
    yield _line("features", max(widths))
    yield _line("classes" if coding.task == "multiclass" else "labels", len(coding.classes))


def _of_hetero(name: str, given: Any, data: HeteroClients | None = None) -> Iterator[str]:
    root, labelled, target = (None, False, None) if data is None else (data.root, data.task == "nodes", data.target)
    source, doubts = _silently(lambda: read_hetero_source(given, name, root, labelled, target))
    path = str(Path(root or ".") / str(given))
    yield from _of_tables(name, source, data) if isinstance(source, HeteroTables) else _of_graph(name, source, path)
    yield from doubts


def _of_tables(name: str, source: HeteroTables, data: HeteroClients | None) -> Iterator[str]:
    yield name
    for kind, count in source.num_nodes.items():
        yield _line("node type", f"{kind}: {count} nodes")
        for column, values in source.columns[kind].items():
            yield _line("feature", f"{kind}, {column[:40]}: {_kind(values)}")
    for kinds, edges in source.edges.items():
        yield _line("relation", f"{'-'.join(kinds)}: {edges.size(1)} edges, {edges.unique(dim=1).size(1)} different")
    for kind, labels in source.labels.items():
        yield _labels(labels, f"nodes of {kind}")
        yield _splits(source.split.get(kind), f"nodes of {kind}")
    missing = sum(int(column.missing.sum()) for own in source.columns.values() for column in own.values())
    yield _line("missing", f"{missing} values")
    unused = source.unused
    if data is not None:
        target = source.find_target(data.target) if data.task == "nodes" else None
        unused = source.left_out(target, {**source.columns, **data.columns})
    yield _line("left out", ", ".join(unused) if unused else "nothing")


def _of_graph(name: str, graph: HeteroGraph, path: str) -> Iterator[str]:
    yield name
    for kind, count in zip(graph.node_types, graph.node_ptr.diff().tolist(), strict=True):
        width = graph.x[kind].size(1) if kind in graph.x else 0
        yield _line("node type", f"{kind}: {count} nodes, {width} features")
    for kinds, edges in graph.edges.items():
        yield _line("relation", f"{'-'.join(kinds)}: {edges.size(1)} edges")
    unused = unused_fields(load_pt(Path(path))) if path.endswith(".pt") else []
    yield _line("left out", ", ".join(unused) if unused else "nothing")


def _line(heading: str, what: Any) -> str:
    return f"  {heading:<10} {what}"
