"""Loaders of heterogeneous graphs: one batch per pass, always the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from flgraph.data.hetero.container import HeteroGraph
from flgraph.nn.batches import GraphLinks, HeteroBatch, LinkBatch


class HeteroLoader:
    """A whole graph, with some nodes of the target type to classify.

    Args:
        graph: the graph.
        index: nodes to classify ``[n]``, numbers within the target type.
        tie_names: see :meth:`HeteroGraph.relations`.
    """

    def __init__(self, graph: HeteroGraph, index: Tensor, tie_names: bool = False) -> None:
        self.graph, self.index, self.tie_names = graph, index, tie_names
        self._batch: HeteroBatch | None = None

    def __len__(self) -> int:
        return min(1, self.index.numel())

    def __iter__(self) -> Iterator[HeteroBatch]:
        if self._batch is None and len(self):
            with torch.inference_mode(False):  # an evaluation may come first, and training uses the same relations
                self._batch = self.graph.batch(self.index, self.tie_names)
        if self._batch is not None:
            yield self._batch


class LinkLoader:
    """Links of a graph."""

    def __init__(self, batch: LinkBatch | GraphLinks) -> None:
        self.batch = batch

    def __len__(self) -> int:
        return min(1, self.batch.target.numel())

    def __iter__(self) -> Iterator[LinkBatch | GraphLinks]:
        if len(self):
            yield self.batch


class LinkLoaders:
    """What a client's data has whose links are to be predicted: a loader of each split of them."""

    _links: dict[str, Any]

    @property
    def num_train_samples(self) -> int:
        """Number of links to train on, the client's weight in averages."""
        count: int = self._links["train"].target.numel()
        return count

    def train_dataloader(self) -> LinkLoader:
        """The links to train on."""
        return LinkLoader(self._links["train"])

    def val_dataloader(self) -> LinkLoader:
        """Held-out links for validation, with what they compete with."""
        return LinkLoader(self._links["val"])

    def test_dataloader(self) -> LinkLoader:
        """Held-out links for the test, with what they compete with."""
        return LinkLoader(self._links["test"])

    def predict_dataloader(self) -> LinkLoader:
        """As for the test."""
        return self.test_dataloader()
