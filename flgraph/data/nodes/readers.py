"""Citation and hyperlink graphs with a class on every node, read by PyG from files that are there or downloaded."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import InMemoryDataset
from torch_geometric.datasets import (
    Actor,
    CitationFull,
    HeterophilousGraphDataset,
    Planetoid,
    WebKB,
    WikiCS,
    WikipediaNetwork,
)

from flgraph.data.cache import ROOT, cached, content_key, data_folders
from flgraph.data.nodes.container import NodeGraph
from flgraph.data.nodes.files import FILES, names_pyg, read_node_file, read_pyg_nodes
from flgraph.data.nodes.generated import generate_nodes, homophily_of
from flgraph.data.nodes.ogb import OGB_FILES, OGBNodes
from flgraph.errors import InputError, expect, first_line
from flgraph.nn.sparse.csr import csr
from flgraph.nn.tasks import Task

_READER_VERSION = 1
"""Part of the cache's key; raise it when the parsed tensors change."""


@dataclass(frozen=True)
class _Source:
    """Where a data set comes from.

    Attributes:
        make: PyG's data set, given its root folder.
        raw: folder of the raw files below that root.
        files: names of the raw files.
        beside: further folders below the data folder that may hold them.
        told: whether the files' names tell the data set, so that they may lie in the data folder itself.
    """

    make: Callable[[str], Any]
    raw: str
    files: tuple[str, ...]
    beside: tuple[str, ...]
    told: bool = True


def _planetoid(name: str) -> _Source:
    parts = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
    files = tuple(f"ind.{name.lower()}.{part}" for part in parts)
    return _Source(partial(Planetoid, name=name), f"{name}/raw", files, ("planetoid", f"planetoid/{name}/raw"))


def _citation_full(name: str) -> _Source:
    make = partial(CitationFull, name=name)
    return _Source(make, f"{name}/raw", (f"{name}.npz",), ("citation_full", f"citation_full/{name}/raw"))


class _Filtered(HeterophilousGraphDataset):
    """Chameleon and Squirrel without repeated nodes; their files have the form of the class's own, whose names differ.

    `"A Critical Look at the Evaluation of GNNs under Heterophily" <https://arxiv.org/abs/2302.11640>`_, Section 3.
    """

    def __init__(self, root: str, name: str) -> None:
        self.name = name
        InMemoryDataset.__init__(self, root)
        self.load(self.processed_paths[0])


def _geom_gcn(make: Callable[..., Any], name: str, raw: str, split: str) -> _Source:
    parts = ("out1_node_feature_label.txt", "out1_graph_edges.txt")
    files = (*parts, *(f"{split}_split_0.6_0.2_{number}.npz" for number in range(10)))
    return _Source(make, raw, files, (f"heterophily/{name}", f"{name}/{raw}"))


def _webkb(name: str) -> _Source:
    return _geom_gcn(partial(WebKB, name=name), name, f"{name}/raw", name)


def _wikipedia(name: str) -> _Source:
    return _geom_gcn(partial(WikipediaNetwork, name=name), name, f"{name}/geom_gcn/raw", name)


def _heterophilous(name: str, make: Callable[..., Any] = HeterophilousGraphDataset) -> _Source:
    return _Source(
        partial(make, name=name), f"{name}/raw", (f"{name}.npz",), ("heterophily", f"heterophily/{name}/raw")
    )


def _ogbn(name: str) -> _Source:
    return _Source(partial(OGBNodes, name=name), f"{name}/raw", OGB_FILES, (f"ogbn_{name}/raw",), told=False)


