"""One client's graphs as a Lightning datamodule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from pytorch_lightning.utilities import rank_zero_warn
from torch import Tensor
from torch_geometric.data import Data

from flgraph.data.cache import content_key
from flgraph.data.checks import expect_classes, require
from flgraph.data.federation import ClientDataModule
from flgraph.data.graphs.batching import GraphLoader
from flgraph.data.graphs.container import FlatGraphs
from flgraph.data.graphs.scores import wl_scores
from flgraph.data.splits import check_splits, split_of, stratified_split
from flgraph.errors import expect

Graphs = FlatGraphs | Iterable[Data]


class GraphDataModule(ClientDataModule):
    """One client's labelled graphs, split three ways; goes with any Trainer, federated or not.

    Args:
        graphs: a flat set or any iterable of PyG graphs with ``x``, ``edge_index`` and a scalar ``y``; of graphs with
            several labels or numbers a flat set, see :meth:`FlatGraphs.from_pyg`.
        splits: index tensors of the training, validation and test graphs; a stratified 80 / 10 / 10 split when
            ``None``.
        num_classes: number of classes; largest label + 1 when ``None``; 0 where nobody has labelled the graphs.
        batch_size: graphs per training batch.
        eval_batch_size: graphs per batch otherwise.
        settings: plain values that describe how the data was made; a stopped run can only be continued with the same.
        wl_scores: whether batches have ``wl_scores``, what training graphs that look alike say of each graph's class,
            see :func:`~flgraph.data.graphs.scores.wl_scores`.

    Raises:
        InputError: the data is empty or malformed, a label is not below ``num_classes``, or there is nothing to train
            on; ``wl_scores`` of graphs that do not have one class each.
    """

    ids: Sequence[str] = ()
    """Names of the graphs, where their owner's files have some; predictions are of these."""

    numbers: Tensor | None = None
    """Numbers of the graphs in the data that they were taken from ``[G]``; 0 and so on when ``None``."""

    def __init__(
        self,
        graphs: Graphs,
        splits: tuple[Tensor, Tensor, Tensor] | None = None,
        num_classes: int | None = None,
        batch_size: int = 128,
        eval_batch_size: int = 512,
        settings: Mapping[str, Any] | None = None,
        wl_scores: bool = False,
    ) -> None:
        super().__init__()
        self.graphs = graphs if isinstance(graphs, FlatGraphs) else FlatGraphs.from_pyg(graphs)
        self.num_classes = self.graphs.num_classes if num_classes is None else num_classes
        if self.graphs.task == "multiclass":
            expect_classes(self.graphs.y, f"{self.graphs.name}.y", 0, max(self.num_classes - 1, 0))
        self.train, self.val, self.test = splits or stratified_split(self.graphs.y)
        named = {"train": self.train, "val": self.val, "test": self.test}
        check_splits(len(self.graphs), "graph", self.graphs.name, **named)
        require(self.train.numel() > 0, "data", f"at least one training graph in `{self.graphs.name}`", "none")
        self.batch_size, self.eval_batch_size = batch_size, eval_batch_size
        classes = not wl_scores or self.graphs.task == "multiclass"
        expect(classes, "data.wl_scores", "false, or graphs of one class each", self.graphs.task)
        self.wl_scores = wl_scores
        self._scores: tuple[FlatGraphs, Tensor, FlatGraphs] | None = None  # what they are of, and the graphs with them
        further = [] if self.graphs.edge_attr is None else [self.graphs.edge_attr]
        tensors = (self.graphs.x, self.graphs.edge_index, self.graphs.y, self.train, self.val, self.test)
        content = content_key(*tensors, *further)
        self.settings = {
            "num_graphs": len(self.graphs), "batch_size": batch_size, "content": content[:16],
            **({"wl_scores": True} if wl_scores else {}), **(settings or {})
        }  # fmt: skip

    @property
    def num_train_samples(self) -> int:
        """Number of training graphs, the client's weight in averages."""
        return self.train.numel()

    @property
    def model_args(self) -> dict[str, Any]:
        """Sizes that the data decides."""
        sizes: dict[str, Any] = {"in_channels": self.graphs.num_features, "num_classes": self.num_classes}
        if self.graphs.task != "multiclass":
            sizes["task"] = self.graphs.task
        if self.graphs.edge_attr is not None:
            sizes["edge_channels"] = self.graphs.edge_attr.size(1)
        if "s" in self.graphs.node_tensors:
            sizes["structure_channels"] = self.graphs.node_tensors["s"].size(1)
        return sizes

    def to(self, device: torch.device | str) -> GraphDataModule:
        """Moves the graphs, so that batches are cut on that device."""
        self.graphs = self.graphs.to(device)
        self.train, self.val, self.test = (index.to(device) for index in (self.train, self.val, self.test))
        return self

    def train_dataloader(self) -> GraphLoader:
        """Shuffled batches of the training graphs."""
        return GraphLoader(self._scored(), self.train, self.batch_size, shuffle=True)

    def val_dataloader(self) -> GraphLoader:
        """Batches of the validation graphs."""
        return GraphLoader(self._scored(), self.val, self.eval_batch_size)

    def test_dataloader(self) -> GraphLoader:
        """Batches of the test graphs."""
        return GraphLoader(self._scored(), self.test, self.eval_batch_size)

    def predict_dataloader(self) -> GraphLoader:
        """Batches of all graphs, in their order in the data."""
        index = torch.arange(len(self.graphs), device=self.graphs.x.device)
        return GraphLoader(self._scored(), index, self.eval_batch_size)

    def _scored(self) -> FlatGraphs:
        """The graphs, with ``wl_scores`` where these are wanted: found once for what graphs and splits there are."""
        if not self.wl_scores:
            return self.graphs
        if self._scores is None or self._scores[0] is not self.graphs or self._scores[1] is not self.train:
            scores = {"wl_scores": wl_scores(self.graphs, self.train, self.num_classes)}
            self._scores = self.graphs, self.train, self.graphs.with_tensors(graph_tensors=scores)
        return self._scores[2]

    @property
    def prediction_rows(self) -> dict[str, list[Any]]:
        """All graphs by their numbers in the data, their ids, and the split that each is in."""
        count, ids = len(self.graphs), {"id": list(self.ids)} if self.ids else {}
        splits = split_of(count, train=self.train, val=self.val, test=self.test)
        numbers = list(range(count)) if self.numbers is None else self.numbers.tolist()
        return {"graph": numbers, **ids, "split": splits}


