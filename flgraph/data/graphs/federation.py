"""Many graphs at each client as the data of a federation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal, get_args

import torch
from pytorch_lightning.utilities import rank_zero_warn
from torch import Tensor

from flgraph.configs import tu_setting
from flgraph.data.cache import cached, content_key
from flgraph.data.checks import check_clients
from flgraph.data.federation import Federation
from flgraph.data.graphs.container import FlatGraphs
from flgraph.data.graphs.datamodule import GraphDataModule, Graphs, ViewDataModule
from flgraph.data.graphs.diffusion import Diffusion, diffused
from flgraph.data.graphs.partition import dirichlet_shards, sorted_shards
from flgraph.data.graphs.partition import shards as make_shards
from flgraph.data.graphs.readers import Features, read_tu
from flgraph.data.own import has_label
from flgraph.data.partition_file import SavedPartition, is_partition_file, read_partition, warn_of_count
from flgraph.data.splits import fewest_for, split_client
from flgraph.errors import InputError, expect
from flgraph.nn.structure import structure_embedding
from flgraph.nn.tasks import Task, check_task

Structure = Literal["rwse+dse", "dse", "rwse", "ones", "none"]


class GraphFederation(Federation[GraphDataModule]):
    """Any mapping of client name to graphs as the data of a federation.

    Every client's graphs get a structure embedding ``s`` and a stratified split.

    Args:
        graphs: client name to a flat set or an iterable of PyG graphs. Their edges stay as they are: none is turned
            round, merged or left out.
        num_classes: number of classes of each client, or one for all; largest label + 1 of each when ``None``.
        name: how runs on this data are called.
        structure: what the structure embedding ``s`` is made of; ``"none"`` leaves it out.
        dse_dim: columns of the degree part (k1 in FedStar, Eq. 5).
        rwse_dim: columns of the random-walk part (k2 in FedStar, Eq. 6).
        fractions: shares of the training, validation and test graphs.
        split_seed: seed of the splits; not the run's seed, so that runs differ in weights and batches only.
        batch_size: graphs per training batch.
        eval_batch_size: graphs per batch otherwise.
        partition: a file that says which of its graphs a client has, and its splits, see
            :mod:`flgraph.data.partition_file`; all, and by ``fractions``, when ``None``. Its clients must be those of
            the federation. Every run writes one, ``partition.npz``.
        task: what the ``y`` of PyG graphs is: ``multiclass``, one class; ``multilabel``, 0 or 1 for each of several
            labels; ``regression``, numbers; NaN where one is not known. A flat set brings its own.
        wl_scores: see :class:`GraphDataModule`.
        diffusion: how a second view of each graph is made, which FCLG and MVGRL need; none when ``None``.

    Raises:
        InputError: data or a setting cannot be used.
    """

    def __init__(
        self,
        graphs: Mapping[str, Graphs],
        num_classes: Mapping[str, int] | int | None = None,
        name: str = "graphs",
        structure: Structure = "rwse+dse",
        dse_dim: int = 16,
        rwse_dim: int = 16,
        fractions: Sequence[float] = (0.8, 0.1, 0.1),
        split_seed: int = 123,
        batch_size: int = 128,
        eval_batch_size: int = 512,
        partition: str | None = None,
        task: Task = "multiclass",
        wl_scores: bool = False,
        diffusion: Diffusion | None = None,
    ) -> None:
        super().__init__(name)
        fits = diffusion is None or isinstance(diffusion, Diffusion)
        expect(fits, "data.diffusion", "a Diffusion or null", type(diffusion).__name__)
        expect(diffusion is None or not wl_scores, "data.wl_scores", "false beside `data.diffusion`", wl_scores)
        check_task(task, "data.task")
        self.task = task
        kinds = get_args(Structure)
        expect(structure in kinds, "data.structure", f"one of {', '.join(kinds)}", structure)
        expect(batch_size >= 1, "data.batch_size", "1 or more", batch_size)
        expect(eval_batch_size >= 1, "data.eval_batch_size", "1 or more", eval_batch_size)
        for field, dim in (("dse_dim", dse_dim), ("rwse_dim", rwse_dim)):
            expect(dim >= 1, f"data.{field}", "1 or more", dim)
        expect(0 <= split_seed < 2**32, "data.split_seed", "between 0 and 2^32 - 1", split_seed)
        self.structure, self.dse_dim, self.rwse_dim = structure, dse_dim, rwse_dim
        self.fractions, self.split_seed = tuple(fractions), split_seed
        self.batch_size, self.eval_batch_size = batch_size, eval_batch_size
        self.wl_scores, self.diffusion = wl_scores, diffusion
        self._given, self._num_classes = graphs, num_classes
        self._names: list[str] = []
        self._saved = None if partition is None else read_partition(partition, "graphs")
        if self._saved is not None:
            self.hparams["partition"] = f"file {self._saved.digest}"
        self._total: int | None = None  # graphs of the data set that all clients' are of, if they are of one
        self._taken: dict[str, Tensor] = {}  # numbers of each client's graphs in the data that they were taken from
        self._parts: dict[str, dict[str, Tensor]] = {}  # the same of its splits

    @property
    def clients(self) -> list[str]:
        """Names of the clients; known after ``setup``."""
        return list(self._names)

    def client(self, name: str) -> GraphDataModule:
        """A client's data; known after ``setup``."""
        if name not in self._clients and name in self._names:
            graphs, classes = self.load_client(name)
            self._clients[name] = self._make(name, graphs, classes)
        return super().client(name)

    def release(self, name: str) -> None:
        """Lets go of a client's data, if it can be loaded again."""
        if self.names():
            self._clients.pop(name, None)

    def setup(self, stage: str | None = None) -> None:
        """Makes every client's data ready, once; where their names are known before, each when it is asked for."""
        if self._names:
            return
        self._names = self.names()
        if not self._names:
            self._clients = {name: self._make(name, graphs, classes) for name, graphs, classes in self.load()}
            self._names = list(self._clients)
        if self._saved is not None:
            wanted = f"a file with the clients of the data, {self._names},"
            expect(self._names == self._saved.names, "data.partition", wanted, self._saved.names)

    def partition_file(self) -> bytes:
        """The content of a file that ``partition`` takes; known after ``setup``."""
        for name in self._names:
            if name not in self._parts:  # its client is made in another process
                self.client(name)
                self.release(name)
        parts = [self._parts[name] for name in self._names]
        return SavedPartition("graphs", self._names, parts, total=self._total).to_bytes()

    def names(self) -> list[str]:
        """Names of the clients, where :meth:`load_client` can load one without the others; else none."""
        return []

    def load_client(self, name: str) -> tuple[FlatGraphs, int]:
        """Graphs and number of classes of one client, where there are :meth:`names`."""
        raise NotImplementedError

    def load(self) -> Iterable[tuple[str, FlatGraphs, int]]:
        """Client name, graphs and number of classes of every client, one after another."""
        check_clients(self._given)
        for name, given in self._given.items():
            graphs = given if isinstance(given, FlatGraphs) else FlatGraphs.from_pyg(given, name, self.task)
            classes = self._num_classes.get(name) if isinstance(self._num_classes, Mapping) else self._num_classes
            yield name, self.embed(graphs), graphs.num_classes if classes is None else classes

    def embed(self, graphs: FlatGraphs) -> FlatGraphs:
        """The same graphs with structure embedding and second view, from the cache if they were computed before.

        Graphs that bring a tensor ``s`` keep theirs.
        """
        if self.diffusion is not None:
            graphs = graphs.with_views({"diffused": diffused(graphs, self.diffusion)})
        if self.structure == "none" or "s" in graphs.node_tensors:
            return graphs
        where = (graphs.edge_index, graphs.node_ptr, graphs.edge_ptr)
        how = (self.structure, self.dse_dim, self.rwse_dim)
        key = content_key("structure embedding", 1, *how, *where)
        return graphs.with_tensors(cached(key, lambda: {"s": structure_embedding(*where, *how)}))

    def _make(self, name: str, graphs: FlatGraphs, num_classes: int) -> GraphDataModule:
        graphs, splits = self._split(name, graphs)
        given = (graphs, splits, num_classes, self.batch_size, self.eval_batch_size, self.settings)
        made = GraphDataModule(*given, self.wl_scores) if self.diffusion is None else ViewDataModule(*given)
        made.numbers = self._parts[name]["graphs"]
        return made

    @property
    def settings(self) -> dict[str, Any]:
        """Plain values that describe how the clients' data is made."""
        return {
            "structure": self.structure,
            "dse_dim": self.dse_dim,
            "rwse_dim": self.rwse_dim,
            "fractions": list(self.fractions),
            "split_seed": self.split_seed,
            **({} if self._saved is None else {"partition": self.hparams["partition"]}),
            **({} if self.diffusion is None else {"diffusion": asdict(self.diffusion)}),
        }

    def note_total(self, graphs: FlatGraphs) -> None:
        """Takes note of the set that all clients' graphs are from, whose size goes into partition files.

        Raises:
            InputError: the given file is of a set of another size.
        """
        self._total = len(graphs)
        if self._saved is not None:
            self._saved.check_range(len(graphs), graphs.name)

    def _split(self, name: str, graphs: FlatGraphs) -> tuple[FlatGraphs, tuple[Tensor, Tensor, Tensor]]:
        """The client's graphs, all of those given or what the file says, and its splits, in numbers of them."""
        known = self.labelled(name, graphs)  # nobody asks for a label where there is none
        if self._saved is not None:
            expect(name in self._saved.names, "data.partition", f"a file with the client `{name}`", self._saved.names)
            taken = self._saved.of(name)["graphs"]
            inside = int(taken[-1]) < len(graphs)
            expect(inside, "data.partition", f"graphs 0 to {len(graphs) - 1} for client `{name}`", int(taken[-1]))
            own = self._saved.split_of(name, graphs.y, self.fractions, self.split_seed)
            train, val, test = (torch.searchsorted(taken, own[use]) for use in ("train", "val", "test"))
            graphs, known = graphs.select(taken), known[taken]
        else:
            train, val, test = self.splits(name, graphs)
            taken = self._taken.pop(name, torch.arange(len(graphs)))
        train, val, test = (index[known[index]] for index in (train, val, test))
        named = {"train": train, "val": val, "test": test}
        self._parts[name] = {"graphs": taken, **{use: taken[index] for use, index in named.items()}}
        return graphs, (train, val, test)

    def labelled(self, name: str, graphs: FlatGraphs) -> Tensor:
        """Which of a client's graphs have a label ``[G]``, bool."""
        return has_label(graphs.y)

    def splits(self, name: str, graphs: FlatGraphs) -> tuple[Tensor, Tensor, Tensor]:
        """Numbers of a client's training, validation and test graphs; subclasses may divide them otherwise."""
        return split_client(graphs.y, self.fractions, self.split_seed, name)


