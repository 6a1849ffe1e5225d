"""Links of a heterogeneous graph to be predicted: which are held out, and the negatives that they compete with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flgraph.data.checks import check_held_out, edge_keys, require
from flgraph.data.federation import ClientDataModule
from flgraph.data.hetero.batching import LinkLoaders
from flgraph.data.hetero.container import EdgeType, HeteroGraph
from flgraph.data.hetero.schema import model_sizes, with_reverse, without_reverse
from flgraph.data.negatives import draw_apart
from flgraph.errors import expect
from flgraph.nn.batches import LinkBatch
from flgraph.nn.sparse.adjacency import offsets


class HeteroLinkDataModule(LinkLoaders, ClientDataModule):
    """One client's heterogeneous graph for link prediction; goes with any Trainer, federated or not.

    A random part of the edges of each predicted relation is held out for validation, another for the test; all edges
    that join the same two nodes are taken out with them, whatever their direction and relation. Messages go along all
    other edges, and these are what is trained on. A held-out link competes with ``num_negatives`` random nodes of its
    target's type that it does not join in this relation, always the same ones.

    Args:
        graph: the graph; reverse relations are taken out and added anew, labels are not looked at.
        predicted: the relations to predict, by name or (source type, name, target type); all when ``None``.
        val_fraction: share of the edges of each relation to validate on, rounded; those that go together count once.
        test_fraction: share to test on, rounded.
        num_negatives: what each held-out link competes with.
        seed: of what is held out and of what it competes with.
        reverse: whether to add reverse relations.
        tie_names: see :meth:`HeteroGraph.relations`.
        settings: plain values that describe how the data was made.

    Raises:
        InputError: a setting cannot be used, or nothing is left to train on.
    """

    ids: Mapping[str, Sequence[str]] = MappingProxyType({})
    """As :attr:`HeteroDataModule.ids`."""

    def __init__(
        self,
        graph: HeteroGraph,
        predicted: Sequence[str | EdgeType] | None = None,
        val_fraction: float = 0.1,
        test_fraction: float = 0.1,
        num_negatives: int = 50,
        seed: int = 123,
        reverse: bool = True,
        tie_names: bool = False,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        check_held_out(val_fraction, test_fraction, num_negatives, seed)
        whole = without_reverse(graph)
        wanted = _wanted(whole, predicted)
        generator = torch.Generator().manual_seed(seed)
        part = _split(whole, wanted, val_fraction, test_fraction, generator)
        kept = _subgraph(whole, part == 0)
        self.graph, self.tie_names = with_reverse(kept) if reverse else kept, tie_names
        chosen = {
            split: ((part == number) & wanted[whole.relation]).nonzero()[:, 0]
            for number, split in enumerate(("train", "val", "test"))
        }
        self._links = {split: self._batch(whole, index) for split, index in chosen.items()}
        self._edge_types, self._test_relation = whole.edge_types, whole.relation[chosen["test"]]
        self._test_ends = whole.nodes[whole.edge_index[:, chosen["test"]]]
        require(self.num_train_samples > 0, "data", f"at least one link to train on in `{graph.name}`", "none")
        for split in ("val", "test"):
            batch = self._links[split]
            drawn = _negatives(whole, batch, num_negatives, self._row_of(whole), generator)
            self._links[split] = replace(batch, negatives=drawn)
        self.settings = {
            "num_nodes": graph.num_nodes,
            "tie_names": tie_names,
            "content": graph.content[:16],
            "predicted": [name for name, chosen in zip(whole.edge_types, wanted.tolist(), strict=True) if chosen],
            "held_out": [val_fraction, test_fraction, num_negatives, seed],
            **(settings or {}),
        }

    @property
    def weight_rows(self) -> list[Any]:
        """Which relation each row of a layer's coefficients belongs to."""
        return self.graph.weight_rows(self.tie_names)

    @property
    def model_args(self) -> dict[str, Any]:
        """Sizes that the data decides: nodes and features of each type (0 for none), weights of a layer."""
        return model_sizes(self.graph, self.tie_names)

    def to(self, device: torch.device | str) -> HeteroLinkDataModule:
        """Moves all batches to that device."""
        self._links = {split: batch.to(device) for split, batch in self._links.items()}
        return self

    @property
    def prediction_rows(self) -> dict[str, list[Any]]:
        """The test's links, nodes by their numbers within their types in the graph that the client's was cut from."""
        kinds = [self._edge_types[number] for number in self._test_relation.tolist()]
        columns = enumerate(("source_type", "relation", "target_type"))
        names = {heading: [kind[column] for kind in kinds] for column, heading in columns}
        source, target = self._test_ends.tolist()
        ends = {"source": (0, source), "target": (2, target)}
        ids = {
            f"{end}_id": [self.ids[kind[place]][node] for kind, node in zip(kinds, nodes, strict=True)]
            for end, (place, nodes) in (ends.items() if self.ids else ())
        }
        return {**names, "source": source, "target": target, **ids}

    def _row_of(self, whole: HeteroGraph) -> Tensor:
        """Which weight each relation of the whole graph has ``[R]``; forward relations come first in both."""
        row = {kind: number for number, kind in enumerate(self.weight_rows)}
        return torch.tensor([row[kind[1] if self.tie_names else kind] for kind in whole.edge_types])

    def _batch(self, whole: HeteroGraph, chosen: Tensor) -> LinkBatch:
        x = tuple(self.graph.x.get(kind) for kind in self.graph.node_types)
        source, target = whole.edge_index[:, chosen]
        relation = whole.relation[chosen]
        ends = torch.tensor([whole.node_types.index(kind[2]) for kind in whole.edge_types])[relation]
        first, count = whole.node_ptr[ends], whole.node_ptr.diff()[ends]
        relations = self.graph.relations(self.tie_names)
        row = self._row_of(whole)[relation]
        return LinkBatch(x, relations, source, target, row, first, count, schema=self.graph.schema)


