"""One heterogeneous graph: typed nodes and edges, with classes for the nodes of one type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.utils import index_to_mask

from flgraph.data.cache import content_key
from flgraph.data.checks import (
    classes_of,
    edge_keys,
    edges_of,
    expect_classes,
    expect_finite,
    expect_joined,
    expect_offsets,
    expect_tensor,
    require,
    tensor_of,
    unused_fields,
    warn_of_unused,
)
from flgraph.data.splits import check_splits
from flgraph.errors import expect
from flgraph.nn.batches import HeteroBatch
from flgraph.nn.sparse.adjacency import offsets
from flgraph.nn.sparse.relations import Relations

EdgeType = tuple[str, str, str]
"""Type of the sources, name of the relation, type of the targets."""


class HeteroGraph:
    """A heterogeneous graph for node classification.

    All nodes have one numbering, type after type, and all relations lie in one list of edges, so that nothing needs a
    loop over types. :meth:`from_edges` and :meth:`from_pyg` put any edges into this form.

    Args:
        node_types: names of the node types (T of them).
        node_ptr: ``[T + 1]`` int64; nodes of type ``t`` have the numbers ``node_ptr[t]`` to ``node_ptr[t + 1] - 1``.
        edge_types: (type of the sources, name, type of the targets) of each relation (R of them).
        edge_ptr: ``[R + 1]`` int64; edges of relation ``r`` are the columns ``edge_ptr[r]:edge_ptr[r + 1]``.
        edge_index: ``[2, E]`` int64, sources and targets, sorted by (relation, target, source); a repeated edge counts
            twice.
        target: the node type whose nodes are classified.
        y: class of each node of that type, -1 where it is unknown, ``[n]`` int64.
        train: nodes to train on, their numbers within the target type, int64.
        val: nodes to validate on.
        test: nodes to test on.
        num_classes: number of classes; largest label + 1 when ``None``.
        x: features of the node types that have some, ``[nodes of the type, F]`` float32 each.
        name: what error messages call this graph.
        nodes: number of each node within its type in the graph that this one was first cut from, ``[N]`` int64.
        validate: whether to check all of this.

    Raises:
        InputError: a type is unknown or not named by a string, shapes do not agree, or an edge, a label or a node
            number is out of range.
    """

    def __init__(
        self,
        node_types: Sequence[str],
        node_ptr: Tensor,
        edge_types: Sequence[EdgeType],
        edge_ptr: Tensor,
        edge_index: Tensor,
        target: str,
        y: Tensor,
        train: Tensor,
        val: Tensor,
        test: Tensor,
        num_classes: int | None = None,
        x: Mapping[str, Tensor] | None = None,
        name: str = "graph",
        nodes: Tensor | None = None,
        validate: bool = True,
    ) -> None:
        self.node_types, self.node_ptr = tuple(node_types), node_ptr
        self.edge_types, self.edge_ptr, self.edge_index = tuple(edge_types), edge_ptr, edge_index
        self.target, self.y, self.train, self.val, self.test = target, y, train, val, test
        self.x, self.name = dict(x or {}), name
        if num_classes is None:
            num_classes = int(y.max()) + 1 if y.numel() else 0
        self.num_classes = num_classes
        if nodes is None:
            local = [torch.arange(count) for count in node_ptr.diff().tolist()]
            nodes = torch.cat([torch.empty(0, dtype=torch.long), *local]).to(node_ptr.device)
        self.nodes = nodes
        self._relations: dict[bool, Relations] = {}
        if validate:
            self._validate()

    # ----------------------------------------------------------------------------------------------------- readers
    @classmethod
    def from_edges(
        cls,
        num_nodes: Mapping[str, int],
        edges: Mapping[EdgeType, Tensor],
        target: str,
        y: Tensor,
        train: Tensor | None = None,
        val: Tensor | None = None,
        test: Tensor | None = None,
        num_classes: int | None = None,
        x: Mapping[str, Tensor] | None = None,
        name: str = "graph",
        nodes: Tensor | None = None,
    ) -> HeteroGraph:
        """From the edges of each relation, nodes numbered within their types.

        Args:
            num_nodes: number of nodes of each type.
            edges: ``[2, e]`` of each relation, in any order; a relation may have none.
            target: see the class, as for all that are not listed.
            y: see there.
            train: node numbers or a mask; none when ``None``.
            val: the same.
            test: the same.
            num_classes: see the class.
            x: see there.
            name: see there.
            nodes: see there.
        """
        _check_names(num_nodes, edges, name)
        counts = torch.tensor(list(num_nodes.values()), dtype=torch.long)
        first = dict(zip(num_nodes, offsets(counts).tolist(), strict=False))
        parts = []
        for kind, given in edges.items():
            field = f"{name}.edges[{kind[1]}]"
            for row, end in zip(edges_of(given, field), (kind[0], kind[2]), strict=True):
                expect_joined(row.unsqueeze(0), num_nodes[end], field, f" of {end!r}")
            parts.append(given.long() + torch.tensor([[first[kind[0]]], [first[kind[2]]]]))
        flat = torch.cat([torch.empty(2, 0, dtype=torch.long), *parts], dim=1)
        relation = torch.repeat_interleave(torch.tensor([part.size(1) for part in parts], dtype=torch.long))
        edge_index, edge_ptr = sort_by_relation(flat, relation, len(edges), int(counts.sum()))
        where = (tuple(num_nodes), offsets(counts), tuple(edges), edge_ptr, edge_index)
        given_splits = {"train": train, "val": val, "test": test}
        train, val, test = (_numbers(given, y.numel(), f"{name}.{part}") for part, given in given_splits.items())
        return cls(*where, target, y.long(), train, val, test, num_classes, x, name, nodes)

    @classmethod
    def from_pyg(
        cls, data: HeteroData, target: str | None, name: str = "graph", num_classes: int | None = None
    ) -> HeteroGraph:
        """From any :class:`~torch_geometric.data.HeteroData` with one class per node of the type ``target`` in ``y``.

        With ``None`` for the target no labels are looked for: a graph for link prediction.

        Splits are taken from ``train_mask`` or ``train_idx`` of that type, and so on; where ``y`` is missing, from
        ``train_y`` and ``test_y`` (as PyG's ``Entities`` have it). Nodes of class -1 are unlabelled.

        Raises:
            InputError: ``data`` lacks a field or holds values that cannot be used.
        """
        types, kinds = data.metadata()
        warn_of_unused(unused_fields(data), name)
        unlabelled = target is None
        target = types[0] if target is None else target
        expect(target in types, "target", f"one of {', '.join(map(str, types))}", target)
        store, counts = data[target], {kind: int(data[kind].num_nodes or 0) for kind in types}
        edges = {kind: tensor_of(data[kind], "edge_index", f"{name}[{kind[1]}]") for kind in kinds}
        x = {kind: tensor_of(data[kind], "x", f"{name}[{kind}]") for kind in types if data[kind].get("x") is not None}
        for kind, own in x.items():
            expect(not own.is_complex(), f"{name}[{kind}].x", "of real numbers", own.dtype)
            x[kind] = own.to_dense().float()
        if unlabelled:
            return cls.from_edges(counts, edges, target, torch.full((counts[target],), -1), x=x, name=name)
        if "y" not in store and "train_y" in store:
            y = torch.full((counts[target],), -1)
            for part in ("train", "test"):
                there = f"{part}_idx" in store and f"{part}_y" in store
                wanted = f"a store with `{part}_idx` and `{part}_y`, as `y` is missing,"
                require(there, f"{name}[{target}]", wanted, "one without")
                index = tensor_of(store, f"{part}_idx", f"{name}[{target}]")
                own = tensor_of(store, f"{part}_y", f"{name}[{target}]")
                inside = index.dim() == 1 and index.shape == own.shape and not index.is_floating_point()
                inside = inside and (not index.numel() or 0 <= int(index.min()) <= int(index.max()) < len(y))
                wanted = f"numbers of nodes below {len(y)}, as many as `{part}_y` has classes,"
                require(inside, f"{name}[{target}].{part}_idx", wanted, "others")
                y[index.long()] = classes_of(own, f"{name}[{target}].{part}_y")
        else:
            y = tensor_of(store, "y", f"{name}[{target}]")
        expect(y.dim() == 1, f"{name}.y", "of shape [N], one class per node,", list(y.shape))
        train, val, test = (store.get(f"{part}_mask", store.get(f"{part}_idx")) for part in ("train", "val", "test"))
        classes = classes_of(y, f"{name}.y")
        return cls.from_edges(counts, edges, target, classes, train, val, test, num_classes, x, name)

    def to_pyg(self) -> HeteroData:
        """A :class:`~torch_geometric.data.HeteroData` of it, with masks on the nodes of the target type."""
        data = HeteroData()
        for kind, count in zip(self.node_types, self.node_ptr.diff().tolist(), strict=True):
            data[kind].num_nodes = count
            if kind in self.x:
                data[kind].x = self.x[kind]
        for relation, edges in self.edges.items():
            data[relation].edge_index = edges
        data[self.target].y = self.y
        for part, index in (("train", self.train), ("val", self.val), ("test", self.test)):
            data[self.target][f"{part}_mask"] = index_to_mask(index, self.y.numel())
        return data

    def _validate(self) -> None:
        name, n, edges = self.name, self.num_nodes, self.edge_index
        kinds = {kind: None for kind in self.edge_types}
        _check_names({kind: None for kind in self.node_types}, kinds, name)
        distinct = len(set(self.node_types)) == len(self.node_types) and len(kinds) == len(self.edge_types)
        require(distinct, f"{name}.node_types and edge_types", "different types", "one of them twice")
        expect(self.target in self.node_types, "target", f"one of {', '.join(self.node_types)}", self.target)
        expect_offsets(self.node_ptr, f"{name}.node_ptr", len(self.node_types), n)
        expect_offsets(self.edge_ptr, f"{name}.edge_ptr", len(self.edge_types), edges.size(-1))
        expect_tensor(edges, f"{name}.edge_index", [2, "E"], torch.long)
        number = {kind: t for t, kind in enumerate(self.node_types)}
        ends = torch.tensor([[number[s], number[t]] for s, _, t in self.edge_types], dtype=torch.long).view(-1, 2).t()
        wanted = ends.to(edges.device)[:, self.relation]
        inside = (edges >= self.node_ptr[wanted]) & (edges < self.node_ptr[wanted + 1])
        require(bool(inside.all()), f"{name}.edge_index", "between nodes of the relation's types", "others")
        ordered = bool((edge_keys(edges.flip(0), n, self.relation).diff() >= 0).all())
        require(ordered, f"{name}.edge_index", "sorted by relation, target and source", "edges that are not")
        expect_tensor(self.y, f"{name}.y", [self.num_targets], torch.long)
        require(self.y.numel() > 0, f"{name}.y", f"the classes of at least one node of {self.target!r}", "none")
        expect_classes(self.y, f"{name}.y", -1, self.num_classes - 1)
        splits = {"train": self.train, "val": self.val, "test": self.test}
        check_splits(self.num_targets, "node", name, **splits)
        for field, index in splits.items():
            require(bool((self.y[index] >= 0).all()), f"{name}.{field}", "labelled nodes", "one without a label")
        both = torch.cat([*splits.values()]).unique().numel() == sum(index.numel() for index in splits.values())
        require(both, f"{name}.train, val and test", "without common nodes", "some")
        for kind, x in self.x.items():
            expect(kind in number, f"{name}.x", f"features of node types {', '.join(self.node_types)}", kind)
            expect_tensor(x, f"{name}.x[{kind}]", [int(self.node_ptr.diff()[number[kind]]), "F"], torch.float32)
            expect_finite(x, f"{name}.x[{kind}]")
        expect_tensor(self.nodes, f"{name}.nodes", [n], torch.long)

    # -------------------------------------------------------------------------------------------------- properties
    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.name}: {self.num_nodes} nodes of {len(self.node_types)} types, "
            f"{self.num_edges} edges of {len(self.edge_types)} types, {self.num_classes} classes)"
        )

    @property
    def num_nodes(self) -> int:
        """N, of all types."""
        return int(self.node_ptr[-1])

    @property
    def num_edges(self) -> int:
        """E, of all relations."""
        return self.edge_index.size(1)

    @property
    def num_targets(self) -> int:
        """Number of nodes of the target type."""
        return int(self.node_ptr.diff()[self.node_types.index(self.target)])

    @property
    def target_start(self) -> int:
        """Number of the first node of the target type."""
        return int(self.node_ptr[self.node_types.index(self.target)])

    @property
    def relation(self) -> Tensor:
        """Which relation each edge is of ``[E]``."""
        return torch.repeat_interleave(self.edge_ptr.diff(), output_size=self.edge_index.size(1))

    @property
    def edges(self) -> dict[EdgeType, Tensor]:
        """Edges ``[2, e]`` of each relation, nodes numbered within their types."""
        first = dict(zip(self.node_types, self.node_ptr.tolist(), strict=False))
        ptr, kinds = self.edge_ptr.tolist(), enumerate(self.edge_types)
        shift = {kind: torch.tensor([[first[kind[0]]], [first[kind[2]]]]) for kind in self.edge_types}
        return {kind: self.edge_index[:, ptr[r] : ptr[r + 1]] - shift[kind].to(self.y.device) for r, kind in kinds}

    @property
    def parts(self) -> dict[str, Tensor]:
        """All tensors held."""
        plain = ("node_ptr", "edge_ptr", "edge_index", "y", "train", "val", "test", "nodes")
        return {field: getattr(self, field) for field in plain} | {f"x {kind}": x for kind, x in self.x.items()}

    @property
    def content(self) -> str:
        """A digest of all that the graph holds but its name, 64 hexadecimal digits."""
        if self.labelled:
            described = (self.target, self.num_classes, self.parts)
        else:  # nothing depends on the target then, nor on y, which is as long as that has nodes
            described = ("", self.num_classes, {name: part for name, part in self.parts.items() if name != "y"})
        return content_key("hetero graph", self.node_types, self.edge_types, *described)

    def relations(self, tie_names: bool = False) -> Relations:
        """The edges in the form that layers use, made when first asked for.

        Args:
            tie_names: whether relations of the same name between other node types share their weights, as in FedHGN's
                published code; each has its own otherwise.
        """
        if tie_names not in self._relations:
            row = {kind: row for row, kind in enumerate(self.weight_rows(tie_names))}
            of = [row[kind[1] if tie_names else kind] for kind in self.edge_types]
            rows = torch.tensor(of, dtype=torch.long, device=self.y.device)
            made = Relations.of(self.edge_index, self.edge_ptr, self.num_nodes, rows, len(row))
            self._relations[tie_names] = made
        return self._relations[tie_names]

    def weight_rows(self, tie_names: bool = False) -> list[Any]:
        """What each row of a layer's coefficients (or each of its weights) belongs to, see :meth:`relations`."""
        return list(dict.fromkeys(kind[1] for kind in self.edge_types)) if tie_names else list(self.edge_types)

    @property
    def schema(self) -> str:
        """A digest of the names of node types and relations, in their order."""
        return content_key(self.node_types, self.edge_types)[:16]

    def batch(self, index: Tensor, tie_names: bool = False) -> HeteroBatch:
        """The whole graph with the nodes ``index [n]`` of the target type to classify."""
        x, relations = tuple(self.x.get(kind) for kind in self.node_types), self.relations(tie_names)
        nodes = index + self.target_start
        known = self.y.new_full((self.num_nodes,), -1)
        known[self.train + self.target_start] = self.y[self.train]
        return HeteroBatch(x, relations, relations.into(nodes), nodes, self.y[index], known, self.schema)

    # ------------------------------------------------------------------------------------------------ other graphs
    def replace(self, validate: bool = False, **changed: Any) -> HeteroGraph:
        schema = ("node_types", "node_ptr", "edge_types", "edge_ptr", "edge_index", "target", "num_classes", "name")
        fields = (*schema, "y", "train", "val", "test", "x", "nodes")
        return HeteroGraph(**{field: getattr(self, field) for field in fields} | changed, validate=validate)

    @property
    def labelled(self) -> bool:
        """Whether some node has a class; otherwise nothing depends on which type is the target."""
        return bool((self.y >= 0).any())

    def cut(self, edges: Tensor, name: str | None = None) -> HeteroGraph:
        """The graph of some edges; nodes, node types and relations that have none of them are left out.

        Args:
            edges: columns of ``edge_index``, or a mask ``[E]``.
            name: of the new graph; this graph's when ``None``.

        Raises:
            InputError: no node of the target type is left; where no node has a class, no node at all.
        """
        name = name or self.name
        kept = edges.nonzero()[:, 0] if edges.dtype == torch.bool else edges.unique()
        edge_index, relation = self.edge_index[:, kept], self.relation[kept]
        used = index_to_mask(edge_index.flatten(), self.num_nodes)
        ptr = offsets(used.long())[self.node_ptr]
        counts, edge_counts = ptr.diff(), torch.bincount(relation, minlength=len(self.edge_types))
        alive = [kind for kind, count in zip(self.node_types, counts.tolist(), strict=True) if count]
        own, target, y = used[self.target_start : self.target_start + self.num_targets], self.target, self.y
        if alive and not bool(own.any()) and not self.labelled:  # then any type will do
            first = self.node_types.index(alive[0])
            target, own = alive[0], used[self.node_ptr[first] : self.node_ptr[first + 1]]
            y = self.y.new_full((own.numel(),), -1)
        require(bool(own.any()), name, f"a graph with nodes of the target type {self.target!r}", "one without")
        number = own.long().cumsum(0) - 1
        train, val, test = (number[index[own[index]]] for index in (self.train, self.val, self.test))
        members = dict(zip(self.node_types, used.split(self.node_ptr.diff().tolist()), strict=True))
        return self.replace(
            node_types=alive,
            node_ptr=offsets(counts[counts > 0]),
            edge_types=[kind for kind, count in zip(self.edge_types, edge_counts.tolist(), strict=True) if count],
            edge_ptr=offsets(edge_counts[edge_counts > 0]),
            # Numbers keep their order, so the edges keep theirs.
            edge_index=(used.long().cumsum(0) - 1)[edge_index],
            target=target,
            y=y[own],
            train=train,
            val=val,
            test=test,
            x={kind: self.x[kind][members[kind]] for kind in alive if kind in self.x},
            name=name,
            nodes=self.nodes[used],
        )

    def to(self, device: torch.device | str) -> HeteroGraph:
        """The same graph on another device (``self`` when it is there already)."""
        if self.y.device == torch.device(device):
            return self
        plain = ("node_ptr", "edge_ptr", "edge_index", "y", "train", "val", "test", "nodes")
        moved: dict[str, Any] = {field: getattr(self, field).to(device) for field in plain}
        return self.replace(**moved, x={kind: part.to(device) for kind, part in self.x.items()})


def sort_by_relation(edges: Tensor, relation: Tensor, num_relations: int, num_nodes: int) -> tuple[Tensor, Tensor]:
    """Edges ``[2, E]`` sorted by (relation, target, source), and where each relation begins ``[R + 1]``."""
    keys = edge_keys(edges.flip(0), num_nodes, relation)
    counts = torch.bincount(relation, minlength=num_relations)
    return edges[:, keys.argsort(stable=True)], offsets(counts)


def _numbers(given: Tensor | None, count: int, field: str) -> Tensor:
    """Ascending node numbers of a mask ``[count]`` or of numbers."""
    if given is None or given.dtype != torch.bool:
        return torch.empty(0, dtype=torch.long) if given is None else given.long().sort().values
    expect(given.shape == (count,), field, f"a mask of shape [{count}]", list(given.shape))
    return given.nonzero()[:, 0]


def _check_names(node_types: Mapping[Any, Any], edge_types: Mapping[Any, Any], name: str) -> None:
    for kind in node_types:
        expect(isinstance(kind, str), f"{name}.node_types", "strings", kind)
    for kind in edge_types:
        valid = isinstance(kind, tuple) and len(kind) == 3 and all(isinstance(part, str) for part in kind)
        expect(valid, f"{name}.edge_types", "(source type, name, target type), three strings,", kind)
        for end in (kind[0], kind[2]):
            expect(end in node_types, f"{name}.edge_types", f"between node types {', '.join(node_types)}", end)
