"""One labelled set of graphs divided among clients, for learning without labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

import torch

from flgraph.data.figures import label_figure
from flgraph.data.graphs.container import FlatGraphs
from flgraph.data.graphs.datamodule import GraphDataModule, Graphs, ViewDataModule
from flgraph.data.graphs.diffusion import Diffusion
from flgraph.data.graphs.federation import GraphFederation
from flgraph.data.graphs.partition import emd_shards, label_emd, weighted_emd
from flgraph.data.graphs.readers import Features, read_tu
from flgraph.errors import expect

GlobalTest = Literal["first", "all", "none"]


class PartitionedGraphFederation(GraphFederation):
    """One set of graphs divided among clients of equal size that differ in their labels by a wanted amount.

    Clients are called ``client-1``, ``client-2`` and so on. Each has its graphs, all of them for training unless
    ``fractions`` says otherwise, and their diffusion as a second view. Defaults are those of FCLG (Li et al., 2023).

    Args:
        dataset: name of a TU data set, or any graphs (see :meth:`FlatGraphs.from_pyg`).
        num_clients: number of clients.
        emd: wanted weighted mean distance of the clients' label distributions from the overall one, see
            :func:`~flgraph.data.emd_shards`; ``None`` for equal shares (IID).
        tolerance: how far the reached distance may lie from ``emd``.
        partition_seed: of the partition; not the run's seed, so that runs differ in weights and batches only.
        diffusion: how the second view is made.
        global_test: who tests on the graphs of all clients together: the ``first`` client, which is enough where all
            use the same model, ``all`` clients, or nobody (``none``). Those that clients train on are among them:
            without labels it judges what was learned from them, with labels it would be no test.
        features: see :class:`TUFederation`.
        root: where data lies; ``FLGRAPH_DATA`` when ``None``.
        fractions: shares of the training, validation and test graphs of each client.
        split_seed: of these.
        batch_size: graphs per training batch.
        eval_batch_size: graphs per batch otherwise.
        partition: a file that says which graphs are whose, see :class:`GraphFederation`; ``num_clients``, ``emd`` and
            the splits then have no effect.
        name: how runs on this data are called; data set and distance when ``None``.

    Attributes:
        statistics: the reached and the wanted ``emd``, and figures of each client, among them ``train_labels``,
            training graphs per class; empty before ``setup``. For simulations, see :class:`NodeFederation`.

    Raises:
        InputError: data cannot be had, a setting cannot be used, or the distance cannot be reached.
    """

    def __init__(
        self,
        dataset: str | Graphs,
        num_clients: int = 6,
        emd: float | None = None,
        tolerance: float = 0.005,
        partition_seed: int = 123,
        diffusion: Diffusion = Diffusion(),  # noqa: B008 - frozen
        global_test: GlobalTest = "first",
        features: Features = "auto",
        root: str | None = None,
        fractions: Sequence[float] = (1.0, 0.0, 0.0),
        split_seed: int = 123,
        batch_size: int = 128,
        eval_batch_size: int = 512,
        partition: str | None = None,
        name: str | None = None,
    ) -> None:
        expect(isinstance(diffusion, Diffusion), "data.diffusion", "a Diffusion", type(diffusion).__name__)
        if not isinstance(dataset, str | FlatGraphs):
            dataset = FlatGraphs.from_pyg(dataset)
        title = dataset if isinstance(dataset, str) else dataset.name
        name = name or f"{title}-{'iid' if emd is None else f'emd{emd:g}'}".lower()
        super().__init__(
            {},
            name=name,
            structure="none",
            fractions=fractions,
            split_seed=split_seed,
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            partition=partition,
            diffusion=diffusion,
        )
        self.hparams["dataset"] = title
        expect(global_test in get_args(GlobalTest), "data.global_test", "first, all or none", global_test)
        expect(num_clients >= 1, "data.num_clients", "1 or more", num_clients)
        expect(emd is None or 0 <= emd <= 2, "data.emd", "from 0 to 2, or null for equal shares", emd)
        self.dataset, self.root, self.features = dataset, root, features
        self.partition_args: dict[str, Any] = {
            "num_clients": num_clients,
            "emd": emd,
            "tolerance": tolerance,
            "partition_seed": partition_seed,
        }
        self.global_test = global_test
        self._everywhere: FlatGraphs | None = None
        self.statistics: dict[str, Any] = {}

    def figures(self) -> dict[str, Any]:
        """Tag to matplotlib figure of the partition, for TensorBoard; known after ``setup``."""
        return {"partition/labels": label_figure(self.statistics, unit="graphs")}

    def setup(self, stage: str | None = None) -> None:
        """Reads the graphs, diffuses and assigns them, once."""
        if not self._clients:
            super().setup(stage)
            self.statistics = self._describe()

    def load(self) -> Iterable[tuple[str, FlatGraphs, int]]:
        """Client name, graphs and number of classes of every client."""
        graphs = self.dataset
        if isinstance(graphs, str):
            graphs = read_tu(graphs, self.root, self.features)
        graphs = self.embed(graphs)
        self._everywhere = graphs
        self.note_total(graphs)
        if self._saved is not None:
            yield from ((name, graphs, graphs.num_classes) for name in self._saved.names)
            return
        args = self.partition_args
        parts = emd_shards(
            graphs.y, args["num_clients"], args["emd"], args["partition_seed"], args["tolerance"], min_size=2
        )
        for number, index in enumerate(parts, start=1):
            self._taken[f"client-{number}"] = index
            yield f"client-{number}", graphs.select(index), graphs.num_classes

    def _make(self, name: str, graphs: FlatGraphs, num_classes: int) -> GraphDataModule:
        data = super()._make(name, graphs, num_classes)
        assert isinstance(data, ViewDataModule)
        data.settings |= {**self.partition_args, "global_test": self.global_test}
        if self.global_test == "all" or (self.global_test == "first" and name == "client-1"):
            data.everywhere = self._everywhere
        return data

    def _describe(self) -> dict[str, Any]:
        own = self._clients.items()
        classes = next(iter(self._clients.values())).num_classes
        counts = torch.stack([torch.bincount(data.graphs.y, minlength=classes) for _, data in own])
        overall = counts.sum(0) / counts.sum()
        clients = {
            name: {
                "graphs": len(data.graphs),
                "train": data.train.numel(),
                "val": data.val.numel(),
                "test": data.test.numel(),
                "train_labels": torch.bincount(data.graphs.y[data.train], minlength=classes).tolist(),
                "emd": label_emd(row / row.sum(), overall),
            }
            for (name, data), row in zip(own, counts, strict=True)
        }
        return {"emd": weighted_emd(counts), "wanted_emd": self.partition_args["emd"], "clients": clients}
