"""Links of one graph to be predicted: which are held out, and the negatives that they compete with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flgraph.data.checks import check_held_out, edge_keys, require, warn_of_unused
from flgraph.data.hetero.batching import LinkLoaders
from flgraph.data.negatives import draw_apart
from flgraph.data.nodes.container import NodeGraph
from flgraph.data.nodes.datamodule import NodeDataModule
from flgraph.nn.batches import GraphLinks


class LinkDataModule(LinkLoaders, NodeDataModule):  # type: ignore[misc]  # other loaders
    """A client's graph for link prediction; goes with any Trainer, federated or not.

    A random part of the edges is held out for validation, another for the test. Messages go along all others, and these
    are what is trained on. A held-out link competes with ``num_negatives`` random nodes that its source is not joined
    to, always the same ones. An undirected edge is one link; which of its ends is the source is drawn.

    Args:
        graph: the client's graph; labels are not looked at.
        *splits: of the nodes, which play no part.
        val_fraction: share of the links to validate on, rounded.
        test_fraction: share to test on, rounded.
        num_negatives: what each held-out link competes with.
        seed: of all draws.
        **kwargs: see :class:`~flgraph.data.NodeDataModule`.

    Raises:
        InputError: a setting cannot be used, or nothing is left to train on.
    """

    def __init__(
        self,
        graph: NodeGraph,
        *splits: Any,
        val_fraction: float = 0.1,
        test_fraction: float = 0.1,
        num_negatives: int = 50,
        seed: int = 123,
        **kwargs: Any,
    ) -> None:
        check_held_out(val_fraction, test_fraction, num_negatives, seed)
        if graph.edge_attr is not None:
            warn_of_unused(["features of edges"], graph.name)
        generator = torch.Generator().manual_seed(seed)
        edges = graph.edge_index
        keys = edge_keys(edges, graph.num_nodes)
        # Of two directions one: the other one would tell of it.
        turned = torch.isin(edge_keys(edges.flip(0), graph.num_nodes), keys)
        once = edges[:, (edges[0] < edges[1]) | ~turned]
        count = once.size(1)
        held = (round(val_fraction * count), round(test_fraction * count))
        order = torch.randperm(count, generator=generator)
        val, test, rest = (once[:, part] for part in order.split([*held, count - sum(held)]))
        require(rest.numel() > 0, "data", f"at least one link to train on in `{graph.name}`", "none")
        held_out = edge_keys(torch.cat([val, test], dim=1), graph.num_nodes)
        gone = torch.isin(keys, held_out) | torch.isin(edge_keys(edges.flip(0), graph.num_nodes), held_out)
        kept = edges[:, ~gone]
        kept = kept[:, edge_keys(kept, graph.num_nodes).argsort()]
        links = {"val_fraction": val_fraction, "test_fraction": test_fraction, "num_negatives": num_negatives}
        own = {"links": {**links, "seed": seed}, "whole": graph.content[:16]}
        further = {**kwargs, "settings": {**(kwargs.get("settings") or {}), **own}}
        super().__init__(graph._like(edge_index=kept, edge_attr=None), *splits, **further)
        loops = torch.arange(graph.num_nodes) * (graph.num_nodes + 1)
        self._taken = torch.cat([keys, loops])
        chosen = {"train": rest, "val": val, "test": test}
        self._links = {name: self._batch(ends, name, num_negatives, generator) for name, ends in chosen.items()}

    def _batch(self, ends: Tensor, split: str, num_negatives: int, generator: torch.Generator) -> GraphLinks:
        n, count = self.graph.num_nodes, ends.size(1)
        if self.graph.undirected:
            turned = torch.rand(count, generator=generator) < 0.5
            ends = torch.where(turned, ends.flip(0), ends)
        negatives = None
        if split != "train":
            draw = lambda: torch.randint(n, (count, num_negatives), generator=generator)  # noqa: E731
            negatives = draw_apart(draw, ends[0].unsqueeze(1) * n, self._taken)
        graph = self.graph.batch(torch.arange(n))
        return GraphLinks(graph.x, graph.adj, graph.nodes, ends[0], ends[1], negatives)

    @property
    def model_args(self) -> dict[str, Any]:
        """Sizes that the data decides."""
        return {"in_channels": self.graph.num_features}

    def to(self, device: torch.device | str) -> LinkDataModule:
        """Moves all batches to that device."""
        super().to(device)
        self._links = {split: batch.to(device) for split, batch in self._links.items()}
        return self

    @property
    def prediction_rows(self) -> dict[str, list[Any]]:
        """The test's links, nodes by their numbers in the graph that the client's was cut from, and by their ids."""
        batch, nodes = self._links["test"], self.graph.nodes
        ends = {"source": batch.source, "target": batch.target}
        ids = self.graph.keys.get("id")
        named = {} if ids is None else {f"{end}_id": ids[index.cpu()].tolist() for end, index in ends.items()}
        return {**{end: nodes[index].tolist() for end, index in ends.items()}, **named}
