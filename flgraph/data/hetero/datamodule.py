"""Heterogeneous graphs as Lightning datamodules: one client's, and a whole federation's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor

from flgraph.data.checks import require, warn_of_common
from flgraph.data.federation import ClientDataModule, Federation
from flgraph.data.hetero.batching import HeteroLoader
from flgraph.data.hetero.container import HeteroGraph
from flgraph.data.hetero.links import HeteroLinkDataModule
from flgraph.data.hetero.partition import HeteroPartition, random_edge_types, random_edges, with_validation
from flgraph.data.hetero.readers import read_hetero
from flgraph.data.hetero.schema import canonical, model_sizes, without_reverse
from flgraph.data.partition_file import file_title, find_partition, is_partition_file, warn_of_count
from flgraph.data.splits import split_of
from flgraph.data.statistics import hetero_statistics
from flgraph.errors import expect
from flgraph.nn.tasks import check_task

HeteroTask = Literal["nodes", "links"]
"""Classes of nodes, or links, are predicted."""

_PARTITIONERS = {"random_edges": random_edges, "random_edge_types": random_edge_types}


class HeteroDataModule(ClientDataModule):
    """One client's heterogeneous graph for full-batch training; goes with any Trainer, federated or not.

    Args:
        graph: the client's graph, with its splits.
        tie_names: see :meth:`HeteroGraph.relations`.
        settings: plain values that describe how the data was made; a stopped run can only be continued with the same.

    Raises:
        InputError: there is nothing to train on.
    """

    ids: Mapping[str, Sequence[str]] = MappingProxyType({})
    """Of each type, names of its nodes, where their owner's files have some; predictions are of these."""

    def __init__(self, graph: HeteroGraph, tie_names: bool = False, settings: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        require(graph.train.numel() > 0, "data", f"at least one training node in `{graph.name}`", "none")
        self.graph, self.tie_names = graph, tie_names
        self.settings = {
            "num_nodes": graph.num_nodes,
            "tie_names": tie_names,
            "content": graph.content[:16],
            **(settings or {}),
        }
        self._loaders: dict[str, HeteroLoader] = {}

    @property
    def num_train_samples(self) -> int:
        """Number of training nodes, the client's weight in averages."""
        return self.graph.train.numel()

    @property
    def weight_rows(self) -> list[Any]:
        """Which relation each row of a layer's coefficients, or each of its weights, belongs to."""
        return self.graph.weight_rows(self.tie_names)

    @property
    def model_args(self) -> dict[str, Any]:
        """Sizes that the data decides: nodes and features of each type (0 for none), weights of a layer, classes."""
        return {**model_sizes(self.graph, self.tie_names), "num_classes": self.graph.num_classes}

    def to(self, device: torch.device | str) -> HeteroDataModule:
        """Moves the graph, so that batches are made on that device."""
        moved = self.graph.to(device)
        if moved is not self.graph:
            self.graph = moved
            self._loaders.clear()
        return self

    def train_dataloader(self) -> HeteroLoader:
        """The training nodes."""
        return self._loader("train", self.graph.train)

    def val_dataloader(self) -> HeteroLoader:
        """The validation nodes."""
        return self._loader("val", self.graph.val)

    def test_dataloader(self) -> HeteroLoader:
        """The test nodes."""
        return self._loader("test", self.graph.test)

    def predict_dataloader(self) -> HeteroLoader:
        """All nodes of the target type, labelled or not."""
        return self._loader("predict", torch.arange(self.graph.num_targets, device=self.graph.y.device))

    @property
    def prediction_rows(self) -> dict[str, list[Any]]:
        """The target type's nodes by their numbers in the graph that the client's was cut from, ids and splits."""
        graph, count = self.graph, self.graph.num_targets
        nodes = graph.nodes.narrow(0, graph.target_start, count).tolist()
        ids = {"id": [self.ids[graph.target][node] for node in nodes]} if self.ids else {}
        return {"node": nodes, **ids, "split": split_of(count, train=graph.train, val=graph.val, test=graph.test)}

    def _loader(self, stage: str, index: Tensor) -> HeteroLoader:
        if stage not in self._loaders:
            self._loaders[stage] = HeteroLoader(self.graph, index, self.tie_names)
        return self._loaders[stage]


HeteroClientData = HeteroDataModule | HeteroLinkDataModule


def client_data(
    task: HeteroTask,
    graph: HeteroGraph,
    tie_names: bool,
    settings: Mapping[str, Any] | None,
    links: Mapping[str, Any],
) -> HeteroClientData:
    """A client's data for a task; ``links`` are further arguments of :class:`HeteroLinkDataModule`."""
    if task == "nodes":
        return HeteroDataModule(graph, tie_names, settings)
    return HeteroLinkDataModule(graph, tie_names=tie_names, settings=settings, **links)


class HeteroFederation(Federation[HeteroClientData]):
    """One heterogeneous graph whose edges are assigned to clients (FedHGN, Fu and King, IJCAI 2023, Appendix A).

    Clients are called ``client-1``, ``client-2`` and so on; each has a schema of its own: the relations of its edges
    and the node types that these join, in the order of their contents (see :class:`~flgraph.data.HeteroClients`).

    Args:
        dataset: a name that :func:`~flgraph.data.read_hetero` knows, or any graph, for example
            ``HeteroGraph.from_pyg(data, "author")``.
        root: where data lies; ``FLGRAPH_DATA`` when ``None``.
        num_clients: number of clients.
        partition: how edges are assigned, see :func:`~flgraph.data.random_edges` and
            :func:`~flgraph.data.random_edge_types`; ``"none"`` gives all edges to a single client, for centralised
            training on the union of the clients' graphs (with ``num_clients`` 1, the same validation and test nodes);
            or a file ``.npz`` of a saved :class:`~flgraph.data.HeteroPartition` of this graph, whose number of clients
            counts. Every run writes one, ``partition.npz``.
        partition_seed: of the partition and of the validation nodes; not the run's seed, so that runs differ in
            weights only.
        val_fraction: share of the training nodes to validate on, where the graph has no validation nodes.
        reverse: whether each client gets reverse relations ``rev_...``; those of the whole graph are left out before.
        tie_names: whether relations of the same name between other node types share their weights, as in the published
            code; in the paper each has its own.
        name: how runs on this data are called; data set and partition when ``None``.
        task: ``"nodes"`` to classify nodes, ``"links"`` to predict links. Each client holds out links of its own; those
            that FedHGN's partitions give to several clients may be in another's training, and a warning says so.
        num_negatives: for links, what each held-out one competes with.

    Attributes:
        statistics: what :func:`~flgraph.data.hetero_statistics` returns, and the partition's digest; empty before
            ``setup``.

    Raises:
        InputError: data cannot be had, a setting cannot be used, or a client would have nothing to train on.
    """

    def __init__(
        self,
        dataset: str | HeteroGraph,
        root: str | None = None,
        num_clients: int = 3,
        partition: str = "random_edges",
        partition_seed: int = 123,
        val_fraction: float = 0.2,
        reverse: bool = True,
        tie_names: bool = False,
        name: str | None = None,
        task: HeteroTask = "nodes",
        num_negatives: int = 50,
    ) -> None:
        wanted = "the name of a data set or a HeteroGraph, for example HeteroGraph.from_pyg(data, target),"
        expect(isinstance(dataset, str | HeteroGraph), "data.dataset", wanted, type(dataset).__name__)
        title = dataset if isinstance(dataset, str) else dataset.name
        self._saved = HeteroPartition.load(find_partition(partition, root)) if is_partition_file(partition) else None
        kinds = (*_PARTITIONERS, "none")
        how = f"one of {', '.join(kinds)}, or a file .npz"
        expect(self._saved is not None or partition in kinds, "data.partition", how, partition)
        drawn = "whole" if partition == "none" else f"{partition}-{num_clients}"
        suffix = drawn if self._saved is None else file_title(partition)
        super().__init__(name or f"{title}-{suffix}".lower().replace("_", "-"), title)
        check_task(task, "data.task", HeteroTask)
        expect(0 <= val_fraction < 1, "data.val_fraction", "0 or more and below 1", val_fraction)
        one = partition != "none" or num_clients == 1
        expect(one, "data.num_clients", "1, where there is no partition,", num_clients)
        expect(num_negatives >= 1, "data.num_negatives", "1 or more", num_negatives)
        if self._saved is not None:
            warn_of_count(HeteroFederation, "num_clients", num_clients, len(self._saved.clients))
            num_clients, self.hparams["partition"] = len(self._saved.clients), f"file {self._saved.digest[:16]}"
        self.dataset, self.root, self.num_clients, self.partition = dataset, root, num_clients, partition
        self.partition_seed, self.val_fraction = partition_seed, val_fraction
        self.reverse, self.tie_names, self.task, self.num_negatives = reverse, tie_names, task, num_negatives
        self.statistics: dict[str, Any] = {}

    def setup(self, stage: str | None = None) -> None:
        """Reads the graph and cuts it, once."""
        if self._clients:
            return
        graph = self.read()
        partition = self._saved or self.make_partition(graph)
        self._partition_file = partition.to_bytes()
        parts = enumerate(partition.cut(graph, self.reverse), start=1)
        graphs = {f"client-{number}": canonical(part) for number, part in parts}
        self.statistics = hetero_statistics(graphs) | {"digest": partition.digest}
        settings = partition.settings | {"digest": partition.digest[:16], "reverse": self.reverse}
        links = {"num_negatives": self.num_negatives, "seed": self.partition_seed, "reverse": self.reverse}
        if self.task == "links":
            warn_of_common(partition.clients, "edges", "FedHGN's partitions are such.")
        self._clients = {
            name: client_data(self.task, part, self.tie_names, settings, links) for name, part in graphs.items()
        }

    def partition_file(self) -> bytes:
        """The content of a file that ``partition`` takes; known after ``setup``."""
        return self._partition_file

    def read(self) -> HeteroGraph:
        """The whole graph without reverse relations, with validation nodes."""
        graph = read_hetero(self.dataset, self.root) if isinstance(self.dataset, str) else self.dataset
        return with_validation(without_reverse(graph), self.val_fraction, self.partition_seed)

    def make_partition(self, graph: HeteroGraph) -> HeteroPartition:
        """Which edges of the whole graph are whose; subclasses may assign them otherwise."""
        if self.partition == "none":
            return HeteroPartition([torch.arange(graph.num_edges)], graph.content, {"partition": "none"})
        return _PARTITIONERS[self.partition](graph, self.num_clients, self.partition_seed)
