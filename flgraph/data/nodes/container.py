"""One graph with a label on every node, and subgraphs cut from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import subgraph

from flgraph.data.cache import content_key
from flgraph.data.checks import (
    edge_keys,
    edges_of,
    expect_classes,
    expect_finite,
    expect_joined,
    expect_tensor,
    features_of_edges,
    is_symmetric,
    require,
    sorted_edges,
    sorted_with_features,
    targets_of,
    tensor_of,
    warn_of_unused,
)
from flgraph.errors import expect
from flgraph.nn.batches import WholeGraph
from flgraph.nn.sparse.adjacency import Adjacency, lasting, offsets
from flgraph.nn.sparse.csr import csr, take_rows
from flgraph.nn.tasks import Task, check_targets

_READ = {"x", "y", "edge_index", "num_nodes", "num_classes", "name"}
"""Fields of PyG's graphs that :meth:`NodeGraph.from_pyg` knows."""


class NodeGraph:
    """A graph for node classification.

    Bags of words stay sparse: no method makes a dense ``[N, F]`` of a sparse ``x``.

    Args:
        x: features ``[N, F]`` float32, dense or sparse CSR.
        edge_index: ``[2, E]`` int64, sources and targets, sorted by (source, target), without self-loops and repeats;
            :meth:`from_pyg` puts any edges into this form.
        y: class of each node ``[N]``, int64; or its labels or numbers ``[N, T]``, float32.
        num_classes: number of classes; largest label + 1 when ``None``. Of labels or numbers the columns of ``y``.
        name: what error messages call this graph.
        nodes: numbers of the nodes in the graph that this one was first cut from, ``[N]`` int64; 0 to N - 1 when
            ``None``.
        undirected: whether every edge is there in both directions.
        validate: whether to check all of this.
        keys: name to a text for each node ``[N]``, such as the hospital that it is of; partitions may go by them.
        task: what ``y`` is, see :data:`~flgraph.nn.tasks.Task`.
        edge_attr: features of the edges ``[E, D]`` float32, in their order; ``None`` where they have none.

    Raises:
        InputError: shapes do not agree, an edge or a label is out of range, edges are not in the form above, or a
            feature is not a number.
    """

    def __init__(
        self,
        x: Tensor,
        edge_index: Tensor,
        y: Tensor,
        num_classes: int | None = None,
        name: str = "graph",
        nodes: Tensor | None = None,
        undirected: bool = True,
        validate: bool = True,
        keys: Mapping[str, NDArray[np.str_]] | None = None,
        task: Task = "multiclass",
        edge_attr: Tensor | None = None,
    ) -> None:
        self.edge_attr = edge_attr
        self.x, self.edge_index, self.y, self.name, self.undirected = x, edge_index, y, name, undirected
        self.keys, self.task = dict(keys or {}), task
        if y.dim() == 2:
            num_classes = y.size(1)
        elif num_classes is None:
            num_classes = int(y.max()) + 1 if y.numel() else 0
        self.num_classes = num_classes
        self.is_cut = nodes is not None  # else another graph's nodes have the same numbers
        self.nodes = torch.arange(y.size(0), device=y.device) if nodes is None else nodes
        self._adj: Adjacency | None = None
        if validate:
            self._validate()

    @classmethod
    def from_pyg(
        cls,
        data: Data,
        name: str = "graph",
        num_classes: int | None = None,
        undirected: bool = True,
        key: str | None = None,
        task: Task = "multiclass",
    ) -> NodeGraph:
        """From any :class:`~torch_geometric.data.Data` with ``x``, ``edge_index`` and what each node is in ``y``.

        Self-loops and repeated edges are left out. Dense features that are zero in three of four places become sparse.
        Of repeated edges ``edge_attr`` is the mean. Other fields, such as masks, are not used; a warning names them.

        Args:
            data: the graph; ``x`` may be dense or any sparse tensor.
            name: what error messages call this graph.
            num_classes: see the class.
            undirected: whether to add the reverse of every edge; otherwise edges keep their direction, and a node's
                neighbours are those that send to it.
            key: a further field, of a whole number or a text for each node, that is kept in ``keys``.
            task: what ``y`` is: a class ``[N]``; or several labels or numbers ``[N, T]``, NaN where one is not known.

        Raises:
            InputError: ``data`` lacks a field or holds values that cannot be used.
        """
        expect(hasattr(data, "get"), name, "a torch_geometric.data.Data", type(data).__name__)
        x, y, edge_index = (tensor_of(data, field, name) for field in ("x", "y", "edge_index"))
        expect(not x.is_complex(), f"{name}.x", "of real numbers", x.dtype)
        expect(num_classes is None or num_classes >= 1, "num_classes", "1 or more, or None", num_classes)
        attr = data.get("edge_attr")
        read = _READ | {key, *(["edge_attr"] if isinstance(attr, Tensor) else [])}
        warn_of_unused((field for field in data.to_dict() if field not in read), name)
        n = x.size(0)
        keys = {} if key is None else {key: key_of(data.get(key), n, f"{name}.{key}")}
        y = targets_of(y, n, task, f"{name}.y")
        edge_index = edges_of(edge_index, f"{name}.edge_index")
        expect_joined(edge_index, n, f"{name}.edge_index")
        x = sparse_rows(x.unsqueeze(1) if x.dim() == 1 else x)
        made: dict[str, Any] = {"undirected": undirected, "keys": keys, "task": task}
        if not isinstance(attr, Tensor):
            return cls(x, sorted_edges(edge_index, n, undirected), y, num_classes, name, **made)
        rows = features_of_edges(attr, edge_index.size(1), f"{name}.edge_attr")
        edges, rows = sorted_with_features(edge_index, rows, n, undirected)
        return cls(x, edges, y, num_classes, name, edge_attr=rows, **made)

    def _validate(self) -> None:
        name, n, edges = self.name, len(self.y), self.edge_index
        if self.task == "multiclass":
            expect_tensor(self.y, f"{name}.y", ["N"], torch.long)
        else:
            expect_tensor(self.y, f"{name}.y", ["N", "T"], torch.float32)
            check_targets(self.y, self.task, f"{name}.y")
        require(n > 0, f"{name}.y", "the classes of at least one node", "none")
        expect_tensor(self.x, f"{name}.x", [n, "F"], torch.float32)
        layouts = (torch.strided, torch.sparse_csr)
        expect(self.x.layout in layouts, f"{name}.x", "dense or sparse CSR", self.x.layout)
        expect_finite(self.x.values() if self.is_sparse else self.x, f"{name}.x")
        if self.task == "multiclass":
            expect_classes(self.y, f"{name}.y", 0, max(self.num_classes - 1, 0))
        expect_tensor(self.nodes, f"{name}.nodes", [n], torch.long)
        expect_tensor(edges, f"{name}.edge_index", [2, "E"], torch.long)
        expect_joined(edges, n, f"{name}.edge_index")
        keys = edge_keys(edges, n)
        ordered = bool((keys.diff() > 0).all() and (edges[0] != edges[1]).all())
        wanted = "sorted by source and target, without self-loops and repeats"
        require(ordered, f"{name}.edge_index", wanted, "edges that are not")
        both = not self.undirected or is_symmetric(keys, edges, n)
        if self.edge_attr is not None:
            expect_tensor(self.edge_attr, f"{name}.edge_attr", [edges.size(1), "D"], torch.float32)
            expect_finite(self.edge_attr, f"{name}.edge_attr")
        require(both, f"{name}.edge_index", "undirected, every edge in both directions,", "edges in one direction")

    # ------------------------------------------------------------------------------------------------ properties
    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.name}: {self.num_nodes} nodes, {self.edge_index.size(1)} edges, "
            f"{self.num_features} features, {self.num_classes} classes)"
        )

    @property
    def num_nodes(self) -> int:
        """N."""
        return self.y.size(0)

    @property
    def num_features(self) -> int:
        """F."""
        return self.x.size(1)

    @property
    def is_sparse(self) -> bool:
        """Whether ``x`` is sparse CSR."""
        return self.x.layout == torch.sparse_csr

    @property
    def adj(self) -> Adjacency:
        """The adjacency in compressed rows, made when first read; row ``i`` lists the nodes that send to ``i``."""
        if self._adj is None:
            with lasting():
                self._adj = Adjacency.from_sorted(self.edge_index, self.num_nodes, symmetric=self.undirected)
        return self._adj

    @property
    def rowptr(self) -> Tensor:
        """``[N + 1]``; the neighbours of node ``i`` are ``col[rowptr[i]:rowptr[i + 1]]``."""
        return self.adj.rowptr

    @property
    def col(self) -> Tensor:
        """Neighbours of all nodes, one after another, ``[E]``."""
        return self.adj.col

    @property
    def degree(self) -> Tensor:
        """Number of neighbours of each node ``[N]``, int64."""
        return self.rowptr.diff()

    @property
    def parts(self) -> dict[str, Tensor]:
        """All tensors held, dense ones only: a sparse ``x`` in its three parts."""
        parts = {"edge_index": self.edge_index, "y": self.y, "nodes": self.nodes}
        parts |= {} if self.edge_attr is None else {"edge_attr": self.edge_attr}
        if self.is_sparse:
            return parts | {
                "x_rowptr": self.x.crow_indices(),
                "x_col": self.x.col_indices(),
                "x_value": self.x.values(),
            }
        return parts | {"x": self.x}

    @property
    def content(self) -> str:
        """A digest of all that the graph holds, 64 hexadecimal digits."""
        return content_key("node graph", self.num_features, self.num_classes, self.undirected, self.parts)

    # --------------------------------------------------------------------------------------------------- subsets
    def rows(self, index: Tensor) -> Tensor:
        """Rows ``index [n]`` of ``x`` (repeats are allowed) in the layout of ``x``, ``[n, F]``."""
        return take_rows(self.x, index)

    def subgraph(self, index: Tensor, name: str | None = None) -> NodeGraph:
        """The graph of the nodes ``index`` (in that order, or a mask ``[N]``) and of all edges between them.

        Raises:
            InputError: a node is there twice, or there is none.
        """
        name = name or self.name
        if index.dtype == torch.bool:
            index = index.nonzero()[:, 0]
        require(index.numel() > 0, f"{name}.nodes", "at least one node", "none")
        require(index.unique().numel() == index.numel(), f"{name}.nodes", "different nodes", "one of them twice")
        edges, attr = subgraph(index, self.edge_index, self.edge_attr, relabel_nodes=True, num_nodes=self.num_nodes)
        if not bool((index.diff() > 0).all()):
            order = edge_keys(edges, index.numel()).argsort()
            edges, attr = edges[:, order], None if attr is None else attr[order]
        keys = {key: of_nodes[index.cpu().numpy()] for key, of_nodes in self.keys.items()}
        own = {"x": self.rows(index), "y": self.y[index], "nodes": self.nodes[index]}
        return self._like(edge_index=edges, edge_attr=attr, name=name, keys=keys, **own)

    def _like(self, **changed: Any) -> NodeGraph:
        fields = ("x", "edge_index", "y", "num_classes", "name", "nodes", "undirected", "keys", "task", "edge_attr")
        given = {field: getattr(self, field) for field in fields} | ({} if self.is_cut else {"nodes": None})
        return NodeGraph(**given | changed, validate=False)

    def batch(self, index: Tensor) -> WholeGraph:
        """The whole graph with the nodes ``index [n]`` to classify."""
        edges = () if self.edge_attr is None else (self.edge_index, self.edge_attr)
        index = index.to(self.y.device)
        return WholeGraph(self.x, self.adj, self.nodes, index, self.y[index], *edges)

    def normalized(self) -> NodeGraph:
        """The same graph with every node's features divided by their sum, where that is not 0."""
        return self._like(x=normalize_rows(self.x))

    def to(self, device: torch.device | str) -> NodeGraph:
        """The same graph on another device (``self`` when it is there already)."""
        if self.y.device == torch.device(device):
            return self
        further = [*(["nodes"] if self.is_cut else []), *(["edge_attr"] if self.edge_attr is not None else [])]
        tensors = ("x", "edge_index", "y", *further)
        moved = self._like(**{field: getattr(self, field).to(device) for field in tensors})
        moved._adj = None if self._adj is None else self._adj.to(device)
        return moved