def _mean_features(graphs: FlatGraphs) -> Tensor:
    """The mean of all features of each graph ``[G]``."""
    rows = graphs.x.double().sum(1, keepdim=True)
    owner = torch.repeat_interleave(graphs.node_ptr.diff())
    return rows.new_zeros(len(graphs), 1).index_add_(0, owner, rows) / graphs.node_ptr.diff().unsqueeze(1)


def _mean_degrees(graphs: FlatGraphs) -> Tensor:
    return graphs.edge_ptr.diff().double() / graphs.node_ptr.diff()


_CUTS: dict[str, Any] = {"dirichlet": None, "feature_skew": _mean_features, "topology_skew": _mean_degrees}
"""Partitions of a data set, and the numbers that some sort by."""


class TUFederation(GraphFederation):
    """Data sets of the TU collection, each one client or cut into several.

    Found under ``root`` as ``NAME.zip``, ``NAME/raw/NAME_A.txt`` or ``NAME/NAME_A.txt``, there or in a folder ``tu``;
    downloaded otherwise.

    Args:
        datasets: names, for example ``[MUTAG, ENZYMES]``.
        shards: clients per data set; with more than one they are called ``MUTAG-1``, ``MUTAG-2``, ...
        features: ``"auto"`` takes node labels as one-hots, where there are none attributes, where there are none degree
            one-hots; ``"labels"``, ``"attributes"``, ``"all"`` (attributes and labels), ``"degree"`` and ``"mvgrl"``
            (attributes, where there are none labels and degrees) are the others.
        root: where data lies; ``FLGRAPH_DATA`` when ``None``.
        name: how runs on this data are called; when ``None``, that of the setting (the file in ``configs/data``) or
            the data sets' names.
        partition: how a data set is cut into its shards: at random when ``None``; ``dirichlet`` (unequal class
            shares, :func:`~flgraph.data.dirichlet_shards`); ``feature_skew`` or ``topology_skew`` (in the order of the
            graphs' mean features or mean degrees, :func:`~flgraph.data.sorted_shards`); or a file, see
            :class:`GraphFederation`.
        alpha: concentration of the labels (``dirichlet``).
        **kwargs: see :class:`GraphFederation`; ``split_seed`` decides the shards, too.

    Raises:
        InputError: a data set cannot be had or read, or a setting cannot be used.
    """

    def __init__(
        self,
        datasets: list[str],
        shards: int = 1,
        features: Features = "auto",
        root: str | None = None,
        name: str | None = None,
        partition: str | None = None,
        alpha: float = 1.0,
        **kwargs: Any,
    ) -> None:
        cut = None if partition is None or is_partition_file(partition) else partition
        expect(cut in (None, *_CUTS), "data.partition", f"one of {', '.join(_CUTS)}, or a file .npz or .json", cut)
        expect(cut is None or shards > 1, "data.shards", f"2 or more, for `data.partition: {cut}`,", shards)
        if alpha != 1.0 and cut != "dirichlet":
            rank_zero_warn("`data.alpha` has no effect without `data.partition: dirichlet`.")
        expect(not isinstance(datasets, str), "data.datasets", "a list of data sets", datasets)
        expect(len(datasets) > 0, "data.datasets", "at least one data set", datasets)
        expect(len(set(datasets)) == len(datasets), "data.datasets", "different data sets", datasets)
        expect(shards >= 1, "data.shards", "1 or more", shards)
        joined = "-".join(dataset.lower() for dataset in datasets[:3]) + ("-etc" if len(datasets) > 3 else "")
        joined = (tu_setting(datasets) or joined) + (f"-{shards}" if shards > 1 else "") + (f"-{cut}" if cut else "")
        super().__init__({}, None, name or joined, partition=None if cut else partition, **kwargs)
        expect(self.task == "multiclass", "data.task", "multiclass: TU data sets have classes", self.task)
        self.cut, self.alpha = cut, alpha
        if self._saved is not None and len(datasets) == 1:
            warn_of_count(TUFederation, "shards", shards, len(self._saved.clients))
        self.datasets, self.shards, self.features, self.root = list(datasets), shards, features, root
        self._read: tuple[str, FlatGraphs] | None = None  # the last data set, which has further shards

    def names(self) -> list[str]:
        """Data sets, or their shards; of a single data set, a partition file's clients."""
        if self._saved is not None and len(self.datasets) == 1:
            return list(self._saved.names)
        return [name for dataset in self.datasets for name in self._shards(dataset)]

    def _shards(self, dataset: str) -> list[str]:
        return [dataset] if self.shards == 1 else [f"{dataset}-{number + 1}" for number in range(self.shards)]

    def load_client(self, name: str) -> tuple[FlatGraphs, int]:
        """Reads the client's data set, and cuts its shard from it."""
        dataset = self.datasets[0]
        if len(self.datasets) > 1:
            dataset = next(dataset for dataset in self.datasets if name in self._shards(dataset))
        if self._read is None or self._read[0] != dataset:
            self._read = None  # before the next one is read
            self._read = dataset, self.embed(read_tu(dataset, self.root, self.features))
        graphs = self._read[1]
        if len(self.datasets) == 1:
            self.note_total(graphs)
        if self.shards == 1:
            if self._saved is None:  # or else the file's other clients are of it, too
                self._read = None
            return graphs, graphs.num_classes
        enough = self.shards <= len(graphs)
        expect(enough, "data.shards", f"at most {len(graphs)}, the number of graphs of {dataset},", self.shards)
        if self._saved is not None:
            return graphs, graphs.num_classes
        index = self._cut(graphs)[self._shards(dataset).index(name)]
        self._taken[name] = index
        return graphs.select(index), graphs.num_classes

    def splits(self, name: str, graphs: FlatGraphs) -> tuple[Tensor, Tensor, Tensor]:
        """Those of the published code of GCFL and FedStar."""
        return split_client(graphs.y, self.fractions, self.split_seed, name, alike=True)

    def _cut(self, graphs: FlatGraphs) -> list[Tensor]:
        """Graph numbers of each shard of a data set."""
        n, seed = self.shards, self.split_seed
        if self.cut is None:
            return make_shards(len(graphs), n, seed)
        if self.cut != "dirichlet":
            return sorted_shards(_CUTS[self.cut](graphs), n, seed)
        try:
            return dirichlet_shards(graphs.y, n, self.alpha, seed, fewest_for(self.fractions, len(graphs) // n))
        except InputError as error:
            raise InputError(f"data.{error.field}", error.expected, error.got) from None

    @property
    def settings(self) -> dict[str, Any]:
        """As :class:`GraphFederation` has them, and how data sets are cut."""
        how = {} if self.cut is None else {"partition": self.cut, "alpha": self.alpha}
        return {**super().settings, **how}
