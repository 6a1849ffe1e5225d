"""Clients that have heterogeneous graphs of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from flgraph.data.checks import check_clients, link_arguments, warn_of_unused
from flgraph.data.columns import Coding, Missing, declared_columns, derived_classes, derived_columns
from flgraph.data.federation import Federation
from flgraph.data.hetero.container import HeteroGraph
from flgraph.data.hetero.datamodule import HeteroClientData, HeteroTask, client_data
from flgraph.data.hetero.schema import canonical, with_reverse
from flgraph.data.hetero.sources import HeteroTables, read_hetero_source
from flgraph.data.own import Declared, split_rows, warn_of_disjoint_classes
from flgraph.data.statistics import hetero_statistics
from flgraph.errors import expect
from flgraph.nn.tasks import check_task


class HeteroClients(Federation[HeteroClientData]):
    """Clients that have heterogeneous graphs of their own, each with its own schema.

    A client's graph is a folder with a table for each node type, called like it (``author.csv`` with ``id`` and any
    features; that of the target type has ``label``, and ``split`` if there are given splits), and one for each
    relation, called like it and the types it joins (``author-writes-paper.csv`` with ``source`` and ``target``), as
    ``.csv`` or ``.parquet``; or a file ``.pt`` of a PyG ``HeteroData``, or ``.npz``
    (:func:`~flgraph.data.hetero.readers.read_npz`). In Python it may be a ``HeteroData`` or a :class:`HeteroGraph`.

    A client's types are put into the order of their contents (:func:`~flgraph.data.hetero.schema.canonical`), so that
    neither their names nor the order in which they are listed has an influence on what is trained, to the bit.

    Args:
        graphs: client to its graph, for example ``{north: north/, east: east.pt}``.
        tie_names: see :meth:`HeteroGraph.relations`.
        name: how runs on this data are called.
        task: ``"nodes"`` to classify nodes, ``"links"`` to predict links.
        links: further arguments of :class:`HeteroLinkDataModule`, for links: ``predicted``, ``val_fraction``,
            ``test_fraction``, ``num_negatives``, ``seed``.
        root: where relative paths begin; the current folder when ``None``.
        target: type of the nodes that are classified; the one whose table has labels when ``None``.
        classes: see :class:`~flgraph.data.NodeClients`.
        columns: node type to what its columns become, see there.
        missing: see there.
        fractions: shares of the training, validation and test nodes, where tables say nothing of splits.
        split_seed: of these; not the run's seed.
        reverse: whether reverse relations are added to tables' (``rev_writes``), for links to all.

    Raises:
        InputError: there is no client, a file cannot be used, or a client has nothing to train on or another number of
            classes than the first.
    """

    def __init__(
        self,
        graphs: Mapping[str, Any],
        tie_names: bool = False,
        name: str = "hetero",
        task: HeteroTask = "nodes",
        links: Mapping[str, Any] | None = None,
        root: str | None = None,
        target: str | None = None,
        classes: int | list[str | int | bool | None] | None = None,
        columns: dict[str, dict[str, str | list[str | int | bool | None]]] | None = None,
        missing: Missing = "refuse",
        fractions: Sequence[float] = (0.6, 0.2, 0.2),
        split_seed: int = 123,
        reverse: bool = True,
    ) -> None:
        super().__init__(name)
        check_task(task, "data.task", HeteroTask)
        check_clients(graphs)
        self.graphs, self.root, self.target, self.task = dict(graphs), root, target, task
        self.tie_names, self.reverse = tie_names, reverse
        self.links = link_arguments(task, links, "predicted")
        self.declared = Declared(classes, None, missing)
        expect(
            columns is None or isinstance(columns, dict),
            "data.columns",
            "a mapping from node types to columns",
            columns,
        )
        self.columns = {
            kind: declared_columns(own, f"data.columns.{kind}") or {} for kind, own in (columns or {}).items()
        }
        self.fractions, self.split_seed = tuple(fractions), split_seed
        self.statistics: dict[str, Any] = {}
        if all(isinstance(graph, HeteroGraph) for graph in graphs.values()):  # then there is nothing to read
            self.setup()

    def setup(self, stage: str | None = None) -> None:
        """Reads and codes all clients' graphs, once."""
        if self._clients:
            return
        nodes = self.task == "nodes"
        read = {
            name: read_hetero_source(given, name, self.root, nodes, self.target) for name, given in self.graphs.items()
        }
        tables = {name: source for name, source in read.items() if isinstance(source, HeteroTables)}
        targets = {n: s.find_target(self.target) if nodes else next(iter(s.num_nodes)) for n, s in tables.items()}
        classes = self._classes(read, targets)
        coding = self._coding(tables)
        made = {}
        for name, source in read.items():
            if isinstance(source, HeteroTables):
                made[name] = self._graph(name, source, targets[name], coding, classes)
            else:
                made[name] = source if self.task == "links" else self._with_classes(name, source, classes)
        self.class_names = classes
        settings = self.declared.settings if tables else None
        links = {**self.links, "reverse": self.reverse}
        self._clients = {
            name: client_data(self.task, canonical(graph), self.tie_names, settings, links)
            for name, graph in made.items()
        }
        for name, source in tables.items():
            self._clients[name].ids = source.ids
        self.statistics = hetero_statistics({client: data.graph for client, data in self._clients.items()})

    def _classes(self, read: Mapping[str, HeteroGraph | HeteroTables], targets: Mapping[str, str]) -> tuple[str, ...]:
        if self.task == "links":
            return ()
        if self.declared.apart:
            wanted = "given where partners keep their files apart, so that all count alike,"
            expect(self.declared.classes is not None, "data.classes", wanted, "none")
        if self.declared.classes is not None:
            return self.declared.classes
        tables = {name: source for name, source in read.items() if isinstance(source, HeteroTables)}
        labels = {name: source.labels_of(targets[name]) for name, source in tables.items()}
        numbered = {name: source.y[source.y >= 0] for name, source in read.items() if isinstance(source, HeteroGraph)}
        codes = {name: map(str, y.unique().tolist()) for name, y in numbered.items()}
        warn_of_disjoint_classes({name: {**labels, **codes}[name] for name in read})
        least = max([0, *(source.num_classes for source in read.values() if isinstance(source, HeteroGraph))])
        return derived_classes(((f"label of {name}", own) for name, own in labels.items()), least)

    def _coding(self, tables: Mapping[str, HeteroTables]) -> dict[str, Coding]:
        """Node type to what its columns become."""
        kinds = dict.fromkeys(kind for source in tables.values() for kind in source.num_nodes)
        strange = [kind for kind in self.columns if kind not in kinds]
        alone = self.declared.apart or len(tables) < 2 or len(tables) < len(self.graphs)  # others may have that type
        expect(alone or not strange, "data.columns", f"of node types that files have, {', '.join(kinds)},", strange)
        made = {}
        for kind in kinds:
            own = {name: source.columns[kind] for name, source in tables.items() if kind in source.columns}
            if kind not in self.columns and self.declared.apart:
                wanted = "given where partners keep their files apart, so that all count alike,"
                expect(not any(own.values()), f"data.columns.{kind}", wanted, "none")
            columns = self.columns[kind] if kind in self.columns else derived_columns(own)
            made[kind] = Coding((), columns, self.declared.missing)
        return made

    def _graph(
        self, name: str, source: HeteroTables, target: str, coding: Mapping[str, Coding], classes: tuple[str, ...]
    ) -> HeteroGraph:
        learned = target if self.task == "nodes" else None
        warn_of_unused(source.left_out(learned, {kind: own.columns for kind, own in coding.items()}), name)
        y, splits, count = torch.full((source.num_nodes[target],), -1), None, len(classes)
        if self.task == "nodes":
            where = f"label of {target} in {source.name}"
            labels, split = source.labels_of(target), source.split.get(target)
            bare = not classes  # nobody has labelled anything: all are alike, and there to be predicted
            y = torch.zeros(len(labels), dtype=torch.long) if bare else Coding(classes, {}).labels(labels, where)
            count = max(1, count)
            splits = split_rows(y, split, where, self.fractions, self.split_seed, name, bare)
        graph = source.graph(target, y, splits, coding, count).replace(name=name)
        return with_reverse(graph) if self.reverse else graph

    def _with_classes(self, name: str, graph: HeteroGraph, classes: tuple[str, ...]) -> HeteroGraph:
        """A graph that came in numbers, with the federation's number of classes, and splits."""
        count, own = len(classes), isinstance(self.graphs[name], HeteroGraph)
        fits = graph.num_classes == count or (not own and graph.num_classes < count)
        expect(fits, "num_classes", f"{count} in client `{name}`, as in the others", graph.num_classes)
        if own:
            return graph
        graph = graph.replace(num_classes=count)
        if graph.train.numel() or graph.val.numel() or graph.test.numel():
            return graph
        splits = split_rows(graph.y, None, f"y of {name}", self.fractions, self.split_seed, name)
        train, val, test = (part.sort().values for part in splits)
        return graph.replace(train=train, val=val, test=test)
