"""What datamodules of own files have in common: one coding for all clients, splits, and what is left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from pytorch_lightning.utilities import rank_zero_warn
from torch import Tensor

from flgraph.data.cache import content_key
from flgraph.data.checks import Doubt, edge_keys, require, sorted_edges, sorted_with_features
from flgraph.data.columns import (
    TARGET,
    Coding,
    Missing,
    check_missing,
    declared_classes,
    declared_columns,
    derived_classes,
    derived_columns,
    derived_targets,
    expect_classes,
)
from flgraph.data.sources import SPLITS, Source
from flgraph.data.splits import fewest_for, split_client
from flgraph.errors import expect
from flgraph.nn.tasks import Task, check_task

Splits = tuple[Tensor, Tensor, Tensor]


class Declared:
    """What a configuration says of own files; what it leaves open is taken from the files of all clients.

    Args:
        classes: names of the classes in the order of their numbers, or how many there are; ``None`` to take them from
            the files.
        columns: column to ``number``, ``years`` (of a point in time, since 2000) or a list of categories; ``None`` to
            take them from the files.
        missing: see :data:`~flgraph.data.columns.Missing`.
        edge_columns: column of the edges to what it becomes, as ``columns``; none of them are used when ``None``.
        task: see :data:`~flgraph.nn.tasks.Task`; with several labels, or numbers, ``classes`` are the names of these.

    Attributes:
        apart: whether there are clients elsewhere, whose files are not at hand: then nothing may be left open.
    """

    def __init__(
        self,
        classes: int | Sequence[Any] | None,
        columns: Mapping[str, Any] | None,
        missing: Missing,
        task: Task = "multiclass",
        edge_columns: Mapping[str, Any] | None = None,
    ) -> None:
        check_missing(missing)
        self.edge_columns = declared_columns(edge_columns, "data.edge_columns")
        expect(edge_columns is None or bool(edge_columns), "data.edge_columns", "null, or one column or more", "none")
        check_task(task, "data.task")
        self.task = task
        self.classes, self.columns, self.missing = declared_classes(classes), declared_columns(columns), missing
        self.apart = False

    def agreed(self, sources: Mapping[str, Source]) -> Coding:
        """The coding of all clients.

        Args:
            sources: client to what it has.

        Raises:
            InputError: something is left open that must not be, or the clients' files do not go together.
        """
        tables = {name: source.columns for name, source in sources.items() if source.x is None}
        if self.apart:
            wanted = "given where partners keep their files apart, so that all count alike,"
            expect(self.classes is not None, "data.classes", wanted, "none")
            expect(self.columns is not None or not any(tables.values()), "data.columns", wanted, "none")
        if self.task == "multiclass":
            for source in sources.values() if self.classes is None else ():
                expect_classes(source.labels, f"label of {source.name}")
                several = any(name.startswith(TARGET) for name in source.columns) and not any(source.labels)
                got = "several `label_...`, which need `data.task` multilabel or regression"
                require(not several, f"label of {source.name}", "a column of classes", got)
            least = max(source.least_classes for source in sources.values())
            classes = self.classes or derived_classes(
                ((f"label of {source.name}", source.labels) for source in sources.values()), least
            )
            if self.classes is None:
                warn_of_disjoint_classes({name: source.labels for name, source in sources.items()})
            if len(classes) == 1 and self.classes is None:
                rank_zero_warn("All labels of `data` are of one class: every answer will be right.")
        else:
            classes = self.classes or derived_targets({name: source.targets for name, source in sources.items()})
        columns = self.columns
        if columns is None:
            columns = derived_columns(tables) if tables else {}
        coding = Coding(classes, columns, self.missing, self.task)
        widths = {name: coding.width or 1 if source.x is None else source.x.size(1) for name, source in sources.items()}
        first, width = next(iter(widths.items()))
        for name, own in widths.items():
            require(own == width, f"data.graphs.{name}", f"of {width} features, as `{first}`,", str(own))
        return coding

    @property
    def settings(self) -> dict[str, Any]:
        """Plain values that tell declarations apart."""
        task = {} if self.task == "multiclass" else {"task": self.task}
        edges = {} if self.edge_columns is None else {"edges": content_key(self.edge_columns)[:16]}
        return {"missing": self.missing, "declared": content_key(self.classes, self.columns)[:16], **task, **edges}


def warn_of_disjoint_classes(labels: Mapping[str, Iterable[str | None]]) -> None:
    """Warns of clients whose labels are all others than everybody else's, perhaps by their spelling alone."""
    own = {name: set(given) - {None} for name, given in labels.items()}
    clients = Counter(label for names in own.values() for label in names)
    apart = [f"`{name}`" for name, names in own.items() if names and all(clients[label] == 1 for label in names)]
    if apart and sum(map(bool, own.values())) > 1:
        text = f"{', '.join(apart)}: no class in common with other clients"
        rank_zero_warn(f"{text}. If that is a matter of spelling, write them alike.", category=Doubt)


@runtime_checkable
class OwnFiles(Protocol):
    """Data of a federation that clients bring themselves."""

    declared: Declared


def edges_of_source(source: Source, declared: Declared, undirected: bool) -> tuple[Tensor, Tensor | None]:
    """Edges ``[2, E]`` as :func:`~flgraph.data.checks.sorted_edges` has them, and their features ``[E, D]``.

    Raises:
        InputError: a column is not there, or has values that were not declared.
    """
    if declared.edge_columns is None:
        return sorted_edges(source.edge_index, source.num_nodes, undirected), None
    coding = Coding((), declared.edge_columns, declared.missing, field="data.edge_columns")
    rows = coding.features(source.edges, source.edge_index.size(1), f"edges of {source.name}")
    if undirected and (count := _mixed_pairs(source, rows)):
        said = f"{count} edges of {source.name} have other features than their reverse, and get the mean of both"
        rank_zero_warn(f"{said} (`data.undirected` false keeps each).", category=Doubt)
    return sorted_with_features(source.edge_index, rows, source.num_nodes, undirected)


