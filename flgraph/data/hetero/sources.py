"""Heterogeneous graphs of one's own, from files or objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from flgraph.data.checks import require
from flgraph.data.columns import Coding, Column, class_names
from flgraph.data.hetero.container import EdgeType, HeteroGraph
from flgraph.data.hetero.readers import read_npz
from flgraph.data.own import Splits
from flgraph.data.sources import checked_split, load_pt
from flgraph.data.tables import Table, read_table, tables_in
from flgraph.errors import expect, expect_kind

_NOT_FEATURES = ("id", "label", "split")


@dataclass(frozen=True)
class HeteroTables:
    """One client's graph as its tables have it: nothing is coded yet.

    Attributes:
        name: for messages.
        num_nodes: of each node type.
        edges: ``[2, e]`` of each relation, nodes numbered within their types.
        columns: features of each node type that has some.
        labels: of each node of a type that has any.
        split: for each of these ``train``, ``val``, ``test`` or ``None``, where the type's table says so.
        unused: what else there is.
        ids: of each node type's nodes.
    """

    name: str
    num_nodes: Mapping[str, int]
    edges: Mapping[EdgeType, Tensor]
    columns: Mapping[str, Mapping[str, Column]]
    labels: Mapping[str, Sequence[str | None]]
    split: Mapping[str, Sequence[str | None]]
    unused: Sequence[str]
    ids: Mapping[str, Sequence[str]]

    def find_target(self, given: str | None) -> str:
        """The node type whose nodes have labels, or would have, where no table has any.

        Raises:
            InputError: there is none, or there are several.
        """
        kinds = self.labels or ([] if given is None else self.num_nodes)  # without labels any type that is named
        return _target(list(kinds), given, self.name)

    def labels_of(self, kind: str) -> Sequence[str | None]:
        """Of each node of a type; ``None`` for all where its table has none."""
        return self.labels.get(kind, (None,) * self.num_nodes[kind])

    def left_out(self, target: str | None, columns: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """What it holds and training makes no use of, in words.

        Args:
            target: type of the nodes that are classified; ``None`` if none are.
            columns: of each type's columns those that are used.
        """
        undeclared = [
            f"column {column} of {kind}"
            for kind, own in self.columns.items()
            for column in own
            if column not in columns[kind]
        ]
        return [*self.unused, *undeclared, *(f"label of {kind}" for kind in self.labels if kind != target)]

    def graph(
        self, target: str, y: Tensor, splits: Splits | None, coding: Mapping[str, Coding], classes: int
    ) -> HeteroGraph:
        """The graph in numbers.

        Args:
            target: type of the nodes that are classified.
            y: their classes, -1 where unknown.
            splits: of these; ``None`` for none.
            coding: of each type's columns.
            classes: their number.
        """
        x = {
            kind: coding[kind].features(self.columns[kind], self.num_nodes[kind], f"{kind} in {self.name}")
            for kind in self.columns
            if coding[kind].columns
        }
        train, val, test = splits or (None, None, None)
        return HeteroGraph.from_edges(
            self.num_nodes, self.edges, target, y, train, val, test, num_classes=classes, x=x, name=self.name
        )


def _target(labelled: Sequence[str], given: str | None, name: str) -> str:
    if given is None:
        found = ", ".join(labelled) or "none"
        require(len(labelled) == 1, "data.target", f"given, unless one node type of {name} has labels,", found)
        return labelled[0]
    expect(given in labelled, "data.target", f"a node type of {name} with labels", given)
    return given


def read_hetero_source(
    given: Any, name: str, root: str | Path | None, labelled: bool, target: str | None
) -> HeteroGraph | HeteroTables:
    """One client's heterogeneous graph, from whatever it brings.

    Args:
        given: a folder with a table for each node type (``author.csv``) and relation (``author-writes-paper.csv``), a
            ``.pt`` of a PyG ``HeteroData``, an ``.npz`` (:func:`~flgraph.data.hetero.readers.read_npz`), a
            ``HeteroData`` or a :class:`HeteroGraph`.
        name: of the client.
        root: where relative paths begin.
        labelled: whether nodes have classes.
        target: type of these nodes; the one that has some when ``None``.

    Raises:
        InputError: nothing is there, or it cannot be used.
    """
    if isinstance(given, str | Path):
        path = Path(root or ".").expanduser() / Path(given).expanduser()
        if path.is_dir():
            return _of_folder(path)
        wanted = "a folder with a table for each type, or a file .npz or .pt,"
        require(path.is_file(), f"data.graphs.{name}", wanted, f"{path}, which is not there")
        require(path.suffix in (".npz", ".pt"), f"data.graphs.{name}", wanted, str(path))
        given = read_npz(path, name=name) if path.suffix == ".npz" else load_pt(path)
    if isinstance(given, HeteroData):
        known = [kind for kind in given.node_types if "y" in given[kind] or "train_y" in given[kind]]
        return HeteroGraph.from_pyg(given, _target(known, target, name) if labelled else None, name)
    graph = expect_kind(given, HeteroGraph, f"data.graphs.{name}", "a path, a HeteroGraph or a PyG HeteroData")
    fits = not labelled or target in (None, graph.target)
    expect(fits, "data.target", f"{graph.target}, as the graph of {name} has it, or null,", target)
    return graph


def _of_folder(path: Path) -> HeteroTables:
    files = tables_in(path)
    kinds = {stem: tuple(stem.split("-")) for stem in files}
    for stem, parts in kinds.items():
        sound = len(parts) in (1, 3) and all(parts)
        wanted = "called like a node type (author) or a relation (author-writes-paper)"
        require(sound, str(files[stem]), wanted, "another name")
    tables: dict[str, Table] = {stem: read_table(files[stem]) for stem, parts in kinds.items() if len(parts) == 1}
    require(len(tables) > 0, str(path), "a folder with a table for each node type", "none")
    ids = {kind: [str(one) for one in table.texts("id")] for kind, table in tables.items()}
    keys = {kind: table.keys(ids[kind]) for kind, table in tables.items()}
    edges: dict[EdgeType, Tensor] = {}
    unused: list[str] = []
    for stem, parts in kinds.items():
        if len(parts) != 3:
            continue
        wanted = f"between node types that have tables ({', '.join(tables)})"
        require(parts[0] in tables and parts[2] in tables, str(files[stem]), wanted, "others")
        table, both = read_table(files[stem]), ((parts[0], "source"), (parts[2], "target"))
        ends = [tables[kind].positions(keys[kind], table, end) for kind, end in both]
        edges[parts[0], parts[1], parts[2]] = torch.stack([torch.from_numpy(end).long() for end in ends])
        unused += [f"{files[stem].name}: {name}" for name in table.names if name not in ("source", "target")]
    require(
        len(edges) > 0, str(path), "a folder with a table for each relation, such as author-writes-paper.csv,", "none"
    )
    return HeteroTables(
        str(path),
        {kind: len(table) for kind, table in tables.items()},
        edges,
        {kind: {n: table.column(n) for n in table.names if n not in _NOT_FEATURES} for kind, table in tables.items()},
        {
            kind: class_names(table.texts("label", empty=True))
            for kind, table in tables.items()
            if "label" in table.names
        },
        {
            kind: checked_split(table.texts("split", empty=True), table.where("split"))
            for kind, table in tables.items()
            if "split" in table.names
        },
        unused,
        ids,
    )
