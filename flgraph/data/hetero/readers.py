"""Heterogeneous graphs for node classification, and their published partitions, from files of flat arrays."""

from __future__ import annotations

import os
from pathlib import Path

from flgraph.data.hetero.container import HeteroGraph
from flgraph.errors import InputError, expect

HETERO_DATASETS = ("AIFB", "MUTAG", "BGS")
"""Names that :func:`read_hetero` knows."""

SPLITS = {"random_edges": "random-edges", "random_edge_types": "random-etypes"}
"""How edges can be dealt, and what files of partitions call it."""


def read_hetero(name: str, root: str | Path | None = None) -> HeteroGraph:
    """Reads a graph of an RDF data set, with reverse relations ``rev_...``.

    =====  ==========  =========  ==================  ======  ======  =======  =======================
    name   node types  relations  target              nodes   edges   classes  train / val / test
    =====  ==========  =========  ==================  ======  ======  =======  =======================
    AIFB            7        104  ``Personen``          7262   48810        4  112 / 28 / 36
    MUTAG           5         50  ``d``                27163  148100        2  218 / 54 / 68
    =====  ==========  =========  ==================  ======  ======  =======  =======================

    The graphs and validation nodes are those of FedHGN's authors, who had them from DGL. BGS is read in the same way,
    but no file of it was at hand for this table. They have no features; their files (``aifb.npz`` and so on, see
    :meth:`HeteroGraph.from_npz`) are looked for in ``root`` and in its folder ``entities``. Any other graph comes
    with :meth:`HeteroGraph.from_pyg`.

    Args:
        name: of the data set, in any case.
        root: folder of the data; ``$FLGRAPH_DATA`` when ``None``.

    Raises:
        InputError: the data set is unknown or not found, or its file is damaged.
    """
    known = known_hetero(name)
    return HeteroGraph.from_npz(locate_hetero(known, f"{known.lower()}.npz", root), name=known)


def read_hetero_clients(name: str, split: str, num_clients: int, root: str | Path | None = None) -> list[HeteroGraph]:
    """Reads the clients of a partition by FedHGN's authors, with reverse relations.

    Args:
        name: of the data set, in any case.
        split: ``"random_edges"`` or ``"random_edge_types"``.
        num_clients: number of clients; there are files for 3 and 10 of AIFB.
        root: folder of the data; ``$FLGRAPH_DATA`` when ``None``.

    Raises:
        InputError: there is no such file, or it is damaged.
    """
    known = known_hetero(name)
    expect(split in SPLITS, "data.split", f"one of {', '.join(SPLITS)}", split)
    path = locate_hetero(known, f"{known.lower()}_{SPLITS[split]}_{num_clients}.npz", root)
    return [HeteroGraph.from_npz(path, number, f"{known}, client-{number + 1}") for number in range(num_clients)]


def known_hetero(name: str) -> str:
    """The name of a data set as :data:`HETERO_DATASETS` spells it."""
    expect(name.upper() in HETERO_DATASETS, "data.dataset", f"one of {', '.join(HETERO_DATASETS)}", name)
    return name.upper()


def locate_hetero(name: str, file: str, root: str | Path | None) -> Path:
    """Where a data set's file is."""
    chosen = root or os.environ.get("FLGRAPH_DATA")
    if not chosen:
        raise InputError(f"Expected `root` or FLGRAPH_DATA to name the folder with {file} for {name} but got neither.")
    for place in (Path(chosen).expanduser(), Path(chosen).expanduser() / "entities"):
        if (place / file).is_file():
            return place / file
    raise InputError(f"Expected `root` to be a folder with {file} for {name} but got {chosen}, which has none.")