def _wanted(graph: HeteroGraph, predicted: Sequence[str | EdgeType] | None) -> Tensor:
    """Which relations are predicted ``[R]``."""
    if predicted is None:
        return torch.ones(len(graph.edge_types), dtype=torch.bool)
    known = {kind[1] for kind in graph.edge_types} | set(graph.edge_types)
    chosen = {name if isinstance(name, str) else tuple(name) for name in predicted}
    for name in chosen:
        expect(name in known, "data.links.predicted", f"among {', '.join(kind[1] for kind in graph.edge_types)}", name)
    return torch.tensor([kind in chosen or kind[1] in chosen for kind in graph.edge_types], dtype=torch.bool)


def _split(graph: HeteroGraph, wanted: Tensor, val: float, test: float, generator: torch.Generator) -> Tensor:
    """0 for edges to train on, 1 for validation, 2 for the test ``[E]``; of each relation the same shares of pairs.

    Relations of AIFB tell of each other, and so all edges between two nodes are in one part: that of the first
    relation which has such an edge.
    """
    pair = edge_keys(graph.edge_index.sort(dim=0).values, graph.num_nodes).unique(return_inverse=True)[1]
    part = torch.full((graph.num_edges,), -1)  # of each pair
    for own, chosen in zip(pair.split(graph.edge_ptr.diff().tolist()), wanted.tolist(), strict=True):
        if not chosen:
            continue
        left = own[part[own] < 0]
        new = left[np.sort(np.unique(left.numpy(), return_index=True)[1])]  # in the order of their first edges
        order, held = new[torch.randperm(new.numel(), generator=generator)], round(val * new.numel())
        part[new] = 0
        part[order[:held]] = 1
        part[order[held : held + round(test * new.numel())]] = 2
    return part.clamp(min=0)[pair]


def _subgraph(graph: HeteroGraph, kept: Tensor) -> HeteroGraph:
    """Some of the edges; all nodes and relations stay, also where nothing is left of them."""
    counts = torch.bincount(graph.relation[kept], minlength=len(graph.edge_types))
    return graph.replace(edge_index=graph.edge_index[:, kept], edge_ptr=offsets(counts))


def _negatives(graph: HeteroGraph, batch: LinkBatch, k: int, row_of: Tensor, generator: torch.Generator) -> Tensor:
    """Nodes of the targets' types that the sources do not join in the links' relations, nor are ``[P, k]``."""
    n = graph.num_nodes
    base = ((batch.row * n + batch.source) * n).unsqueeze(1)
    keys = torch.cat([edge_keys(graph.edge_index, n, row_of[graph.relation]), base[:, 0] + batch.source]).unique()

    def drawn() -> Tensor:
        share = torch.rand(batch.target.numel(), k, generator=generator, dtype=torch.float64)
        return batch.first.unsqueeze(1) + (share * batch.count.unsqueeze(1)).long()

    return draw_apart(drawn, base, keys)
