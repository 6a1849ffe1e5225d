"""Node classification where every client brings a graph of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from pytorch_lightning.utilities import rank_zero_warn

from flgraph.data.checks import Doubt, check_clients, link_arguments, require, warn_of_unused
from flgraph.data.columns import Coding, Missing
from flgraph.data.federation import Federation
from flgraph.data.nodes.container import NodeGraph, sparse_rows
from flgraph.data.nodes.datamodule import NodeDataModule
from flgraph.data.nodes.links import LinkDataModule
from flgraph.data.nodes.whole_graph import WholeGraphDataModule
from flgraph.data.own import Declared, Splits, edges_of_source, features_of, labels_of, left_out, splits_of
from flgraph.data.sources import Source, read_source
from flgraph.errors import expect
from flgraph.nn.tasks import NodeTask, check_task


class NodeClients(Federation[NodeDataModule]):
    """Clients with a graph of their own each, whose nodes are to be classified.

    A client's graph is a folder with ``nodes.csv`` (columns ``id``, ``label``, ``split`` if there are given splits, and
    any others, which are features) and ``edges.csv`` (``source``, ``target``), the same as ``.parquet``, or a file:

    - ``.npz`` with arrays, or ``.pt`` with tensors or a PyG graph: ``x``, ``edge_index``, ``y``, ``train_mask`` ...
    - ``.graphml``, with ``label`` and ``split`` among the attributes of nodes.

    In Python it may be a PyG ``Data`` or a networkx graph, too. Nodes without a label are neighbours only. Edges from a
    node to itself and repeated edges are left out, and so are columns of edges that are not declared; a warning says
    so.

    Args:
        graphs: client to its graph, for example ``{north: north/, east: east.npz}``.
        root: where relative paths begin; the current folder when ``None``.
        classes: names of the classes in the order of their numbers, or how many there are. When ``None``, all that are
            in the files, which must be at hand then: partners at sites of their own declare it, all the same.
        columns: column to ``number``, ``years`` (of a point in time, since 2000) or a list of categories; others are
            not used. When ``None``, all that are in the files, text as categories; partners at sites declare it, all
            the same. Features are in the order of the columns' names.
        edge_columns: the same for columns of the edges, beside ``source`` and ``target``; the columns of ``edge_attr``
            are called ``0``, ``1`` and so on. None are used when ``None``. Of repeated edges it is the mean.
        missing: what becomes of missing features: ``"refuse"``, ``"zero"``, or the ``"mean"`` of the column at the
            client (categories: none).
        fractions: shares of the training, validation and test nodes, where files say nothing of splits.
        split_seed: of these; not the run's seed.
        undirected: whether edges go both ways; otherwise a node hears from those that have an edge to it.
        normalize: whether to divide each node's features by their sum.
        ego_graphs: whether batches are ego-graphs (for FedEgo, not for links); otherwise the whole graph is one batch.
        batch_size: ego-graphs per training batch.
        fanouts: neighbours per node, for each hop of an ego-graph.
        epoch_fraction: share of the training nodes that a local epoch visits, see :class:`NodeDataModule`.
        eval_batch_size: ego-graphs per batch otherwise.
        name: how runs on this data are called.
        task: ``multiclass``, or ``multilabel`` (columns ``label_...`` of 0 and 1), or ``regression`` (a column
            ``label``, or several ``label_...``, of numbers); ``classes`` are then the names behind ``label_``. Or
            ``links``, to predict links: labels are not looked at.
        links: further arguments of :class:`~flgraph.data.nodes.links.LinkDataModule`, for links.

        partition_key: where a single graph is given, a column of its nodes that says whose each is: all with the same
            value are a client's, which is called so. It is no feature; edges between clients are left out.

    Raises:
        InputError: there is no client, a file cannot be used, or files do not go together.

    Example:
        >>> import networkx as nx
        >>> karate = nx.karate_club_graph()
        >>> clubs = {node: {"label": karate.nodes[node]["club"], "friends": karate.degree(node)} for node in karate}
        >>> graph = nx.Graph(karate.edges())
        >>> nx.set_node_attributes(graph, clubs)
        >>> data = NodeClients({"north": graph.subgraph(range(17)), "east": graph.subgraph(range(17, 34))})
        >>> data.setup()
        >>> data.client("north").graph
        NodeGraph(north: 17 nodes, 60 edges, 1 features, 2 classes)
    """

    def __init__(
        self,
        graphs: Mapping[str, Any],
        root: str | None = None,
        classes: int | list[str | int | bool | None] | None = None,
        columns: dict[str, str | list[str | int | bool | None]] | None = None,
        missing: Missing = "refuse",
        fractions: Sequence[float] = (0.6, 0.2, 0.2),
        split_seed: int = 123,
        undirected: bool = True,
        normalize: bool = False,
        ego_graphs: bool = False,
        batch_size: int = 32,
        fanouts: Sequence[int] = (6, 6),
        epoch_fraction: float = 1.0,
        eval_batch_size: int = 512,
        name: str = "nodes",
        task: NodeTask = "multiclass",
        partition_key: str | None = None,
        edge_columns: dict[str, str | list[str | int | bool | None]] | None = None,
        links: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(name)
        check_clients(graphs)
        alone = partition_key is None or len(graphs) == 1
        expect(alone, "data.partition_key", "null where there are graphs of several clients", partition_key)
        check_task(task, "data.task", NodeTask)
        expect(not ego_graphs or task != "links", "data.ego_graphs", "false for links", ego_graphs)
        self.partition_key = partition_key
        self.graphs, self.root = dict(graphs), root
        self.links = link_arguments(task, links) if task == "links" or links else None
        if task == "links":  # of classes nobody asks
            classes, task = 1, "multiclass"
        self.declared = Declared(classes, columns, missing, task, edge_columns)
        self.fractions, self.split_seed = tuple(fractions), split_seed
        self.undirected, self.normalize, self.ego_graphs = undirected, normalize, ego_graphs
        self.sampling: dict[str, Any] = {
            "batch_size": batch_size,
            "fanouts": tuple(fanouts),
            "epoch_fraction": epoch_fraction,
            "eval_batch_size": eval_batch_size,
        }

    def setup(self, stage: str | None = None) -> None:
        """Reads and codes all clients' graphs, once."""
        if self._clients:
            return
        task = self.declared.task
        sources = {name: read_source(given, name, self.root, task=task) for name, given in self.graphs.items()}
        owners: Sequence[str | None] | None = None
        if self.partition_key is not None:
            (whole, source), *_ = sources.items()
            there = self.partition_key in source.columns
            expect(there, "data.partition_key", f"a column of the nodes of {source.name}", self.partition_key)
            columns = dict(source.columns)
            owners = columns.pop(self.partition_key).texts()
            gap = owners.index(None) + 1 if None in owners else 0
            require(not gap, f"{self.partition_key} of {source.name}", "there for each node", f"none in row {gap}")
            sources = {whole: replace(source, columns=columns)}
        coding = self.declared.agreed(sources)
        self.class_names = coding.classes if coding.task == "multiclass" else ()
        for name, source in sources.items():
            self._clients |= self._make(name, source, coding, owners)

    def _make(
        self, name: str, source: Source, coding: Coding, owners: Sequence[str | None] | None
    ) -> dict[str, NodeDataModule]:
        """The source's only client, or those that own its nodes."""
        warn_of_unused(left_out(source, self.undirected, coding.columns, self.declared.edge_columns), name)
        links = self.links is not None
        y = torch.zeros(source.num_nodes, dtype=torch.long) if links else labels_of(source, coding)
        splits: Any = (torch.arange(source.num_nodes), y[:0], y[:0])
        if not links:
            splits = splits_of(source, y, self.fractions, self.split_seed, name)
        edges, edge_attr = edges_of_source(source, self.declared, self.undirected)
        graph = NodeGraph(
            sparse_rows(features_of(source, coding)),
            edges,
            # Of what has no label nobody asks for one: it is in no split.
            y.clamp(min=0) if coding.task == "multiclass" else y,
            len(coding.classes),
            name,
            undirected=self.undirected,
            task=coding.task,
            keys={"id": np.array(list(map(str, source.ids)))} if source.ids else None,
            edge_attr=edge_attr,
        )
        graph = graph.normalized() if self.normalize else graph
        if owners is None:
            return {name: self._client(graph, splits)}
        found: dict[str, NodeDataModule] = {}
        between = graph.edge_index.size(1)
        for owner in dict.fromkeys(sorted(map(str, owners))):
            own = torch.tensor([row for row, value in enumerate(owners) if value == owner])
            split = None if source.split is None else [source.split[row] for row in own.tolist()]
            splits = (torch.arange(own.numel()), own[:0], own[:0])
            if not links:
                splits = splits_of(replace(source, split=split), y[own], self.fractions, self.split_seed, owner)
            part = graph.subgraph(own, owner)
            between -= part.edge_index.size(1)
            found[owner] = self._client(part, splits)
        if between:
            count = between // (1 + graph.undirected)
            rank_zero_warn(f"{count} edges of `{name}` are between clients, and are left out.", category=Doubt)
        return found

    def _client(self, graph: NodeGraph, splits: Splits) -> NodeDataModule:
        links = self.links is not None
        kind = LinkDataModule if links else NodeDataModule if self.ego_graphs else WholeGraphDataModule
        how = {"fractions": list(self.fractions), "split_seed": self.split_seed, "normalize": self.normalize}
        settings = {**how, **self.declared.settings}
        return kind(graph, *splits, **{**self.sampling, **(self.links or {}), "settings": settings})
