"""What K-means finds in FCLG's data sets without any model: how far the size of a graph alone goes.

Nothing is trained and nothing is chosen: a few numbers per graph, K-means as everywhere in the library, classes matched
to clusters, beside the figures that the paper printed for trained models.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from flgraph.data import FlatGraphs, read_tu
from flgraph.models.clustering import clustering_metrics
from flgraph.models.graph_embedding import embedded
from flgraph.nn import OneHot
from flgraph.nn.pool import graph_sum
from flgraph.reproduce import load_study

COLUMNS = ("dataset", "representation", "accuracy", "f1")
PAPER = ("FCLG", "InfoGraph-FedAvg")


def representations(graphs: FlatGraphs) -> Iterator[tuple[str, Tensor]]:
    """Name and ``[G, C]`` numbers of each way to describe a graph."""
    nodes = graphs.node_ptr.diff().double().unsqueeze(1)
    edges = graphs.edge_ptr.diff().double().unsqueeze(1) / 2
    x = graphs.x.dense() if isinstance(graphs.x, OneHot) else graphs.x
    sums = graph_sum(x.double(), torch.repeat_interleave(graphs.node_ptr.diff()), len(nodes))
    yield "number of nodes", nodes
    yield "logarithm of the number of nodes", nodes.log()
    sizes = StandardScaler().fit_transform(torch.cat([nodes, edges], 1).log1p().numpy())
    yield "logarithms of the numbers of nodes and edges, standardised", torch.from_numpy(sizes)
    yield "sums of node features", sums
    yield "logarithms of these sums", embedded(sums, "log")
    yield "directions of these sums", embedded(sums, "unit")


def measure(dataset: str) -> Iterator[tuple[str, str, float, float]]:
    """A row of the table for everything that is known of a data set, in percent."""
    graphs = read_tu(dataset, features="all")
    largest = graphs.y.bincount().max().item() / len(graphs.y)
    yield dataset, "all graphs in the largest class", 100 * largest, float("nan")
    for name, columns in representations(graphs):
        found = clustering_metrics(columns, graphs.y, graphs.num_classes)
        yield dataset, f"K-means on: {name}", 100 * found["accuracy"], 100 * found["f1"]
    study = load_study("fclg/table2")
    for method in PAPER:
        accuracy, f1 = (study.printed(f"global_test/{name}", dataset, method)[0] for name in ("accuracy", "f1"))
        yield dataset, f"{method}, the paper's Table II", accuracy, f1


def main(args: Sequence[str] | None = None) -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--datasets", nargs="+", default=["PROTEINS", "ENZYMES", "DHFR", "NCI1"])
    parser.add_argument("--out", type=Path, default=Path("reproduction/fclg"))
    given = parser.parse_args(args)
    torch.set_num_threads(1)
    rows = [row for dataset in given.datasets for row in measure(dataset)]
    given.out.mkdir(parents=True, exist_ok=True)
    with open(given.out / "without_model.csv", "w", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows((dataset, name, _number(accuracy), _number(f1)) for dataset, name, accuracy, f1 in rows)
    text = page(rows)
    (given.out / "without_model.md").write_text(text)
    print(text)


def page(rows: Sequence[tuple[str, str, float, float]]) -> str:
    """A row per representation, a column per data set."""
    datasets = list(dict.fromkeys(row[0] for row in rows))
    cells = {(dataset, name): f"{_number(accuracy)} / {_number(f1) or '-'}" for dataset, name, accuracy, f1 in rows}
    lines = [
        "# FCLG's data sets without a model",
        "",
        "Accuracy / macro F1 in percent after matching clusters to classes, by `benchmarks/fclg_without_model.py`.",
        "Nothing is trained, and labels are used for matching only.",
        "",
        f"| | {' | '.join(datasets)} |",
        "|---" * (len(datasets) + 1) + "|",
    ]
    for name in dict.fromkeys(row[1] for row in rows):
        lines.append(f"| {name} | {' | '.join(cells.get((dataset, name), '-') for dataset in datasets)} |")
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.2f}"


if __name__ == "__main__":
    main()
