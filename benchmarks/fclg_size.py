"""How far one threshold on the size of a graph goes towards the classes of FCLG's two-class data sets.

``python -m benchmarks.fclg_size`` writes ``reproduction/fclg/size.csv``: for every threshold the accuracy and macro F1,
in percent, of "a graph below it is of one class, the others are of the other". ``docs/draw_figures.py`` draws it.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from sklearn.metrics import f1_score
from torch import Tensor

from flgraph.data import read_tu

DATASETS = ("PROTEINS", "DHFR", "NCI1")


def cuts(sizes: Tensor, labels: Tensor) -> Iterator[tuple[int, float, float]]:
    """Threshold, accuracy and macro F1, for each size that occurs; which side is which class is decided by the labels.

    Example:
        >>> import torch
        >>> found = cuts(torch.tensor([3, 4, 9]), torch.tensor([1, 0, 0]))
        >>> [(cut, round(accuracy, 2), round(f1, 2)) for cut, accuracy, f1 in found]
        [(3, 0.67, 0.4), (4, 1.0, 1.0), (9, 0.67, 0.67)]
    """
    for threshold in sizes.unique().tolist():
        below = (sizes < threshold).long()
        found = max((below, 1 - below), key=lambda side: int((side == labels).sum()))
        yield threshold, float((found == labels).double().mean()), float(f1_score(labels, found, average="macro"))


def main(args: Sequence[str] | None = None) -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("reproduction/fclg"))
    given = parser.parse_args(args)
    with open(given.out / "size.csv", "w", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(("dataset", "size", "threshold", "accuracy", "f1"))
        for dataset in DATASETS:
            graphs = read_tu(dataset)
            for size, counts in (("nodes", graphs.node_ptr.diff()), ("edges", graphs.edge_ptr.diff() // 2)):
                for threshold, accuracy, f1 in cuts(counts, graphs.y):
                    writer.writerow((dataset, size, threshold, f"{100 * accuracy:.2f}", f"{100 * f1:.2f}"))


if __name__ == "__main__":
    main()