_SOURCES = {
    "Cora": _planetoid("Cora"),
    "CiteSeer": _planetoid("CiteSeer"),
    "PubMed": _planetoid("PubMed"),
    "DBLP": _citation_full("dblp"),
    "CoraFull": _citation_full("cora"),
    "WikiCS": _Source(partial(WikiCS, is_undirected=True), "raw", ("data.json",), ("wikics", "wikics/raw")),
    **{name: _webkb(name.lower()) for name in ("Cornell", "Texas", "Wisconsin")},
    **{name: _wikipedia(name.lower()) for name in ("Chameleon", "Squirrel")},
    "Chameleon-filtered": _heterophilous("chameleon_filtered", _Filtered),
    "Squirrel-filtered": _heterophilous("squirrel_filtered", _Filtered),
    "Actor": _geom_gcn(Actor, "actor", "raw", "film"),
    "Roman-empire": _heterophilous("roman_empire"),
    "Amazon-ratings": _heterophilous("amazon_ratings"),
    "Minesweeper": _heterophilous("minesweeper"),
    "Tolokers": _heterophilous("tolokers"),
    "Questions": _heterophilous("questions"),
    "ogbn-arxiv": _ogbn("arxiv"),
    "ogbn-products": _ogbn("products"),
}


def read_nodes(
    name: str,
    root: str | Path | None = None,
    normalize: bool = False,
    key: str | None = None,
    task: Task = "multiclass",
) -> NodeGraph:
    """Reads a graph for node classification, undirected, with the nodes, edges, features and labels of PyG's class.

    ==========  ==========================================  ======  =============  ========  =======
    name        PyG's class                                  nodes  directed edges  features  classes
    ==========  ==========================================  ======  =============  ========  =======
    Cora        ``Planetoid``                                 2708          10556      1433        7
    CiteSeer    ``Planetoid``                                 3327           9104      3703        6
    PubMed      ``Planetoid``                                19717          88648       500        3
    DBLP        ``CitationFull``; what FedEgo calls "Wiki"   17716         105734      1639        4
    CoraFull    ``CitationFull("Cora")``                     19793         126842      8710       70
    WikiCS      ``WikiCS``                                   11701         431206       300       10
    ==========  ==========================================  ======  =============  ========  =======

    And those whose neighbours are often of other classes: ``Cornell``, ``Texas``, ``Wisconsin`` (``WebKB``),
    ``Chameleon``, ``Squirrel`` (``WikipediaNetwork``; without repeated nodes ``Chameleon-filtered``,
    ``Squirrel-filtered``), ``Actor``, ``Roman-empire``, ``Amazon-ratings``, ``Minesweeper``, ``Tolokers`` and
    ``Questions`` (``HeterophilousGraphDataset``). And the large ``ogbn-arxiv`` and ``ogbn-products`` of the Open Graph
    Benchmark, whose tables need ``pip install 'flgraph[data]'`` (``arxiv/raw`` or ``ogbn_arxiv/raw``); its package is
    not needed.

    The raw files are looked for under ``root`` and then in the cache folder: in the folder itself, in ``planetoid/``,
    ``citation_full/`` or ``heterophily/``, and where PyG keeps them (``Cora/raw``); files found in none are downloaded
    by PyG to the cache folder. PyG reads all of them, once; Planetoid's are pickles, so take them from a source you
    trust.

    Others are data sets of PyG by their class, as ``Reddit`` or ``Amazon:Photo`` (:func:`read_pyg_nodes`), generated
    ones, as ``homophily-0.3`` (:func:`~flgraph.data.generate_nodes`), and files of one's own, as ``accounts.npz``
    (:func:`read_node_file`).

    Args:
        name: of the data set, those of the table in any case; or a file ``NAME.npz`` or ``NAME.pt``.
        root: folder of the data; ``$FLGRAPH_DATA`` when ``None``.
        normalize: whether to divide each node's features by their sum. Bags of words are left as they are by default,
            since FedEgo's paper says nothing else.
        key: see :meth:`NodeGraph.from_pyg`; files of one's own, PyG's and generated ones may have it.
        task: what ``y`` is, see :meth:`NodeGraph.from_pyg`; the data sets of the table have classes.

    Raises:
        InputError: the data set is unknown, neither found nor obtainable, or a file is damaged.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> import numpy as np
        >>> temporary = TemporaryDirectory()
        >>> file = Path(temporary.name) / "accounts.npz"
        >>> np.savez(file, x=np.eye(3), edge_index=np.array([[0, 1], [1, 2]]), y=np.array([0, 1, 0]))
        >>> read_nodes(str(file)).num_nodes
        3
        >>> temporary.cleanup()
    """
    known = {own.lower(): own for own in _SOURCES}
    homophily = homophily_of(name)
    if name.endswith(FILES):
        graph = read_node_file(name, key, task)
    elif homophily is not None:
        expect(task == "multiclass", "data.task", f"multiclass for {name}", task)
        graph = generate_nodes(homophily)
    elif name.lower() in known:
        expect(task == "multiclass", "data.task", f"multiclass for {name}", task)
        graph = _read_known(known[name.lower()], root)
    else:
        others = "a data set of PyG such as Amazon:Photo, homophily-H, or a file NAME.npz or NAME.pt,"
        wanted = f"one of {', '.join(_SOURCES)}, {others}"
        expect(names_pyg(name), "data.dataset", wanted, name)
        graph = read_pyg_nodes(name, root, key, task)
    return graph.normalized() if normalize else graph


