"""Files that clients bring, and what is made of them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

MARKER = "Zyxomma"


def write(folder: Path, **tables: Iterable[Iterable[Any]]) -> Path:
    """A CSV file for each table; its first row are the names of columns, and ``__`` in its name is ``-``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in tables.items():
        lines = (",".join("" if value is None else str(value) for value in row) + "\n" for row in rows)
        (folder / f"{name.replace('__', '-')}.csv").write_text("".join(lines))
    return folder


def ring(folder: Path, count: int = 12, **changes: Any) -> Path:
    """A ring of accounts of two classes, with a number and a text each."""
    rows = [(f"{n:03d}", "fraud" if n % 3 == 0 else "fine", n / 10, ("city", "online")[n % 2]) for n in range(count)]
    nodes = [("id", "label", "years", "branch"), *rows]
    edges = [("source", "target"), *((f"{n:03d}", f"{(n + 1) % count:03d}") for n in range(count))]
    return write(folder, **{"nodes": nodes, "edges": edges, **changes})


def paths(folder: Path, count: int = 20, **changes: Any) -> Path:
    """Paths of three and of four atoms, which are the classes."""
    sizes = list(enumerate(3 + number % 2 for number in range(count)))
    graphs = [("id", "label"), *((f"M{n}", "short" if size == 3 else "long") for n, size in sizes)]
    nodes = [("graph", "id", "element"), *((f"M{n}", k, "CN"[k % 2]) for n, size in sizes for k in range(size))]
    edges = [("graph", "source", "target"), *((f"M{n}", k, k + 1) for n, size in sizes for k in range(size - 1))]
    return write(folder, **{"graphs": graphs, "nodes": nodes, "edges": edges, **changes})


def library(folder: Path, count: int = 12, **changes: Any) -> Path:
    """Authors of two fields, with a paper each."""
    authors = [("id", "label"), *((f"a{n}", "xy"[n % 2]) for n in range(count))]
    papers = [("id", "pages"), *((f"p{n}", n) for n in range(count))]
    writes = [("source", "target"), *((f"a{n}", f"p{n}") for n in range(count))]
    return write(folder, **{"author": authors, "paper": papers, "author__writes__paper": writes, **changes})


def made(data: Any) -> Any:
    """The same datamodule, set up, in silence."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data.setup()
    return data
