"""One heterogeneous graph: typed nodes and edges, with classes for the nodes of one type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from flgraph.data.cache import content_key
from flgraph.errors import InputError, expect, first_line
from flgraph.nn.sparse.adjacency import offsets
from flgraph.nn.sparse.relations import Relations

EdgeType = tuple[str, str, str]
"""Type of the sources, name of the relation, type of the targets."""

REVERSE = "rev_"
"""What the name of a reverse relation begins with."""


class HeteroGraph:
    """A heterogeneous graph for node classification.

    All nodes have one numbering, type after type, and all relations lie in one list of edges, so that nothing needs a
    loop over types. :meth:`from_edges`, :meth:`from_pyg` and :meth:`from_npz` put any edges into this form.

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
            target: see the class, as for all that follow.
            y: see there.
            train: node numbers or a mask; none when ``None``.
            val: the same.
            test: the same.
            num_classes: see the class.
            x: see there.
            name: see there.
            nodes: see there.

        Raises:
            InputError: see there.
        """
        _check_names(num_nodes, edges, name)
        counts = torch.tensor(list(num_nodes.values()), dtype=torch.long)
        first = dict(zip(num_nodes, offsets(counts).tolist(), strict=False))
        parts = []
        for kind, given in edges.items():
            field, shape = f"{name}.edges[{kind[1]}]", list(given.shape)
            expect(len(shape) == 2 and shape[0] == 2, field, "of shape [2, E]", shape)
            expect(not given.is_floating_point(), field, "node numbers of an integer type", given.dtype)
            for row, end in ((0, kind[0]), (1, kind[2])):
                bad = given[row][(given[row] < 0) | (given[row] >= num_nodes[end])]
                if bad.numel():
                    expect(False, field, f"edges between nodes 0 to {num_nodes[end] - 1} of {end!r}", int(bad[0]))
            parts.append(given.long() + torch.tensor([[first[kind[0]]], [first[kind[2]]]]))
        flat = torch.cat([torch.empty(2, 0, dtype=torch.long), *parts], dim=1)
        relation = torch.repeat_interleave(torch.tensor([part.size(1) for part in parts], dtype=torch.long))
        edge_index, edge_ptr = _sorted(flat, relation, len(edges), int(counts.sum()))
        where = (tuple(num_nodes), offsets(counts), tuple(edges), edge_ptr, edge_index)
        splits = (
            _numbers(train, y.numel(), f"{name}.train"),
            _numbers(val, y.numel(), f"{name}.val"),
            _numbers(test, y.numel(), f"{name}.test"),
        )
        return cls(*where, target, y.long(), *splits, num_classes, x, name, nodes)

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
        unlabelled = target is None
        target = types[0] if target is None else target
        expect(target in types, "target", f"one of {', '.join(map(str, types))}", target)
        store, own = data[target], {kind: data[kind] for kind in kinds}
        counts = {kind: int(data[kind].num_nodes or 0) for kind in types}
        for kind, edges in own.items():
            if "edge_index" not in edges:
                raise InputError(
                    f"Expected relation `{kind[1]}` of graph `{name}` to have `edge_index` but it has none."
                )
        x = {kind: data[kind].x.float() for kind in types if data[kind].get("x") is not None}
        edges_of = {kind: edges.edge_index for kind, edges in own.items()}
        if unlabelled:
            return cls.from_edges(counts, edges_of, target, torch.full((counts[target],), -1), x=x, name=name)
        y = store.get("y")
        if y is None and "train_y" in store:
            y = torch.full((counts[target],), -1)
            for part in ("train", "test"):
                there = f"{part}_idx" in store and f"{part}_y" in store
                what = f"`{part}_idx` and `{part}_y`, as `y` is missing"
                _expect(there, f"{name}[{target}]", f"a store with {what},", "one without")
                y[store[f"{part}_idx"]] = store[f"{part}_y"]
        if y is None:
            raise InputError(f"Expected node type `{target}` of graph `{name}` to have `y` but it has none.")
        expect(y.dim() == 1, f"{name}.y", "of shape [N], one class per node,", list(y.shape))
        expect(not y.is_floating_point(), f"{name}.y", "classes of an integer type", y.dtype)
        train, val, test = (store.get(f"{part}_mask", store.get(f"{part}_idx")) for part in ("train", "val", "test"))
        return cls.from_edges(counts, edges_of, target, y.long(), train, val, test, num_classes, x, name)

    @classmethod
    def from_npz(cls, path: str | Path, client: int | None = None, name: str | None = None) -> HeteroGraph:
        """From a file of flat arrays.

        Per graph: ``node_types [T]``, ``num_nodes [T]``, ``edge_types [R, 3]``, ``edge_ptr [R + 1]``,
        ``edge_index [2, E]`` (nodes numbered within their types, relation after relation), ``target_node_type``,
        ``labels``, ``train_mask``, ``val_mask``, ``test_mask``; in a file of several clients each name begins with
        ``client0/``, ``client1/`` ..., and ``node_id`` are the numbers within the types of the whole graph. Per file:
        ``num_classes`` and ``name``.

        Args:
            path: the file.
            client: which client, counted from 0; ``None`` for a whole graph.
            name: what error messages call the graph; the file's own when ``None``.

        Raises:
            InputError: the file is damaged, lacks an array, or holds values that cannot be used.
        """
        prefix = "" if client is None else f"client{client}/"
        try:
            with np.load(path, allow_pickle=False) as file:
                stored = {key.removeprefix(prefix): file[key] for key in file.files if key.startswith(prefix)}
                stored |= {"num_classes": file["num_classes"], "name": file["name"]}
            types, kinds = stored["node_types"].tolist(), [tuple(kind) for kind in stored["edge_types"].tolist()]
            edges, ptr = torch.from_numpy(stored["edge_index"].astype(np.int64)), stored["edge_ptr"].tolist()
            return cls.from_edges(
                dict(zip(types, stored["num_nodes"].tolist(), strict=True)),
                {kind: edges[:, ptr[r] : ptr[r + 1]] for r, kind in enumerate(kinds)},
                str(stored["target_node_type"]),
                torch.from_numpy(stored["labels"]),
                train=torch.from_numpy(stored["train_mask"]),
                val=torch.from_numpy(stored["val_mask"]),
                test=torch.from_numpy(stored["test_mask"]),
                num_classes=int(stored["num_classes"]),
                name=name or str(stored["name"]) + ("" if client is None else f", client-{client + 1}"),
                # In the file of a whole graph the numbers are those of yet another graph, without types.
                nodes=None if client is None else torch.from_numpy(stored["node_id"].astype(np.int64)),
            )
        except InputError:
            raise
        except Exception as error:  # an archive may be damaged in as many ways as there are
            raise InputError(
                f"Expected {path} to be an archive of a heterogeneous graph but got: {first_line(error)}"
            ) from error

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
            mask = torch.zeros(self.y.numel(), dtype=torch.bool, device=self.y.device)
            mask[index] = True
            data[self.target][f"{part}_mask"] = mask
        return data

    def _validate(self) -> None:
        name, n = self.name, self.num_nodes
        kinds = {kind: None for kind in self.edge_types}
        _check_names({kind: None for kind in self.node_types}, kinds, name)
        distinct = len(set(self.node_types)) == len(self.node_types) and len(kinds) == len(self.edge_types)
        _expect(distinct, f"{name}.node_types and edge_types", "different types", "one of them twice")
        expect(self.target in self.node_types, "target", f"one of {', '.join(self.node_types)}", self.target)
        for field, ptr, count in (("node", self.node_ptr, self.node_types), ("edge", self.edge_ptr, self.edge_types)):
            sound = list(ptr.shape) == [len(count) + 1] and ptr.dtype == torch.long and bool((ptr.diff() >= 0).all())
            _expect(sound and int(ptr[0]) == 0, f"{name}.{field}_ptr", "ascending offsets, int64", _form(ptr))
        edges = self.edge_index
        sound = list(edges.shape) == [2, int(self.edge_ptr[-1])] and edges.dtype == torch.long
        _expect(sound, f"{name}.edge_index", f"of shape [2, {int(self.edge_ptr[-1])}] and int64", _form(edges))
        place = {kind: t for t, kind in enumerate(self.node_types)}
        ends = torch.tensor([[place[s], place[t]] for s, _, t in self.edge_types], dtype=torch.long).view(-1, 2).t()
        wanted = ends.to(edges.device)[:, self.relation]
        inside = (edges >= self.node_ptr[wanted]) & (edges < self.node_ptr[wanted + 1])
        _expect(bool(inside.all()), f"{name}.edge_index", "between nodes of the relation's types", "others")
        ordered = bool((((self.relation * n + edges[1]) * n + edges[0]).diff() >= 0).all())
        _expect(ordered, f"{name}.edge_index", "sorted by relation, target and source", "edges that are not")
        members = self.num_targets
        sound = self.y.shape == (members,) and self.y.dtype == torch.long
        _expect(sound, f"{name}.y", f"of shape [{members}] and int64", _form(self.y))
        _expect(members > 0, f"{name}.y", f"the classes of at least one node of {self.target!r}", "none")
        low, high = int(self.y.min()), int(self.y.max())
        sound = low >= -1 and high < self.num_classes
        expect(sound, f"{name}.y", f"between -1 and {self.num_classes - 1}", low if low < -1 else high)
        seen = torch.zeros(members, dtype=torch.bool, device=self.y.device)
        for field, index in (("train", self.train), ("val", self.val), ("test", self.test)):
            sound = index.dim() == 1 and index.dtype == torch.long
            _expect(sound, f"{name}.{field}", "of shape [n] and int64", _form(index))
            outside = index[(index < 0) | (index >= members)].tolist()
            expect(not outside, f"{name}.{field}", f"nodes 0 to {members - 1} of {self.target!r}", outside[:5])
            _expect(index.unique().numel() == index.numel(), f"{name}.{field}", "different nodes", "one twice")
            _expect(bool((self.y[index] >= 0).all()), f"{name}.{field}", "labelled nodes", "one without a label")
            _expect(not bool(seen[index].any()), f"{name}.{field}", "nodes of no other split", "one that is")
            seen[index] = True
        for kind, x in self.x.items():
            expect(kind in place, f"{name}.x", f"features of node types {', '.join(self.node_types)}", kind)
            rows = int(self.node_ptr[place[kind] + 1] - self.node_ptr[place[kind]])
            sound = x.dim() == 2 and x.size(0) == rows and x.dtype == torch.float32
            _expect(sound, f"{name}.x[{kind}]", f"of shape [{rows}, F] and float32", _form(x))
            _expect(bool(torch.isfinite(x).all()), f"{name}.x[{kind}]", "finite", "NaN or infinity")
        sound = self.nodes.shape == (n,) and self.nodes.dtype == torch.long
        _expect(sound, f"{name}.nodes", f"of shape [{n}] and int64", _form(self.nodes))

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
        place = self.node_types.index(self.target)
        return int(self.node_ptr[place + 1] - self.node_ptr[place])

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
            told = (self.target, self.num_classes, self.parts)
        else:  # nothing depends on the target then, nor on y, which is as long as that has nodes
            told = ("", self.num_classes, {name: part for name, part in self.parts.items() if name != "y"})
        return content_key("hetero graph", self.node_types, self.edge_types, *told)

    def relations(self, tie_names: bool = False) -> Relations:
        """The edges in the form that layers use, made when first asked for.

        Args:
            tie_names: whether relations of the same name between other node types share their weights, as in FedHGN's
                published code; each has its own otherwise.
        """
        if tie_names not in self._relations:
            place = {kind: place for place, kind in enumerate(self.weight_rows(tie_names))}
            of = [place[kind[1] if tie_names else kind] for kind in self.edge_types]
            rows = torch.tensor(of, dtype=torch.long, device=self.y.device)
            made = Relations.of(self.edge_index, self.edge_ptr, self.num_nodes, rows, len(place))
            self._relations[tie_names] = made
        return self._relations[tie_names]

    def weight_rows(self, tie_names: bool = False) -> list[Any]:
        """What each row of a layer's coefficients (or each of its weights) belongs to, see :meth:`relations`."""
        return list(dict.fromkeys(kind[1] for kind in self.edge_types)) if tie_names else list(self.edge_types)

    def model_sizes(self, tie_names: bool = False) -> dict[str, Any]:
        """Sizes of a model that the graph decides: nodes and features of each type (0 for none), weights of a layer."""
        return {
            "num_nodes": self.node_ptr.diff().tolist(),
            "num_features": [self.x[kind].size(1) if kind in self.x else 0 for kind in self.node_types],
            "num_relations": len(self.weight_rows(tie_names)),
        }

    # ------------------------------------------------------------------------------------------------ other graphs
    def _like(self, validate: bool = False, **changed: Any) -> HeteroGraph:
        schema = ("node_types", "node_ptr", "edge_types", "edge_ptr", "edge_index", "target", "num_classes", "name")
        fields = (*schema, "y", "train", "val", "test", "x", "nodes")
        return HeteroGraph(**{field: getattr(self, field) for field in fields} | changed, validate=validate)

    @property
    def labelled(self) -> bool:
        """Whether some node has a class; otherwise nothing depends on which type is the target."""
        return bool((self.y >= 0).any())

    @property
    def reverses(self) -> list[int]:
        """Numbers of the relations that are another relation turned round: of its name behind ``rev_``."""
        kinds = set(self.edge_types)
        return [
            number
            for number, (source, name, target) in enumerate(self.edge_types)
            if name.startswith(REVERSE) and (target, name.removeprefix(REVERSE), source) in kinds
        ]

    def with_reverse(self) -> HeteroGraph:
        """The same graph with every relation turned round as a new relation ``rev_...``, behind all others.

        Raises:
            InputError: a relation is turned round already.
        """
        taken = [self.edge_types[number][1] for number in self.reverses]
        expect(not taken, f"{self.name}.edge_types", "without reverse relations", ", ".join(taken[:3]))
        count = len(self.edge_types)
        kinds = [(target, REVERSE + name, source) for source, name, target in self.edge_types]
        flat = torch.cat([self.edge_index, self.edge_index.flip(0)], dim=1)
        relation = torch.cat([self.relation, self.relation + count])
        edge_index, edge_ptr = _sorted(flat, relation, 2 * count, self.num_nodes)
        return self._like(edge_types=(*self.edge_types, *kinds), edge_index=edge_index, edge_ptr=edge_ptr)

    def without_reverse(self) -> HeteroGraph:
        """The same graph without the relations that :attr:`reverses` names."""
        dropped = set(self.reverses)
        kept = [number for number in range(len(self.edge_types)) if number not in dropped]
        wanted = torch.zeros(len(self.edge_types), dtype=torch.bool, device=self.y.device)
        wanted[kept] = True
        return self._like(
            edge_types=[self.edge_types[number] for number in kept],
            edge_ptr=offsets(self.edge_ptr.diff()[wanted]),
            edge_index=self.edge_index[:, wanted[self.relation]],
        )

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
        used = torch.zeros(self.num_nodes, dtype=torch.bool, device=self.y.device)
        used[edge_index.flatten()] = True
        ptr = offsets(used.long())[self.node_ptr]
        counts, edge_counts = ptr.diff(), torch.bincount(relation, minlength=len(self.edge_types))
        alive = [kind for kind, count in zip(self.node_types, counts.tolist(), strict=True) if count]
        own, target, y = used[self.target_start : self.target_start + self.num_targets], self.target, self.y
        if alive and not bool(own.any()) and not self.labelled:  # then any type will do
            first = self.node_types.index(alive[0])
            target, own = alive[0], used[self.node_ptr[first] : self.node_ptr[first + 1]]
            y = self.y.new_full((own.numel(),), -1)
        _expect(bool(own.any()), name, f"a graph with nodes of the target type {self.target!r}", "one without")
        place = own.long().cumsum(0) - 1
        train, val, test = (place[index[own[index]]] for index in (self.train, self.val, self.test))
        members = dict(zip(self.node_types, used.split(self.node_ptr.diff().tolist()), strict=True))
        return self._like(
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

    def with_validation(self, fraction: float, seed: int) -> HeteroGraph:
        """The same graph with a random ``fraction`` of the training nodes (rounded) as validation nodes.

        A graph that has validation nodes is left as it is.
        """
        expect(0 <= fraction < 1, "data.val_fraction", "0 or more and below 1", fraction)
        held = round(fraction * self.train.numel())
        if self.val.numel() or not held:
            return self
        order = torch.randperm(self.train.numel(), generator=torch.Generator().manual_seed(seed))
        order = order.to(self.train.device)
        val, train = self.train[order[:held]].sort().values, self.train[order[held:]].sort().values
        return self._like(train=train, val=val)

    def renamed(self, node_names: Mapping[str, str], edge_names: Mapping[str, str]) -> HeteroGraph:
        """The same graph with other names of node types and relations; those that are not given stay."""
        of = lambda kind: node_names.get(kind, kind)  # noqa: E731
        return self._like(
            validate=True,
            node_types=[of(kind) for kind in self.node_types],
            edge_types=[(of(s), edge_names.get(name, name), of(t)) for s, name, t in self.edge_types],
            target=of(self.target),
            x={of(kind): x for kind, x in self.x.items()},
        )

    def reordered(self, node_order: Sequence[int], edge_order: Sequence[int]) -> HeteroGraph:
        """The same graph with node types and relations in another order, and nodes numbered accordingly."""
        for field, order, count in (
            ("node_order", node_order, len(self.node_types)),
            ("edge_order", edge_order, len(self.edge_types)),
        ):
            expect(sorted(order) == list(range(count)), field, f"all of 0 to {count - 1}", list(order))
        counts, edges, ptr = self.node_ptr.diff().tolist(), self.edges, self.node_ptr.tolist()
        return HeteroGraph.from_edges(
            {self.node_types[t]: counts[t] for t in node_order},
            {self.edge_types[r]: edges[self.edge_types[r]] for r in edge_order},
            self.target,
            self.y,
            self.train,
            self.val,
            self.test,
            self.num_classes,
            self.x,
            self.name,
            torch.cat([self.nodes[ptr[t] : ptr[t + 1]] for t in node_order]),
        )

    def canonical(self) -> HeteroGraph:
        """The same graph with node types and relations in an order that their contents decide.

        Two graphs that differ in the names or the order of their types alone become the same tensors, so that training
        on them draws the same weights and adds up in the same order. Contents are: which type is the target, numbers of
        nodes, features, edges, and the contents of the types up to two relations away. Types whose contents are equal
        stay in the order given.
        """
        counts, edges = dict(zip(self.node_types, self.node_ptr.diff().tolist(), strict=True)), self.edges
        target = self.target if self.labelled else None
        nodes = {t: content_key(count, t == target, self.x.get(t)) for t, count in counts.items()}
        links = {(s, name, t): content_key(s == t, edges[s, name, t]) for s, name, t in edges}
        for _ in range(2):
            beside = {kind: content_key(own, nodes[kind[0]], nodes[kind[2]]) for kind, own in links.items()}
            ends = {t: sorted((t == kind[0], t == kind[2], beside[kind]) for kind in links) for t in nodes}
            nodes = {t: content_key(own, [end for end in ends[t] if end[0] or end[1]]) for t, own in nodes.items()}
            links = beside
        node_order = sorted(range(len(nodes)), key=lambda t: nodes[self.node_types[t]])
        edge_order = sorted(range(len(links)), key=lambda r: links[self.edge_types[r]])
        if node_order == sorted(node_order) and edge_order == sorted(edge_order):
            return self
        return self.reordered(node_order, edge_order)

    def to(self, device: torch.device | str) -> HeteroGraph:
        """The same graph on another device (``self`` when it is there already)."""
        if self.y.device == torch.device(device):
            return self
        plain = ("node_ptr", "edge_ptr", "edge_index", "y", "train", "val", "test", "nodes")
        moved: dict[str, Any] = {field: getattr(self, field).to(device) for field in plain}
        return self._like(**moved, x={kind: part.to(device) for kind, part in self.x.items()})


def _sorted(edges: Tensor, relation: Tensor, num_relations: int, num_nodes: int) -> tuple[Tensor, Tensor]:
    """Edges ``[2, E]`` sorted by (relation, target, source), and where each relation begins ``[R + 1]``."""
    keys = (relation * num_nodes + edges[1]) * num_nodes + edges[0]
    counts = torch.bincount(relation, minlength=num_relations)
    return edges[:, keys.argsort(stable=True)], offsets(counts)


def _numbers(given: Tensor | None, count: int, field: str) -> Tensor:
    """Ascending node numbers of a mask ``[count]`` or of numbers."""
    if given is None:
        return torch.empty(0, dtype=torch.long)
    if given.dtype != torch.bool:
        return given.long().sort().values
    expect(given.shape == (count,), field, f"a mask of shape [{count}]", list(given.shape))
    return given.nonzero()[:, 0]


def _check_names(node_types: Mapping[Any, Any], edge_types: Mapping[Any, Any], name: str) -> None:
    for kind in node_types:
        expect(isinstance(kind, str), f"{name}.node_types", "strings", kind)
    for kind in edge_types:
        sound = isinstance(kind, tuple) and len(kind) == 3 and all(isinstance(part, str) for part in kind)
        expect(sound, f"{name}.edge_types", "(source type, name, target type), three strings,", kind)
        for end in (kind[0], kind[2]):
            expect(end in node_types, f"{name}.edge_types", f"between node types {', '.join(node_types)}", end)


def _expect(condition: bool, field: str, expected: str, got: str) -> None:
    """As :func:`~flgraph.errors.expect`, for what is told in words and not quoted."""
    if not condition:
        raise InputError(f"Expected `{field}` to be {expected} but got {got}.")


def _form(tensor: Tensor) -> str:
    return f"{list(tensor.shape)}, {str(tensor.dtype).removeprefix('torch.')}"
