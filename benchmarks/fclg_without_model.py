"""What K-means finds in FCLG's data sets without training: how far the size of a graph, or a random encoder, goes.

Nothing is trained: a few numbers per graph, or the representations of graph isomorphism networks with random weights,
K-means as everywhere in the library, classes matched to clusters, beside the figures that the paper printed for trained
models. The paper tuned on clustering accuracy, so for random weights the best of all draws stands beside their mean.
"""

from __future__ import annotations

import argparse
import csv
import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import torch
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from flgraph import models
from flgraph.data import FlatGraphs, read_tu
from flgraph.data.graphs.readers import Features
from flgraph.models.unsupervised.base import EmbeddingName, embedded
from flgraph.models.unsupervised.clustering import clustering_metrics
from flgraph.nn import OneHot
from flgraph.nn.pool import graph_pool
from flgraph.reproduce import load_study

COLUMNS = ("dataset", "representation", "accuracy", "f1")
PAPER = ("FCLG", "InfoGraph-FedAvg")
EMBEDDINGS = get_args(EmbeddingName)
FEATURES: tuple[Features, ...] = ("labels", "all", "mvgrl")


def representations(dataset: str) -> Iterator[tuple[str, Tensor]]:
    """Name and ``[G, C]`` numbers of each way to describe a graph."""
    graphs = read_tu(dataset)
    nodes = graphs.node_ptr.diff().double().unsqueeze(1)
    edges = graphs.edge_ptr.diff().double().unsqueeze(1) / 2
    yield "number of nodes", nodes
    yield "logarithm of the number of nodes", nodes.log()
    sizes = StandardScaler().fit_transform(torch.cat([nodes, edges], 1).log1p().numpy())
    yield "logarithms of the numbers of nodes and edges, standardised", torch.from_numpy(sizes)
    titles: dict[Features, str] = {"all": "all node features", "mvgrl": "node features as MVGRL takes them"}
    for features, title in titles.items():
        sums = feature_sums(read_tu(dataset, features=features))
        yield f"sums of {title}", sums
        yield f"logarithms of sums of {title}", embedded(sums, "log")
        yield f"directions of sums of {title}", embedded(sums, "unit")


def feature_sums(graphs: FlatGraphs) -> Tensor:
    """Sums of node features over each graph ``[G, F]``."""
    x = graphs.x() if isinstance(graphs.x, OneHot) else graphs.x
    return graph_pool(x.double(), torch.repeat_interleave(graphs.node_ptr.diff()), len(graphs))


@torch.no_grad()
def untrained(dataset: str, draws: int) -> dict[str, list[tuple[float, float]]]:
    """Accuracy and macro F1 of encoders of drawn shapes with random weights, per kind of embedding.

    Batch normalisation takes the statistics of all graphs.
    """
    graphs = {features: read_tu(dataset, features=features) for features in FEATURES}
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in EMBEDDINGS}
    draw = random.Random(0)
    for seed in range(draws):
        data = graphs[draw.choice(FEATURES)]
        layers, channels = draw.choice((1, 2, 3, 4, 5)), draw.choice((16, 32, 64, 128))
        torch.manual_seed(seed)
        shape: Any = {"num_layers": layers, "hidden_channels": channels, "norm": draw.choice(("none", "batch"))}
        net = models.FCLG(data.x.size(1), data.num_classes, **shape).train()
        sums = net.encode(data.batch(torch.arange(len(data)))).graphs
        for kind in EMBEDDINGS:
            metrics = clustering_metrics(embedded(sums, kind), data.y, data.num_classes)
            found[kind].append((100 * metrics["accuracy"], 100 * metrics["f1"]))
    return found


def measure(dataset: str, draws: int) -> Iterator[tuple[str, str, float, float]]:
    """A row of the table for everything that is known of a data set, in percent."""
    graphs = read_tu(dataset)
    largest = graphs.y.bincount().max().item() / len(graphs)
    yield dataset, "all graphs in the largest class", 100 * largest, float("nan")
    for name, columns in representations(dataset):
        found = clustering_metrics(columns, graphs.y, graphs.num_classes)
        yield dataset, f"K-means on: {name}", 100 * found["accuracy"], 100 * found["f1"]
    for kind, pairs in untrained(dataset, draws).items():
        mean = (sum(column) / len(pairs) for column in zip(*pairs, strict=True))
        yield dataset, f"random weights, {kind}: mean of {draws} encoders", *mean
        yield dataset, f"random weights, {kind}: the best of them by accuracy (looks at labels)", *max(pairs)
    study = load_study("fclg/table2")
    for method in PAPER:
        accuracy, f1 = (study.printed(f"global_test/{name}", dataset, method)[0] for name in ("accuracy", "f1"))
        yield dataset, f"{method}, the paper's Table II", accuracy, f1


def main(args: Sequence[str] | None = None) -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--datasets", nargs="+", default=["PROTEINS", "ENZYMES", "DHFR", "NCI1"])
    parser.add_argument("--draws", type=int, default=50, help="encoders with random weights")
    parser.add_argument("--out", type=Path, default=Path("reproduction/fclg"))
    given = parser.parse_args(args)
    torch.set_num_threads(1)
    rows = [row for dataset in given.datasets for row in measure(dataset, given.draws)]
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
        "# FCLG's data sets without training",
        "",
        "Accuracy / macro F1 in percent after matching clusters to classes, by `benchmarks/fclg_without_model.py`.",
        "Nothing is trained; labels are used for matching, and where a row says so. `random weights`: graph",
        "isomorphism networks of drawn shapes (1 to 5 layers, 16 to 128 channels, with or without batch normalisation,",
        "on labels, all features or those of MVGRL), sums over nodes as they are (`raw`), their directions (`unit`) or",
        "logarithms (`log`).",
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
