"""Chooses FCLG's hyper-parameters, which its paper does not print, without looking at a label.

Every candidate trains on nine tenths of each client's graphs. It is judged by the contrastive loss (Eq. 6, with a fixed
temperature of 0.5, so that candidates with different ones can be compared) of the global model on the rest, of all
clients together. The accuracy of K-means on each kind of embedding is written down beside it and decides nothing; what
would have been best by it is shown, too, because the paper tuned on it. Candidates are drawn from a grid with a fixed
seed, so a longer search begins with a shorter one, and what is in the CSV file is not run again. ``--features`` and
``--similarity`` search beside the grid, into a file of their own: other node features, and dot products instead of
cosines (as Eq. 5 is written).
"""

from __future__ import annotations

import argparse
import csv
import logging
import random
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import torch
from scipy.stats import spearmanr

from flgraph import callbacks, models
from flgraph.data import Diffusion, PartitionedGraphFederation, read_tu
from flgraph.federation import FederatedTrainer
from flgraph.models.unsupervised.base import EmbeddingName, embedded
from flgraph.models.unsupervised.clustering import clustering_metrics
from flgraph.nn import Similarity, instance_contrast

GRID: dict[str, list[Any]] = {
    "features": ["auto", "all"],
    "num_layers": [2, 3, 4],
    "hidden_channels": [16, 32],
    "norm": ["none", "batch"],
    "temperature": [0.1, 0.2, 0.5, 1.0],
    "lr": [1e-4, 3e-4, 1e-3, 3e-3],
    "inter_temperature": [0.2, 0.5, 1.0],
    "local_epochs": [2, 5, 10],
    "batch_size": [64, 128],
    "alpha": [0.05, 0.15, 0.3],
}
EMD = {"PROTEINS": 0.5774, "ENZYMES": 1.2667, "DHFR": 0.5694, "NCI1": 0.5995}
EMBEDDINGS = get_args(EmbeddingName)
PERCENT = [f"{kind}_{metric}" for kind in EMBEDDINGS for metric in ("accuracy", "f1")]
MEASURED = ("loss", *PERCENT, "seconds")
DOT_SCALE = 100
"""Dot products of sums over nodes are not bounded as cosines are: temperatures are so many times higher."""


def candidates(seed: int = 0) -> Iterator[dict[str, Any]]:
    """Different points of the grid, in an order that the seed decides; the first is the library's default."""
    yield {
        "features": "auto", "num_layers": 3, "hidden_channels": 32, "norm": "none", "temperature": 0.5, "lr": 1e-3,
        "inter_temperature": 0.5, "local_epochs": 5, "batch_size": 128, "alpha": 0.15,
    }  # fmt: skip
    draw, seen = random.Random(seed), set()
    while True:
        point = {name: draw.choice(values) for name, values in GRID.items()}
        if tuple(point.values()) not in seen:
            seen.add(tuple(point.values()))
            yield point


def beside_grid(point: dict[str, Any], features: str | None, similarity: str) -> dict[str, Any]:
    """The candidate with other features, or with temperatures for dot products."""
    scale = DOT_SCALE if similarity == "dot" else 1
    return {**point, "features": features or point["features"], "temperature": scale * point["temperature"]}


def measure(
    dataset: str, point: dict[str, Any], epochs: int, seed: int, folder: str, similarity: str = "cosine"
) -> dict[str, float]:
    """Trains a candidate for so many local epochs in all."""
    data = PartitionedGraphFederation(
        dataset,
        emd=EMD[dataset],
        features=point["features"],
        global_test="none",
        fractions=(0.9, 0.1, 0.0),
        batch_size=point["batch_size"],
        diffusion=Diffusion(alpha=point["alpha"]),
    )
    rounds = epochs // point["local_epochs"]
    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = FederatedTrainer(
        callbacks.FCLG(temperature=point["inter_temperature"]),
        rounds=rounds,
        local_epochs=point["local_epochs"],
        evaluate_every=rounds,
        monitor="val/loss",
        monitor_mode="min",
        accelerator="cpu",
        default_root_dir=folder,
        seed=seed,
        **quiet,
    )
    own = {name: point[name] for name in ("num_layers", "hidden_channels", "norm", "temperature", "lr")}
    own["similarity"] = similarity
    began = time.perf_counter()
    trainer.fit(models.FCLG(**own, embedding="raw"), data)
    seconds = time.perf_counter() - began
    predicted = trainer.predict()
    sums = torch.cat([torch.cat(predicted[name]) for name in data.clients])
    labels = torch.cat([data.client(name).graphs.y for name in data.clients])
    measured = {}
    for kind in EMBEDDINGS:
        found = clustering_metrics(embedded(sums, kind), labels, int(labels.max()) + 1)
        measured.update({f"{kind}_{metric}": found[metric] for metric in ("accuracy", "f1")})
    net = trainer.engine.clients[data.clients[0]].module.eval()  # type: ignore[attr-defined]
    return {**measured, "loss": held_out_loss(net, data), "seconds": seconds}


