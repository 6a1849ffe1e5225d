"""Many graphs as a few flat tensors, and batches cut from them without touching a single graph in Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from flgraph.data.checks import (
    edge_keys,
    edges_of,
    expect_classes,
    expect_finite,
    expect_joined,
    expect_offsets,
    expect_tensor,
    features_of_edges,
    is_symmetric,
    require,
    targets_of,
    tensor_of,
    warn_of_unused,
)
from flgraph.data.graphs.lazy import put_off
from flgraph.data.graphs.twins import Twins, edge_index_of
from flgraph.data.graphs.weighted import WeightedEdges
from flgraph.errors import InputError, expect
from flgraph.nn.linear import OneHot
from flgraph.nn.products import with_room
from flgraph.nn.sparse.adjacency import Adjacency, gather_ranges, offsets
from flgraph.nn.tasks import Task, check_targets

_TENSORS = ("x", "edge_index", "y", "node_ptr", "edge_ptr")

_DATA_BATCH: Any = type(Batch())
"""What PyG makes of ``Batch`` and ``Data``. ``Batch`` itself makes a class more at each call, and forgets it."""

WIDE = 128
"""Number of columns from which on one-hots are multiplied by choosing columns of the weight."""


class FlatGraphs:
    """A set of labelled graphs stored as concatenated tensors with offsets.

    A batch is a gather with ``arange`` and ``repeat_interleave``, on whatever device the tensors are, instead of a
    Python loop over graphs. ``graphs.batch(index)`` is a :class:`torch_geometric.data.Batch` with the same contents as
    PyG's collate, edges in sorted order, plus the batch's adjacency in compressed rows (``batch.adj``). Of graphs with
    many edges and many nodes that have the same neighbours, ``batch.adj`` is a :class:`~flgraph.nn.TwinAdjacency`, and
    ``batch.edge_index`` is made when it is first read, like ``batch.x`` where features are wide one-hots.

    Args:
        x: node features ``[N, F]``, float, or an integer type for features that are small whole numbers (one-hots); a
            batch holds them as float32.
        edge_index: ``[2, E]`` integers, source and target as node numbers *within* the graph; sorted by (source,
            target) inside every graph. Use :meth:`from_pyg` when they may not be.
        y: class of each graph ``[G]``, int64; or its labels or numbers ``[G, T]``, float32.
        node_ptr: ``[G + 1]``; graph ``g`` owns the rows ``node_ptr[g]:node_ptr[g + 1]`` of ``x``.
        edge_ptr: ``[G + 1]``; graph ``g`` owns the columns ``edge_ptr[g]:edge_ptr[g + 1]`` of ``edge_index``.
        name: what error messages call this data.
        node_tensors: further tensors with one row per node, for example ``{"s": structure embedding [N, K]}``; they
            appear under these names in every batch.
        graph_tensors: the same with one row per graph ``[G, K]``.
        undirected: whether every edge is present in both directions; worked out when ``None``.
        views: further, weighted edges of all graphs by name, for example ``{"diffused": ...}``; a batch holds their
            :class:`~flgraph.nn.WeightedAdjacency` under this name.
        task: what ``y`` is, see :data:`~flgraph.nn.tasks.Task`.
        edge_attr: features of the edges ``[E, D]`` float32, in their order; ``None`` where they have none. A batch
            makes its ``edge_attr`` when it is first read.

    Raises:
        InputError: an offset, an edge, a feature or a label is out of range or not a number.
    """

    def __init__(
        self,
        x: Tensor,
        edge_index: Tensor,
        y: Tensor,
        node_ptr: Tensor,
        edge_ptr: Tensor,
        *,
        name: str = "graphs",
        node_tensors: Mapping[str, Tensor] | None = None,
        graph_tensors: Mapping[str, Tensor] | None = None,
        undirected: bool | None = None,
        views: Mapping[str, WeightedEdges] | None = None,
        task: Task = "multiclass",
        edge_attr: Tensor | None = None,
        validate: bool = True,
    ) -> None:
        self.x, self.edge_attr = x, edge_attr
        self.task = task
        self.edge_index = edge_index
        self.y = y
        self.node_ptr = node_ptr
        self.edge_ptr = edge_ptr
        self.name = name
        self.node_tensors, self.graph_tensors = dict(node_tensors or {}), dict(graph_tensors or {})
        self.views = dict(views or {})
        if validate:
            self._validate()
        look = undirected is None or (undirected and validate)
        self.undirected = self._is_undirected() if look else bool(undirected)
        wanted = "in both directions, as `undirected` says,"
        require(self.undirected or not undirected, f"{name}.edge_index", wanted, "edges in one direction")

    # ---------------------------------------------------------------------------------------------- construction
    @classmethod
    def from_pyg(cls, dataset: Iterable[Data], name: str = "graphs", task: Task = "multiclass") -> FlatGraphs:
        """Flattens any iterable of :class:`torch_geometric.data.Data` with ``x``, ``edge_index`` and ``y``.

        A graph's ``y`` is one class, or with another task all of its labels or numbers. Edges are sorted by (source,
        target), with ``edge_attr`` where all graphs have it; repeated edges are kept, as PyG keeps them. Other fields
        are not used; a warning names them.

        Raises:
            InputError: a graph lacks ``x``, ``edge_index`` or ``y``, or holds values that cannot be used.
        """
        graphs = list(dataset)
        require(len(graphs) > 0, name, "one graph or more", "none")
        read = {"x", "y", "edge_index", "num_nodes", "name"}
        featured = all(hasattr(graph, "get") and isinstance(graph.get("edge_attr"), Tensor) for graph in graphs)
        read |= {"edge_attr"} if featured else set()
        warn_of_unused(
            (key for graph in graphs if hasattr(graph, "to_dict") for key in graph.to_dict() if key not in read), name
        )
        columns: list[tuple[Tensor, Tensor, Tensor]] = []
        for number, graph in enumerate(graphs):
            try:
                x, y, edges = (tensor_of(graph, field, name) for field in ("x", "y", "edge_index"))
                one = "one class (or `data.task` multilabel or regression)"
                require(y.numel() == 1 or task != "multiclass", f"{name}.y", one, f"{y.numel()} values")
                real = not x.is_complex() and x.layout == torch.strided
                require(real, f"{name}.x", "a dense tensor of real numbers", f"{x.dtype}, {x.layout}")
                edges = edges_of(edges, f"{name}.edge_index")
            except InputError as error:
                raise error.within(f"graph {number}") from None
            columns.append((x.view(-1, 1) if x.dim() == 1 else x, y.reshape(1, -1), edges))
        xs, ys, parts = zip(*columns, strict=True)
        widths = sorted({x.size(1) for x in xs})
        expect(len(widths) == 1, f"{name}.x", "of equally many features in all graphs", widths)
        targets = sorted({y.size(1) for y in ys})
        expect(len(targets) == 1, f"{name}.y", "of equally many labels or numbers in all graphs", targets)
        node_ptr = offsets(torch.tensor([x.size(0) for x in xs]))
        edge_ptr = offsets(torch.tensor([part.size(1) for part in parts]))
        edge_index = torch.cat(parts, dim=1)
        _check_edges(edge_index, node_ptr, edge_ptr, name)
        y = targets_of(torch.cat(ys), len(graphs), task, f"{name}.y")
        order = edge_order(edge_index, node_ptr, edge_ptr)
        edge_attr = None
        if featured:
            sizes = edge_ptr.diff().tolist()
            rows = [features_of_edges(g.edge_attr, n, f"{name}.edge_attr") for g, n in zip(graphs, sizes, strict=True)]
            widths = sorted({own.size(1) for own in rows})
            expect(len(widths) == 1, f"{name}.edge_attr", "of equally many features in all graphs", widths)
            edge_attr = torch.cat(rows)[order]
        edges = edge_index[:, order]
        require(int(node_ptr[-1]) > 0, name, "graphs with nodes", "none with any")
        return cls(torch.cat(xs), edges, y, node_ptr, edge_ptr, name=name, task=task, edge_attr=edge_attr)

    def _validate(self) -> None:
        name, count = self.name, self.y.size(0)
        require(len(self) > 0, name, "one graph or more", "none")
        expect_offsets(self.node_ptr, f"{name}.node_ptr", count, self.x.size(0))
        expect_offsets(self.edge_ptr, f"{name}.edge_ptr", count, self.edge_index.size(-1))
        edges_of(self.edge_index, f"{name}.edge_index")
        _check_edges(self.edge_index, self.node_ptr, self.edge_ptr, name)
        ordered = bool((edge_keys(self._global_edges(), self.num_nodes).diff() >= 0).all())
        require(ordered, f"{name}.edge_index", "sorted by source and target", "edges that are not")
        strange = (~self.x.isfinite()).any(dim=1).nonzero()
        if strange.numel():
            raise InputError(f"{name}.x", "finite", "NaN or infinity", f"graph {_owner(self.node_ptr, strange[0])}")
        if self.task == "multiclass":
            expect_classes(self.y, f"{name}.y", 0)
        else:
            expect_tensor(self.y, f"{name}.y", [count, "T"], torch.float32)
            check_targets(self.y, self.task, f"{name}.y")
        if self.edge_attr is not None:
            expect_tensor(self.edge_attr, f"{name}.edge_attr", [self.edge_index.size(1), "D"], torch.float32)
            expect_finite(self.edge_attr, f"{name}.edge_attr")
        for tensors, rows in ((self.node_tensors, self.num_nodes), (self.graph_tensors, count)):
            for key, tensor in tensors.items():
                expect(tensor.size(0) == rows, f"{name}.{key}", f"of {rows} rows", tensor.size(0))

    def _is_undirected(self) -> bool:
        edges = self._global_edges()
        return is_symmetric(edge_keys(edges, self.num_nodes), edges, self.num_nodes)

    def _global_edges(self) -> Tensor:
        shift = torch.repeat_interleave(self.node_ptr[:-1], self.edge_ptr.diff())
        return self.edge_index.long() + shift

    # ------------------------------------------------------------------------------------------------ properties
    def __len__(self) -> int:
        return self.node_ptr.numel() - 1

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.name}: {len(self)} graphs, {self.num_nodes} nodes, "
            f"{self.edge_index.size(1)} edges, {self.num_features} features, {self.num_classes} classes)"
        )

    @property
    def num_nodes(self) -> int:
        """Nodes of all graphs together."""
        return self.x.size(0)

    @property
    def num_features(self) -> int:
        """Columns of ``x``."""
        return self.x.size(1)

    @property
    def num_classes(self) -> int:
        """Largest class + 1; columns of ``y``, where it has several labels or numbers."""
        return self.y.size(1) if self.y.dim() == 2 else int(self.y.max()) + 1

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors held."""
        tensors = [getattr(self, field) for field in _TENSORS]
        tensors += [*self.node_tensors.values(), *self.graph_tensors.values()]
        tensors += [] if self.edge_attr is None else [self.edge_attr]
        further = sum(view.nbytes for view in self.views.values())
        twins = vars(self).get("twins")  # not looked for here
        further += 0 if twins is None else twins.nbytes
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors) + further

    @cached_property
    def one_hot(self) -> Tensor | None:
        """Column of the one in each row of ``x``, where all are wide one-hots ``[N]``; looked for once."""
        if self.x.is_floating_point() or self.num_features < WIDE or not self.num_nodes:
            return None
        top, column = self.x.max(dim=1)
        return column if bool((top == 1).all() and (self.x.count_nonzero(dim=1) == 1).all()) else None

    @cached_property
    def twins(self) -> Twins | None:
        """Classes of nodes with equal neighbourhoods, where batches made of them are faster; looked for once."""
        # With fewer edges they could not pay, so most data sets need not be looked at.
        may_pay = self.undirected and self.edge_index.size(1) >= 4 * self.num_nodes
        twins = Twins.find(self.edge_index, self.node_ptr, self.edge_ptr) if may_pay else None
        return twins if twins is not None and twins.pay else None

    def degrees(self) -> Tensor:
        """Out-degree of every node ``[N]``, int64 (the degree, where graphs are undirected)."""
        return torch.bincount(self._global_edges()[0], minlength=self.num_nodes)

    # --------------------------------------------------------------------------------------------------- subsets
    def select(self, index: Tensor | Sequence[int]) -> FlatGraphs:
        """A copy of the graphs ``index`` (in that order) as a flat set of its own."""
        index = torch.as_tensor(index, dtype=torch.long, device=self.x.device)
        nodes, node_ptr = gather_ranges(self.node_ptr, index)
        edges, edge_ptr = gather_ranges(self.edge_ptr, index)
        return self._like(
            x=self.x.index_select(0, nodes),
            edge_index=self.edge_index.index_select(1, edges),
            y=self.y.index_select(0, index),
            node_ptr=node_ptr,
            edge_ptr=edge_ptr,
            node_tensors={key: tensor.index_select(0, nodes) for key, tensor in self.node_tensors.items()},
            graph_tensors={key: tensor.index_select(0, index) for key, tensor in self.graph_tensors.items()},
            views={key: view.select(index, nodes) for key, view in self.views.items()},
            edge_attr=None if self.edge_attr is None else self.edge_attr.index_select(0, edges),
        )

    def with_tensors(
        self, node_tensors: Mapping[str, Tensor] | None = None, graph_tensors: Mapping[str, Tensor] | None = None
    ) -> FlatGraphs:
        """The same graphs, sharing their memory, with further tensors of one row per node or per graph."""
        nodes, graphs = {**self.node_tensors, **(node_tensors or {})}, {**self.graph_tensors, **(graph_tensors or {})}
        return self._with(node_tensors=nodes, graph_tensors=graphs)

    def with_views(self, views: Mapping[str, WeightedEdges]) -> FlatGraphs:
        """The same graphs, sharing their memory, with further weighted edges."""
        return self._with(views={**self.views, **views})

    def _with(self, **changed: Any) -> FlatGraphs:
        same = self._like(**changed)
        vars(same).update({found: vars(self)[found] for found in ("twins", "one_hot") if found in vars(self)})
        return same

    def _like(self, **changed: Any) -> FlatGraphs:
        fields = (*_TENSORS, "name", "node_tensors", "graph_tensors", "undirected", "views", "task", "edge_attr")
        return FlatGraphs(**{field: getattr(self, field) for field in fields} | changed, validate=False)

    def to(self, device: torch.device | str) -> FlatGraphs:
        """The same graphs on another device (``self`` when they are there already)."""
        if self.x.device == torch.device(device):
            return self
        moved = self._like(
            **{field: getattr(self, field).to(device) for field in _TENSORS},
            node_tensors={key: tensor.to(device) for key, tensor in self.node_tensors.items()},
            graph_tensors={key: tensor.to(device) for key, tensor in self.graph_tensors.items()},
            views={key: view.to(device) for key, view in self.views.items()},
            edge_attr=None if self.edge_attr is None else self.edge_attr.to(device),
        )
        if "twins" in vars(self):
            moved.twins = self.twins and self.twins.to(device)
        return moved

    def __getitem__(self, number: int) -> Data:
        """Graph ``number`` as an ordinary :class:`~torch_geometric.data.Data`."""
        if not -len(self) <= number < len(self):
            raise IndexError(f"graph {number} of {len(self)}")
        number %= len(self)
        nodes = slice(int(self.node_ptr[number]), int(self.node_ptr[number + 1]))
        edges = slice(int(self.edge_ptr[number]), int(self.edge_ptr[number + 1]))
        further = {key: _as_float(tensor[nodes]) for key, tensor in self.node_tensors.items()}
        further |= {key: tensor[number : number + 1] for key, tensor in self.graph_tensors.items()}
        if self.edge_attr is not None:
            further["edge_attr"] = self.edge_attr[edges]
        return Data(
            x=_as_float(self.x[nodes]),
            edge_index=self.edge_index[:, edges].long(),
            y=self.y[number : number + 1],
            **further,
        )

    # --------------------------------------------------------------------------------------------------- batches
    def batch(self, index: Tensor | None = None) -> Batch:
        """The graphs ``index`` (all when ``None``) as one disconnected graph.

        Args:
            index: graph numbers ``[B]``, int64, on the device of the data; repeats are allowed.

        Returns:
            A :class:`~torch_geometric.data.Batch` with ``x [n, F]`` float32, ``edge_index [2, e]`` sorted by source,
            ``y [B]``, ``batch [n]``, ``ptr [B + 1]``, every tensor of nodes and graphs, ``adj``, the
            :class:`~flgraph.nn.Adjacency` of ``edge_index``, ``graph_index``, which is ``index``, and every view.
        """
        if index is None:
            index = torch.arange(len(self), device=self.x.device)
        nodes, node_ptr = gather_ranges(self.node_ptr, index)
        num_graphs, num_nodes = index.numel(), nodes.numel()
        numbers = torch.arange(num_graphs, device=index.device)
        batch: Batch = type.__call__(
            _DATA_BATCH,
            x=None if self.one_hot is not None else _rows(self.x, nodes),
            y=self.y.index_select(0, index),
            batch=torch.repeat_interleave(numbers, node_ptr.diff(), output_size=num_nodes),
            ptr=node_ptr,
            graph_index=index,
        )
        for key, view in self.views.items():
            put_off(batch, key, partial(view.batch, index, nodes, node_ptr))  # evaluation often needs none
        if self.one_hot is not None:
            put_off(batch, "x", OneHot(self.one_hot.index_select(0, nodes), self.num_features))
        if self.twins is None:
            edges, edge_ptr = gather_ranges(self.edge_ptr, index)
            shift = torch.repeat_interleave(node_ptr[:-1], edge_ptr.diff(), output_size=edges.numel())
            batch.edge_index = self.edge_index.index_select(1, edges).long() + shift
            batch.adj = Adjacency.from_sorted(batch.edge_index, num_nodes, symmetric=self.undirected)
        else:
            edge_ptr = offsets(self.edge_ptr.index_select(0, index + 1) - self.edge_ptr.index_select(0, index))
            batch.adj = self.twins.batch(index, nodes, node_ptr)
            # The layers use `adj` alone, and the edges would take longer to copy than they take to train.
            put_off(batch, "edge_index", partial(edge_index_of, batch.adj))
        if self.edge_attr is not None:  # most models read none
            put_off(batch, "edge_attr", partial(_rows_of, self.edge_attr, self.edge_ptr, index))
        slices, increments = {"x": node_ptr, "edge_index": edge_ptr}, {"edge_index": node_ptr[:-1]}
        if self.edge_attr is not None:
            slices["edge_attr"] = edge_ptr
        slices["y"] = torch.arange(num_graphs + 1, device=index.device)
        for key, tensor in self.graph_tensors.items():
            batch[key] = tensor.index_select(0, index)
            slices[key] = slices["y"]
        for key, tensor in self.node_tensors.items():
            batch[key] = _rows(tensor, nodes)
            slices[key] = node_ptr
        zeros = torch.zeros(num_graphs, dtype=torch.long, device=index.device)
        batch._num_graphs = num_graphs
        batch._slice_dict = slices  # what `to_data_list` and `batch[i]` read
        batch._inc_dict = {key: increments.get(key, zeros) for key in slices}
        return batch