class ViewDataModule(GraphDataModule):
    """One client's graphs with a second view of each; goes with any Trainer, federated or not.

    No training batch holds a single graph, which would have no negatives: where one is left over, the batch before
    takes it.

    Args:
        *args: see :class:`GraphDataModule`; graphs with the view ``diffused``.
        everywhere: graphs that a second test loader gives, such as those of all clients; ``None`` for none.
        **kwargs: see there.

    Raises:
        InputError: as :class:`GraphDataModule`, and where there is a single training graph.
    """

    def __init__(self, *args: Any, everywhere: FlatGraphs | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        name = self.graphs.name
        wanted = f"two training graphs or more in `{name}`, the negatives of each other,"
        require(self.train.numel() > 1, "data", wanted, "one")
        single = "2 or more: a batch of one graph has no negatives"
        expect(self.batch_size > 1, "data.batch_size", single, self.batch_size)
        if self.val.numel() == 1:
            rank_zero_warn(f"Nothing is validated of `{name}`: a single validation graph has no negatives.")
        self.everywhere = everywhere

    def to(self, device: torch.device | str) -> ViewDataModule:
        """Moves the graphs, so that batches are cut on that device."""
        super().to(device)
        self.everywhere = None if self.everywhere is None else self.everywhere.to(device)
        return self

    def train_dataloader(self) -> GraphLoader:
        """Shuffled batches of the training graphs."""
        return GraphLoader(self.graphs, self.train, self.batch_size, shuffle=True, min_batch=2)

    def val_dataloader(self) -> GraphLoader:
        """Batches of the validation graphs."""
        return GraphLoader(self.graphs, self.val, self.eval_batch_size, min_batch=2)

    def test_dataloader(self) -> GraphLoader | list[GraphLoader]:  # type: ignore[override]
        """Batches of the test graphs and, where there are any, of the graphs of everywhere (``global_test``)."""
        local = super().test_dataloader()
        if self.everywhere is None:
            return local
        index = torch.arange(len(self.everywhere), device=self.everywhere.x.device)
        everywhere = GraphLoader(self.everywhere, index, self.eval_batch_size, stage="global_test")
        return [local, everywhere] if len(local) else everywhere
