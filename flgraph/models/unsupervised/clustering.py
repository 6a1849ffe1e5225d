"""How well embeddings agree with labels that their model has never seen."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import (
    adjusted_rand_score,
    f1_score,
    normalized_mutual_info_score,
    silhouette_score,
)
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits
from torch import Tensor

_SILHOUETTE_SAMPLE = 1000
"""Embeddings that the silhouette looks at; it takes time that grows with their square."""

SIZE_WEIGHT = 0.75
"""Factor of the logarithm of a graph's size in :func:`joined`; chosen once for all data sets."""


def joined(embeddings: Tensor, nodes: Tensor) -> Tensor:
    r"""Embeddings of several models and the graphs' sizes as one row per graph; looks at no label.

    .. math::
        \left[ \frac{\mathbf{z}_G}{\lVert \mathbf{z}_G \rVert} \;\Big\Vert\; w \log n_G \right], \qquad
        \mathbf{z}_G \text{ the row of } G \text{, each column with mean 0 and deviation 1 over all graphs}

    Args:
        embeddings: of all models side by side ``[n, C]``. A column without deviation becomes 0.
        nodes: numbers of nodes :math:`n_G` ``[n]``.

    Returns:
        ``[n, C + 1]``, float64, with :math:`w` = :data:`SIZE_WEIGHT`.
    """
    points = embeddings.detach().cpu().double().numpy()
    deviation = points.std(axis=0)
    # Equal numbers have a mean that is one of them to the last bits only.
    known = deviation > 1e-9 * np.abs(points).max(axis=0)
    rows = (points - points.mean(axis=0)) / np.where(known, deviation, np.inf)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    rows /= np.where(lengths > 0, lengths, 1)
    return torch.from_numpy(np.hstack([rows, SIZE_WEIGHT * sizes(nodes).numpy()]))


def sizes(nodes: Tensor) -> Tensor:
    """Logarithms of numbers of nodes ``[n]``, float64 ``[n, 1]``; a graph without nodes counts as one with a node."""
    return nodes.detach().cpu().clamp(min=1).double().log()[:, None]


def clustering_metrics(embeddings: Tensor, labels: Tensor, num_clusters: int) -> dict[str, float]:
    """K-means on embeddings, the best of ten starts, compared with labels.

    Clusters and classes are matched one to one so that as many as possible agree (the Hungarian method). Runs on one
    thread: sums of several would be added in any order, and results differ in their last bits.

    Args:
        embeddings: ``[n, C]``, finite.
        labels: classes from 0 ``[n]``.
        num_clusters: clusters to make, at most ``n`` of them.

    Returns:
        ``accuracy`` and ``f1`` (macro) after matching, ``nmi``, ``ari``, and ``silhouette``, which looks at no label
        (that of up to 1000 embeddings; 0 for a single cluster).
    """
    points = embeddings.detach().cpu().double().numpy()
    truth = labels.cpu().numpy()
    clusters = _kmeans(points, min(num_clusters, len(points)))
    matched = match_clusters(clusters, truth)
    found = np.unique(clusters).size
    metrics = {
        "accuracy": float((matched == truth).mean()),
        "f1": float(f1_score(truth, matched, average="macro", zero_division=0.0, labels=np.unique(truth))),
        "nmi": float(normalized_mutual_info_score(truth, clusters)),
        "ari": float(adjusted_rand_score(truth, clusters)),
        "silhouette": 0.0,
    }
    if 1 < found < len(points):
        with threadpool_limits(limits=1):
            sample = min(_SILHOUETTE_SAMPLE, len(points))
            try:
                metrics["silhouette"] = float(silhouette_score(points, clusters, sample_size=sample, random_state=0))
            except ValueError:  # the sample fell into one cluster
                metrics["silhouette"] = 0.0
    return metrics


def probe_accuracy(embeddings: Tensor, labels: Tensor) -> float:
    """Accuracy of logistic regression on standardised embeddings, the mean over five stratified folds.

    There are fewer folds where a class has fewer members; it is NaN where one has a single member.

    Args:
        embeddings: ``[n, C]``, finite.
        labels: classes ``[n]``.
    """
    points, truth = embeddings.detach().cpu().double().numpy(), labels.cpu().numpy()
    sizes = np.unique(truth, return_counts=True)[1]
    folds = min(5, int(sizes.min()))
    if folds < 2 or sizes.size < 2:
        return float("nan")
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    split = StratifiedKFold(folds, shuffle=True, random_state=0)
    with threadpool_limits(limits=1):
        return float(cross_val_score(model, points, truth, cv=split).mean())


def match_clusters(clusters: NDArray[np.int64], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """The class of each point's cluster, where every class belongs to at most one cluster; -1 for what has none."""
    names, number = np.unique(clusters, return_inverse=True)
    table = np.zeros((names.size, int(labels.max()) + 1), dtype=np.int64)
    np.add.at(table, (number, labels), 1)
    rows, columns = linear_sum_assignment(table, maximize=True)
    classes = np.full(names.size, -1, dtype=np.int64)
    classes[rows] = columns
    return classes[number]


def _kmeans(points: NDArray[np.float64], clusters: int) -> NDArray[np.int64]:
    with threadpool_limits(limits=1), warnings.catch_warnings():
        # Fewer different embeddings than clusters, as of a model that tells nothing apart, make fewer clusters.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return KMeans(clusters, n_init=10, random_state=0).fit_predict(points).astype(np.int64)