def edge_order(edge_index: Tensor, node_ptr: Tensor, edge_ptr: Tensor) -> Tensor:
    """Order ``[E]`` of columns of ``edge_index [2, E]`` by (graph, source, target), nodes numbered within graphs."""
    shift = torch.repeat_interleave(node_ptr[:-1], edge_ptr.diff())
    return edge_keys(edge_index.long() + shift, int(node_ptr[-1])).argsort()


def _rows_of(edge_attr: Tensor, edge_ptr: Tensor, index: Tensor) -> Tensor:
    """Features of the edges of some graphs."""
    return edge_attr.index_select(0, gather_ranges(edge_ptr, index)[0])


def _rows(tensor: Tensor, index: Tensor) -> Tensor:
    """Rows of a tensor as floats, where products find them at once."""
    if tensor.is_floating_point():
        out = with_room(tensor, (index.numel(), *tensor.shape[1:]))
        return torch.index_select(tensor, 0, index, out=out)
    rows = tensor.index_select(0, index)
    return with_room(rows, dtype=torch.float32).copy_(rows)


def _as_float(tensor: Tensor) -> Tensor:
    return tensor if tensor.is_floating_point() else tensor.float()


def _check_edges(edge_index: Tensor, node_ptr: Tensor, edge_ptr: Tensor, name: str) -> None:
    """Raises :class:`InputError` where an edge, of the graph that it names, does not join two of its nodes."""
    nodes = torch.repeat_interleave(node_ptr.diff(), edge_ptr.diff())
    outside = ((edge_index < 0) | (edge_index >= nodes)).any(dim=0).nonzero()
    if outside.numel():
        column = outside[0]
        try:
            expect_joined(edge_index[:, column], int(nodes[column]), f"{name}.edge_index")
        except InputError as error:
            raise error.within(f"graph {_owner(edge_ptr, column)}") from None


def _owner(ptr: Tensor, position: Tensor) -> int:
    """Number of the graph that has a position of all."""
    return int(torch.searchsorted(ptr, position, right=True)) - 1
