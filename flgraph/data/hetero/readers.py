"""Heterogeneous graphs for node classification from files of flat arrays."""

from __future__ import annotations

from pathlib import Path

from torch_geometric.datasets import OGB_MAG

from flgraph.data.cache import ROOT, cache_folder, content_key, data_folders
from flgraph.data.checks import classes_of, edges_of, expect_offsets, require, warn_of_unused
from flgraph.data.hetero.container import HeteroGraph
from flgraph.data.hetero.schema import with_reverse
from flgraph.data.sources import least_classes, load_npz
from flgraph.errors import InputError, expect, first_line

HETERO_DATASETS = ("AIFB", "MUTAG", "BGS")
"""Names of RDF data sets."""

MAG = "ogbn-mag"

_ARRAYS = frozenset(
    (
        *("node_types", "num_nodes", "edge_types", "edge_ptr", "edge_index", "target_node_type", "labels"),
        *("train_mask", "val_mask", "test_mask", "num_classes", "name"),
        *("node_id", "node_ptr", "edge_id"),  # the authors' own numbers
    )
)


def read_hetero(name: str, root: str | Path | None = None) -> HeteroGraph:
    """Reads a graph of an RDF data set or ``ogbn-mag``, with reverse relations ``rev_...``.

    =====  ==========  =========  ==================  ======  ======  =======  =======================
    name   node types  relations  target              nodes   edges   classes  train / val / test
    =====  ==========  =========  ==================  ======  ======  =======  =======================
    AIFB            7        104  ``Personen``          7262   48810        4  112 / 28 / 36
    MUTAG           5         50  ``d``                27163  148100        2  218 / 54 / 68
    =====  ==========  =========  ==================  ======  ======  =======  =======================

    The graphs and validation nodes are those of FedHGN's authors, who had them from DGL. BGS is read in the same way,
    but no file of it was at hand for this table. They have no features; their files (``aifb.npz`` and so on, see
    :func:`read_npz`) are looked for in ``root`` and in its folder ``entities``.

    ``ogbn-mag`` is read by PyG's ``OGB_MAG`` from the folder ``mag/raw`` of ``root`` (which needs
    ``pip install 'flgraph[data]'``), or downloaded by it to the cache folder; classes are those of papers. Any other
    graph comes with :meth:`HeteroGraph.from_pyg`.

    Args:
        name: of the data set, in any case.
        root: folder of the data; ``$FLGRAPH_DATA`` when ``None``.

    Raises:
        InputError: the data set is unknown or not found, or its file is damaged.

    Example:
        >>> read_hetero("AIFB").num_edges  # doctest: +SKIP
        48810
    """
    if name.lower() == MAG:
        return _read_mag(root)
    known = known_hetero(name)
    return read_npz(locate_hetero(known, f"{known.lower()}.npz", root), name=known)


def _read_mag(root: str | Path | None) -> HeteroGraph:
    folders = data_folders(root)
    found = next((base / "mag" / "raw" for base in folders if (base / "mag" / "raw" / "relations").is_dir()), None)
    stamp = "" if found is None else content_key(str(found.resolve()), found.stat().st_mtime_ns)[:16]
    try:
        # PyG writes beside its raw files, and the data folder may not be ours.
        home = cache_folder() / "pyg" / f"{MAG}-{stamp}"
        if found is not None and not (home / "mag" / "raw").exists():
            (home / "mag").mkdir(parents=True, exist_ok=True)
            (home / "mag" / "raw").symlink_to(found.resolve())
        data = OGB_MAG(str(home))[0]
    except Exception as error:  # what PyG raises depends on its files and on the network
        got = f"{found or folders[0]} ({type(error).__name__}: {first_line(error)})"
        raise InputError(ROOT, "a folder with mag/raw for ogbn-mag", got) from error
    del data["paper"].year  # no feature of it
    return with_reverse(HeteroGraph.from_pyg(data, "paper", MAG))


def read_npz(path: str | Path, name: str | None = None) -> HeteroGraph:
    """Reads a file of flat arrays.

    These are ``node_types [T]``, ``num_nodes [T]``, ``edge_types [R, 3]``, ``edge_ptr [R + 1]``,
    ``edge_index [2, E]`` (nodes numbered within their types, relation after relation), ``target_node_type``,
    ``labels``, ``train_mask``, ``val_mask``, ``test_mask``, ``num_classes`` and ``name``.

    Args:
        path: the file.
        name: what error messages call the graph; the file's own when ``None``.

    Raises:
        InputError: the file is damaged, lacks an array, or holds values that cannot be used.
    """
    try:
        stored = load_npz(Path(path))
        types, kinds = stored["node_types"], [tuple(kind) for kind in stored["edge_types"]]
        for what, given in (("node_types", types), ("edge_types", kinds)):
            require(len(set(given)) == len(given), f"{what} in {path}", "different names", "one of them twice")
        edges, ptr = edges_of(stored["edge_index"], f"edge_index in {path}"), stored["edge_ptr"].long()
        expect_offsets(ptr, f"edge_ptr in {path}", len(kinds), edges.size(1))
        parts = edges.split(ptr.diff().tolist(), dim=1)
        warn_of_unused((key for key in stored if key not in _ARRAYS), name or str(path))
        return HeteroGraph.from_edges(
            dict(zip(types, stored["num_nodes"].tolist(), strict=True)),
            dict(zip(kinds, parts, strict=True)),
            stored["target_node_type"],
            classes_of(stored["labels"], f"labels in {path}"),
            train=stored["train_mask"],
            val=stored["val_mask"],
            test=stored["test_mask"],
            num_classes=least_classes(stored["num_classes"], f"num_classes in {path}"),
            name=name or stored["name"],
        )
    except InputError:
        raise
    except Exception as error:  # an archive may be damaged in as many ways as there are
        # The text of any other error may repeat what is in the file.
        got = f"one that cannot be read ({first_line(error) if isinstance(error, KeyError) else type(error).__name__})"
        raise InputError(str(path), "an archive of a heterogeneous graph", got) from None


def known_hetero(name: str) -> str:
    """The name of a data set as :data:`HETERO_DATASETS` spells it."""
    expect(name.upper() in HETERO_DATASETS, "data.dataset", f"one of {', '.join((*HETERO_DATASETS, MAG))}", name)
    return name.upper()


def locate_hetero(name: str, file: str, root: str | Path | None) -> Path:
    """Where a data set's file is."""
    folders = data_folders(root)
    for base in folders:
        for folder in (base, base / "entities"):
            if (folder / file).is_file():
                return folder / file
    lacks = "has none" if folders[0].is_dir() else "is no folder"
    got = f"{folders[0]}, which {lacks}" if len(folders) > 1 else "neither"
    raise InputError(ROOT, f"a folder with {file} for {name}", got)