def _read_known(name: str, root: str | Path | None) -> NodeGraph:
    """One of the table."""
    source = _SOURCES[name]
    folder = _locate(name, source, root)
    key = content_key("nodes", _READER_VERSION, name, [(folder / file).read_bytes() for file in source.files])
    parsed = cached(key, lambda: _parse(name, source, folder))
    classes = int(parsed["num_classes"])
    # The reader has checked all of it, and the cache its checksum.
    return NodeGraph(_features(parsed), parsed["edge_index"], parsed["y"], classes, name, validate=False)


def _locate(name: str, source: _Source, root: str | Path | None) -> Path:
    """The folder of the raw files."""
    folders = data_folders(root)
    for base in folders:
        for folder in (*([""] if source.told else []), *source.beside, source.raw, f"{name}/raw"):
            if all((base / folder / file).is_file() for file in source.files):
                return base / folder
    return _download(name, source, folders)


def _download(name: str, source: _Source, folders: list[Path]) -> Path:
    """Lets PyG download the raw files, into ``NAME/raw`` of the cache folder."""
    target = folders[-1] / name / "raw"
    try:
        folders[-1].mkdir(parents=True, exist_ok=True)
        # A folder of its own until all is there: an interrupted download must not pass for the data set.
        with tempfile.TemporaryDirectory(dir=folders[-1], prefix=".download-") as folder:
            source.make(folder)
            target.mkdir(parents=True, exist_ok=True)
            for file in source.files:
                os.replace(Path(folder) / source.raw / file, target / file)
    except Exception as error:  # what PyG's downloads raise depends on the protocol and on its libraries
        wanted = f"a folder with {source.files[0]}{' and its companions' * (len(source.files) > 1)} for {name}"
        got = f"{folders[0]}, which has none, and the download failed ({first_line(error)})"
        raise InputError(ROOT, wanted, got) from error
    return target


def _parse(name: str, source: _Source, folder: Path) -> dict[str, Tensor]:
    """All that :func:`read_nodes` needs, as PyG reads it from the raw files in ``folder``."""
    # PyG wants a folder that it can write to, and leaves a copy there that is larger than ours: dense features.
    with tempfile.TemporaryDirectory(prefix="flgraph-") as root, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the format that Planetoid's pickles were written in
        raw = Path(root) / source.raw
        raw.mkdir(parents=True)
        for file in source.files:
            _link(folder / file, raw / file)
        try:
            data = source.make(root)[0]
        except Exception as error:  # a pickle, an archive or a JSON file may be damaged in as many ways as there are
            raise InputError(str(folder), f"a folder with intact files of {name}", first_line(error)) from error
    graph = NodeGraph.from_pyg(data, name)
    return graph.parts | {
        "num_classes": torch.tensor(graph.num_classes),
        "num_features": torch.tensor(graph.num_features),
    }


def _link(file: Path, to: Path) -> None:
    try:
        to.symlink_to(file.resolve())
    except OSError:  # a file system or a user that may not have links
        shutil.copyfile(file, to)


def _features(parsed: dict[str, Tensor]) -> Tensor:
    if "x" in parsed:
        return parsed["x"]
    return csr(parsed["x_rowptr"], parsed["x_col"], parsed["x_value"], int(parsed["num_features"]))
