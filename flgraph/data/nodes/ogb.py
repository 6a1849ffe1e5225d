"""Graphs of the Open Graph Benchmark with a class on every node, from its raw tables."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, download_url, extract_zip

from flgraph.data.checks import require

OGB_FILES = ("edge.csv.gz", "node-feat.csv.gz", "node-label.csv.gz")
"""Tables without headers, in ``raw``."""

_URL = {
    "arxiv": "http://snap.stanford.edu/ogb/data/nodeproppred/arxiv.zip",
    "products": "http://snap.stanford.edu/ogb/data/nodeproppred/products.zip",
}


class OGBNodes:
    """``ogbn-arxiv`` or ``ogbn-products`` as PyG's data sets are: the only graph is number 0.

    `"Open Graph Benchmark" <https://arxiv.org/abs/2005.00687>`_. Rows of ``edge.csv.gz`` are edges, those of the other
    tables are nodes in the order of their numbers.

    Args:
        root: a folder whose ``NAME/raw`` has the tables; they are downloaded where it has none.
        name: ``arxiv`` or ``products``.

    Raises:
        InputError: pandas is missing.
    """

    def __init__(self, root: str, name: str) -> None:
        self.raw = Path(root) / name / "raw"
        if not all((self.raw / file).is_file() for file in OGB_FILES):
            archive = download_url(_URL[name], root)
            extract_zip(archive, root)
            Path(archive).unlink()
            if not self.raw.is_dir():  # the archive's folder may be called otherwise
                shutil.move(str(next(Path(root).glob("*/raw"))), self.raw)

    def __getitem__(self, number: int) -> Data:
        kinds = (np.int64, np.float32, np.int64)
        edges, x, y = (self._table(file, kind) for file, kind in zip(OGB_FILES, kinds, strict=True))
        return Data(x=x, edge_index=edges.t().contiguous(), y=y)

    def _table(self, file: str, kind: type) -> Tensor:
        needed = find_spec("pandas") is not None
        require(needed, "pandas", f"installed to read {file} (`pip install 'flgraph[data]'`)", "no such package")
        import pandas as pd

        return torch.from_numpy(pd.read_csv(self.raw / file, header=None, dtype=kind).to_numpy())
