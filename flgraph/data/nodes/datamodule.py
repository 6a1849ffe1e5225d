"""Node classification as Lightning datamodules: one client's graph, and a whole federation's."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from pytorch_lightning.utilities import rank_zero_warn
from torch import Tensor
from torch_geometric.utils import index_to_mask

from flgraph.data.cache import content_key
from flgraph.data.checks import require
from flgraph.data.federation import ClientDataModule, Federation
from flgraph.data.figures import label_figure
from flgraph.data.nodes.batching import EgoLoader, hop_offsets
from flgraph.data.nodes.communities import louvain, louvain_balanced, louvain_plus, metis, metis_plus
from flgraph.data.nodes.container import NodeGraph
from flgraph.data.nodes.files import FILES
from flgraph.data.nodes.partition import ClientNodes, Division, LocalOf, NodePartition, dirichlet, label_skew
from flgraph.data.nodes.readers import read_nodes
from flgraph.data.nodes.skew import feature_skew, natural, topology_skew
from flgraph.data.partition_file import (
    SavedPartition,
    file_title,
    is_partition_file,
    read_partition,
    warn_of_count,
)
from flgraph.data.splits import check_splits, split_of
from flgraph.data.statistics import partition_statistics
from flgraph.errors import expect
from flgraph.nn.tasks import Task, check_task

BY_CLASS = ("label_skew", "dirichlet", "louvain_plus", "metis_plus")
"""Partitions that need classes."""


class NodeDataModule(ClientDataModule):
    """One client's graph, its nodes split three ways; goes with any Trainer, federated or not.

    Loaders give :class:`~flgraph.data.EgoBatch` es; full-batch methods take :attr:`graph`, :attr:`train`, :attr:`val`
    and :attr:`test` instead. Ego-graphs for evaluation are sampled once, so that a model's metrics are one number.

    Args:
        graph: the client's graph.
        train: training nodes, numbers of ``graph``.
        val: validation nodes.
        test: test nodes.
        global_graph: a graph on which all clients test; ``None`` for none.
        batch_size: ego-graphs per training batch.
        fanouts: neighbours per node, for each hop of an ego-graph.
        epoch_fraction: training nodes that an epoch visits, as a share of all nodes of the graph, or all of them where
            they are fewer; drawn anew for each.
        eval_batch_size: ego-graphs per batch otherwise.
        query: nodes that are in query sets of meta-learning and nowhere else; where there are none, query sets are of
            training nodes.
        settings: plain values that describe how the data was made; a stopped run can only be continued with the same.

    Raises:
        InputError: a node number or a setting is out of range, the two graphs do not fit each other, or there is
            nothing to train on.
    """

    def __init__(
        self,
        graph: NodeGraph,
        train: Tensor,
        val: Tensor,
        test: Tensor,
        global_graph: NodeGraph | None = None,
        batch_size: int = 32,
        fanouts: Sequence[int] = (6, 6),
        epoch_fraction: float = 1.0,
        eval_batch_size: int = 512,
        query: Tensor | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        _check_sampling(batch_size, fanouts, epoch_fraction, eval_batch_size)
        query = train[:0] if query is None else query
        check_splits(graph.num_nodes, "node", graph.name, train=train, val=val, test=test, query=query)
        require(train.numel() > 0, "data", f"at least one training node in `{graph.name}`", "none")
        if global_graph is not None:
            sizes = [graph.num_features, graph.num_classes]
            other = [global_graph.num_features, global_graph.num_classes]
            what = f"of as many features and classes as `{graph.name}`, {sizes},"
            expect(sizes == other, "global_graph", what, other)
            expect(graph.task == global_graph.task, "global_graph", f"for {graph.task}", global_graph.task)
        self.graph, self.train, self.val, self.test, self.global_graph = graph, train, val, test, global_graph
        self.query = query
        self.batch_size, self.eval_batch_size = batch_size, eval_batch_size
        self.fanouts, self.epoch_fraction = tuple(fanouts), epoch_fraction
        everywhere = None if global_graph is None else global_graph.content
        self.settings = {
            "num_nodes": graph.num_nodes,
            "batch_size": batch_size,
            "fanouts": list(fanouts),
            "epoch_fraction": epoch_fraction,
            "content": content_key(graph.content, train, val, test, query, everywhere)[:16],
            **(settings or {}),
        }

    @property
    def num_train_samples(self) -> int:
        """Number of training nodes, the client's weight in averages."""
        return self.train.numel()

    @property
    def train_labels(self) -> Tensor:
        """Classes of the training nodes ``[n]``."""
        return self.graph.y[self.train]

    @property
    def model_args(self) -> dict[str, Any]:
        """Sizes that the data decides."""
        sizes = {"in_channels": self.graph.num_features, "num_classes": self.graph.num_classes}
        task = {} if self.graph.task == "multiclass" else {"task": self.graph.task}
        attr = self.graph.edge_attr
        return {**sizes, **task, **({} if attr is None else {"edge_channels": attr.size(1)})}

    @property
    def epoch_share(self) -> float:
        """Share of the training nodes that an epoch visits."""
        return min(1.0, self.epoch_fraction * self.graph.num_nodes / self.train.numel())

    def to(self, device: torch.device | str) -> NodeDataModule:
        """Moves the graphs, so that batches are cut on that device."""
        self.graph = self.graph.to(device)
        self.global_graph = None if self.global_graph is None else _moved(self.global_graph, device)
        parts = (self.train, self.val, self.test, self.query)
        self.train, self.val, self.test, self.query = (index.to(device) for index in parts)
        return self

    def train_dataloader(self) -> EgoLoader:
        """Shuffled ego-graphs of some training nodes, others in each epoch."""
        return self.make_loader(self.graph, self.train, self.batch_size, shuffle=True, fraction=self.epoch_share)

    def mixup_dataloader(self) -> EgoLoader:
        """Shuffled ego-graphs of all training nodes, in batches of at least the size for training.

        What a client uploads are means over these batches. A short last one would be a mean over a few nodes, or one.
        They say which positions are training nodes: no other classes are known where clients really learn.

        Raises:
            InputError: there is a single training node, or a batch is one.
        """
        count = self.train.numel()
        expect(count > 1, "data", f"two training nodes or more in `{self.graph.name}` to average over", count)
        expect(self.batch_size > 1, "data.batch_size", "2 or more: a mean over one node is that node", self.batch_size)
        trained = index_to_mask(self.train, self.graph.num_nodes)
        return self.make_loader(self.graph, self.train, self.batch_size, shuffle=True, full=True, trained=trained)

    def support_query(self, num_nodes: int) -> tuple[Any, Any]:
        """Two batches of disjoint random sets of nodes, for meta-learning.

        Both are training nodes, unless some are for query sets only.

        Args:
            num_nodes: nodes in each; half of the training nodes, or all there are for it, where these do not suffice.
        """
        support, query = self.draw_support_query(num_nodes)
        loaders = [self.make_loader(self.graph, part, part.numel()) for part in (support, query)]
        return next(iter(loaders[0])), next(iter(loaders[1]))

    def draw_support_query(self, num_nodes: int) -> tuple[Tensor, Tensor]:
        """The nodes of :meth:`support_query`, drawn from torch's default generator.

        Raises:
            InputError: there is a single training node.
        """
        if self.query.numel():
            parts = (self.train, self.query)
            support, query = (part[torch.randperm(part.numel()).to(part.device)][:num_nodes] for part in parts)
            return support, query
        count = self.train.numel()
        expect(count > 1, "data", f"two training nodes or more in `{self.graph.name}` to draw disjoint sets", count)
        order = self.train[torch.randperm(count).to(self.train.device)]
        size = max(1, min(num_nodes, count // 2))
        return order[:size], order[-size:]

    def val_dataloader(self) -> EgoLoader:
        """Ego-graphs of the validation nodes, in their order."""
        return self._evaluation(self.graph, self.val)

    def test_dataloader(self) -> EgoLoader | list[EgoLoader]:
        """Ego-graphs of the test nodes; with a global graph a list of two loaders, the second of all its nodes."""
        local = self._evaluation(self.graph, self.test)
        if self.global_graph is None:
            return local
        return [local, self._evaluation(self.global_graph, torch.arange(self.global_graph.num_nodes))]

    def predict_dataloader(self) -> EgoLoader:
        """Ego-graphs of all nodes of the client's graph, in their order there."""
        return self._evaluation(self.graph, torch.arange(self.graph.num_nodes))

    @property
    def prediction_rows(self) -> dict[str, list[Any]]:
        """All nodes by their numbers in the graph that the client's was cut from, their ids, and each one's split."""
        splits = {"train": self.train, "val": self.val, "test": self.test, "query": self.query}
        ids = {"id": self.graph.keys["id"].tolist()} if "id" in self.graph.keys else {}
        return {"node": self.graph.nodes.tolist(), **ids, "split": split_of(self.graph.num_nodes, **splits)}

    def _evaluation(self, graph: NodeGraph, index: Tensor) -> EgoLoader:
        return self.make_loader(graph, index.to(graph.y.device), self.eval_batch_size, fixed=True)

    def make_loader(self, graph: NodeGraph, index: Tensor, batch_size: int, **kwargs: Any) -> EgoLoader:
        """The loader of some nodes of a graph; subclasses may return another."""
        return EgoLoader(graph, index, batch_size, self.fanouts, **kwargs)


class NodeFederation(Federation[NodeDataModule]):
    """One graph cut into clients that each see a part of it; defaults are those of FedEgo (Zhang et al., 2022).

    A client's graph is that of its nodes and the edges between them. An organisation that brings a graph of its own is
    a federation of one client, with a name of its own.

    Args:
        dataset: a data set's name or a file, see :func:`~flgraph.data.read_nodes`, or any graph, for example
            ``NodeGraph.from_pyg(data)``.
        root: where data lies; ``FLGRAPH_DATA`` when ``None``.
        num_clients: number of clients; files and keys have their own.
        partition: how nodes are assigned: ``label_skew``, ``dirichlet``, ``feature_skew``, ``topology_skew``,
            ``louvain``, ``louvain_balanced``, ``louvain_plus``, ``metis`` or ``metis_plus``, see the functions of these
            names in :mod:`flgraph.data`; or a file that says so, see :mod:`flgraph.data.partition_file`. Every run
            writes one, ``partition.npz``.
        global_fraction: share of all nodes that becomes the global test graph, which no client sees; 0 for none.
        local_fraction: nodes that a client asks for, as a share (``label_skew``).
        local_of: of what, ``"graph"`` or ``"pool"`` (``label_skew``).
        major_labels: frequent labels per client; 3 when ``None``, or as many as there are (``label_skew``).
        major_rate: share of a client's nodes that have them (``label_skew``).
        num_test: test nodes per client; when ``None``, 300, or three in ten of fewer than 500 nodes (``label_skew``).
        val_fraction: validation nodes, as a share of a client's nodes (``label_skew``).
        exclusive_test: whether a client's test nodes are kept from the others (``label_skew``).
        num_train: training nodes per client; all that are left when ``None`` (``label_skew``).
        num_query: of what ``num_train`` leaves, the nodes per client that are in query sets of meta-learning only
            (``label_skew``).
        fractions: shares of the training, validation and test nodes of each client (the other partitions).
        alpha: concentration of the labels (``dirichlet``).
        partition_seed: of the partition; not the run's seed, so that runs differ in weights and batches only.
        normalize: whether to divide each node's features by their sum.
        batch_size: ego-graphs per training batch.
        fanouts: neighbours per node, for each hop of an ego-graph.
        epoch_fraction: training nodes that a local epoch visits, as a share of all nodes of the client, or all of them
            where they are fewer; drawn anew for each. 0.2 in FedEgo's published code.
        eval_batch_size: ego-graphs per batch otherwise.
        name: how runs on this data are called; data set and partition when ``None``.
        partition_key: a field of the data that says whose each node is, such as ``hospital``; all nodes with the same
            value are a client's, which is called so. In place of ``partition``.
        task: what a file's or PyG data set's ``y`` is: ``multiclass``, one class; ``multilabel``, 0 or 1 for each of
            several labels; ``regression``, numbers. Any graph that is given brings its own.

    Attributes:
        statistics: what :func:`~flgraph.data.partition_statistics` returns; empty before ``setup``. Label counts of
            every client are among it, and go to ``results.json`` and TensorBoard: this class divides a graph that one
            hand holds, for simulations. Where clients bring their own data there are no such statistics.

    Raises:
        InputError: data cannot be had, a setting cannot be used, or the nodes do not suffice for the partition.
    """

    client_class: ClassVar[type[NodeDataModule]] = NodeDataModule
    partitioners: ClassVar[dict[str, Callable[..., NodePartition]]] = {
        **{cut.__name__: cut for cut in (label_skew, dirichlet, feature_skew, topology_skew)},
        **{cut.__name__: cut for cut in (louvain, louvain_balanced, louvain_plus, metis, metis_plus)},
    }

    def __init__(
        self,
        dataset: str | NodeGraph,
        root: str | None = None,
        num_clients: int = 5,
        partition: str = "label_skew",
        global_fraction: float = 0.3,
        local_fraction: float = 0.3,
        local_of: LocalOf = "graph",
        major_labels: int | None = None,
        major_rate: float = 0.8,
        num_test: int | None = None,
        val_fraction: float = 0.2,
        exclusive_test: bool = False,
        num_train: int | None = None,
        num_query: int = 0,
        fractions: Sequence[float] = (0.6, 0.2, 0.2),
        alpha: float = 1.0,
        partition_seed: int = 123,
        normalize: bool = False,
        batch_size: int = 32,
        fanouts: Sequence[int] = (6, 6),
        epoch_fraction: float = 0.2,
        eval_batch_size: int = 512,
        name: str | None = None,
        partition_key: str | None = None,
        task: Task = "multiclass",
    ) -> None:
        check_task(task, "data.task")
        self.task = dataset.task if isinstance(dataset, NodeGraph) else task
        wanted = "the name of a data set or a NodeGraph, for example NodeGraph.from_pyg(data),"
        expect(isinstance(dataset, str | NodeGraph), "data.dataset", wanted, type(dataset).__name__)
        expect(isinstance(partition, str), "data.partition", "the name of one", partition)
        if isinstance(dataset, str):
            title = re.sub(r"[^\w.]+", "-", Path(dataset).stem if dataset.endswith(FILES) else dataset)
        else:
            title = dataset.name
        self._saved = read_partition(partition, "nodes", root) if is_partition_file(partition) else None
        how = f"{', '.join(self.partitioners)}, or a file .npz or .json"
        expect(self._saved is not None or partition in self.partitioners, "data.partition", f"one of {how}", partition)
        if partition_key is not None:
            wanted = "null where `partition` is given"
            expect(partition == "label_skew", "data.partition_key", wanted, partition_key)
            partition = f"key {partition_key}"
        super().__init__(name or f"{title}-{file_title(partition)}".lower(), title)
        _check_sampling(batch_size, fanouts, epoch_fraction, eval_batch_size)
        if self._saved is not None:
            warn_of_count(NodeFederation, "num_clients", num_clients, len(self._saved.clients))
            num_clients, partition = len(self._saved.clients), f"file {self._saved.digest}"
            self.hparams["partition"] = partition
        counted = [f"client-{number}" for number in range(1, num_clients + 1)]
        self._names = counted if self._saved is None else self._saved.names
        self.partition_key = partition_key
        self.dataset, self.root, self.normalize = dataset, root, normalize
        given: dict[str, Any] = {
            "num_clients": num_clients,
            "local_fraction": local_fraction,
            "global_fraction": global_fraction,
            "major_labels": major_labels,
            "major_rate": major_rate,
            "num_test": num_test,
            "val_fraction": val_fraction,
            "local_of": local_of,
            "exclusive_test": exclusive_test,
            "num_train": num_train,
            "num_query": num_query,
            "fractions": tuple(fractions),
            "alpha": alpha,
            "seed": partition_seed,
        }
        self.partition = partition
        cut = natural if partition_key is not None else self.partitioners.get(partition)
        self.partition_args = _taken(given, partition, cut)
        self.sampling: dict[str, Any] = {
            "batch_size": batch_size,
            "fanouts": tuple(fanouts),
            "epoch_fraction": epoch_fraction,
            "eval_batch_size": eval_batch_size,
        }
        self.statistics: dict[str, Any] = {}

    def figures(self) -> dict[str, Any]:
        """Tag to matplotlib figure of the partition, for TensorBoard; known after ``setup``."""
        return {"partition/labels": label_figure(self.statistics)} if self.task == "multiclass" else {}

    def setup(self, stage: str | None = None) -> None:
        """Reads the graph and cuts it, once."""
        if self._clients:
            return
        graph = self.read()
        partition = self.make_partition(graph)
        rest = partition.global_test
        everywhere = graph.subgraph(rest, f"{graph.name}, global test") if rest.numel() else None
        how = {key: list(arg) if isinstance(arg, tuple) else arg for key, arg in self.partition_args.items()}
        settings = {"partition": self.partition, "partition_seed": how.pop("seed"), "normalize": self.normalize, **how}
        clients = {}
        for name, own in zip(self._names, partition.clients, strict=True):
            # Nodes are ascending, so the position of a number among them is its number in the client's graph.
            parts = (own.train, own.val, own.test, own.query)
            train, val, test, query = (torch.searchsorted(own.nodes, index) for index in parts)
            part = graph.subgraph(own.nodes, f"{graph.name}, {name}")
            if graph.task != "multiclass":  # of what has no label nobody asks for one
                known = ~part.y.isnan().all(dim=1)
                train, val, test, query = (index[known[index]] for index in (train, val, test, query))
            further = {"query": query, "settings": settings, **self.client_args(graph, partition, own.nodes)}
            clients[name] = self.client_class(part, train, val, test, everywhere, **further)
        self._clients, self.statistics = clients, partition_statistics(graph, partition, self._names)
        assigned = [vars(own) for own in partition.clients]
        self._partition_file = SavedPartition("nodes", self._names, assigned, rest, graph.num_nodes).to_bytes()

    def partition_file(self) -> bytes:
        """The content of a file that ``partition`` takes; known after ``setup``."""
        return self._partition_file

    def read(self) -> NodeGraph:
        """The whole graph."""
        if isinstance(self.dataset, str):
            return read_nodes(self.dataset, self.root, self.normalize, self.partition_key, self.task)
        return self.dataset.normalized() if self.normalize else self.dataset

    def make_partition(self, graph: NodeGraph) -> NodePartition:
        """Which nodes of the whole graph are whose; subclasses may assign them otherwise."""
        if self._saved is not None:
            self._saved.check_range(graph.num_nodes, graph.name)
            arguments = self.partition_args
            owned = self._saved.split(graph.y, arguments["fractions"], arguments["seed"])
            return NodePartition([ClientNodes(**own) for own in owned], self._saved.global_test)
        if self.partition_key is not None:
            self._names, partition = natural(graph, self.partition_key, **self.partition_args)
            return partition
        fits = graph.task == "multiclass" or self.partition not in BY_CLASS
        expect(fits, "data.partition", f"one that needs no classes for {graph.task}, such as louvain,", self.partition)
        return self.partitioners[self.partition](graph, **self.partition_args)

    def client_args(self, graph: NodeGraph, partition: NodePartition, nodes: Tensor) -> dict[str, Any]:
        """Further arguments of the data of the client with ``nodes``; subclasses may have more."""
        return self.sampling


def _taken(given: Mapping[str, Any], partition: str, cut: Callable[..., Any] | None) -> dict[str, Any]:
    """The arguments that a function (``None``: a file) takes; a warning names others that are not the defaults."""
    taken = {"num_clients", "seed", "fractions"} if cut is None else set(inspect.signature(cut).parameters)
    taken |= Division.__annotations__.keys() if "division" in taken else set()
    # They are no mistake: a configuration may set them.
    defaults = inspect.signature(NodeFederation).parameters
    ignored = [key for key in given if key not in taken and given[key] != defaults[key].default]
    if ignored:
        rank_zero_warn(f"`data.partition: {partition}` makes no use of {', '.join(ignored)}.")
    own = {"major_labels", "num_test"}  # None means the function's own default
    return {key: value for key, value in given.items() if key in taken and not (key in own and value is None)}


_copies: WeakKeyDictionary[NodeGraph, dict[str, NodeGraph]] = WeakKeyDictionary()


def _moved(graph: NodeGraph, device: torch.device | str) -> NodeGraph:
    """The graph on a device; one copy for all clients that share it."""
    if graph.y.device == torch.device(device):
        return graph
    there = _copies.setdefault(graph, {})
    if str(device) not in there:
        there[str(device)] = graph.to(device)
    return there[str(device)]


def _check_sampling(batch_size: int, fanouts: Sequence[int], epoch_fraction: float, eval_batch_size: int) -> None:
    for name, size in (("batch_size", batch_size), ("eval_batch_size", eval_batch_size)):
        expect(isinstance(size, int) and size >= 1, f"data.{name}", "a whole number of 1 or more", size)
    hops = isinstance(fanouts, Sequence) and len(fanouts) > 0
    expect(hops, "data.fanouts", "a list of neighbours per node, one number for each hop,", fanouts)
    expect(0 < epoch_fraction <= 1, "data.epoch_fraction", "above 0 and at most 1", epoch_fraction)
    hop_offsets(fanouts)