def _mixed_pairs(source: Source, rows: Tensor) -> int:
    """How many edges have a reverse, all alike in one direction, whose features differ from theirs."""
    one_way, own = sorted_with_features(source.edge_index, rows, source.num_nodes, undirected=False)
    back, other = sorted_with_features(source.edge_index.flip(0), rows, source.num_nodes, undirected=False)
    keys, found = edge_keys(one_way, source.num_nodes), edge_keys(back, source.num_nodes)
    both = torch.isin(keys, found)
    return int((own[both] != other[torch.isin(found, keys)]).any(dim=1).sum())


def features_of(source: Source, coding: Coding) -> Tensor:
    """Features ``[N, F]``, dense or sparse as they came."""
    return coding.features(source.columns, source.num_nodes, source.name) if source.x is None else source.x


def labels_of(source: Source, coding: Coding) -> Tensor:
    """Numbers of classes ``[n]``, or labels or numbers ``[n, T]``; -1 and NaN where there is none.

    Where nobody has labelled anything, there are no classes, and all are alike.
    """
    if coding.task == "multiclass" and not coding.classes:
        return torch.zeros(len(source.labels), dtype=torch.long)
    where = f"label of {source.name}"
    return coding.labels(source.labels, where) if coding.task == "multiclass" else coding.targets(source.targets, where)


def has_label(y: Tensor) -> Tensor:
    """Of which nodes or graphs something is known ``[n]``, bool."""
    return y >= 0 if y.dim() == 1 else ~y.isnan().all(dim=1)


def splits_of(source: Source, y: Tensor, fractions: Sequence[float], seed: int, client: str) -> Splits:
    """:func:`split_rows` of a source."""
    nobody = y.dim() == 1 and not bool((y < 0).any())  # or else they would have no class
    bare = nobody and all(label is None for label in source.labels)
    return split_rows(y, source.split, f"label of {source.name}", fractions, seed, client, bare)


def split_rows(
    y: Tensor,
    split: Sequence[str | None] | None,
    where: str,
    fractions: Sequence[float],
    seed: int,
    client: str,
    bare: bool = False,
) -> Splits:
    """The training, validation and test nodes (or graphs) of a client, all with labels.

    They are those that the data says; where it says nothing, they are drawn with equal shares of every class. Where
    there are too few rows for that, and nobody has labels, all are for training.

    Args:
        y: see :func:`labels_of`.
        split: what the data says of each.
        where: the labels, for messages.
        fractions: see :func:`~flgraph.data.stratified_split`.
        seed: of the draw.
        client: for messages.
        bare: whether nobody has labels, and all rows are of one class.

    Raises:
        InputError: there are no labels, or some is missing where the data has a split.
    """
    if bare and split is None and 0 < len(y) < fewest_for(fractions, len(y) + 1):
        rank_zero_warn(f"`{client}` has too few rows for `data.fractions`: all are for training.")
        return torch.arange(len(y)), torch.arange(0), torch.arange(0)
    known = has_label(y)
    labelled = known.nonzero()[:, 0]
    require(labelled.numel() > 0, where, "there for some", "none")
    if split is None:
        train, val, test = split_client(y[labelled], fractions, seed, client)
        return labelled[train], labelled[val], labelled[test]
    rows = ([row for row, own in enumerate(split) if own == part] for part in SPLITS)
    train, val, test = (torch.tensor(own, dtype=torch.long) for own in rows)
    for name, part in zip(SPLITS, (train, val, test), strict=True):
        without = int((~known[part]).sum())
        require(without == 0, where, f"there for all that are for `{name}`", f"{without} without")
        if not part.numel():
            rank_zero_warn(f"The split that the data of `{client}` has leaves nothing for `{name}`.")
    return train, val, test


def edge_counts(source: Source, undirected: bool) -> dict[str, int]:
    """Edges as the files have them: ``edges``, and of these ``self_loops`` and ``repeated`` ones.

    Args:
        source: the client's graph.
        undirected: whether an edge and its reverse are the same.
    """
    ends = source.edge_index
    loops = ends[0] == ends[1]
    others = ends[:, ~loops]
    one_way = edge_keys(others, source.num_nodes).unique().numel()
    either_way = edge_keys(others.sort(dim=0).values, source.num_nodes).unique().numel()
    # A graph that has every edge in both directions repeats none of them.
    distinct = either_way if undirected and 2 * either_way != one_way else one_way
    return {"edges": ends.size(1), "self_loops": int(loops.sum()), "repeated": others.size(1) - distinct}


def left_out(
    source: Source, undirected: bool, columns: Mapping[str, Any], edges: Mapping[str, Any] | None = None
) -> list[str]:
    """What the data holds and training makes no use of, in words.

    Args:
        source: the client's.
        undirected: see :func:`edge_counts`.
        columns: of the nodes that are used.
        edges: columns of the edges that are used.
    """
    counts = edge_counts(source, undirected)
    words = {"self_loops": "edges from a node to itself", "repeated": "repeated edges"}
    found = [f"{counts[key]} {text}" for key, text in words.items() if counts[key]]
    undeclared = [name for name in source.columns if name not in columns]
    of_edges = [f"{name} of edges" for name in source.edges if name not in (edges or {})]
    if of_edges:
        of_edges[-1] += " (see `data.edge_columns`)"
    return [*found, *source.unused, *of_edges, *(f"column {name}" for name in undeclared)]