@torch.no_grad()
def held_out_loss(net: models.FCLG, data: PartitionedGraphFederation) -> float:
    """The contrastive loss on the validation graphs of all clients together."""
    views: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
    for name in data.clients:
        own = data.client(name)
        batch = own.graphs.batch(own.val)
        for found, encoded in zip(views, net.encode_views(batch, batch.adj, batch.diffused), strict=True):
            found.append(encoded.graphs)
    return float(instance_contrast(torch.cat(views[0]), torch.cat(views[1]), 0.5))


def done_before(file: Path) -> list[dict[str, Any]]:
    """The rows of an earlier search."""
    if not file.is_file():
        return []
    with open(file, newline="") as stream:
        return [{**row, **{name: float(row[name]) for name in MEASURED}} for row in csv.DictReader(stream)]


def report(dataset: str, rows: Sequence[dict[str, Any]], epochs: int, seed: int, similarity: str) -> str:
    """The two choices side by side, and all candidates in the order of the criterion."""
    ordered = sorted(rows, key=lambda row: row["loss"])
    choices = {"chosen without labels": ordered[0]}
    for kind in EMBEDDINGS:
        best = max(rows, key=lambda row: row[f"{kind}_accuracy"])
        choices[f"best accuracy of {kind} embeddings (looks at labels)"] = best
    lines = [
        f"# FCLG's hyper-parameters on {dataset}, EMD {EMD[dataset]}",
        "",
        f"{len(rows)} candidates ({similarity}), {epochs} local epochs in all, seed {seed}; by",
        "`benchmarks/fclg_search.py`. `loss` is",
        "the contrastive loss on a tenth of every client's graphs, which were not trained on: it alone decides.",
        f"K-means on nothing but the logarithm of the number of nodes: {_by_size(dataset)}.",
        *_agreement(rows),
        "",
    ]
    head = ["", *GRID, *MEASURED]
    lines += [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    lines += [_line(name, row) for name, row in choices.items()]
    lines += ["", "## All", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    lines += [_line(str(place), row) for place, row in enumerate(ordered, start=1)]
    return "\n".join(lines) + "\n"


def _by_size(dataset: str) -> str:
    """What can be had without any model."""
    graphs = read_tu(dataset)
    found = clustering_metrics(graphs.node_ptr.diff().log().unsqueeze(1), graphs.y, graphs.num_classes)
    return f"accuracy {100 * found['accuracy']:.2f}, macro F1 {100 * found['f1']:.2f}"


def _agreement(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Whether candidates with a lower loss are those with a higher accuracy."""
    if len(rows) < 3:
        return []
    found = {kind: spearmanr([r["loss"] for r in rows], [r[f"{kind}_accuracy"] for r in rows]) for kind in EMBEDDINGS}
    told = ", ".join(f"{kind} {one.statistic:+.2f} (p {one.pvalue:.3f})" for kind, one in found.items())
    return [
        f"Rank correlation (Spearman) of loss and accuracy over the candidates: {told}; below 0 where less loss is",
        "more accuracy.",
    ]


def _line(name: str, row: dict[str, Any]) -> str:
    numbers = [f"{row['loss']:.4f}", *(f"{100 * row[name]:.2f}" for name in PERCENT), f"{row['seconds']:.0f}"]
    return f"| {' | '.join([name, *(str(row[key]) for key in GRID), *numbers])} |"


def main(args: Sequence[str] | None = None) -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", choices=sorted(EMD), default="PROTEINS")
    parser.add_argument("--candidates", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=50, help="local epochs of a candidate in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--features", help="instead of the grid's")
    parser.add_argument("--similarity", choices=get_args(Similarity), default="cosine")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("reproduction/fclg"))
    given = parser.parse_args(args)
    torch.set_num_threads(given.threads)
    warnings.filterwarnings("ignore")
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    given.out.mkdir(parents=True, exist_ok=True)
    beside = [name for name in (given.features, given.similarity) if name not in (None, "cosine")]
    file = given.out / f"{'_'.join(['search', given.dataset.lower(), *beside])}.csv"
    rows = done_before(file)
    known = {tuple(str(row[name]) for name in GRID) for row in rows}
    for _, drawn in zip(range(given.candidates), candidates(), strict=False):
        point = beside_grid(drawn, given.features, given.similarity)
        key = tuple(str(value) for value in point.values())
        if key in known:
            continue
        known.add(key)
        with tempfile.TemporaryDirectory() as folder:
            measured = measure(given.dataset, point, given.epochs, given.seed, folder, given.similarity)
        row = {**point, **measured}
        rows.append(row)
        with open(file, "a", newline="") as stream:
            writer = csv.DictWriter(stream, [*GRID, *MEASURED], lineterminator="\n")
            if stream.tell() == 0:
                writer.writeheader()
            writer.writerow(row)
        print(_line(str(len(rows)), row), flush=True)
        file.with_suffix(".md").write_text(report(given.dataset, rows, given.epochs, given.seed, given.similarity))


if __name__ == "__main__":
    main()
