"""Graphs for node classification from files of one's own, and from any data set of PyG."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

import torch_geometric.datasets
from torch_geometric.data import Data, Dataset

from flgraph.data.cache import content_key, data_folders
from flgraph.data.checks import require
from flgraph.data.nodes.container import NodeGraph
from flgraph.data.sources import least_classes, load_npz, load_pt
from flgraph.errors import InputError, expect, first_line
from flgraph.nn.tasks import Task

FILES = (".npz", ".pt")
"""Endings of files that :func:`read_node_file` reads."""

_WANTED = "a file of `x`, `edge_index` and `y`"


def read_node_file(path: str | Path, key: str | None = None, task: Task = "multiclass") -> NodeGraph:
    """A graph from arrays or tensors ``x [N, F]``, ``edge_index [2, E]`` and ``y``, undirected.

    ``num_classes`` may be there, too: classes that others have and this graph has not are counted nowhere else. Nothing
    in a file is executed.

    Args:
        path: an ``.npz`` of arrays, as :func:`numpy.savez` writes it, or a ``.pt`` of a PyG graph or a dictionary
            of tensors, as ``torch.save(data, path)`` does. The graph is called like the file.
        key: see :meth:`NodeGraph.from_pyg`.
        task: what ``y`` is, see :meth:`NodeGraph.from_pyg`.

    Raises:
        InputError: the file cannot be read, or holds no such graph.
    """
    path = Path(path).expanduser()
    require(path.is_file(), "data.dataset", _WANTED, f"{path}, which is not there")
    content = load_npz(path) if path.suffix == ".npz" else load_pt(path)
    if isinstance(content, dict) and all(isinstance(field, str) for field in content):
        content = Data(**content)
    sound = isinstance(content, Data) and "_store" in vars(content)  # which a file may lack
    require(sound, "data.dataset", _WANTED, f"{path} of a {type(content).__name__}")
    least = least_classes(content.get("num_classes"), f"num_classes in {path}")
    return NodeGraph.from_pyg(content, path.stem, least, key=key, task=task)


def names_pyg(name: str) -> bool:
    """Whether it is that of a data set of PyG: ``CLASS``, or ``CLASS:NAME``."""
    kind = getattr(torch_geometric.datasets, name.partition(":")[0], None)
    return isinstance(kind, type) and issubclass(kind, Dataset)


def read_pyg_nodes(
    name: str,
    root: str | Path | None = None,
    key: str | None = None,
    task: Task = "multiclass",
) -> NodeGraph:
    """The only graph of a data set of :mod:`torch_geometric.datasets`, undirected.

    Args:
        name: ``CLASS``, or ``CLASS:NAME`` for classes that take a name, for example ``Amazon:Photo``.
        root: a folder with PyG's raw files in ``CLASS``, as PyG lays them out; ``$FLGRAPH_DATA`` when ``None``. What it
            lacks is downloaded by PyG, whose own folder is in :func:`~flgraph.data.cache.cache_folder`, with copies of
            these files; those that were changed since are copied again.
        key: see :meth:`NodeGraph.from_pyg`.
        task: what ``y`` is, see :meth:`NodeGraph.from_pyg`.

    Raises:
        InputError: PyG cannot read the data set, it has several graphs, or lacks features or classes of nodes.
    """
    kind, _, variant = name.partition(":")
    make = getattr(torch_geometric.datasets, kind)
    arguments = {"name": variant} if variant else {}
    *given, cache = data_folders(root)
    found = given[0] / kind if given else None
    target = _target(cache / "pyg", name.replace(":", "-"), found)
    try:
        if not target.is_dir():
            target.parent.mkdir(parents=True, exist_ok=True)
            # A folder of its own until all is there: an interrupted download must not pass for the data set.
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=".download-") as folder:
                new = Path(folder) / "data"
                if found is not None and found.is_dir():
                    shutil.copytree(found, new, ignore=shutil.ignore_patterns("processed"))
                make(str(new), **arguments)
                if not target.is_dir():  # another process may have been faster
                    new.rename(target)
        dataset = make(str(target), **arguments)
    except Exception as error:  # what PyG raises depends on the class, on its files and on the network
        wanted = f"a data set that PyG finds in {found or kind} or downloads"
        reason = f"{name!r} ({type(error).__name__}: {first_line(error)})"
        raise InputError("data.dataset", wanted, reason) from error
    expect(len(dataset) == 1, "data.dataset", "of a single graph", f"{name}, which has {len(dataset)}")
    return NodeGraph.from_pyg(dataset[0], name, key=key, task=task)


def _target(cache: Path, name: str, raw: Path | None) -> Path:
    """PyG's folder for the files that there are, by their names, sizes and times; without any, the newest there is."""
    files = {} if raw is None else {file.relative_to(raw): file.stat() for file in raw.rglob("*") if file.is_file()}
    own = {file: stat for file, stat in sorted(files.items()) if "processed" not in file.parts}  # not what PyG made
    if own:
        stamp = [(str(file), stat.st_size, stat.st_mtime_ns) for file, stat in own.items()]
        return cache / f"{name}-{content_key(stamp)[:16]}"
    known = [path for path in cache.glob(f"{name}*") if re.fullmatch(r"(-[0-9a-f]{16})?", path.name[len(name) :])]
    return max(known, key=lambda path: path.stat().st_mtime_ns, default=cache / name)
