"""Numbers and several labels to predict, taken from public data sets that hold them as features."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flgraph.data import FlatGraphs, GraphFederation, NodeGraph, WholeGraphFederation
from flgraph.data.graphs.partition import shards as make_shards
from flgraph.data.graphs.partition import sorted_shards
from flgraph.data.graphs.readers import read_tu
from flgraph.data.nodes.readers import read_nodes
from flgraph.nn import graph_pool


class MoleculeSizes(GraphFederation):
    r"""The size of molecules, of which atoms and bonds are given: the sets BZR, COX2 and DHFR.

    What is predicted is the radius of gyration in Angstrom, :math:`\sqrt{\sum_i |r_i - \bar r|^2 / n}`, of the atoms'
    places :math:`r_i`, which the sets hold as attributes. Each set is cut at random into clients.

    Args:
        shards: clients of each set.
        root: where data lies; ``FLGRAPH_DATA`` when ``None``.
        **kwargs: see :class:`~flgraph.data.GraphFederation`.
    """

    def __init__(self, shards: int = 3, root: str | None = None, **kwargs: Any) -> None:
        super().__init__({}, None, "molecule-sizes", structure="none", task="regression", **kwargs)
        self.shards, self.root = shards, root

    def load(self) -> Iterable[tuple[str, FlatGraphs, int]]:
        """Every set, and its shards."""
        for dataset in ("BZR", "COX2", "DHFR"):
            graphs = read_tu(dataset, self.root, "all")
            places = graphs.x[:, :3].double()
            offsets = places - _mean(places, graphs.node_ptr).index_select(0, _owner(graphs.node_ptr))
            sizes = _mean(offsets.square().sum(1, keepdim=True), graphs.node_ptr).sqrt()
            atoms = read_tu(dataset, self.root, "labels").x  # by atomic number, COX2's up to bromine
            atoms = torch.nn.functional.pad(atoms, (0, 53 - atoms.size(1)))
            told = _with(graphs, atoms, sizes, "regression")
            for number, index in enumerate(make_shards(len(told), self.shards, self.split_seed), start=1):
                yield f"{dataset}-{number}", told.select(index), 1


class Elements(GraphFederation):
    """Which of eight elements the molecules of AIDS have, from nothing but how their atoms are joined.

    Oxygen, nitrogen, chlorine, fluorine, sulphur, phosphorus, sodium and bromine: all that at least one molecule in
    fifty has, and one in fifty has not. Features are degrees. Clients get molecules in the order of their mean degree.

    Args:
        shards: clients.
        root: where data lies; ``FLGRAPH_DATA`` when ``None``.
        **kwargs: see :class:`~flgraph.data.GraphFederation`.
    """

    def __init__(self, shards: int = 5, root: str | None = None, **kwargs: Any) -> None:
        super().__init__({}, None, "elements", structure="none", task="multilabel", **kwargs)
        self.shards, self.root = shards, root

    def load(self) -> Iterable[tuple[str, FlatGraphs, int]]:
        """The set, and its shards."""
        graphs = read_tu("AIDS", self.root, "degree")
        shares = _mean(read_tu("AIDS", self.root, "labels").x.double(), graphs.node_ptr)
        some = (shares > 0).double().mean(0)
        told = _with(graphs, graphs.x, (shares > 0)[:, (some > 0.02) & (some < 0.98)], "multilabel")
        degrees = graphs.edge_ptr.diff().double() / graphs.node_ptr.diff()
        for number, index in enumerate(sorted_shards(degrees, self.shards, self.split_seed), start=1):
            yield f"client-{number}", told.select(index), told.num_classes


class StructureLengths(WholeGraphFederation):
    """The length of each helix, sheet and turn in the proteins of ENZYMES, from what it is and what it is near to.

    In nanometres; the set has it in Angstrom. All proteins make one graph without edges between them; a client has the
    enzymes of one of six classes, which are the set's own.

    Args:
        dataset: the set.
        **kwargs: see :class:`~flgraph.data.WholeGraphFederation`.
    """

    def __init__(self, dataset: str = "ENZYMES", **kwargs: Any) -> None:
        super().__init__(
            dataset,
            global_fraction=0.0,
            partition_key="enzyme_class",
            task="regression",
            name="structure-lengths",
            **kwargs,
        )

    def read(self) -> NodeGraph:
        """The proteins as one graph."""
        graphs = read_tu("ENZYMES", self.root, "all")
        x = read_tu("ENZYMES", self.root, "labels").x.float()
        lengths = graphs.x[:, 1:2] / 10
        edges = graphs.edge_index.long() + graphs.node_ptr[:-1].repeat_interleave(graphs.edge_ptr.diff())
        classes = graphs.y.index_select(0, _owner(graphs.node_ptr)).numpy()
        keys = {"enzyme_class": np.char.add("class-", (classes + 1).astype(np.str_))}
        return NodeGraph(x, edges, lengths, name="ENZYMES", keys=keys, task="regression")


class Words(WholeGraphFederation):
    """Which of the ten most frequent words a paper of Cora has, from its other words and its citations.

    Args:
        dataset: the set.
        **kwargs: see :class:`~flgraph.data.WholeGraphFederation`.
    """

    hidden = 10
    """How many words are predicted."""

    def __init__(self, dataset: str = "Cora", **kwargs: Any) -> None:
        super().__init__(dataset, global_fraction=0.0, task="multilabel", name="words", **kwargs)

    def read(self) -> NodeGraph:
        """Cora with words for labels."""
        graph = read_nodes("Cora", self.root)
        words = (graph.x.to_dense() if graph.x.layout != torch.strided else graph.x) > 0
        order = words.sum(0).argsort(descending=True, stable=True)
        frequent, others = order[: self.hidden], order[self.hidden :].sort().values
        y = words.index_select(1, frequent).float()
        x = words.index_select(1, others).float().to_sparse_csr()
        return NodeGraph(x, graph.edge_index, y, name="Cora", task="multilabel")


def _owner(node_ptr: Tensor) -> Tensor:
    """Whose graph's each node is ``[N]``."""
    return torch.repeat_interleave(node_ptr.diff())


def _mean(rows: Tensor, node_ptr: Tensor) -> Tensor:
    """Means over each graph's nodes ``[G, F]``."""
    return graph_pool(rows, _owner(node_ptr), node_ptr.numel() - 1, "mean")


def _with(graphs: FlatGraphs, x: Tensor, y: Tensor, task: Any) -> FlatGraphs:
    """The same graphs with other features, and numbers or labels in place of classes."""
    return FlatGraphs(
        x,
        graphs.edge_index,
        y.float(),
        graphs.node_ptr,
        graphs.edge_ptr,
        name=graphs.name,
        undirected=graphs.undirected,
        task=task,
    )
