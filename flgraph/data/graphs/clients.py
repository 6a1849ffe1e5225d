"""Graph classification where every client brings graphs of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from flgraph.data.checks import check_clients, require, warn_of_unused
from flgraph.data.columns import Coding, Missing
from flgraph.data.graphs.container import FlatGraphs
from flgraph.data.graphs.datamodule import GraphDataModule
from flgraph.data.graphs.federation import GraphFederation
from flgraph.data.own import Declared, Splits, edges_of_source, features_of, has_label, labels_of, left_out, splits_of
from flgraph.data.sources import Source, read_source
from flgraph.nn.sparse.adjacency import offsets


class GraphClients(GraphFederation):
    """Clients with graphs of their own, each of which is to be classified.

    A client's graphs are a folder with ``graphs.csv`` (columns ``id``, ``label``, and ``split`` if there are given
    splits), ``nodes.csv`` (``graph``, ``id``, and any others, which are features) and ``edges.csv`` (``graph``,
    ``source``, ``target``; without ``graph``, nodes are known by their ids alone), the same as ``.parquet``, or

    - a file ``.npz`` with the arrays of :class:`FlatGraphs`, or ``.pt`` with a list of PyG graphs;
    - a folder of ``.graphml``, a graph each, with ``label`` among the attributes of the graph.

    In Python they may be a list of PyG or networkx graphs, too. See :class:`~flgraph.data.NodeClients` for what is left
    out, and what must be declared.

    Args:
        graphs: client to its graphs, for example ``{north: north/, east: east.npz}``.
        root: where relative paths begin; the current folder when ``None``.
        classes: see :class:`~flgraph.data.NodeClients`.
        columns: see there.
        missing: see there.
        undirected: whether edges go both ways.
        name: how runs on this data are called.
        edge_columns: see :class:`~flgraph.data.NodeClients`.
        **kwargs: see :class:`GraphFederation`; ``task`` as in :class:`~flgraph.data.NodeClients`.

    Raises:
        InputError: there is no client, a file cannot be used, or files do not go together.

    Example:
        >>> import networkx as nx
        >>> rings = [nx.cycle_graph(size) for size in range(5, 15)]
        >>> stars = [nx.star_graph(size) for size in range(5, 15)]
        >>> for graph in rings + stars:
        ...     graph.graph["label"] = "star" if nx.is_tree(graph) else "ring"
        >>> data = GraphClients({"north": rings + stars}, structure="none")
        >>> data.setup()
        >>> data.client("north").graphs
        FlatGraphs(north: 20 graphs, 200 nodes, 380 edges, 1 features, 2 classes)
    """

    def __init__(
        self,
        graphs: Mapping[str, Any],
        root: str | None = None,
        classes: int | list[str | int | bool | None] | None = None,
        columns: dict[str, str | list[str | int | bool | None]] | None = None,
        missing: Missing = "refuse",
        undirected: bool = True,
        name: str = "graphs",
        edge_columns: dict[str, str | list[str | int | bool | None]] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__({}, None, name, **kwargs)
        check_clients(graphs)
        self.own, self.root, self.undirected = dict(graphs), root, undirected
        self.declared = Declared(classes, columns, missing, self.task, edge_columns)
        self._splits: dict[str, Splits] = {}
        self._labelled: dict[str, Tensor] = {}
        self._ids: dict[str, Sequence[str]] = {}

    def load(self) -> Iterable[tuple[str, FlatGraphs, int]]:
        """Reads and codes all clients' graphs."""
        sources = {name: read_source(given, name, self.root, True, self.task) for name, given in self.own.items()}
        coding = self.declared.agreed(sources)
        self.class_names = coding.classes if coding.task == "multiclass" else ()
        for name, source in sources.items():
            yield name, self.embed(self._flat(name, source, coding)), len(coding.classes)

    def _flat(self, name: str, source: Source, coding: Coding) -> FlatGraphs:
        assert source.graph_of is not None
        y = labels_of(source, coding)
        known = self._labelled[name] = has_label(y)
        unused = left_out(source, self.undirected, coding.columns, self.declared.edge_columns)
        if bare := int((~known).sum()):
            unused = [*unused, f"{bare} graphs without a label, but for predictions"]
        warn_of_unused(unused, name)
        nodes = torch.bincount(source.graph_of, minlength=len(y))
        empty = int((nodes == 0).sum())
        require(empty == 0, source.name, "graphs with one node or more", f"{empty} without")
        self._splits[name] = splits_of(source, y, self.fractions, self.split_seed, name)
        edges, attr = edges_of_source(source, self.declared, self.undirected)
        node_ptr, owner = offsets(nodes), source.graph_of[edges[0]]
        edge_ptr = offsets(torch.bincount(owner, minlength=len(y)))
        x = features_of(source, coding)
        dense = x.to_dense() if x.layout != torch.strided else x
        own = edges - node_ptr[owner]
        self._ids[name] = [str(one) for one in source.ids or ()]
        y = y.clamp(min=0) if coding.task == "multiclass" else y  # of what has no label nobody asks for one
        return FlatGraphs(dense.float(), own, y, node_ptr, edge_ptr, name=name, task=coding.task, edge_attr=attr)

    def _make(self, name: str, graphs: FlatGraphs, num_classes: int) -> GraphDataModule:
        made = super()._make(name, graphs, num_classes)
        if ids := self._ids[name]:
            made.ids = [ids[number] for number in self._parts[name]["graphs"].tolist()]
        return made

    def labelled(self, name: str, graphs: FlatGraphs) -> Tensor:
        """Those whose files say one."""
        return self._labelled[name]

    def splits(self, name: str, graphs: FlatGraphs) -> tuple[Tensor, Tensor, Tensor]:
        """Those that the client's files say, else drawn."""
        return self._splits[name]

    @property
    def settings(self) -> dict[str, Any]:
        """As :class:`GraphFederation` has them, and what is declared."""
        return {**super().settings, **self.declared.settings}