def key_of(values: Any, count: int, field: str) -> NDArray[np.str_]:
    """Whole numbers or texts, one for each of ``count`` nodes or graphs, as texts.

    Raises:
        InputError: they are something else.
    """
    array = values.numpy(force=True) if isinstance(values, Tensor) else np.asarray(values)
    fits = array.shape == (count,) and array.dtype.kind in "iuU"
    got = "none" if values is None else f"{array.dtype} {list(array.shape)}"
    require(fits, field, f"a whole number or a text for each of {count}, a natural key,", got)
    return array.astype(str)


def normalize_rows(x: Tensor) -> Tensor:
    """Rows of ``x [N, F]``, dense or sparse CSR, divided by their sums; those that sum to 0 are left as they are."""
    if x.layout != torch.sparse_csr:
        total = x.sum(dim=1, keepdim=True)
        return x / torch.where(total == 0, 1.0, total)
    row = torch.repeat_interleave(x.crow_indices().diff())
    total = x.values().new_zeros(x.size(0)).index_add_(0, row, x.values())
    return csr(x.crow_indices(), x.col_indices(), x.values() / torch.where(total == 0, 1.0, total)[row], x.size(1))


def sparse_rows(x: Tensor) -> Tensor:
    """Features ``[N, F]`` as float32: sparse CSR where at most a quarter of them are not zero, dense otherwise."""
    if x.layout == torch.strided:
        # A sparse row takes two numbers for each that is not zero, and its product is slower than a dense one's.
        if x.numel() == 0 or 4 * int(x.count_nonzero()) > x.numel():
            return x.float()
        where = x.nonzero()
        counts = torch.bincount(where[:, 0], minlength=x.size(0))
        return csr(offsets(counts), where[:, 1], x[where[:, 0], where[:, 1]].float(), x.size(1))
    if x.layout == torch.sparse_csr:
        return csr(x.crow_indices(), x.col_indices(), x.values().float(), x.size(1))
    coo = (x if x.layout == torch.sparse_coo else x.to_sparse_coo()).coalesce()
    (row, col), value = coo.indices(), coo.values()
    return csr(offsets(torch.bincount(row, minlength=x.size(0))), col, value.float(), x.size(1))
